// What others do in the same memory, as it happens.

import { events, memoryPath } from "./api.js";

const AGAIN_MS = 2000; // after the stream broke
const TOGETHER_MS = 300; // changes that come together are shown together

export function follow({ rows, changed, deleted }) {
  let memory = null, stream = null, timer;

  async function listen() {
    stream?.abort();
    // A hidden tab hears nothing: a browser keeps only a few connections to one service.
    if (memory === null || document.hidden) return;
    const own = stream = new AbortController();
    try {
      let first = true;
      for await (const found of events(memoryPath(memory, "/events"), own.signal)) {
        if (found.event === "deleted") { clearTimeout(timer); stream = null; return deleted(); }
        // The first event comes at once, when the page has just looked.
        if (!first || found.rows !== rows()) soon();
        first = false;
      }
    } catch { /* the service stopped, or the client went away */ }
    if (own.signal.aborted) return;
    setTimeout(() => { if (stream === own) { listen(); soon(); } }, AGAIN_MS);
  }

  function soon() {
    clearTimeout(timer);
    timer = setTimeout(changed, TOGETHER_MS * (1 + Math.random()));
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stream?.abort();
    else if (memory !== null) { listen(); soon(); }
  });
  const of = (name) => { memory = name; clearTimeout(timer); listen(); };
  return { of, leave: () => of(null) };
}
