/** One conversation: a microphone, a line to the server, and what is seen of both voices. */

import { openContext } from "./audio.js";
import { openCamera } from "./camera.js";
import { Level } from "./level.js";
import { openMicrophone } from "./microphone.js";
import { Problem } from "./problems.js";
import { STEP_MS } from "./timeline.js";
import { WebRtcLine } from "./webrtc.js";
import { WebSocketLine } from "./websocket.js";

const USER_THRESHOLD = 0.012;
const MODEL_THRESHOLD = 0.006;
const STATS_MS = 1000;
const RETRY_AS_WEBSOCKET = new Set(["no_webrtc", "no_path", "http_404", "http_405", "not_found"]);

/**
 * Dispatches "talk" (detail: asking, connecting, preparing, listening, hearing, speaking, both,
 * paused or reconnecting), "step" (both levels, for every 40 ms), "words" (a piece of the model's text), "stats", "refused"
 * (a Problem that ends nothing), "camera" (whether it is on) and "ended" (a Problem, or null).
 */
export class Conversation extends EventTarget {
  /** `output` plays the voice, `view` what the camera sees; `sees`: the model takes a camera. */
  constructor({ output, view, frameMs, sees }) {
    super();
    this.output = output;
    this.view = view;
    this.frameMs = frameMs;
    this.sees = sees;
    this.muted = false;
    this.began = false;
    this.broken = false;
    this.over = false;
    this.talk = "idle";
  }

  /** Resolves when both can hear each other, or when it was ended before. Throws a Problem. */
  async start({ microphone, session, transport }) {
    try {
      this.setTalk("asking");
      this.wanted = microphone;
      this.stream = await openMicrophone(microphone);
      this.mute = this.muted; // which may have been chosen while the browser asked
      if (!this.over) {
        this.context = openContext();
        await this.connect(session, transport);
      }
    } catch (error) {
      this.stop();
      if (this.over) return;
      this.over = true;
      throw Problem.from(error);
    }
    if (this.over) {
      this.line?.close();
      this.stop();
    }
  }

  async connect(session, transport) {
    this.setTalk("connecting");
    const lines = { webrtc: [WebRtcLine], websocket: [WebSocketLine], auto: [WebRtcLine, WebSocketLine] }[transport];
    for (const [index, Line] of lines.entries()) {
      const line = new Line({ context: this.context, output: this.output, sees: this.sees });
      this.listenTo(line);
      try {
        await line.open(this.stream, session);
        return;
      } catch (error) {
        const last = index === lines.length - 1;
        if (last || this.over || !RETRY_AS_WEBSOCKET.has(error.code)) throw error;
      }
    }
  }

  listenTo(line) {
    this.line = line;
    line.volume = this.loudness ?? 1;
    line.addEventListener("phase", ({ detail }) => {
      this.broken = detail === "reconnecting";
      if (detail !== "live") this.setTalk(detail);
      else if (!this.began) this.live();
    });
    line.addEventListener("message", ({ detail }) => this.receive(detail));
    line.addEventListener("ended", ({ detail }) => this.end(detail));
  }

  live() {
    this.began = true;
    this.hearUser();
    this.model = new Level(this.line.voice, { threshold: MODEL_THRESHOLD });
    this.steppedAt = performance.now() - STEP_MS;
    this.stepping = setInterval(() => this.step(), STEP_MS);
    this.counting = setInterval(() => this.count(), STATS_MS);
    this.step();
    this.keepAwake();
    this.returning = new AbortController();
    document.addEventListener("visibilitychange", () => this.keepAwake(), this.returning);
  }

  /** Looks at the microphone's level, and for its end: one that is unplugged ends its track. */
  hearUser() {
    this.user?.stop();
    this.user = new Level(new MediaStreamAudioSourceNode(this.context, { mediaStream: this.stream }), { threshold: USER_THRESHOLD });
    const { stream } = this;
    const unplugged = () => stream === this.stream && this.changeMicrophone({ ...this.wanted, deviceId: "" }, "microphone_changed");
    stream.getAudioTracks()[0].addEventListener("ended", unplugged);
  }

  /** Goes on with another microphone, or ends if there is none; `notice` says why, if it must. */
  async changeMicrophone(wanted, notice = null) {
    if (!this.began || this.over) return;
    try {
      const stream = await openMicrophone(wanted);
      const old = this.stream;
      this.stream = stream;
      this.mute = this.muted;
      for (const track of old.getTracks()) track.stop();
      if (this.over) return this.stop();
      this.line.listenTo(stream);
      this.hearUser();
      if (notice) this.tell("refused", new Problem(notice, stream.getAudioTracks()[0].label));
    } catch (error) {
      if (notice) this.end(Problem.from(error));
      else this.tell("refused", Problem.from(error));
    }
  }

  /** Switches the camera on or off. */
  async setCamera(on) {
    if (!this.began || this.over) return;
    try {
      const stream = on ? await openCamera() : null;
      this.closeCamera();
      this.camera = stream;
      if (this.over) return this.closeCamera();
      this.view.srcObject = stream;
      if (stream) {
        await this.view.play();
        stream.getVideoTracks()[0].addEventListener("ended", () => stream === this.camera && this.setCamera(false));
      }
      this.line.show(stream && this.view);
      this.tell("camera", on);
    } catch (error) {
      this.closeCamera();
      this.tell("camera", false);
      this.tell("refused", Problem.from(error));
    }
  }

  closeCamera() {
    for (const track of this.camera?.getTracks() ?? []) track.stop();
    this.camera = this.view.srcObject = null;
  }

  /**
   * A phone whose screen goes dark takes the microphone away. To be asked again when the page is
   * back in view: it holds for as long as it is.
   */
  async keepAwake() {
    if (document.hidden) return;
    try {
      this.awake = await navigator.wakeLock?.request("screen");
      if (this.over) this.awake?.release();
    } catch {
      // refused to a tab that is away, or for want of battery: the call goes on
    }
  }

  step() {
    const now = performance.now();
    this.user.measure(now);
    this.model.measure(now);
    const unheard = this.muted || this.broken;
    const user = unheard ? 0 : this.user.rms;
    const userSpeaks = !unheard && this.user.speaking;
    const modelSpeaks = this.model.speaking;
    const paused = this.context.state !== "running";
    this.setTalk(this.broken ? "reconnecting" : paused ? "paused" : userSpeaks ? (modelSpeaks ? "both" : "hearing") : modelSpeaks ? "speaking" : "listening");
    // The timers of a tab that is away are rare: what was missed is made up for.
    for (; this.steppedAt + STEP_MS <= now + STEP_MS / 2; this.steppedAt += STEP_MS) {
      this.tell("step", { user, model: this.model.rms, userSpeaks, modelSpeaks, muted: unheard, now: this.steppedAt });
    }
  }

  async count() {
    const stats = await this.line.stats();
    if (this.over) return;
    // From a word to its answer's arrival: half the way out, a frame, half the way back, the wait
    // in the browser. What the model adds by thinking is not in it.
    const { networkMs, bufferMs } = stats;
    if (networkMs !== null && bufferMs !== null) stats.delayMs = networkMs + this.frameMs + bufferMs;
    this.tell("stats", stats);
  }

  receive(event) {
    switch (event.type) {
      case "response.output_audio_transcript.delta":
      case "response.output_text.delta":
        this.tell("words", event.delta);
        break;
      case "error":
        this.tell("refused", new Problem(event.error.code, event.error.param ?? "", event.error.message));
        break;
    }
  }

  set mute(muted) {
    this.muted = muted;
    for (const track of this.stream?.getAudioTracks() ?? []) track.enabled = !muted;
  }

  set volume(value) {
    this.loudness = value;
    if (this.line) this.line.volume = value;
  }

  interrupt() {
    if (this.began) this.line.interrupt();
  }

  /** Hangs up. */
  close() {
    if (this.line && !this.line.over) this.line.close();
    this.end(null);
  }

  end(problem) {
    if (this.over) return;
    this.over = true;
    this.stop();
    this.tell("ended", problem);
  }

  stop() {
    clearInterval(this.stepping);
    clearInterval(this.counting);
    this.returning?.abort();
    this.awake?.release();
    if (this.camera) this.closeCamera();
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    if (this.context && this.context.state !== "closed") this.context.close();
  }

  setTalk(talk) {
    if (this.talk === talk || this.over) return;
    this.talk = talk;
    this.tell("talk", talk);
  }

  tell(kind, detail) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }
}
