// The connection to the engine: its state, then its events. Every request ends with stop; start begins anew with the state.

const retries = [1000, 2000, 4000, 8000]; // milliseconds, the last one for ever

export class Engine {
  #on; // {state, step, process, walk, connection}
  #source = null;
  #retry = null;
  #failures = 0;
  #run = null; // aborts what this start began

  constructor(on) {
    this.#on = on;
  }

  async start() {
    this.stop();
    const run = new AbortController();
    this.#run = run;
    try {
      const state = await this.#get("/api/state", run.signal);
      if (run.signal.aborted) return;
      this.#on.state(state);
      this.#listen(state.seq ?? 0, run);
    } catch (error) {
      if (!run.signal.aborted) this.#gone(run, error);
    }
  }

  stop() {
    this.#run?.abort();
    this.#run = null;
    clearTimeout(this.#retry);
    this.#retry = null;
    this.#source?.close();
    this.#source = null;
  }

  // recording is the whole of a walk.
  recording(id) {
    return this.#get(`/api/walks/${encodeURIComponent(id)}`, this.#run?.signal);
  }

  // run starts a scenario; the answer is the id of its walk.
  async run(name) {
    return (await this.#post(`/api/scenarios/${encodeURIComponent(name)}`)).walk;
  }

  reset() {
    return this.#post("/api/reset");
  }

  // The browser would connect again by itself, but not tell a new engine from the old one: so each time from the state.
  #listen(after, run) {
    const source = new EventSource(`/api/events?after=${encodeURIComponent(after)}`);
    this.#source = source;
    source.onopen = () => {
      this.#failures = 0;
      this.#on.connection("up");
    };
    source.onerror = () => {
      source.close();
      if (this.#source === source) this.#gone(run, new Error("the stream of events ended"));
    };
    for (const name of ["step", "process", "walk"]) {
      source.addEventListener(name, (event) => this.#on[name](JSON.parse(event.data)));
    }
  }

  #gone(run, error) {
    if (run !== this.#run) return;
    const wait = retries[Math.min(this.#failures, retries.length - 1)];
    this.#failures++;
    this.#on.connection("gone", error);
    this.#retry = setTimeout(() => this.start(), wait);
  }

  async #get(path, signal) {
    const answer = await fetch(path, { signal, cache: "no-store", headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${answer.statusText}`);
    return answer.json();
  }

  async #post(path) {
    const answer = await fetch(path, { method: "POST", headers: { "X-Live": "1" }, signal: this.#run?.signal });
    const text = await answer.text();
    let body = {};
    try {
      body = JSON.parse(text);
    } catch {
      // an answer without JSON: its status says enough
    }
    if (!answer.ok) throw new Error(body.error ?? `the engine answered ${answer.status} ${answer.statusText}`);
    return body;
  }
}
