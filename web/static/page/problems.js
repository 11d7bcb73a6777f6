/** What can go wrong, in words for the person at the page, each with what helps. */

const local = ["localhost", "127.0.0.1", "[::1]"];

function secureAddress() {
  const here = location.host;
  return local.includes(location.hostname)
    ? `http://${here}`
    : `https://${here} (start the server with --tls self-signed) or, on the server's own machine, http://localhost:${location.port || 80}`;
}

const gone = () => ["The call could not be taken up again", "The server has ended it meanwhile. Start again: a new call begins."];

const WORDS = {
  insecure: () => ["The microphone needs https or localhost", `Browsers give a page the microphone only there. Open ${secureAddress()}.`],
  no_microphone_api: () => ["This browser has no microphone access", "Use a current Chrome, Firefox, Safari or Edge."],
  NotAllowedError: () => ["The microphone is blocked", "Allow it for this page: the icon beside the address opens the permissions. Then start again."],
  NotFoundError: () => ["No microphone was found", "Plug one in, or choose another in the settings."],
  OverconstrainedError: () => ["The chosen microphone is gone", "Choose another in the settings."],
  NotReadableError: () => ["The microphone can't be opened", "Another program may be using it. Close that, then start again."],
  microphone_changed: () => ["The microphone is gone", "The call goes on with another one; choose in the settings which."],
  camera_blocked: () => ["The camera is blocked", "Allow it for this page: the icon beside the address opens the permissions. The call goes on without."],
  camera: () => ["The camera can't be opened", "Is one plugged in, or is another program using it? The call goes on without."],
  autoplay: () => ["The browser does not play the voice", "Allow this page to play sound: the icon beside the address opens the permissions. Then start again."],
  unreachable: () => ["The server does not answer", "Is it still running? Start it again with `duplex serve`: this page goes on when it is back."],
  invalid_api_key: () => ["This server wants an API key", "Whoever runs it has one. It stays in this browser tab."],
  wrong_api_key: () => ["This server does not take that API key", "Enter it again, or ask whoever runs it for one. It stays in this browser tab."],
  no_websocket: () => ["The server does not take the connection", `It answers, but not to a WebSocket: a proxy between may not pass them on, other tabs may have too many connections, or the server needs --allow-origin ${location.origin}.`],
  origin_not_allowed: () => ["This page may not use the server", `Start the server with --allow-origin ${location.origin}.`],
  resource_exhausted: () => ["No room for another call"], // the server says whether its slots or its model are busy
  too_many_connections: () => ["Too many connections", "Close other tabs of this page, then try again."],
  engine_unavailable: () => ["The model is still loading", "Give it a few seconds, then start again."],
  draining: () => ["The server is shutting down", "Try again when it is back."],
  no_path: () => ["No way through the network for sound", "A firewall stands between. Choose WebSocket under Settings, Advanced; or have the server's ice_servers name a TURN server."],
  no_webrtc: () => ["This browser has no WebRTC", "Choose WebSocket under Settings, Advanced."],
  lost: () => ["The connection was lost", "Check the network. This page looks for the server, and says when it is there."],
  back: () => ["The call was cut off", "The server is there again: start again whenever you like. If it happens twice, check the network."],
  session_resume_expired: gone,
  invalid_session_resume: gone,
  invalid_resume_token: gone,
  resync_required: gone,
  idle_timeout: () => ["The call ended after a long silence", "Start again whenever you like."],
  server_shutdown: () => ["The server ended the call: it is shutting down", "Start again when it is back."],
  internal_error: () => ["Something broke on the server", "Start again. If it happens twice, its log says why."],
  engine_lost: () => ["The model stopped", "It is being started again. Try in a few seconds."],
};

const FIRM = new Set(["insecure", "no_microphone_api", "invalid_api_key", "wrong_api_key", "origin_not_allowed", "no_webrtc"]);

/** An error with a code, told with its fix. `details` is for whoever is asked for help. */
export class Problem extends Error {
  constructor(code, details = "", said = "") {
    super(said || details || code);
    this.code = code;
    this.said = said;
    this.details = details;
  }

  /** The problem that an HTTP answer tells of. */
  static async of(answer) {
    const text = await answer.text();
    let error = {};
    try {
      error = JSON.parse(text).error ?? {};
    } catch {
      error = { message: text.slice(0, 500) };
    }
    const where = `${answer.status} ${new URL(answer.url).pathname}`;
    const field = error.param ? `, field ${error.param}` : "";
    return new Problem(error.code ?? `http_${answer.status}`, `${where}${field}`, error.message ?? answer.statusText);
  }

  /** Any error as a problem. */
  static from(error) {
    return error instanceof Problem ? error : new Problem(error.name ?? "Error", error.stack ?? String(error), error.message);
  }

  /** Whether another try may do, without any change to this page or its address. */
  get passes() {
    return !FIRM.has(this.code);
  }

  get wantsKey() {
    return this.code === "invalid_api_key" || this.code === "wrong_api_key";
  }

  get title() {
    return WORDS[this.code]?.()[0] ?? "That did not work";
  }

  get fix() {
    return WORDS[this.code]?.()[1] ?? (this.said || "Start again. If it happens twice, copy the details for whoever runs this server.");
  }

  /** All that helps someone who was not there. */
  report() {
    return [
      `${this.title} (${this.code})`,
      this.said,
      this.details,
      `page ${location.href}`,
      `time ${new Date().toISOString()}`,
      navigator.userAgent,
    ].filter(Boolean).join("\n");
  }
}
