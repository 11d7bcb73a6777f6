/**
 * Audio worklet: plays frames of float samples as they come.
 *
 * It begins when a little is there, and after a gap waits for as much again. What piles up beyond
 * a limit is dropped from its oldest end: delay is worse than a skip.
 */

const START_S = 0.06;
const MOST_S = 0.48;
const REPORT_S = 0.25;

class Player extends AudioWorkletProcessor {
  constructor() {
    super();
    this.port.onmessage = ({ data }) => (data === "flush" ? this.flush() : this.push(new Float32Array(data)));
    this.underruns = 0;
    this.reportIn = 0;
    this.flush();
  }

  flush() {
    this.queue = [];
    this.offset = 0;
    this.buffered = 0;
    this.playing = false;
  }

  push(frame) {
    this.queue.push(frame);
    this.buffered += frame.length;
    while (this.buffered > MOST_S * sampleRate) {
      this.buffered -= this.queue.shift().length - this.offset;
      this.offset = 0;
    }
    if (this.buffered >= START_S * sampleRate) this.playing = true;
  }

  process(_, [[out]]) {
    let at = 0;
    while (this.playing && at < out.length) {
      const [frame] = this.queue;
      if (!frame) {
        this.playing = false;
        this.underruns += 1;
        break;
      }
      const count = Math.min(out.length - at, frame.length - this.offset);
      out.set(frame.subarray(this.offset, this.offset + count), at);
      at += count;
      this.offset += count;
      this.buffered -= count;
      if (this.offset === frame.length) {
        this.queue.shift();
        this.offset = 0;
      }
    }
    this.reportIn -= out.length;
    if (this.reportIn <= 0) {
      this.reportIn = REPORT_S * sampleRate;
      this.port.postMessage({ buffered: this.buffered, underruns: this.underruns });
    }
    return true;
  }
}

registerProcessor("player", Player);
