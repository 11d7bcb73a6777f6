/** What this browser remembers. One that may remember nothing forgets it with the page. */

const memory = new Map();

/** `area` is "localStorage" or "sessionStorage". */
export function recall(area, name) {
  try {
    return globalThis[area].getItem(name);
  } catch {
    return memory.get(name) ?? null;
  }
}

export function remember(area, name, value) {
  memory.set(name, value);
  try {
    globalThis[area].setItem(name, value);
  } catch {
    // blocked or full: it is remembered until the page goes
  }
}
