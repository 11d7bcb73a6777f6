/** Audio worklet: the microphone as chunks of 16 bit PCM. */

class Recorder extends AudioWorkletProcessor {
  constructor({ processorOptions: { chunk } }) {
    super();
    this.chunk = chunk;
    this.begin();
  }

  begin() {
    this.samples = new Int16Array(this.chunk);
    this.filled = 0;
  }

  process([[channel]]) {
    for (const sample of channel ?? new Float32Array(128)) {
      this.samples[this.filled++] = 32767 * Math.max(-1, Math.min(1, sample));
      if (this.filled === this.chunk) {
        this.port.postMessage(this.samples.buffer, [this.samples.buffer]);
        this.begin();
      }
    }
    return true;
  }
}

registerProcessor("recorder", Recorder);
