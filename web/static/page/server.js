/** What this server serves, and the key it wants. All addresses are relative to the page. */

import { Problem } from "./problems.js";
import { recall, remember } from "./storage.js";

const KEY = "duplex-api-key";
const ANSWER_MS = 5000; // a server that is stopped, or behind a dead network, doesn't even refuse

export function apiKey() {
  return recall("sessionStorage", KEY);
}

export function useApiKey(key) {
  remember("sessionStorage", KEY, key);
}

/** `fetch`, with the key; throws a Problem for every answer that is no success. */
export async function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = apiKey();
  if (key) headers.set("Authorization", `Bearer ${key}`);
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    throw new Problem("unreachable", String(error));
  }
  if (answer.ok) return answer;
  const problem = await Problem.of(answer);
  if (key && problem.code === "invalid_api_key") problem.code = "wrong_api_key";
  throw problem;
}

/** `{model, slots, free}` when conversations can begin, else `{reason}`. Rejects if none comes. */
export async function readiness() {
  const answer = await fetch("ready", { signal: AbortSignal.timeout(ANSWER_MS) });
  return answer.json();
}

/** The model: its name, abilities and voices. Voices may not be listed by every server. */
export async function model() {
  const [models, voices] = await Promise.all([
    ask("v1/models").then((answer) => answer.json()),
    ask("v1/audio/voices").then((answer) => answer.json(), () => ({ data: [] })),
  ]);
  const [card] = models.data;
  if (!card) return null;
  return { name: card.id, ...card.abilities, voices: voices.data };
}

export async function iceServers() {
  return (await (await ask("v1/ice")).json()).iceServers;
}

/** The address of a WebSocket here. */
export function socketAddress(path) {
  const address = new URL(path, document.baseURI);
  address.protocol = address.protocol.replace("http", "ws");
  return address.href;
}
