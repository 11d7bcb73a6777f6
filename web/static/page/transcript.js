/** What was said: the model's words as they come, and when and how long you spoke. */

import { visible } from "./level.js";

const PAUSE_MS = 1100; // between two of the model's lines
const SHORT_MS = 250; // sounds of yours that are no speech
const MAX_LINES = 400;
const MAX_CHARS = 600; // of a line of the model's: who never pauses begins anew at a word
const MAX_LEVELS = 750; // of a line of yours: half a minute

export class Transcript {
  constructor(list, announce) {
    this.list = list;
    this.announce = announce;
    this.reset("Model");
  }

  reset(name) {
    this.name = name;
    this.list.replaceChildren();
    this.line = null;
    this.lastAt = -Infinity;
    this.speech = null;
  }

  /** A piece of what the model says. */
  modelSays(text, now) {
    const { follows } = this;
    const full = this.line && this.words.textContent.length > MAX_CHARS && /^\s/.test(text);
    if (full || (this.line && now - this.lastAt > PAUSE_MS)) this.endLine();
    if (!this.line) {
      if (!text.trim()) return;
      this.line = this.add("model growing", this.name);
      text = text.trimStart();
      this.words = document.createElement("p");
      this.line.append(this.words);
    }
    this.words.textContent += text;
    this.lastAt = now;
    if (follows) this.follow();
  }

  /** The model's line is over. */
  endLine(cut = false) {
    if (!this.line) return;
    this.line.classList.remove("growing");
    if (cut) this.words.classList.add("cut");
    this.announce(`${this.name}: ${this.words.textContent}`);
    this.line = null;
  }

  /** One step of your voice. */
  userStep(speaking, rms, now) {
    if (this.line && now - this.lastAt > PAUSE_MS) this.endLine();
    if (speaking) {
      this.speech ??= { levels: [], from: now };
      this.speech.levels.push(rms);
    }
    if (this.speech && (!speaking || this.speech.levels.length >= MAX_LEVELS)) {
      const { levels, from } = this.speech;
      this.speech = null;
      if (now - from - 280 >= SHORT_MS) this.userSpoke(levels, now - from - 280);
    }
  }

  userSpoke(levels, ms) {
    const { follows } = this;
    const line = this.add("you", "You");
    const picture = waveform(levels);
    picture.setAttribute("aria-label", `You spoke for ${(ms / 1000).toFixed(1)} seconds`);
    line.append(picture);
    line.dataset.seconds = (ms / 1000).toFixed(1);
    if (follows) this.follow();
  }

  /** All of it as text. */
  text() {
    return [...this.list.children]
      .map((line) => `${line.firstChild.textContent}: ${line.dataset.seconds ? `(spoke ${line.dataset.seconds} s)` : line.lastChild.textContent}`)
      .join("\n");
  }

  add(kind, who) {
    const line = document.createElement("li");
    line.className = kind;
    const name = document.createElement("span");
    name.className = "who";
    name.textContent = who;
    line.append(name);
    this.list.append(line);
    if (this.list.children.length > MAX_LINES) this.list.firstChild.remove();
    return line;
  }

  /** Whether the end is in sight: whoever has scrolled up is reading. */
  get follows() {
    const { scrollTop, scrollHeight, clientHeight } = this.list;
    return scrollHeight - scrollTop - clientHeight < 48;
  }

  follow() {
    this.list.scrollTop = this.list.scrollHeight;
  }
}

function waveform(levels) {
  const bars = Math.min(56, Math.max(6, Math.round(levels.length / 2)));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${bars * 4} 24`);
  svg.setAttribute("role", "img");
  for (let index = 0; index < bars; index++) {
    const from = Math.floor((index * levels.length) / bars);
    const to = Math.max(from + 1, Math.floor(((index + 1) * levels.length) / bars));
    const height = Math.max(2, 22 * visible(Math.max(...levels.slice(from, to))));
    const rect = document.createElementNS(svg.namespaceURI, "rect");
    for (const [name, value] of Object.entries({ x: index * 4, y: 12 - height / 2, width: 2.6, height, rx: 1.3 })) rect.setAttribute(name, value);
    svg.append(rect);
  }
  return svg;
}
