package page_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/live/page/browsertest"
)

// The page against an engine that speaks from recorded data, in one Chromium; each subtest has its own engine and tab.
func TestPage(t *testing.T) {
	b := browsertest.Start(t)
	passed, failed := 0, 0
	for _, c := range []struct {
		name string
		run  func(*testing.T, *browsertest.Browser)
	}{
		{"WalkIsShownInOrder", walkInOrder},
		{"ListIsTheRecording", listIsTheRecording},
		{"PauseStepBackAndAgain", pauseStepBackAgain},
		{"KeyboardAlone", keyboardAlone},
		{"ShortcutsLeaveFieldsAlone", shortcutsLeaveFieldsAlone},
		{"ReducedMotionMovesNothing", reducedMotion},
		{"LeavingStopsEverything", leaving},
		{"HiddenStopsEverything", hidden},
		{"EngineGoneAndBack", goneAndBack},
		{"AnotherEngineForgetsTheWalks", anotherEngine},
		{"HostileTextIsText", hostileText},
		{"RefusalIsShown", refusal},
		{"DifferenceIsNamed", difference},
		{"ProcessesAreLive", processesAreLive},
		{"FitsAndCanBeRead", fits},
	} {
		if t.Run(c.name, func(t *testing.T) { c.run(t, b) }) {
			passed++
		} else {
			failed++
		}
	}
	browsertest.Line(fmt.Sprintf("RESULT page checks=%d failed=%d ok=%t", passed+failed, failed, failed == 0))
}

// watch collects what the picture shows, from before the page's own scripts.
const watch = `window.seen = [];
addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
	const box = document.querySelector(".box[aria-current]");
	const what = box ? box.dataset.box + " " + box.dataset.kind + " " + document.querySelector("#where").textContent.split(" of ")[0] : "";
	if (what !== "" && seen.at(-1) !== what) seen.push(what);
}).observe(document.querySelector("main"), {subtree: true, attributes: true, childList: true, characterData: true}));`

// count counts what is still to come: timers and frames.
const count = `window.due = new Set();
for (const [set, clear] of [["setTimeout", "clearTimeout"], ["setInterval", "clearInterval"], ["requestAnimationFrame", "cancelAnimationFrame"]]) {
	const begin = window[set].bind(window), end = window[clear].bind(window);
	window[set] = (f, ...rest) => {
		const id = begin((...given) => { if (set !== "setInterval") due.delete(set + id); f(...given) }, ...rest);
		due.add(set + id);
		return id;
	};
	window[clear] = (id) => { due.delete(set + id); end(id) };
}`

func open(t *testing.T, b *browsertest.Browser, e *engine, scripts ...string) *browsertest.Page {
	t.Helper()
	p := b.Open(t, e.url(), func(p *browsertest.Page) {
		p.Size(1440, 900)
		for _, s := range scripts {
			p.Inject(s)
		}
	})
	p.Wait(`document.querySelector("#connection").dataset.connection === "up"`)
	return p
}

// opened is a page that shows a recorded walk at its end.
func opened(t *testing.T, b *browsertest.Browser, e *engine, w walk, steps []step, scripts ...string) *browsertest.Page {
	t.Helper()
	e.record(w, steps...)
	p := open(t, b, e, scripts...)
	p.Wait(fmt.Sprintf(`document.querySelector("#where").textContent === "Step %d of %d"`, len(steps), len(steps)))
	return p
}

func setSpeed(p *browsertest.Page, speed string) {
	browsertest.Eval[bool](p, fmt.Sprintf(`(() => { const s = document.querySelector("#speed"); s.value = %q; return s.dispatchEvent(new Event("change")) })()`, speed))
}

// way is what watch sees of steps.
func way(steps []step) (way []string) {
	for _, s := range steps {
		way = append(way, fmt.Sprintf("%s %s Step %d", s.Box, s.Kind, s.N))
	}
	return way
}

// past waits until the walk has played to step n at least: a busy machine may not see each.
func past(p *browsertest.Page, n int) {
	p.Wait(fmt.Sprintf(`parseInt(document.querySelector("#where").textContent.slice(5)) >= %d`, n))
}

func walkInOrder(t *testing.T, b *browsertest.Browser) {
	e := start(t)
	w, steps := plain("w1")
	e.run = func(string) (string, string) {
		running := w
		running.Outcome, running.Got = "running", ""
		e.emit(running)
		for _, s := range steps[:6] { // as fast as a real one
			e.emit(s)
		}
		return "w1", ""
	}
	p := open(t, b, e, watch)
	setSpeed(p, "4")
	p.Click(`[data-run="order"]`)
	p.Wait(`document.querySelector("#outcome").dataset.outcome === "running" && seen.length === 6`)
	if got := p.Text("#pause"); !strings.Contains(got, "Pause") {
		t.Errorf("while more may come the button says %q, not Pause", got)
	}
	e.emit(steps[6])
	e.emit(steps[7])
	e.emit(w)
	p.Wait(`seen.length === 8 && document.querySelector("#outcome").dataset.outcome === "as_expected"`)
	if got, want := browsertest.Eval[[]string](p, "seen"), way(steps); join(got) != join(want) {
		t.Errorf("the picture went %q\nnot %q", got, want)
	}
	facts := join(p.Texts(`.box[data-box="transaction"] .facts div`))
	if want := "event" + id + "|order42|xid771|LSN0/1A2B3C8"; facts != want {
		t.Errorf("the transaction's box shows %q, not %q", facts, want)
	}
	for name, value := range steps[7].Fields {
		if got := p.Text(`[data-field="` + name + `"]`); got != value {
			t.Errorf("field %s: %q, not %q", name, got, value)
		}
	}
	if got := p.Text("#token"); got != "event 7f3a91c2…" {
		t.Errorf("the token says %q", got)
	}
	for _, box := range []string{"transaction", "effect"} {
		frame := join(p.Texts(`.box[data-box="` + box + `"] .frame :is(.frame-name, .cells li)`))
		if !strings.HasPrefix(frame, "one transaction|") || strings.Count(frame, "|") != 2 {
			t.Errorf("%s is no frame around two writes: %q", box, frame)
		}
	}
}

func listIsTheRecording(t *testing.T, b *browsertest.Browser) {
	w, steps := relayKilled("w1")
	p := opened(t, b, start(t), w, steps)
	rows := p.Texts("#steps > li")
	if len(rows) != len(steps) {
		t.Fatalf("%d steps in the list, not %d", len(rows), len(steps))
	}
	for i, s := range steps {
		for _, part := range append([]string{s.Title, s.Text}, values(s)...) {
			if !strings.Contains(rows[i], part) {
				t.Errorf("step %d in the list lacks %q: %q", s.N, part, rows[i])
			}
		}
		selector := fmt.Sprintf(`#steps > li:nth-child(%d)`, i+1)
		got := browsertest.Eval[string](p, fmt.Sprintf(`(l => [l.value, l.dataset.box, l.dataset.kind, l.querySelector("time").dateTime].join(" "))(document.querySelector(%q))`, selector))
		if want := fmt.Sprintf("%d %s %s %s", s.N, s.Box, s.Kind, s.At); got != want {
			t.Errorf("step %d is %q, not %q", s.N, got, want)
		}
	}
	// A title shows its step.
	p.Click("#steps > li:nth-child(5) .title")
	p.Wait(`document.querySelector("#where").textContent === "Step 5 of 12"`)
	if got := browsertest.Eval[string](p, `document.querySelector("#steps > li[aria-current]").dataset.n`); got != "5" {
		t.Errorf("the list has step %s as current, not 5", got)
	}
	if got := p.Text("#announce"); got != "Step 5, Relay, killed: The relay is killed before it confirms" {
		t.Errorf("announced: %q", got)
	}
}

func values(s step) (v []string) {
	for _, f := range s.Facts {
		v = append(v, f.Name, f.Value)
	}
	return v
}

func pauseStepBackAgain(t *testing.T, b *browsertest.Browser) {
	w, steps := relayKilled("w1")
	p := opened(t, b, start(t), w, steps, watch)
	is := func(n int) {
		p.Wait(fmt.Sprintf(`document.querySelector("#where").textContent === "Step %d of 12"`, n))
	}
	p.Click("#back")
	is(11)
	p.Click("#back")
	is(10)
	if got := p.Text(`[data-field="offset"]`); got != steps[9].Fields["offset"] {
		t.Errorf("ten steps in, the offset is %q, not that of the step", got)
	}
	if got := browsertest.Eval[string](p, `document.querySelector('.box[data-box="offset"]').dataset.state`); got != "idle" {
		t.Errorf("before the offset moves its box is %s, not idle", got)
	}
	p.Click("#step")
	is(11)
	p.Click("#again")
	past(p, 2) // it plays
	p.Click("#pause")
	at := p.Text("#where")
	if more := browsertest.Eval[string](p, `new Promise(r => setTimeout(() => r(document.querySelector("#where").textContent), 1800))`); more != at {
		t.Errorf("paused at %q, it went on to %q", at, more)
	}
	setSpeed(p, "4")
	browsertest.Eval[bool](p, "(seen.length = 0) === 0")
	p.Click("#again")
	p.Wait(`document.querySelector("#where").textContent === "Step 12 of 12"`)
	if got, want := browsertest.Eval[[]string](p, "seen"), way(steps); join(got) != join(want) {
		t.Errorf("played again: %q\nnot %q", got, want)
	}
	if got := p.Text(`.box[data-box="relay"] .badge`); !strings.Contains(got, "started again") || !strings.Contains(got, "3 steps here") {
		t.Errorf("at the end the relay's box says %q", got)
	}
}
