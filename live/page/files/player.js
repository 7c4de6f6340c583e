// The position in the recorded walk, and the one timer of the page that moves it.

const pause = 1100; // milliseconds between two steps at speed 1

export class Player {
  walk = null; // the id of the walk that is shown
  shown = 0; // how many of its steps are shown
  playing = false;
  speed = 1;
  #timer = null;
  #length; // how many steps there are, by walk
  #changed;

  constructor(length, changed) {
    this.#length = length;
    this.#changed = changed;
  }

  get length() {
    return this.walk === null ? 0 : this.#length(this.walk);
  }

  // select shows a walk: from its start, playing, or at its end.
  select(walk, { play }) {
    this.walk = walk;
    this.shown = play ? 0 : this.length;
    this.playing = play;
    this.#first();
    this.#after();
  }

  // arrived is called when steps came. What plays goes on with them; what is paused stays where it is.
  arrived() {
    this.#first();
    this.#after();
  }

  play() {
    if (this.shown >= this.length) this.shown = 0;
    this.playing = true;
    this.#first();
    this.#after();
  }

  again() {
    this.shown = 0;
    this.play();
  }

  pause() {
    this.playing = false;
    this.#after();
  }

  // to shows the first n steps, and stays there.
  to(n) {
    this.playing = false;
    this.shown = Math.max(this.length > 0 ? 1 : 0, Math.min(n, this.length));
    this.#after();
  }

  // latest shows all there is, and what comes, as it comes.
  latest() {
    this.shown = this.length;
    this.playing = true;
    this.#after();
  }

  setSpeed(speed) {
    this.speed = speed;
    this.stop();
    this.#after();
  }

  // drawn is called when what is shown was drawn. The next step's time begins only then: on a busy machine the walk takes
  // longer, and leaves no step out.
  drawn() {
    if (this.#moving() && this.#timer === null) this.#timer = setTimeout(() => this.#tick(), pause / this.speed);
  }

  // stop leaves no timer behind; drawn starts it again.
  stop() {
    clearTimeout(this.#timer);
    this.#timer = null;
  }

  // The first step is shown at once: a picture that waits with nothing in it looks broken.
  #first() {
    if (this.playing && this.shown === 0 && this.length > 0) {
      this.stop();
      this.shown = 1;
    }
  }

  #after() {
    if (!this.#moving()) this.stop();
    this.#changed();
  }

  #moving() {
    return this.playing && this.shown < this.length;
  }

  #tick() {
    this.#timer = null;
    if (this.shown < this.length) this.shown++;
    this.#after();
  }
}
