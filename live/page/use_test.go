package page_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/live/page/browsertest"
)

func keyboardAlone(t *testing.T, b *browsertest.Browser) {
	e := start(t)
	w, steps := plain("w1")
	e.run = func(string) (string, string) { e.record(w, steps...); return "w1", "" }
	p := open(t, b, e)
	// Every control is reached with Tab, and each shows that it has the focus.
	reached := map[string]bool{}
	for range 60 {
		p.Keys(browsertest.Tab)
		name := browsertest.Eval[string](p, `(e => e === document.body ? "" : e.dataset.run ?? (e.id || e.className || e.tagName))(document.activeElement)`)
		if name == "" || reached[name] {
			break
		}
		reached[name] = true
		if style := browsertest.Eval[string](p, `getComputedStyle(document.activeElement).outlineStyle`); style == "none" {
			t.Errorf("%s has the focus and does not show it", name)
		}
	}
	for _, name := range []string{"skip", "order", "walks", "back", "pause", "step", "again", "latest", "speed", "relay_after_ack", "exhaust", "reset", "SUMMARY"} {
		if !reached[name] {
			t.Errorf("%s is not reached with Tab; reached: %v", name, reached)
		}
	}
	p.Navigate(e.url())
	p.Wait(`document.querySelector("#connection").dataset.connection === "up"`)
	p.Keys(browsertest.Tab, browsertest.Tab, browsertest.Enter) // past the skip link to the button
	p.Wait(`document.querySelectorAll("#steps > li").length === 8`)
	is := func(n int) {
		t.Helper()
		p.Wait(fmt.Sprintf(`document.querySelector("#where").textContent === "Step %d of 8"`, n))
	}
	p.Keys("l")
	is(8)
	p.Keys(browsertest.ArrowLeft, browsertest.ArrowLeft)
	is(6)
	p.Keys(browsertest.ArrowRight)
	is(7)
	p.Keys("r")
	past(p, 2) // it plays by itself
	p.Keys("p")
	p.Wait(`document.querySelector("#pause .word").textContent === "Play"`)
	p.Keys("?")
	p.Wait(`document.querySelector("#keys").open`)
	before := e.asked("POST /api/scenarios/order")
	p.Keys("o")
	until(t, "o places an order", func() bool { return e.asked("POST /api/scenarios/order") == before+1 })
}

func shortcutsLeaveFieldsAlone(t *testing.T, b *browsertest.Browser) {
	e := start(t)
	w, steps := plain("w1")
	e.run = func(string) (string, string) { return "", "not asked for" }
	p := opened(t, b, e, w, steps)
	at := func() string { return p.Text("#where") }
	browsertest.Eval[bool](p, `document.querySelector("#speed").focus() ?? true`)
	p.Keys("o", "r", browsertest.ArrowLeft, browsertest.ArrowLeft)
	if got := browsertest.Eval[string](p, `document.querySelector("#speed").value`); got == "1" {
		t.Error("the arrows did not change the speed: they were taken from it")
	}
	if at() != "Step 8 of 8" {
		t.Errorf("keys in a field moved the walk: %s", at())
	}
	browsertest.Eval[bool](p, `(document.querySelector("#keys").open = true) && (document.querySelector("#shortcuts").click() ?? document.activeElement.blur() ?? true)`)
	p.Keys("o", "r", browsertest.ArrowLeft)
	if got := browsertest.Eval[string](p, `new Promise(r => setTimeout(() => r(document.querySelector("#where").textContent), 200))`); got != "Step 8 of 8" {
		t.Errorf("switched off, the keys moved the walk: %s", got)
	}
	if n := e.asked("POST /api/scenarios/order"); n != 0 {
		t.Errorf("%d orders were placed", n)
	}
}

// moved plays the walk to its end and returns how many animations were seen running, and whether the event was moved.
const moved = `new Promise(done => {
	let most = 0, places = new Set();
	document.querySelector("#again").click();
	const look = () => {
		most = Math.max(most, document.getAnimations().length);
		places.add(document.querySelector("#token").style.transform);
		if (document.querySelector("#where").textContent === "Step 8 of 8") done([most, places.size]);
		else requestAnimationFrame(look);
	};
	requestAnimationFrame(look);
})`

func reducedMotion(t *testing.T, b *browsertest.Browser) {
	w, steps := plain("w1")
	p := opened(t, b, start(t), w, steps)
	setSpeed(p, "4")
	p.Media("prefers-reduced-motion", "reduce")
	if got := browsertest.Eval[[]int](p, moved); got[0] != 0 || got[1] < 7 {
		t.Errorf("with reduced motion %d animations ran, and the event was in %d places", got[0], got[1])
	}
	p.Media("prefers-reduced-motion", "no-preference")
	if got := browsertest.Eval[[]int](p, moved); got[0] == 0 {
		t.Error("without it nothing is animated: the check above says nothing")
	}
}

func leaving(t *testing.T, b *browsertest.Browser) {
	e := start(t)
	w, steps := relayKilled("w1")
	p := opened(t, b, e, w, steps, count)
	p.Allow("favicon.ico") // of the other page
	// After the page's own listener: what it left.
	browsertest.Eval[bool](p, `addEventListener("pagehide", (ev) => {
		window.left = [ev.persisted, due.size, document.getAnimations().length];
	}) ?? true`)
	p.Click("#again")
	past(p, 3)
	if e.listeners() != 1 {
		t.Fatalf("%d streams of events are open, not one", e.listeners())
	}
	p.Navigate(e.url() + "/page/icon.svg")
	until(t, "the stream of events is closed", func() bool { return e.listeners() == 0 })
	p.Back()
	p.Wait(`window.left && location.pathname === "/"`)
	if left := fmt.Sprint(browsertest.Eval[[]any](p, "left")); left != "[true 0 0]" {
		t.Errorf("left behind [kept alive, timers, animations]: %s", left)
	}
	until(t, "the stream of events is open again", func() bool { return e.listeners() == 1 })
	past(p, 5) // and it plays on
}

func hidden(t *testing.T, b *browsertest.Browser) {
	e := start(t)
	w, steps := relayKilled("w1")
	p := opened(t, b, e, w, steps, count)
	p.Click("#again")
	past(p, 3)
	p.Wait(`due.size > 0`)
	p.Hide()
	until(t, "the stream of events is closed", func() bool { return e.listeners() == 0 })
	if left := fmt.Sprint(browsertest.Eval[[]int](p, `[due.size, document.getAnimations().length]`)); left != "[0 0]" {
		t.Errorf("hidden, there are [timers, animations] %s", left)
	}
	asked := e.asked("GET /api/state")
	late := at("w1", 13, "offset", "passed", "Came while hidden", "", [4]string{})
	e.emit(late)
	p.Show()
	until(t, "the stream of events is open again", func() bool { return e.listeners() == 1 })
	if e.asked("GET /api/state") <= asked {
		t.Error("seen again, the page did not ask for the state")
	}
	p.Wait(`document.querySelectorAll("#steps > li").length === 13`) // what it missed
}

func goneAndBack(t *testing.T, b *browsertest.Browser) {
	e := start(t)
	w, steps := plain("w1")
	w2, steps2 := relayKilled("w2")
	e.run = func(string) (string, string) { return "w2", "" }
	p := opened(t, b, e, w, steps)
	p.Allow("ERR_CONNECTION_REFUSED") // the browser's own words for it
	p.Allow("ERR_INCOMPLETE_CHUNKED_ENCODING")
	p.Allow("ERR_EMPTY_RESPONSE")
	p.Allow("ERR_CONNECTION_RESET")
	e.down()
	p.Wait(`document.querySelector("#connection").dataset.connection === "gone"`)
	notice := p.Text("#gone")
	for _, part := range []string{"does not answer", "make demo", "tries again"} {
		if !strings.Contains(notice, part) {
			t.Errorf("the notice lacks %q: %s", part, notice)
		}
	}
	if got := join(p.Texts("#processes .chip")); strings.Contains(got, "up") {
		t.Errorf("without the engine the processes are %q", got)
	}
	p.Click("#back") // the recording is still there
	p.Wait(`document.querySelector("#where").textContent === "Step 7 of 8"`)
	p.Click(`[data-run="twice"]`)
	p.Wait(`!document.querySelector("#said").hidden`)
	if got := p.Text("#said p"); got != "Nothing was started: the engine does not answer." {
		t.Errorf("a scenario without an engine: %q", got)
	}
	e.record(w2, steps2...)
	e.up()
	p.Wait(`document.querySelector("#connection").dataset.connection === "up" && document.querySelector("#gone").hidden`)
	p.Wait(`document.querySelectorAll("#walks option").length === 2`)
	if got := p.Text("#where"); got != "Step 7 of 8" {
		t.Errorf("the reader was at step 7 of 8, and is at %q", got)
	}
	until(t, "one stream of events", func() bool { return e.listeners() == 1 })
}
