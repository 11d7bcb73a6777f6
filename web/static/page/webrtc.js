/** A call over WebRTC: media on tracks, events on the data channel. */

import { Problem } from "./problems.js";
import { ask, iceServers } from "./server.js";

const CONNECT_MS = 8000;
const SILENT_S = 4; // the server sends all the time: without a packet for so long it is gone
const VIDEO = { maxBitrate: 600_000, maxFramerate: 15 };
const DUCK_MS = 600; // how long an interrupt stays silent if the server says nothing

/**
 * Dispatches "phase" (detail "preparing", "connecting" or "live"), "message" (detail: a server
 * event) and "ended" (detail: a Problem, or null).
 */
export class WebRtcLine extends EventTarget {
  /** `output` plays the voice; `sees` says whether the model takes a camera. */
  constructor({ context, output, sees }) {
    super();
    this.name = "WebRTC";
    this.context = context;
    this.output = output;
    this.sees = sees;
    this.over = false;
    this.last = {};
  }

  /** Resolves when both can hear each other. Throws a Problem. */
  async open(stream, session) {
    if (!globalThis.RTCPeerConnection) throw new Problem("no_webrtc");
    try {
      await this.connect(stream, session);
    } catch (error) {
      this.over = true;
      this.peer?.close();
      await this.giveUp();
      throw error;
    }
  }

  async connect(stream, session) {
    const peer = new RTCPeerConnection({ iceServers: await iceServers() });
    this.peer = peer;
    if (this.over) return peer.close();
    this.microphone = peer.addTrack(stream.getAudioTracks()[0], stream);
    // Offered in any case, so that the camera can come and go without another offer.
    if (this.sees) this.camera = peer.addTransceiver("video", { direction: "sendonly", sendEncodings: [VIDEO] }).sender;
    const channel = peer.createDataChannel("oai-events");
    this.channel = channel;
    channel.addEventListener("message", ({ data }) => this.receive(JSON.parse(data)));
    const heard = new Promise((resolve) => peer.addEventListener("track", resolve, { once: true }));
    await peer.setLocalDescription();
    await gathered(peer);
    if (this.over) return;
    this.tell("phase", "preparing");
    const body = new FormData();
    body.set("sdp", peer.localDescription.sdp);
    body.set("session", JSON.stringify(session));
    const answer = await ask("v1/realtime/calls?duplex=1", { method: "POST", body });
    this.address = answer.headers.get("Location");
    if (this.over) return this.giveUp();
    const connected = new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Problem("no_path", `ICE ${peer.iceConnectionState}`)), CONNECT_MS);
      peer.addEventListener("connectionstatechange", () => {
        if (peer.connectionState === "connected") {
          clearTimeout(timer);
          resolve();
        } else if (peer.connectionState === "failed") {
          clearTimeout(timer);
          reject(new Problem("no_path", "ICE failed"));
          if (this.voice) this.end(new Problem("lost", "ICE failed"));
        } else if (peer.connectionState === "closed") {
          this.end(null);
        }
      });
    });
    connected.catch(() => {}); // if it is never waited for, because the answer can't be taken
    this.tell("phase", "connecting");
    await peer.setRemoteDescription({ type: "answer", sdp: await answer.text() });
    const { streams: [remote] } = await heard;
    this.output.srcObject = remote;
    await Promise.all([connected, this.output.play().catch((error) => { throw new Problem("autoplay", error.message); })]);
    if (this.over) return;
    channel.addEventListener("close", () => this.end(this.reason ?? new Problem("lost", "the events channel closed")));
    this.voice = new MediaStreamAudioSourceNode(this.context, { mediaStream: remote });
    this.tell("phase", "live");
  }

  send(event) {
    if (this.channel?.readyState === "open") this.channel.send(JSON.stringify(event));
  }

  /** Shows what the camera sees, from an element that plays it; null for no more. */
  show(view) {
    this.camera?.replaceTrack(view?.srcObject.getVideoTracks()[0] ?? null);
  }

  /** Goes on with another microphone. */
  listenTo(stream) {
    this.microphone.replaceTrack(stream.getAudioTracks()[0]);
  }

  /** Silence at once; what the server has sent already is on its way through the browser. */
  interrupt() {
    this.duck(DUCK_MS);
    this.send({ type: "barge_in" });
  }

  set volume(value) {
    this.loudness = value;
    if (!this.ducked) this.output.volume = value;
  }

  /** Says goodbye. */
  close() {
    this.end(null);
  }

  /** Gives the line back that the server holds for a call which did not come about. */
  async giveUp() {
    const id = this.address?.split("/").at(-1);
    this.address = null;
    if (id) await ask(`v1/realtime/calls/${id}/hangup`, { method: "POST", keepalive: true }).catch(() => {});
  }

  /** Of the last second: the way to the server and back, the wait in the browser, what was lost. */
  async stats() {
    const found = { networkMs: null, bufferMs: null, lost: null };
    for (const report of (await this.peer.getStats()).values()) {
      if (report.type === "candidate-pair" && report.nominated && report.currentRoundTripTime !== undefined) {
        found.networkMs = 1000 * report.currentRoundTripTime;
      } else if (report.type === "inbound-rtp" && report.kind === "audio") {
        const { jitterBufferDelay: delay, jitterBufferEmittedCount: count, packetsLost, packetsReceived } = report;
        const since = this.last;
        if (count > (since.count ?? 0)) found.bufferMs = (1000 * (delay - (since.delay ?? 0))) / (count - (since.count ?? 0));
        const packets = packetsLost + packetsReceived;
        this.silent = packetsReceived === since.packetsReceived ? this.silent + 1 : 0;
        if (this.silent >= SILENT_S) this.end(new Problem("lost", `nothing came for ${SILENT_S} s`));
        found.lost = packets ? packetsLost / packets : 0;
        this.last = { delay, count, packetsReceived, bufferMs: found.bufferMs };
      } else if (report.type === "remote-inbound-rtp" && report.kind === "audio") {
        found.lostUp = report.fractionLost;
      }
    }
    return found;
  }

  receive(event) {
    if (event.type === "output_audio_buffer.cleared") this.duck(this.last.bufferMs ?? 120);
    if (event.type === "session.closed" && event.reason !== "client_close") this.reason = new Problem(event.reason, event.session_id);
    this.tell("message", event);
  }

  duck(ms) {
    this.ducked = true;
    this.output.volume = 0;
    this.output.muted = true; // where a page can't set the volume
    clearTimeout(this.ducking);
    this.ducking = setTimeout(() => {
      this.ducked = false;
      this.output.volume = this.loudness ?? 1;
      this.output.muted = false;
    }, ms);
  }

  end(problem) {
    if (this.over) return;
    this.over = true;
    this.send({ type: "session.close" });
    if (!this.voice) this.giveUp();
    this.peer?.close();
    clearTimeout(this.ducking);
    this.output.muted = false;
    this.output.srcObject = null;
    this.tell("ended", problem);
  }

  tell(kind, detail) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }
}

/** Waits for this machine's own addresses, which is quick; a STUN server may take a second. */
function gathered(peer) {
  if (peer.iceGatheringState === "complete") return null;
  return new Promise((resolve) => {
    setTimeout(resolve, 1000);
    peer.addEventListener("icegatheringstatechange", () => {
      if (peer.iceGatheringState === "complete") resolve();
    });
  });
}
