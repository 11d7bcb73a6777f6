/** A session over a WebSocket; when that breaks, another takes the session over. */

import { Problem } from "./problems.js";
import { apiKey, ask, socketAddress } from "./server.js";

const BROKEN = 1006; // closed without a goodbye: only then does the server hold the session
const SILENT_BEATS = 4;
const ATTEMPT_MS = 5000;
const PAUSES_MS = [0, 500, 1000, 2000, 4000, 8000, 8000]; // before each attempt: the server waits for 30 s

/**
 * Dispatches "message" (detail: a server event), "broken", "resumed" and, at the end, "ended"
 * (detail: a Problem).
 */
export class SessionSocket extends EventTarget {
  /** What the microphone gave last, so many samples of it, is said again if it got lost. */
  constructor({ keep }) {
    super();
    this.keep = keep;
    this.kept = [];
    this.taken = 0; // samples that the server has, or will have once they have come
    this.seq = 0;
    this.claim = null; // what the session is resumed with
    this.unanswered = 0;
    this.sockets = [];
    this.live = false;
    this.over = false;
  }

  /** Resolves when the session has its slot. Throws a Problem. */
  async open(session) {
    try {
      await this.dial({ type: "session.update", session }, "session.updated");
    } catch (problem) {
      if (problem.code !== "unreachable") throw problem;
      await ask("v1/models"); // a browser does not say why a socket was refused: this may
      throw new Problem("no_websocket", problem.details);
    }
    this.live = !this.over;
  }

  /** Sends one message over a new socket; resolves with the event that answers it. */
  dial(request, answer) {
    const key = apiKey();
    const protocols = ["realtime", ...(key ? [`openai-insecure-api-key.${key}`] : [])];
    const socket = new WebSocket(socketAddress("v1/realtime?duplex=1&autostart=0"), protocols);
    // One that is given up stays open until the end: its goodbye would end the session.
    this.sockets.push(socket);
    this.socket = socket;
    let answered = false;
    return new Promise((resolve, reject) => {
      socket.addEventListener("open", () => {
        this.met = true;
        if (socket === this.socket) socket.send(JSON.stringify(request));
      });
      socket.addEventListener("message", ({ data }) => {
        if (socket !== this.socket) return;
        const event = JSON.parse(data);
        if (!answered && event.type === "error") return reject(new Problem(event.error.code, event.error.param ?? "", event.error.message));
        if (event.type === "session.resync_required") return reject(new Problem("resync_required", event.reason));
        if (event.type === answer) {
          answered = true;
          resolve(event);
        }
        this.receive(event);
      });
      socket.addEventListener("close", ({ code, reason }) => {
        const lost = new Problem(this.met ? "lost" : "unreachable", `closed with ${code} ${reason}`);
        reject(lost);
        if (socket === this.socket && this.live) this.leave(lost, code === BROKEN);
      });
    });
  }

  receive(event) {
    this.unanswered = 0;
    this.seq = event.server_event_seq ?? this.seq;
    if (event.resume_token) this.claim = { session_id: event.session_id, resume_token: event.resume_token };
    this.tell("message", event);
  }

  /** The socket is gone: takes the session to another one if the server holds it. */
  leave(lost, broken) {
    this.live = false;
    if (broken && this.claim && !this.over) this.resume(lost);
    else this.end(lost);
  }

  async resume(lost) {
    this.tell("broken");
    for (const pause of PAUSES_MS) {
      await untilOnline(pause);
      if (this.over) return;
      try {
        const request = { type: "session.resume", ...this.claim, last_received_server_event_seq: this.seq };
        const resumed = await inTime(this.dial(request, "session.resumed"));
        if (this.over) return;
        this.live = true;
        this.tell("resumed");
        return this.repeat(resumed.input_samples);
      } catch (problem) {
        if (!["lost", "unreachable"].includes(problem.code)) return this.end(problem);
      }
    }
    this.end(lost);
  }

  /** Sends what the microphone gave, `samples` of it; while the socket is broken, later. */
  append(event, samples) {
    this.taken += samples;
    this.kept.push({ event, samples, end: this.taken });
    while (this.kept[0].end <= this.taken - this.keep) this.kept.shift();
    this.send(event);
  }

  repeat(taken) {
    const missing = this.kept.filter(({ end }) => end > taken);
    this.kept = [];
    this.taken = taken;
    for (const { event, samples } of missing) this.append(event, samples);
  }

  /** Asks for a sign of life, to be called once a second; without any for long the line is dead. */
  beat() {
    if (!this.live) return;
    this.unanswered += 1;
    if (this.unanswered > SILENT_BEATS) return this.leave(new Problem("lost", `nothing came for ${SILENT_BEATS} s`), true);
    this.send({ type: "session.heartbeat" });
  }

  send(event) {
    if (this.live && this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(event));
  }

  end(problem) {
    if (this.over) return;
    this.close();
    this.tell("ended", problem);
  }

  close() {
    this.over = true;
    this.live = false;
    for (const socket of this.sockets) socket.close(1000);
  }

  tell(kind, detail) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }
}

/** Waits for so long, or until the browser says that there is a network again. */
function untilOnline(ms) {
  const waiting = new AbortController();
  return new Promise((resolve) => {
    setTimeout(resolve, ms);
    addEventListener("online", resolve, waiting);
  }).finally(() => waiting.abort());
}

function inTime(attempt) {
  const late = new Problem("unreachable", `no answer within ${ATTEMPT_MS / 1000} s`);
  return Promise.race([attempt, new Promise((_, reject) => setTimeout(reject, ATTEMPT_MS, late))]);
}
