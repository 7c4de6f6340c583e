// The wiring: what the engine tells goes into the recording, the player holds the position in it, and all that is shown
// follows from the two. Nothing runs while the page is hidden or left.

import { $, el, put, setText } from "/page/dom.js";
import { Engine } from "/page/engine.js";
import * as panels from "/page/panels.js";
import * as picture from "/page/picture.js";
import { Player } from "/page/player.js";
import { Recording, view } from "/page/recording.js";
import { boxTitle, kind } from "/page/words.js";

const recording = new Recording();
const player = new Player((walk) => recording.steps(walk).length, draw);
let connection = "connecting";
let announced = ""; // what a screen reader was told last
let asked = ""; // the walk that this page began and that has not been heard of
let frame = null; // the next drawing, when one is due

const engine = new Engine({
  state(state) {
    recording.state(state);
    if (player.walk !== null && !recording.walks.has(player.walk)) player.select(null, { play: false });
    const walk = player.walk ?? recording.latest();
    if (asked !== "" && recording.walks.has(asked)) show(asked);
    else if (walk !== null) load(walk, player.walk === null);
    draw();
  },
  step(step) {
    if (recording.step(step) && step.walk === player.walk) player.arrived();
  },
  process(process) {
    recording.process(process);
    draw();
  },
  walk(walk) {
    recording.walk(walk);
    if (player.walk === null || walk.id === asked) show(walk.id);
    draw();
  },
  connection(now) {
    connection = now;
    draw();
  },
});

// load gets the whole recording of a walk; first shows it at its end, where it is now.
async function load(id, first = false) {
  try {
    const { walk, steps } = await engine.recording(id);
    recording.walk(walk);
    for (const step of steps ?? []) recording.step(step);
    if (first && player.walk === null) {
      player.select(id, { play: false });
      if (walk.outcome === "running") player.latest();
    } else if (id === player.walk) {
      player.arrived();
    }
  } catch (error) {
    // When the engine is gone the page says so by itself, and comes back here with the next state.
    if (error.name !== "AbortError" && connection === "up") say(`The recording ${id} could not be read: ${error.message}. Choose it again.`, true);
  }
}

function show(id) {
  if (id === asked) asked = "";
  if (player.walk === id) return;
  player.select(id, { play: true });
  load(id);
}

async function run(name) {
  const buttons = document.querySelectorAll(`[data-run="${name}"]`);
  if ([...buttons].some((b) => b.getAttribute("aria-disabled") === "true")) return;
  buttons.forEach((b) => b.setAttribute("aria-disabled", "true"));
  try {
    const walk = await engine.run(name);
    asked = walk;
    say("");
    if (recording.walks.has(walk)) show(walk);
    $(".stage").scrollIntoView({ block: "nearest" });
  } catch (error) {
    if (error.name !== "AbortError") say(refused(error), true);
  } finally {
    buttons.forEach((b) => b.removeAttribute("aria-disabled"));
  }
}

async function reset() {
  try {
    await engine.reset();
    say("Everything that was held is let go, and every process that was down is being started.");
  } catch (error) {
    if (error.name !== "AbortError") say(refused(error), true);
  }
}

// A request that did not get through fails with a TypeError.
const refused = (error) => error instanceof TypeError
  ? "Nothing was started: the engine does not answer."
  : `Nothing was started: ${error.message}`;

function say(text, bad = false) {
  const box = $("#said");
  box.hidden = text === "";
  box.classList.toggle("bad", bad);
  setText(box.firstElementChild, text);
  if (text !== "") setText($("#announce"), text);
}

// running says whether the walk that is shown may get more steps.
const running = () => recording.walks.get(player.walk)?.walk.outcome === "running" && connection === "up";
const moving = () => player.playing && player.walk !== null && (player.shown < player.length || running());

// draw draws once per frame, however much came.
function draw() {
  if (frame === null && !document.hidden) frame = requestAnimationFrame(drawNow);
}

function drawNow() {
  frame = null;
  const steps = recording.steps(player.walk);
  const seen = view(steps, player.shown);
  const walk = recording.walks.get(player.walk)?.walk;
  drawConnection();
  panels.scenarioList(recording.scenarios, run);
  panels.walkChoice(recording.walks.values(), recording.scenarios, player.walk);
  panels.processList(recording.processes, connection === "up");
  panels.now(seen, player.shown, steps.length, running());
  panels.orderFields(seen, player.shown);
  panels.result(walk);
  panels.steps(player.walk, steps, player.shown, (n) => player.to(steps.findIndex((s) => s.n === n) + 1));
  picture.draw(seen, connection === "up" ? recording.processes : new Map());
  drawPlayer();
  announce(seen.now);
  const versions = Object.entries(recording.versions).map(([name, version]) => `${name} ${version}`).join(" · ");
  setText($("#versions"), versions);
  player.drawn();
}

function drawPlayer() {
  const active = moving();
  setText($("#pause .word"), active ? "Pause" : "Play");
  setText($("#pause .glyph"), active ? "❚❚" : "▶");
  const able = (id, can) => $(id).setAttribute("aria-disabled", String(!can));
  able("#back", player.shown > 1);
  able("#step", player.shown < player.length);
  able("#pause", player.length > 0 || active);
  able("#again", player.length > 0);
  able("#latest", player.length > 0 && (player.shown < player.length || (running() && !player.playing)));
}

function drawConnection() {
  const box = $("#connection");
  box.dataset.connection = connection;
  setText(box.querySelector(".word"), { connecting: "Connecting", up: "Connected to the running system", gone: "Not connected" }[connection]);
  setText(box.querySelector(".sign"), { connecting: "…", up: "✓", gone: "✕" }[connection]);
  const gone = $("#gone");
  if (gone.hidden !== (connection !== "gone")) {
    gone.hidden = connection !== "gone";
    const retry = el("button", { type: "button", class: "plain" }, "Try now");
    retry.addEventListener("click", () => engine.start());
    put(gone, ...(gone.hidden ? [] : [
      el("p", {}, el("strong", {}, "The engine does not answer. "), "It was stopped, or it failed; the terminal where ", el("code", {}, "make demo"),
        " runs says which. Start it again there. This page tries again every few seconds, and the recording that is shown can still be played."),
      retry]));
  }
}

function announce(step) {
  const id = step ? `${player.walk} ${step.n}` : "";
  if (id === announced) return;
  announced = id;
  if (step) setText($("#announce"), `Step ${step.n}, ${boxTitle(step.box)}, ${kind(step.kind).word}: ${step.title}`);
}

const actions = {
  o: () => run("order"),
  p: () => (moving() ? player.pause() : player.play()),
  arrowright: () => player.to(player.shown + 1),
  arrowleft: () => player.to(player.shown - 1),
  r: () => player.again(),
  l: () => player.latest(),
  "?": () => { $("#keys").open = !$("#keys").open; },
};

function key(event) {
  const action = actions[event.key.toLowerCase()];
  if (!action || !$("#shortcuts").checked || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, select, textarea, [contenteditable]")) return;
  event.preventDefault();
  action();
}

// leave leaves nothing behind that moves, waits or listens; come begins again.
function leave() {
  engine.stop();
  player.stop();
  if (frame !== null) cancelAnimationFrame(frame);
  frame = null;
  for (const animation of document.getAnimations()) animation.cancel();
}

function come() {
  if (document.hidden) return;
  engine.start();
  if (player.walk !== null) player.arrived();
  draw();
}

function wire(id, action) {
  $(id).addEventListener("click", () => {
    if ($(id).getAttribute("aria-disabled") !== "true") action();
  });
}

picture.build();
wire("#back", actions.arrowleft);
wire("#step", actions.arrowright);
wire("#pause", actions.p);
wire("#again", actions.r);
wire("#latest", actions.l);
wire("#reset", reset);
$('.top [data-run="order"]').addEventListener("click", actions.o);
$("#said button").addEventListener("click", () => say(""));
$("#speed").addEventListener("change", (event) => player.setSpeed(Number(event.target.value)));
$("#walks").addEventListener("change", (event) => {
  player.select(event.target.value || null, { play: false });
  if (event.target.value) load(event.target.value).then(() => player.to(player.length));
});
document.addEventListener("keydown", key);
addEventListener("resize", () => {
  if (player.walk !== null) picture.replace(view(recording.steps(player.walk), player.shown));
});
addEventListener("pagehide", leave);
addEventListener("pageshow", (event) => { if (event.persisted) come(); });
document.addEventListener("visibilitychange", () => (document.hidden ? leave() : come()));
come();
