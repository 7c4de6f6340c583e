// The picture: seven boxes, and the event that goes from one to the next.

import { $, el, put, setText, sign } from "/page/dom.js";
import { boxes, kind, processTitle } from "/page/words.js";

const factsInBox = 4; // the rest is in the list of steps

const parts = new Map(); // name of a box -> its elements
let placed = ""; // where the event was put last, so that it moves only when it has moved

export function build() {
  $("#boxes").replaceChildren(...boxes.map((b, i) => {
    const p = {
      badge: el("p", { class: "badge" }),
      facts: el("dl", { class: "facts" }),
      down: el("p", { class: "down" }),
      station: el("span", { class: "station", "aria-hidden": "true" }, String(i + 1)),
    };
    p.box = el("li", { class: "box", "data-box": b.name, "data-state": "idle" },
      p.station,
      el("div", { class: b.two ? "body frame" : "body" },
        el("div", { class: "what" },
          b.two ? el("p", { class: "frame-name" }, "one transaction") : null,
          el("h3", {}, b.title),
          b.two ? el("ul", { class: "cells" }, ...b.two.map((t) => el("li", {}, t))) : null,
          el("p", { class: "about" }, b.about)),
        el("div", { class: "state" }, p.badge, p.facts, p.down)));
    parts.set(b.name, p);
    return p.box;
  }));
}

export function draw(view, processes) {
  for (const b of boxes) {
    const p = parts.get(b.name);
    const at = view.boxes.get(b.name);
    const now = view.now !== null && view.now.box === b.name;
    p.box.dataset.state = now ? "now" : at ? "done" : "idle";
    p.box.dataset.kind = at?.step.kind ?? "";
    if (now) p.box.setAttribute("aria-current", "step");
    else p.box.removeAttribute("aria-current");
    drawStep(p, at);
    const down = b.owners.filter((name) => processes.get(name)?.up === false);
    p.box.dataset.down = down.length > 0 ? "true" : "false";
    setText(p.down, down.length > 0 ? `${down.map(processTitle).join(", ")}: down now` : "");
  }
  place(view);
}

function drawStep(p, at) {
  if (!at) {
    put(p.badge);
    put(p.facts);
    return;
  }
  const k = kind(at.step.kind);
  put(p.badge, sign(k.sign), el("span", {}, k.word), at.visits > 1 ? el("span", { class: "visits" }, `${at.visits} steps here`) : null);
  const facts = at.step.facts ?? [];
  const rows = facts.slice(0, factsInBox).map((f) => el("div", {}, el("dt", {}, f.name), el("dd", {}, String(f.value))));
  if (facts.length > factsInBox) rows.push(el("div", {}, el("dt", {}, `${facts.length - factsInBox} more in the list`)));
  put(p.facts, ...rows);
}

// place puts the event at the station of the box that it is in. The way there is the stylesheet's: none with reduced motion.
function place(view) {
  const token = $("#token");
  const station = view.now && parts.get(view.now.box)?.station;
  if (!station) {
    token.hidden = true;
    placed = "";
    return;
  }
  const jump = placed === "";
  token.hidden = false;
  token.dataset.kind = view.now.kind;
  setText(token.firstElementChild, view.event === "" ? "event" : `event ${short(view.event)}`);
  const from = $("#picture").getBoundingClientRect();
  const to = station.getBoundingClientRect();
  const where = `translate(${Math.round(to.left + to.width / 2 - from.left)}px, ${Math.round(to.top + to.height / 2 - from.top)}px)`;
  if (where === placed) return;
  placed = where;
  token.classList.toggle("jump", jump);
  token.style.transform = where;
}

// replace puts the event anew, without a way, after the boxes moved.
export function replace(view) {
  placed = "";
  place(view);
}

const short = (id) => (id.length > 12 ? `${id.slice(0, 8)}…` : id);
