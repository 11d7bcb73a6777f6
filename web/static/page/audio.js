/** Audio contexts that go on. */

/**
 * A context that starts again by itself after the browser has stopped it: after a phone call, in
 * a tab that was away, or until the page is touched.
 */
export function openContext(options) {
  const context = new AudioContext(options);
  const listening = new AbortController();
  const resume = () => {
    if (context.state === "closed") listening.abort();
    else if (context.state !== "running") context.resume().catch(() => {});
  };
  context.addEventListener("statechange", resume, listening);
  document.addEventListener("visibilitychange", resume, listening);
  document.addEventListener("pointerdown", resume, listening);
  document.addEventListener("keydown", resume, listening);
  resume();
  return context;
}
