// What the engine told: processes, scenarios, walks and their steps. No document, no clock, no network: facts in, views out.

export class Recording {
  processes = new Map(); // name -> PROCESS
  scenarios = [];
  versions = {};
  walks = new Map(); // id -> {walk, steps}; steps in the order of n, each n once

  // state takes GET /api/state. Walks that it does not name belong to an engine that is gone.
  state(s) {
    this.versions = s.versions ?? {};
    this.scenarios = s.scenarios ?? [];
    this.processes = new Map((s.processes ?? []).map((p) => [p.name, p]));
    const known = this.walks;
    this.walks = new Map();
    for (const walk of s.walks ?? []) {
      const before = known.get(walk.id);
      // The same id with another beginning is a walk of another engine.
      this.walks.set(walk.id, { walk, steps: before && before.walk.began === walk.began ? before.steps : [] });
    }
  }

  process(p) {
    const before = this.processes.get(p.name);
    if (!before || !(before.seq > p.seq)) this.processes.set(p.name, p);
  }

  walk(walk) {
    const w = this.#of(walk.id);
    if (!(w.walk.seq > walk.seq)) w.walk = walk;
  }

  // step adds one, wherever it belongs: by events and by the whole recording they may come twice.
  step(step) {
    const { steps } = this.#of(step.walk);
    let i = steps.length;
    while (i > 0 && steps[i - 1].n >= step.n) i--;
    if (steps[i]?.n === step.n) return false;
    steps.splice(i, 0, step);
    return true;
  }

  steps(id) {
    return this.walks.get(id)?.steps ?? [];
  }

  // latest is the id of the walk that began last, or null.
  latest() {
    let latest = null;
    for (const { walk } of this.walks.values()) {
      if (!latest || (walk.began ?? "") >= (latest.began ?? "")) latest = walk;
    }
    return latest?.id ?? null;
  }

  #of(id) {
    if (!this.walks.has(id)) this.walks.set(id, { walk: { id, seq: 0, scenario: "", outcome: "running" }, steps: [] });
    return this.walks.get(id);
  }
}

// view is what the picture shows when the first `shown` of the steps have happened.
export function view(steps, shown) {
  const boxes = new Map(); // name -> {step, visits}: the last step at this box
  for (const step of steps.slice(0, shown)) {
    boxes.set(step.box, { step, visits: (boxes.get(step.box)?.visits ?? 0) + 1 });
  }
  const now = steps[shown - 1] ?? null;
  const before = steps[shown - 2] ?? null;
  return { boxes, now, fields: now?.fields ?? {}, before: before?.fields ?? {}, event: event(steps.slice(0, shown)) };
}

// event is the event's id, from the last step that names it.
function event(steps) {
  for (const step of steps.toReversed()) {
    const fact = (step.facts ?? []).find((f) => /^event( id)?$/i.test(f.name));
    if (fact) return String(fact.value);
  }
  return "";
}

// counts reads "orders=1 invoices=1" into pairs, or null where the text is not made of such.
export function counts(text) {
  const parts = String(text ?? "").trim().split(/\s+/).filter(Boolean);
  if (parts.length === 0 || !parts.every((p) => /^[^=]+=.*$/.test(p))) return null;
  return new Map(parts.map((p) => [p.slice(0, p.indexOf("=")), p.slice(p.indexOf("=") + 1)]));
}
