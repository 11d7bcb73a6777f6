/** A call over a WebSocket: PCM in JSON, recorded and played by audio worklets. */

import { openContext } from "./audio.js";
import { takePicture } from "./camera.js";
import { Problem } from "./problems.js";
import { SessionSocket } from "./socket.js";

const RATE = 24000;
const BEAT_MS = 1000;
const PICTURE_MS = 500;
const REPEAT_S = 0.4; // what a broken socket has lost, up to what the player takes at once

/** Has the same surface as WebRtcLine. */
export class WebSocketLine extends EventTarget {
  constructor() {
    super();
    this.name = "WebSocket";
    this.over = false;
    this.buffered = 0;
    this.underruns = 0;
    this.reason = null; // why the server ended the session
    this.epoch = -1;
    this.staleEpoch = -1;
    this.networkMs = null;
    this.played = null; // how far, of which response, and when that was
    this.told = {}; // the same, as the server was told last
  }

  async open(stream, session) {
    this.tell("phase", "connecting");
    try {
      await this.prepareAudio(stream);
      await this.connect(session);
    } catch (error) {
      this.over = true;
      this.release();
      throw Problem.from(error);
    }
    this.recorder.port.onmessage = ({ data }) => this.append(data);
    this.beat = setInterval(() => this.onBeat(), BEAT_MS);
    this.tell("phase", "live");
  }

  async prepareAudio(stream) {
    if (!globalThis.AudioWorkletNode) throw new Problem("insecure");
    // Firefox records only at the microphone's own rate; the server takes any.
    this.player = openContext({ sampleRate: RATE });
    this.capture = openContext({ sampleRate: RATE });
    try {
      this.source = new MediaStreamAudioSourceNode(this.capture, { mediaStream: stream });
    } catch {
      this.capture.close();
      this.capture = openContext();
      this.source = new MediaStreamAudioSourceNode(this.capture, { mediaStream: stream });
    }
    const here = (name) => new URL(name, import.meta.url).href;
    await Promise.all([
      this.capture.audioWorklet.addModule(here("recorder.js")),
      this.player.audioWorklet.addModule(here("player.js")),
    ]);
    this.recorder = new AudioWorkletNode(this.capture, "recorder", {
      numberOfOutputs: 0,
      processorOptions: { chunk: Math.round(0.02 * this.capture.sampleRate) },
    });
    this.source.connect(this.recorder);
    this.voice = new AudioWorkletNode(this.player, "player", { numberOfInputs: 0, outputChannelCount: [1] });
    this.gain = new GainNode(this.player, { gain: this.loudness ?? 1 });
    this.voice.connect(this.gain).connect(this.player.destination);
    this.voice.port.onmessage = ({ data }) => this.onReport(data);
  }

  connect(session) {
    this.tell("phase", "preparing");
    this.socket = new SessionSocket({ keep: REPEAT_S * this.capture.sampleRate });
    this.socket.addEventListener("message", ({ detail }) => this.receive(detail));
    this.socket.addEventListener("broken", () => {
      this.networkMs = null;
      this.tell("phase", "reconnecting");
    });
    this.socket.addEventListener("resumed", () => this.onResumed());
    this.socket.addEventListener("ended", ({ detail }) => this.end(this.reason ?? detail));
    return this.socket.open({ ...session, input_audio_format: "pcm16", sample_rate_hz: this.capture.sampleRate, output_audio_format: "pcm_f32le" });
  }

  /** What was said for control just before the cut may not have come: it is said again. */
  onResumed() {
    this.told = {};
    if (this.staleEpoch >= 0 && this.epoch <= this.staleEpoch) this.send({ type: "barge_in" });
    this.tell("phase", "live");
  }

  receive(event) {
    switch (event.type) {
      case "response.output_audio.delta":
        this.epoch = event.metadata.epoch;
        if (this.epoch > this.staleEpoch) this.play(event);
        return;
      case "session.heartbeat_ack":
        this.networkMs = performance.now() - this.pinged;
        return;
      case "overlap.decision":
        if (event.action === "barge_in") this.flush();
        break;
      case "session.closed":
        if (event.reason !== "client_close") this.reason = new Problem(event.reason, event.session_id);
        break;
    }
    this.tell("message", event);
  }

  play({ delta, response_id: response, metadata }) {
    const samples = Uint8Array.from(atob(delta), (character) => character.charCodeAt(0)).buffer;
    this.voice.port.postMessage({ samples, response, endMs: metadata.audio_duration_ms }, [samples]);
  }

  append(samples) {
    const bytes = new Uint8Array(samples);
    let text = "";
    for (let start = 0; start < bytes.length; start += 8192) text += String.fromCharCode(...bytes.subarray(start, start + 8192));
    const event = { type: "input_audio_buffer.append", audio: btoa(text) };
    if (this.picture) event.video_frames = [this.picture];
    this.picture = null;
    this.socket.append(event, bytes.length / 2);
  }

  /** Shows what the camera sees, from an element that plays it; null for no more. */
  show(view) {
    clearInterval(this.looking);
    if (view) this.looking = setInterval(() => (this.picture = takePicture(view)), PICTURE_MS);
  }

  /** Goes on with another microphone. */
  listenTo(stream) {
    this.source.disconnect();
    this.source = new MediaStreamAudioSourceNode(this.capture, { mediaStream: stream });
    this.source.connect(this.recorder);
  }

  onReport({ buffered, underruns, played }) {
    this.buffered = buffered;
    this.underruns = underruns;
    this.played = played && { ...played, at: performance.now() };
  }

  onBeat() {
    this.pinged = performance.now();
    this.socket.beat();
    this.acknowledge(false);
  }

  /** Tells the server how much of the response was heard; with `truncate`, that no more will be. */
  acknowledge(truncate) {
    if (!this.played) return;
    const { response, ms, at } = this.played;
    const heard = ms + Math.min(performance.now() - at, (1000 * this.buffered) / RATE);
    if (!truncate && this.told.response === response && this.told.heard === heard) return;
    this.told = { response, heard };
    this.send({ type: "playback.ack", response_id: response, played_ms: Math.max(0, heard), truncate });
  }

  send(event) {
    this.socket?.send(event);
  }

  interrupt() {
    this.staleEpoch = this.epoch;
    this.flush();
    this.send({ type: "barge_in" });
  }

  /** What waits is not played: its words belong to no history. */
  flush() {
    this.acknowledge(true);
    this.voice.port.postMessage("flush");
    this.buffered = 0;
  }

  set volume(value) {
    this.loudness = value;
    if (this.gain) this.gain.gain.value = value;
  }

  close() {
    this.acknowledge(false);
    this.send({ type: "session.close" });
    this.end(null);
  }

  async stats() {
    return { networkMs: this.networkMs, bufferMs: (1000 * this.buffered) / RATE, lost: null, gaps: this.underruns };
  }

  end(problem) {
    if (this.over) return;
    this.over = true;
    this.release();
    this.tell("ended", problem);
  }

  release() {
    clearInterval(this.beat);
    clearInterval(this.looking);
    this.socket?.close();
    for (const context of [this.capture, this.player]) if (context && context.state !== "closed") context.close();
  }

  tell(kind, detail) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }
}
