// A conversation of the JavaScript agents SDK over a WebSocket, told of in lines of JSON.
//
//     node agents.mjs URL PCM16-FILE
//
// The file is 24 kHz mono. All of it is sent at once; from then on the server's clock goes on.
import { readFileSync } from "node:fs";
import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession } from "@openai/agents-realtime";

const [url, file] = process.argv.slice(2);
const tell = (kind, fields = {}) => console.log(JSON.stringify({ kind, ...fields }));

const transport = new OpenAIRealtimeWebSocket({ url });
const agent = new RealtimeAgent({ name: "Guide", instructions: "Be kind.", voice: "marin" });
const session = new RealtimeSession(agent, {
  transport,
  config: { audio: { input: { turnDetection: { type: "server_vad", threshold: 0.5 } } } },
});

let audio = 0;
let heard;
const waiting = [];
const next = (kind, item) => new Promise((resolve) => waiting.push({ kind, item, resolve }));

session.on("transport_event", (event) => {
  if (event.type !== "response.output_audio.delta") tell("event", { event });
  const meant = ({ kind, item }) => kind === event.type && (!item || item === event.item.id);
  for (const wait of waiting.filter(meant)) {
    waiting.splice(waiting.indexOf(wait), 1);
    wait.resolve(event);
  }
});
session.on("audio", ({ data }) => {
  audio += data.byteLength;
  heard?.();
});
session.on("audio_interrupted", () => tell("interrupted"));
session.on("error", ({ error }) => tell("error", { error }));

const updated = next("session.updated");
await session.connect({ apiKey: "unused-key" });
await updated;

// A whole turn: the user speaks, and what was said comes back.
let done = next("response.done");
const pcm = readFileSync(file);
const send = (from, to) => {
  const cut = pcm.subarray(from * 48_000, to * 48_000);
  session.sendAudio(cut.buffer.slice(cut.byteOffset, cut.byteOffset + cut.byteLength));
};
send(0, 20);
await done;
tell("turn", { audio });

// A text, kept and not answered.
const added = next("conversation.item.done");
session.transport.sendMessage("Hello?", {}, { triggerResponse: false });
await added;

// The next answer is interrupted as soon as it is heard.
done = next("response.done");
const begun = new Promise((resolve) => (heard = resolve));
send(2, 11);
await begun;
const retrieved = next("conversation.item.retrieved", transport.currentItemId);
session.interrupt();
await done;
await retrieved;

tell("history", { history: session.history });
session.close();
