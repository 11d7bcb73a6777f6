/** What the person chose, kept in this browser; the key is not among it. */

import { recall, remember } from "./storage.js";

const KEPT = {
  "voice": "value",
  "persona": "value",
  "microphone": "value",
  "speaker": "value",
  "echo-cancellation": "checked",
  "noise-suppression": "checked",
  "seed": "value",
  "audio-temperature": "value",
  "text-temperature": "value",
  "transport": "value",
  "volume": "value",
};
const PLACE = "duplex-settings";

const field = (id) => document.getElementById(id);

export function restoreSettings() {
  let kept = {};
  try {
    kept = JSON.parse(recall("localStorage", PLACE)) ?? {};
  } catch {
    // not ours, or of an older page: the next change writes it anew
  }
  for (const [id, property] of Object.entries(KEPT)) {
    const element = field(id);
    if (id in kept) {
      if (element.tagName === "SELECT" && ![...element.options].some(({ value }) => value === kept[id])) {
        element.append(new Option(kept[id], kept[id])); // until the real list is known
      }
      element[property] = kept[id];
    }
    element.addEventListener("change", keepSettings);
  }
}

function keepSettings() {
  const entries = Object.entries(KEPT).map(([id, property]) => [id, field(id)[property]]);
  remember("localStorage", PLACE, JSON.stringify(Object.fromEntries(entries)));
}

export function microphoneSettings() {
  return {
    deviceId: field("microphone").value,
    echoCancellation: field("echo-cancellation").checked,
    noiseSuppression: field("noise-suppression").checked,
  };
}

export const transport = () => field("transport").value;

/** The session object for a model: only what was set, and only what the model takes. */
export function sessionSettings(model) {
  const session = { type: "realtime" };
  const voice = field("voice").value;
  const persona = field("persona").value.trim();
  if (model.voices.length && voice) session.voice = voice;
  if (model.persona && persona) session.instructions = persona;
  if (model.sampling) {
    const numbers = { seed: "seed", "audio-temperature": "audio_temperature", "text-temperature": "text_temperature" };
    const body = {};
    for (const [id, name] of Object.entries(numbers)) {
      if (field(id).value !== "") body[name] = Number(field(id).value);
    }
    if (Object.keys(body).length) session.extra_body = body;
  }
  return session;
}
