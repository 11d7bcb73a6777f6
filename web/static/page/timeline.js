/** Both voices on one line of time: yours rises, the model's hangs, and where both sound it shows. */

import { visible } from "./level.js";

export const STEP_MS = 40;

const KEPT = 1500; // steps: a minute
const PIXELS = 4; // a step
const LABELS = 18; // pixels below, for the time

export class Timeline {
  constructor(canvas) {
    this.canvas = canvas;
    this.draw = this.draw.bind(this);
    this.reset();
  }

  reset() {
    this.steps = [];
    this.count = 0;
    this.request ??= requestAnimationFrame(this.draw);
  }

  /** What was heard in one step: levels as RMS, and who spoke. */
  push(step) {
    this.steps.push(step);
    this.count += 1;
    if (this.steps.length > KEPT) this.steps.shift();
    this.request ??= requestAnimationFrame(this.draw);
  }

  draw() {
    this.request = null;
    const { canvas } = this;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width) return;
    const ratio = devicePixelRatio;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`);
    const middle = (height - LABELS) / 2;
    const reach = middle - 8;
    const right = width - 14;
    const shown = Math.min(this.steps.length, Math.floor((right - 8) / PIXELS));
    this.grid(context, colour, { height, middle, reach, right });
    for (let back = 0; back < shown; back++) {
      const step = this.steps[this.steps.length - 1 - back];
      const x = right - back * PIXELS - PIXELS;
      const both = step.userSpeaks && step.modelSpeaks;
      if (both) {
        context.globalAlpha = 0.16;
        context.fillStyle = colour("both");
        context.fillRect(x, middle - reach, PIXELS, 2 * reach);
      }
      context.globalAlpha = step.muted ? 0.25 : step.userSpeaks ? 1 : 0.45;
      context.fillStyle = colour("you");
      bar(context, x, middle - 1, -reach * visible(step.user));
      context.globalAlpha = step.modelSpeaks ? 1 : 0.45;
      context.fillStyle = colour("model");
      bar(context, x, middle + 1, reach * visible(step.model));
    }
    context.globalAlpha = 1;
  }

  grid(context, colour, { height, middle, reach, right }) {
    context.strokeStyle = colour("line");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(8, middle + 0.5);
    context.lineTo(right, middle + 0.5);
    context.stroke();
    context.fillStyle = colour("dim");
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    const perSecond = 1000 / STEP_MS;
    for (let back = this.count % perSecond; (back * PIXELS) < right - 24; back += perSecond) {
      const x = right - back * PIXELS;
      const second = Math.round((this.count - back) / perSecond);
      if (second < 0) break;
      context.globalAlpha = 0.5;
      context.fillRect(x, middle - 3, 1, 6);
      if (second % 2 === 0 && x < right - 12) {
        context.globalAlpha = 0.9;
        context.fillText(`${Math.floor(second / 60)}:${String(second % 60).padStart(2, "0")}`, x, height - 7);
      }
    }
    context.globalAlpha = 1;
    context.fillStyle = colour("ink");
    context.fillRect(right, middle - reach, 2, 2 * reach);
  }
}

function bar(context, x, from, length) {
  if (Math.abs(length) < 1) length = Math.sign(length) || 1;
  context.beginPath();
  context.roundRect(x + 0.5, Math.min(from, from + length), PIXELS - 1.5, Math.abs(length), 1);
  context.fill();
}
