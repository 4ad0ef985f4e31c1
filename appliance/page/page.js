// Replaces the sections of the page that changed, as /live sends them. Without this
// script the page reloads itself.
"use strict";
(() => {
  const connection = (text, lost) => {
    const shown = document.getElementById("connection");
    shown.textContent = text;
    shown.classList.toggle("lost", lost);
  };
  // What a screen reader hears of a change.
  const heading = () => {
    const marks = document.querySelectorAll("#state .lines li").length;
    return document.querySelector("h1")?.textContent + (marks ? ", " + marks + (marks > 1 ? " warnings" : " warning") : "");
  };
  const waiting = {}; // sections that changed while somebody copies from them, or types
  const replace = (id, html) => {
    const old = document.getElementById(id);
    delete waiting[id];
    if (!old) return;
    const selection = getSelection();
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    if (!selection.isCollapsed && old.contains(selection.anchorNode) || focused?.matches("input, select")) {
      waiting[id] = html;
      return;
    }
    const place = focused && [...old.querySelectorAll("a, button")].indexOf(focused);
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    const next = fresh.content.firstElementChild;
    if (next.outerHTML === old.outerHTML) return;
    old.replaceWith(next);
    if (focused) next.querySelectorAll("a, button")[place]?.focus();
  };
  let source;
  const open = () => {
    source = new EventSource("/live?page=" + encodeURIComponent(document.body.dataset.live));
    source.onopen = () => connection("live", false);
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) {
        connection("▲ connection lost; the page shows the last known state", true);
        return;
      }
      connection("▲ no live updates: too many viewers, or the page is gone; reloading in 10 s", true);
      setTimeout(() => location.reload(), 10000);
    };
    source.onmessage = (event) => {
      const change = JSON.parse(event.data), before = heading();
      document.title = change.title;
      document.getElementById("as-of").textContent = change.asOf;
      if (change.main !== undefined) document.getElementById("main").innerHTML = change.main;
      for (const [id, html] of Object.entries(change.sections ?? {})) replace(id, html);
      if (heading() !== before) document.getElementById("news").textContent = heading();
    };
  };
  open();
  setInterval(() => { for (const [id, html] of Object.entries(waiting)) replace(id, html); }, 1000);
  // A page that nobody sees costs nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) source.close();
    else if (source.readyState === EventSource.CLOSED) open();
  });
})();
