/** The page: puts the parts together, and gives each control its meaning. */

import { Conversation } from "./conversation.js";
import { visible } from "./level.js";
import { listDevices } from "./microphone.js";
import { Problem } from "./problems.js";
import { model as askModel, readiness, useApiKey } from "./server.js";
import { microphoneSettings, restoreSettings, sessionSettings, transport } from "./settings.js";
import { Timeline } from "./timeline.js";
import { Transcript } from "./transcript.js";

const TALK = {
  idle: ["Ready", ""],
  asking: ["One moment", "Your browser asks whether this page may use the microphone."],
  connecting: ["Connecting", "Looking for the way to the server."],
  preparing: ["Preparing", "The model reads who it is to be."],
  listening: ["Listening", "Say something. You may interrupt it at any time."],
  hearing: ["Hearing you", ""],
  speaking: ["Speaking", "Talk over it if you like: it hears you."],
  both: ["Both talking", ""],
  reconnecting: ["Reconnecting", "The connection broke. The call goes on as soon as it is back."],
  paused: ["Paused", "The browser has stopped the sound. Touch the page to go on."],
  ended: ["Call ended", "The transcript stays until the next call."],
};
const WAVERING = new Set(["listening", "hearing", "speaking", "both"]); // they come and go with the voices
const CALM_MS = 160; // so that the word does not flicker
const READY_MS = 2000;
const AWAY_MS = 10000; // the longest pause before a server that is away is asked for again
const LASTING = new Set(["unreachable", "invalid_api_key", "wrong_api_key", "engine_unavailable", "draining"]); // over when the server is met
const CUT = new Set(["lost", "server_shutdown", "engine_lost"]); // a call can begin again when the server is ready

const $ = (id) => document.getElementById(id);
const { body } = document;
const timeline = new Timeline($("timeline"));
const transcript = new Transcript($("transcript"), (text) => ($("announcer").textContent = text));
let model = null;
let call = null;
let problem = null;

// --- the server ---------------------------------------------------------------------------

let meeting = null;
let pause = READY_MS;

async function meetServer() {
  clearTimeout(meeting);
  try {
    const ready = await readiness();
    if (ready.status === "ready") {
      const wasAway = $("server").dataset.state !== "ready"; // and may have changed
      serverSays("ready", ready.model, ` · ${ready.free} of ${ready.slots} lines free`);
      if ((wasAway || model?.name !== ready.model) && !call) {
        model = await askModel();
        showModel();
        if (LASTING.has(problem?.code)) clearProblem();
      }
      if (CUT.has(problem?.code) && !call) showProblem(new Problem("back", problem.report()));
    } else {
      serverSays("asking", "", ready.reason);
    }
    pause = READY_MS;
  } catch (error) {
    const found = error instanceof Problem ? error : new Problem("unreachable", String(error));
    serverSays("down", "", found.title);
    if (found.wantsKey) return showProblem(found);
    if (problem?.code === "back") showProblem(found);
    pause = Math.min(1.5 * pause, AWAY_MS);
  }
  $("talk").disabled = !model && !call;
  clearTimeout(meeting);
  if (!call) meeting = setTimeout(meetServer, pause * (0.9 + 0.2 * Math.random())); // not all pages at once
}

/** When the network or the person is back, the server may be too. */
function meetServerNow() {
  if (!call && !document.hidden && $("server").dataset.state === "down" && !problem?.wantsKey) meetServer();
}

function serverSays(state, name, text) {
  const place = $("server");
  if (place.dataset.state !== state && state !== "asking") say(name ? `${name} is ready` : text);
  place.dataset.state = state;
  place.firstElementChild.textContent = name;
  place.lastElementChild.textContent = text;
}

function showModel() {
  const { name, about, examples, voices, persona, sampling } = model;
  document.title = `${name} — duplex`;
  $("model-name").textContent = $("timeline-model").textContent = name;
  if (about) $("about").textContent = about;
  $("examples").hidden = !examples.length;
  $("examples").querySelector("ul").replaceChildren(...examples.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
  $("voice-choice").hidden = voices.length < 2;
  const chosen = $("voice").value;
  $("voice").replaceChildren(...voices.map(({ id, name: shown, default: usual }) => new Option(usual ? `${shown} (usual)` : shown, usual ? "" : id)));
  $("voice").value = [...$("voice").options].some(({ value }) => value === chosen) ? chosen : "";
  $("persona-choice").hidden = !persona;
  $("sampling").hidden = !sampling;
  $("choose").textContent = voices.length > 1 || persona ? "Choose voice and persona" : "Back to the start";
  $("talk").disabled = false;
}

// --- a call -------------------------------------------------------------------------------

async function start() {
  clearProblem();
  call = new Conversation({ output: $("speaker-out"), view: $("camera-view"), frameMs: model.frame_ms, sees: model.video });
  call.volume = Number($("volume").value);
  follow(call);
  body.dataset.phase = "live";
  $("talk").textContent = "Hang up";
  setMuted(false);
  showCamera(false);
  $("camera").hidden = !model.video;
  timeline.reset();
  transcript.reset(model.name);
  for (const id of ["delay", "network", "buffer", "lost", "line"]) $(id).textContent = "–";
  const choices = { microphone: microphoneSettings(), session: sessionSettings(model), transport: transport() };
  try {
    await call.start(choices);
    await chooseSpeaker();
    fillDevices();
  } catch (error) {
    ended(error);
  }
}

function follow(conversation) {
  const current = (handler) => ({ detail }) => conversation === call && handler(detail);
  conversation.addEventListener("talk", current(showTalk));
  conversation.addEventListener("step", current((step) => {
    timeline.push(step);
    transcript.userStep(step.userSpeaks, step.user, step.now);
    swell(step);
  }));
  conversation.addEventListener("words", current((text) => transcript.modelSays(text, performance.now())));
  conversation.addEventListener("stats", current(showStats));
  conversation.addEventListener("refused", current(showProblem));
  conversation.addEventListener("camera", current(showCamera));
  conversation.addEventListener("ended", current(ended));
}

const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** The circles grow with the voices. */
function swell({ user, model: agent }) {
  if (calm.matches) return;
  for (const [name, level] of [["you", user], ["model", agent]]) {
    for (const circle of document.querySelectorAll(`.r-${name}`)) circle.setAttribute("r", (42 + 28 * visible(level)).toFixed(1));
  }
}

function hangUp() {
  call.close();
}

function ended(found) {
  const began = call.began;
  call = null;
  transcript.userStep(false, 0, performance.now());
  transcript.endLine();
  swell({ user: 0, model: 0 });
  body.removeAttribute("data-muted");
  showCamera(false);
  body.dataset.phase = began ? "ended" : "idle";
  $("talk").textContent = began ? "Talk again" : "Start talking";
  $("talk").disabled = false;
  showTalk(began ? "ended" : "idle");
  if (found) showProblem(found);
  meetServer();
}

let calming = null;
let latest = null;

/** Shows a state; those that come and go with the voices at most once in CALM_MS. */
function showTalk(talk) {
  latest = talk;
  if (WAVERING.has(talk) && body.dataset.phase === "live") {
    calming ??= setTimeout(sayLatest, CALM_MS);
  } else {
    sayLatest();
  }
}

function sayLatest() {
  clearTimeout(calming);
  calming = null;
  sayTalk(latest);
}

function sayTalk(talk) {
  const [word, hint] = TALK[talk];
  // Read out is that both can talk, but not who does: that is heard.
  if (body.dataset.talk !== talk && !(WAVERING.has(talk) && WAVERING.has(body.dataset.talk))) say(WAVERING.has(talk) ? "You can talk now" : `${word}. ${hint}`);
  body.dataset.talk = talk;
  $("talk-state").textContent = word;
  $("hint").textContent = call && isMuted() ? "Your microphone is muted." : hint;
}

/** For those who hear the page: says it once. */
function say(text) {
  $("status").textContent = text;
}

const isMuted = () => body.hasAttribute("data-muted");

function setMuted(muted) {
  if (call && call.muted !== muted) say(muted ? "Microphone muted" : "Microphone on");
  $("mute").querySelector("span").textContent = muted ? "Unmute" : "Mute";
  $("mute").title = muted ? "Let it hear you again (M)" : "Mute the microphone (M)";
  body.toggleAttribute("data-muted", muted);
  if (call) {
    call.mute = muted;
    showTalk(call.talk);
  }
}

function showCamera(on) {
  $("camera").setAttribute("aria-pressed", String(on));
  $("camera").title = on ? "Switch the camera off (C)" : "Let it see you (C)";
  $("camera-view").hidden = !on;
}

function toggleCamera() {
  if (model.video) call.setCamera($("camera").getAttribute("aria-pressed") !== "true");
}

function interrupt() {
  call.interrupt();
  transcript.endLine(true);
}

function showStats({ delayMs, networkMs, bufferMs, lost, lostUp, gaps }) {
  const ms = (value) => (value === null || value === undefined ? "–" : `${Math.round(value)} ms`);
  const share = (value) => `${(100 * value).toFixed(value ? 1 : 0)} %`;
  $("delay").textContent = ms(delayMs);
  $("network").textContent = ms(networkMs);
  $("buffer").textContent = ms(bufferMs);
  if (lost !== null && lost !== undefined) $("lost").textContent = lostUp ? `${share(lost)} in, ${share(lostUp)} out` : share(lost);
  else if (gaps !== undefined) $("lost").textContent = gaps === 1 ? "1 gap" : `${gaps} gaps`;
  $("line").textContent = call.line.name;
}

// --- problems -----------------------------------------------------------------------------

function showProblem(found) {
  problem = Problem.from(found);
  $("retry").hidden = Boolean(call) || !model || !problem.passes;
  $("problem-title").textContent = problem.title;
  $("problem-fix").textContent = problem.fix;
  $("problem-details").textContent = problem.report();
  $("key-form").hidden = !problem.wantsKey;
  $("close-problem").hidden = problem.wantsKey; // nothing goes on without
  $("problem").hidden = false;
  if (problem.wantsKey) $("key").focus();
}

function clearProblem() {
  problem = null;
  $("problem").hidden = true;
}

/** Copies a text, which `place` shows: where a page may not copy, it can be done by hand there. */
async function copy(button, text, place) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    place.closest("details")?.setAttribute("open", "");
    getSelection().selectAllChildren(place);
    if (!document.execCommand("copy")) return say("Selected: copy it with the keyboard");
  }
  say("Copied");
  button.dataset.label ??= button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = button.dataset.label), 1500);
}

// --- devices ------------------------------------------------------------------------------

async function fillDevices() {
  await listDevices($("microphone"), "audioinput");
  await listDevices($("speaker"), "audiooutput");
}

function changeMicrophone() {
  call?.changeMicrophone(microphoneSettings());
}

async function chooseSpeaker() {
  const { value } = $("speaker");
  try {
    await $("speaker-out").setSinkId?.(value);
    await call?.line?.player?.setSinkId?.(value);
  } catch (error) {
    showProblem(new Problem("speaker", String(error), "The chosen loudspeaker can't be used; the sound goes on where it was."));
  }
}

// --- controls -----------------------------------------------------------------------------

$("talk").addEventListener("click", () => (call ? hangUp() : start()));
$("choose").addEventListener("click", () => {
  body.dataset.phase = body.dataset.talk = "idle";
  clearProblem();
  $("talk").textContent = "Start talking";
  $("headline").scrollIntoView();
});
$("mute").addEventListener("click", () => setMuted(!isMuted()));
$("interrupt").addEventListener("click", interrupt);
$("volume").addEventListener("input", () => call && (call.volume = Number($("volume").value)));
$("speaker").addEventListener("change", chooseSpeaker);
for (const id of ["microphone", "echo-cancellation", "noise-suppression"]) $(id).addEventListener("change", changeMicrophone);
$("camera").addEventListener("click", toggleCamera);
$("open-settings").addEventListener("click", () => {
  fillDevices();
  $("settings").showModal();
});
$("settings").addEventListener("click", (event) => event.target === $("settings") && $("settings").close());
$("retry").addEventListener("click", () => {
  $("talk").focus(); // the button that had it goes
  if (!call) start();
});
$("close-problem").addEventListener("click", () => {
  $("talk").focus();
  clearProblem();
});
$("copy-problem").addEventListener("click", () => copy($("copy-problem"), problem.report(), $("problem-details")));
$("copy-transcript").addEventListener("click", () => copy($("copy-transcript"), transcript.text(), $("transcript")));
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useApiKey($("key").value.trim());
  clearProblem();
  meetServer();
});
document.addEventListener("keydown", (event) => {
  const busy = event.target.closest("input:not([type=range]), textarea, select, dialog");
  if (!call || busy || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "m" || event.key === "M") setMuted(!isMuted());
  if (event.key === "c" || event.key === "C") toggleCamera();
  if (event.key === "Escape") interrupt();
});
addEventListener("pagehide", () => call?.close());
addEventListener("online", meetServerNow);
document.addEventListener("visibilitychange", meetServerNow);
navigator.mediaDevices?.addEventListener("devicechange", fillDevices);

$("speaker-choice").hidden = !("setSinkId" in HTMLMediaElement.prototype);
restoreSettings();
if (!window.isSecureContext) showProblem(new Problem("insecure"));
meetServer();
