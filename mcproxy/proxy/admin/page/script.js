"use strict";
// Asks for the same page again every few seconds and takes over the parts that have changed.
(() => {
  const EVERY = 3000, PATIENCE = 10000; // milliseconds
  const LIVE = "Live: renewed every 3 seconds.";
  const live = document.getElementById("live");
  const words = document.createElement("span");
  const button = document.createElement("button");
  let paused = false, asking = false, timer = 0;

  function say(text, lost) {
    if (words.textContent !== text) words.textContent = text;
    live.classList.toggle("lost", Boolean(lost));
  }

  // Replaces an element by its new state; what the reader has unfolded stays so, and the focus stays where it was.
  function take(before, after) {
    if (before.outerHTML === after.outerHTML) return;
    for (const each of after.querySelectorAll("details[id]")) {
      const known = document.getElementById(each.id);
      if (known && known.open) each.open = true;
    }
    const focused = before.contains(document.activeElement) ? document.activeElement : null;
    const address = focused && (focused.id || focused.getAttribute("href"));
    before.replaceWith(after);
    if (address) {
      const again = document.getElementById(address) || after.querySelector(`[href="${CSS.escape(address)}"]`);
      if (again) again.focus({preventScroll: true});
    }
  }

  function takeAll(page) {
    const main = document.getElementById("main");
    const fresh = page.getElementById("main");
    if (!fresh) throw new Error("no page");
    document.title = page.title;
    for (const id of ["outcome", "facts"]) take(document.getElementById(id), page.getElementById(id));
    for (const old of [...main.children]) if (!page.getElementById(old.id)) old.remove();
    let last = null;
    for (const section of [...fresh.children]) {
      const known = document.getElementById(section.id);
      if (known) take(known, section);
      else if (last) last.after(section);
      else main.prepend(section);
      last = document.getElementById(section.id);
    }
  }

  async function update() {
    const selection = window.getSelection();
    if (asking || selection && !selection.isCollapsed) return; // somebody is about to copy
    asking = true;
    const stop = new AbortController();
    const patience = setTimeout(() => stop.abort(), PATIENCE);
    try {
      const answer = await fetch("/", {cache: "no-store", redirect: "error", signal: stop.signal});
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (paused) return;
      takeAll(page);
      say(LIVE);
    } catch (error) {
      const since = document.getElementById("as-of");
      if (!paused) say("No answer: this is the state of " + (since ? since.textContent : "before") + ".", true);
    } finally {
      clearTimeout(patience);
      asking = false;
    }
  }

  function schedule() {
    clearTimeout(timer);
    if (!paused && !document.hidden) timer = setTimeout(() => update().then(schedule), EVERY);
  }

  button.type = "button";
  button.textContent = "Pause";
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Go on" : "Pause";
    say(paused ? "Paused." : LIVE);
    schedule();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || paused) schedule();
    else update().then(schedule);
  });
  live.append(words, button);
  say(LIVE);
  schedule();
})();
