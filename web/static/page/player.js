/**
 * Audio worklet: plays frames of float samples as they come.
 *
 * It begins when a little is there, and after a gap waits for as much again. Of what has piled up
 * silent frames are left out until little waits; beyond a limit anything is dropped from the oldest
 * end: delay is worse than a skip. It tells how far it has
 * played: of which response, and up to which time in it.
 */

const START_S = 0.06;
const ENOUGH_S = 0.24;
const MOST_S = 0.48;
const SILENCE = 0.004; // RMS
const REPORT_S = 0.25;

class Player extends AudioWorkletProcessor {
  constructor() {
    super();
    this.port.onmessage = ({ data }) => (data === "flush" ? this.flush() : this.push(data));
    this.underruns = 0;
    this.reportIn = 0;
    this.played = null;
    this.empty();
  }

  empty() {
    this.queue = [];
    this.offset = 0;
    this.buffered = 0;
    this.playing = false;
  }

  /** Drops what waits, and says at once where it has stopped. */
  flush() {
    this.empty();
    this.report();
  }

  /** `samples` end `endMs` after the beginning of the audio of `response`. */
  push({ samples, response, endMs }) {
    this.queue.push({ samples: new Float32Array(samples), response, endMs });
    this.buffered += this.queue.at(-1).samples.length;
    while (this.buffered > MOST_S * sampleRate) {
      this.buffered -= this.queue.shift().samples.length - this.offset;
      this.offset = 0;
    }
    if (this.buffered >= START_S * sampleRate) this.playing = true;
  }

  skipSilence() {
    while (this.offset === 0 && this.buffered > ENOUGH_S * sampleRate && silent(this.queue[0].samples)) {
      this.buffered -= this.queue.shift().samples.length;
    }
  }

  process(_, [[out]]) {
    let at = 0;
    while (this.playing && at < out.length) {
      this.skipSilence();
      const [frame] = this.queue;
      if (!frame) {
        this.playing = false;
        this.underruns += 1;
        break;
      }
      const { samples, response, endMs } = frame;
      const count = Math.min(out.length - at, samples.length - this.offset);
      out.set(samples.subarray(this.offset, this.offset + count), at);
      at += count;
      this.offset += count;
      this.buffered -= count;
      this.played = { response, ms: endMs - (1000 * (samples.length - this.offset)) / sampleRate };
      if (this.offset === samples.length) {
        this.queue.shift();
        this.offset = 0;
      }
    }
    this.reportIn -= out.length;
    if (this.reportIn <= 0) this.report();
    return true;
  }

  report() {
    this.reportIn = REPORT_S * sampleRate;
    this.port.postMessage({ buffered: this.buffered, underruns: this.underruns, played: this.played });
  }
}

function silent(samples) {
  let sum = 0;
  for (const sample of samples) sum += sample * sample;
  return sum < SILENCE ** 2 * samples.length;
}

registerProcessor("player", Player);
