"use strict";
// Makes the connection of a live part of a page again where it could not be made. htmx does that for connections that were
// lost, with the same waits, but gives up one that never was: while a server starts again, or a proxy in front of it fails.
(() => {
  const FIRST_MS = 500, LONGEST_MS = 60000, JITTER = 0.3;
  const failures = new WeakMap(); // element -> attempts in a row that made no connection

  document.addEventListener("htmx:finally:request", (event) => {
    const element = event.target;
    if (!element.hasAttribute?.("hx-sse:connect")) return;
    if (event.detail.ctx.response?.headers.get("content-type")?.includes("text/event-stream")) {
      failures.delete(element);
      return;
    }
    const failed = failures.get(element) ?? 0;
    failures.set(element, failed + 1);
    const wait = Math.min(FIRST_MS * 2 ** failed, LONGEST_MS) * (1 + JITTER * (2 * Math.random() - 1));
    setTimeout(() => element.isConnected && element.dispatchEvent(new Event("reconnect")), wait);
  });
})();
