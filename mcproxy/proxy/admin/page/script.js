"use strict";
// Asks for the same view again every few seconds, with the hashes of the sections that are here; takes over what differs.
(() => {
  const EVERY = 3000, PATIENCE = 10000, TYPED = 250; // milliseconds
  const LIVE = "Live: renewed every 3 seconds.";
  const live = document.getElementById("live");
  const words = document.createElement("span");
  const button = document.createElement("button");
  const search = document.getElementById("search");
  let paused = false, asked = null, timer = 0, typing = 0;

  function say(text, lost) {
    if (words.textContent !== text) words.textContent = text;
    live.classList.toggle("lost", Boolean(lost));
  }

  // Makes an element like another one; what is alike stays, so focus, selection and place on the screen stay too.
  function take(before, after) {
    if (before.isEqualNode(after)) return;
    if (before.nodeType !== after.nodeType || before.nodeName !== after.nodeName || before.id !== after.id) {
      before.replaceWith(after);
      return;
    }
    if (before.nodeType !== Node.ELEMENT_NODE) {
      before.nodeValue = after.nodeValue;
      return;
    }
    for (const {name} of [...before.attributes]) if (!after.hasAttribute(name)) before.removeAttribute(name);
    for (const {name, value} of after.attributes) {
      if (before.getAttribute(name) !== value) before.setAttribute(name, value);
    }
    const old = [...before.childNodes], fresh = [...after.childNodes];
    fresh.forEach((node, index) => index < old.length ? take(old[index], node) : before.append(node));
    old.slice(fresh.length).forEach((node) => node.remove());
  }

  function takeAll(page) {
    const main = document.getElementById("main"), fresh = page.getElementById("main");
    if (!fresh) throw new Error("no page");
    for (const id of ["outcome", "facts"]) take(document.getElementById(id), page.getElementById(id));
    if (location.pathname === "/") {
      document.title = "mcproxy: " + document.querySelector("#outcome .mark").lastChild.textContent.trim().toLowerCase();
    }
    for (const old of [...main.children]) if (!page.getElementById(old.id)) old.remove();
    let last = null;
    for (const section of [...fresh.children]) {
      const known = document.getElementById(section.id);
      if (!known && last) last.after(section);
      else if (!known) main.prepend(section);
      else if (!section.hasAttribute("data-same")) take(known, section);
      last = document.getElementById(section.id);
    }
  }

  async function update() {
    const selection = window.getSelection();
    if (asked || selection && !selection.isCollapsed) return; // somebody is about to copy
    await ask();
  }

  async function ask() {
    if (asked) asked.abort();
    const mine = asked = new AbortController();
    const patience = setTimeout(() => mine.abort(), PATIENCE);
    const sections = [...document.querySelectorAll("#main > section")];
    const have = sections.map((each) => each.id + ":" + each.dataset.hash).join(",");
    const query = location.search + (location.search ? "&" : "?") + "have=" + encodeURIComponent(have);
    try {
      const options = {cache: "no-store", redirect: "error", signal: mine.signal, headers: {Accept: "text/html"}};
      const answer = await fetch(location.pathname + query, options);
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (mine !== asked) return;
      takeAll(page);
      if (!paused) say(LIVE);
    } catch (error) {
      if (mine !== asked) return;
      const since = document.getElementById("as-of");
      if (!paused) say("No answer: this is the state of " + (since ? since.textContent : "before") + ".", true);
    } finally {
      clearTimeout(patience);
      if (mine === asked) asked = null;
    }
  }

  function schedule() {
    clearTimeout(timer);
    if (!paused && !document.hidden) timer = setTimeout(() => update().then(schedule), EVERY);
  }

  // A page or an order of a table, or a search, changes sections alone.
  function go(address, replace) {
    history[replace ? "replaceState" : "pushState"](null, "", address);
    document.getElementById("refresh").setAttribute("href", location.pathname + location.search);
    ask().then(schedule);
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='?']");
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const to = new URL(link.href), view = new URLSearchParams(location.search).get("view");
    if (to.hash || to.searchParams.get("view") !== view) return; // another view is another page
    event.preventDefault();
    go(to.search || location.pathname);
  });
  window.addEventListener("popstate", () => ask().then(schedule));

  function searched() {
    const fields = new URLSearchParams(location.search);
    for (const key of [...fields.keys()]) if (key === "q" || key === "only" || key.endsWith(".page")) fields.delete(key);
    for (const [key, value] of new FormData(search)) if (value && key !== "view") fields.set(key, value);
    const text = fields.toString();
    go(text ? "?" + text : location.pathname, true);
  }
  if (search) {
    search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(searched, TYPED); });
    search.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(typing); searched(); });
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
