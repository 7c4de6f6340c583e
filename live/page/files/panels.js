// What is beside the picture: the step that is shown, the order's fields, the outcome, the steps as a list, the processes.

import { $, clock, el, put, setText, sign } from "/page/dom.js";
import { counts } from "/page/recording.js";
import { boxTitle, fields, kind, outcome, processTitle } from "/page/words.js";

export function now(view, shown, length, running) {
  const step = view.now;
  setText($("#where"), length === 0 ? "Nothing is recorded yet." : `Step ${shown} of ${length}${running ? ", and more may come" : ""}`);
  if (!step) {
    put($("#now"), el("p", { class: "quiet" }, length === 0
      ? "Place an order, and watch its event go from box to box."
      : "The recording is at its start. Play it, or step."));
    return;
  }
  const k = kind(step.kind);
  put($("#now"),
    el("h3", { "data-kind": step.kind }, el("span", { class: "chip" }, sign(k.sign), `${boxTitle(step.box)}: ${k.word}`), ` ${step.title}`),
    el("p", {}, step.text));
}

export function orderFields(view, shown) {
  put($("#fields"), ...fields.map((f) => {
    const value = view.fields[f.name] ?? "";
    const changed = shown > 1 && value !== (view.before[f.name] ?? "");
    return el("div", { "data-changed": String(changed) },
      el("dt", {}, f.title, changed ? el("span", { class: "new" }, "changed") : null),
      el("dd", { "data-field": f.name }, value === "" ? "–" : value));
  }));
}

// result shows expected and got side by side, in rows where both are counts.
export function result(walk) {
  const box = $("#outcome");
  if (!walk) {
    delete box.dataset.outcome;
    delete box.dataset.walk;
    put(box, el("p", { class: "quiet" }, "No walk yet."));
    return;
  }
  const o = outcome(walk.outcome);
  box.dataset.outcome = walk.outcome;
  box.dataset.walk = walk.id;
  const expected = counts(walk.expected);
  const got = counts(walk.got);
  const names = expected && got ? [...new Set([...expected.keys(), ...got.keys()])] : [];
  const rows = names.length > 0
    ? names.map((name) => row(name, expected.get(name), got.get(name), walk.outcome === "running"))
    : [row("all", walk.expected, walk.got, true)];
  put(box,
    el("p", {}, el("span", { class: "chip" }, sign(o.sign), o.word)),
    walk.problem ? el("p", { class: "problem" }, walk.problem) : null,
    el("table", {},
      el("caption", { class: "unseen" }, "What was expected, and what was got"),
      el("thead", {}, el("tr", {}, ...["", "Expected", "Got"].map((t) => el("th", { scope: "col" }, t)))),
      el("tbody", {}, ...rows)));
}

function row(name, expected, got, open) {
  const differs = !open && expected !== got;
  return el("tr", { "data-differs": String(differs) },
    el("th", { scope: "row" }, name === "all" ? "" : name.replaceAll("_", " ")),
    el("td", { "data-expected": name }, expected || "–"),
    el("td", { "data-got": name }, got || (open ? "not yet" : "–"), differs ? el("span", { class: "new" }, "differs") : null));
}

let listed = ""; // the walk whose steps are in the list

// steps adds what is new at the end, and leaves the rest alone: a reader's place and focus stay.
export function steps(walk, all, shown, show) {
  const list = $("#steps");
  const same = walk === listed && list.children.length <= all.length &&
    [...list.children].every((li, i) => li.dataset.n === String(all[i].n));
  if (!same) put(list);
  listed = walk;
  for (const step of all.slice(list.children.length)) list.append(item(step, show));
  [...list.children].forEach((li, i) => {
    li.dataset.shown = i < shown ? "true" : "false";
    if (i === shown - 1) li.setAttribute("aria-current", "step");
    else li.removeAttribute("aria-current");
  });
  const current = list.children[shown - 1];
  // Only the list scrolls, never the page.
  if (current && list.scrollHeight > list.clientHeight) {
    const top = current.offsetTop - list.offsetTop;
    if (top < list.scrollTop || top + current.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = top - 8;
  }
}

function item(step, show) {
  const k = kind(step.kind);
  const title = el("button", { type: "button", class: "title" }, step.title);
  title.addEventListener("click", () => show(step.n));
  return el("li", { value: step.n, "data-n": step.n, "data-box": step.box, "data-kind": step.kind },
    el("p", { class: "line" },
      el("span", { class: "number", "aria-hidden": "true" }, String(step.n)),
      el("time", { datetime: step.at }, clock(step.at)),
      el("span", { class: "box-name" }, boxTitle(step.box)),
      el("span", { class: "chip" }, sign(k.sign), k.word)),
    title,
    el("p", { class: "why" }, step.text),
    (step.facts ?? []).length === 0 ? null
      : el("dl", { class: "facts" }, ...step.facts.map((f) => el("div", {}, el("dt", {}, f.name), el("dd", {}, String(f.value))))));
}

export function processList(all, known) {
  const list = [...all.values()];
  put($("#processes"), ...list.map((p) => {
    const pid = !p.pid ? "no pid" : known ? `pid ${p.pid}` : `pid ${p.pid} when last seen`;
    const word = !known ? "not known" : p.up ? "up" : "down";
    return el("li", { "data-process": p.name, "data-up": known ? String(p.up) : "unknown" },
      el("strong", {}, processTitle(p.name)),
      el("span", { class: "chip" }, sign(!known ? "?" : p.up ? "✓" : "✕"), word),
      el("span", { class: "quiet" }, known && !p.up ? "no pid" : pid, " · ", p.starts === 1 ? "1 start" : `${p.starts ?? 0} starts`));
  }));
}

// scenarioList makes the buttons anew only when the scenarios are others, so that the focus stays on the one in use.
export function scenarioList(all, run) {
  const list = $("#scenarios");
  const others = all.filter((s) => s.name !== "order");
  const text = JSON.stringify(others);
  if (list.dataset.made === text) return;
  list.dataset.made = text;
  put(list, ...others.map((s) => {
    const button = el("button", { type: "button", "data-run": s.name, "aria-describedby": `about-${s.name}` }, s.title);
    button.addEventListener("click", () => run(s.name));
    return el("li", {}, button, el("p", { id: `about-${s.name}` }, s.about));
  }), $("#reset").closest("li"));
  const order = all.find((s) => s.name === "order");
  if (order?.about) setText($("#order-about"), order.about);
}

export function walkChoice(walks, scenarios, selected) {
  const select = $("#walks");
  const titles = new Map(scenarios.map((s) => [s.name, s.title]));
  const options = [...walks].reverse().map(({ walk }) =>
    [walk.id, `${walk.id} · ${titles.get(walk.scenario) ?? walk.scenario} · ${clock(walk.began).slice(0, 8)} · ${outcome(walk.outcome).word.toLowerCase()}`]);
  if (options.length === 0) options.push(["", "none yet"]);
  const text = JSON.stringify(options);
  if (select.dataset.made !== text) {
    select.dataset.made = text;
    put(select, ...options.map(([value, label]) => el("option", { value }, label)));
  }
  select.value = selected ?? "";
}
