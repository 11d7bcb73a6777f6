/** How loud a stream is, and whether someone speaks in it. */

const HANG_MS = 280; // a pause between words is no end
const FLOOR = 0.004;

export class Level {
  /** `node` is any audio node; it is only listened to. */
  constructor(node, { threshold }) {
    this.rms = 0;
    this.speaking = false;
    this.threshold = threshold;
    this.noise = FLOOR;
    this.heardAt = -Infinity;
    this.node = node;
    this.analyser = new AnalyserNode(node.context, { fftSize: 2048 });
    this.samples = new Float32Array(this.analyser.fftSize);
    node.connect(this.analyser);
  }

  /** Measures the last 40 ms or so; `now` in milliseconds. */
  measure(now) {
    this.analyser.getFloatTimeDomainData(this.samples);
    let sum = 0;
    for (const sample of this.samples) sum += sample * sample;
    this.rms = Math.sqrt(sum / this.samples.length);
    // The noise floor falls at once and rises slowly, so that speech does not become noise.
    this.noise = this.rms < this.noise ? this.rms : Math.min(this.noise * 1.004 + 1e-6, 0.02);
    if (this.rms > Math.max(this.threshold, 3 * this.noise)) this.heardAt = now;
    this.speaking = now - this.heardAt < HANG_MS;
  }

  stop() {
    this.node.disconnect(this.analyser);
  }
}

/** Loudness as the eye takes it: 0 for silence, 1 for loud. */
export function visible(rms) {
  return Math.min(1, Math.max(0, 1 + Math.log10(Math.max(rms, 1e-5) / 0.5) / 2.3));
}
