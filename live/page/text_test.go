package page_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/live/page"
	"github.com/cdc-relay/cdc-relay/live/page/browsertest"
)

// An engine that was started anew has other walks under the same ids.
func anotherEngine(t *testing.T, b *browsertest.Browser) {
	e := start(t)
	w, steps := relayKilled("w1")
	p := opened(t, b, e, w, steps)
	p.Allow("ERR_")
	e.down()
	p.Wait(`document.querySelector("#connection").dataset.connection === "gone"`)
	next := start(t)
	next.down()
	next.address = e.address
	other, otherSteps := plain("w1")
	other.Began = "2026-12-01T03:00:00.000000Z"
	next.record(other, otherSteps...)
	next.up()
	p.Wait(`document.querySelector("#connection").dataset.connection === "up" && document.querySelectorAll("#steps > li").length === 8`)
	if got := join(p.Texts("#steps > li[data-kind=killed]")); got != "" {
		t.Errorf("a step of the engine before is still listed: %s", got)
	}
}

func hostileText(t *testing.T, b *browsertest.Browser) {
	const hostile = `<img src=x onerror="window.owned=1"><script>window.owned=2</script>"'&lt;` + "\u202e\u0000"
	e := start(t)
	e.processes[0].Name = hostile
	s := at("w1", 1, "transaction", "passed", hostile, hostile, [4]string{hostile, hostile, hostile, hostile}, hostile, hostile, "event", hostile)
	p := opened(t, b, e, walk{ID: "w1", Scenario: hostile, Began: hostile, Outcome: "not_as_expected", Expected: "a=" + hostile, Got: "", Problem: hostile}, []step{s})
	for _, selector := range []string{"#steps .title", "#steps .why", `[data-field="order"]`, "#now p", ".problem", `.box[data-box="transaction"] dt`, `.box[data-box="transaction"] dd`, "#processes li strong"} {
		if got := p.Texts(selector)[0]; !strings.Contains(got, `<img src=x onerror="window.owned=1">`) {
			t.Errorf("%s shows %q", selector, got)
		}
	}
	if n := browsertest.Eval[int](p, `document.querySelectorAll("main img, main script").length`); n != 0 {
		t.Errorf("%d elements were made of text", n)
	}
	if owned := browsertest.Eval[bool](p, `"owned" in window`); owned {
		t.Error("text ran as a script")
	}
}

func refusal(t *testing.T, b *browsertest.Browser) {
	e := start(t)
	e.run = func(name string) (string, string) {
		return "", "Kafka is down for w3: wait for its end, or put everything right"
	}
	p := open(t, b, e)
	p.Click(`[data-run="kafka"]`)
	p.Wait(`!document.querySelector("#said").hidden`)
	if got := p.Text("#said p"); got != "Nothing was started: Kafka is down for w3: wait for its end, or put everything right" {
		t.Errorf("a refused scenario says %q", got)
	}
	p.Allow("409")
	if n := e.asked("POST /api/scenarios/kafka"); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
	p.Click("#reset")
	until(t, "reset is asked", func() bool { return e.asked("POST /api/reset") == 1 })
	p.Wait(`document.querySelector("#said p").textContent.startsWith("Everything")`)
}

func difference(t *testing.T, b *browsertest.Browser) {
	w, steps := relayKilled("w1")
	w.Outcome, w.Got, w.Problem = "not_as_expected", "orders=1 records=2 ids=1 invoices=2 mails=1 dropped=2", "Order 42 has two invoices."
	p := opened(t, b, start(t), w, steps)
	if got := join(p.Texts(`[data-differs="true"] th`)); got != "invoices" {
		t.Errorf("what differs: %q", got)
	}
	if e, g := p.Text(`[data-expected="invoices"]`), p.Text(`[data-got="invoices"]`); e != "1" || !strings.HasPrefix(g, "2") || !strings.Contains(g, "differs") {
		t.Errorf("invoices: expected %q, got %q", e, g)
	}
	if got := p.Text("#outcome"); !strings.Contains(got, "Not as expected") || !strings.Contains(got, "Order 42 has two invoices.") {
		t.Errorf("the outcome says %q", got)
	}
}

func processesAreLive(t *testing.T, b *browsertest.Browser) {
	e := start(t)
	p := open(t, b, e)
	e.emit(process{Name: "relay", Up: false, Starts: 1})
	p.Wait(`document.querySelector('[data-process="relay"]').dataset.up === "false"`)
	if got := p.Text(`.box[data-box="relay"] .down`); !strings.Contains(got, "Relay: down now") {
		t.Errorf("the relay's box says %q", got)
	}
	e.emit(process{Name: "relay", Up: true, PID: 5120, Starts: 2})
	p.Wait(`document.querySelector('[data-process="relay"]').dataset.up === "true"`)
	if got := strings.Join(strings.Fields(p.Text(`[data-process="relay"]`)), " "); !strings.Contains(got, "up") || !strings.Contains(got, "pid 5120 · 2 starts") {
		t.Errorf("the relay is shown as %q", got)
	}
}

// poor lists text whose contrast with what is behind it is less than AA asks.
const poor = `(() => {
	const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
	const rgb = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data] };
	const light = (c) => { const [r, g, b] = c.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
	const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c } return rgb("white") };
	const bad = [];
	const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n = texts.nextNode(); n; n = texts.nextNode()) {
		const e = n.parentElement;
		if (n.data.trim() === "" || !e.checkVisibility() || e.closest(".unseen, option, [aria-disabled=true]")) continue;
		const a = light(rgb(getComputedStyle(e).color)), b = light(behind(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) bad.push(ratio.toFixed(2) + " " + n.data.trim());
	}
	return bad;
})()`

func fits(t *testing.T, b *browsertest.Browser) {
	e := start(t)
	w, steps := relayKilled("w1")
	w.Outcome, w.Problem = "not_as_expected", strings.Repeat("long", 60)
	steps[4].Facts = append(steps[4].Facts, fact{"long", strings.Repeat("0123456789abcdef", 12)})
	e.processes[3].Up = false
	p := opened(t, b, e, w, steps)
	for _, scheme := range []string{"light", "dark"} {
		p.Media("prefers-color-scheme", scheme, "prefers-reduced-motion", "reduce")
		for _, n := range []int{5, 7, 12} {
			p.Click(fmt.Sprintf("#steps > li:nth-child(%d) .title", n))
			p.Wait(fmt.Sprintf(`document.querySelector("#where").textContent.startsWith("Step %d ")`, n))
			if bad := browsertest.Eval[[]string](p, poor); len(bad) > 0 {
				t.Errorf("%s, step %d: less than 4.5 to 1: %q", scheme, n, bad)
			}
		}
	}
	for _, width := range []int64{360, 720, 1121, 1440} {
		p.Size(width, 800)
		if got := browsertest.Eval[int](p, `document.documentElement.scrollWidth - innerWidth`); got > 0 {
			t.Errorf("at %d pixels the page is %d too wide", width, got)
		}
	}
}

func TestHandler_ServesItsFilesAlone(t *testing.T) {
	h := page.Handler()
	for target, want := range map[string]string{
		"GET /":                 "text/html; charset=utf-8",
		"GET /page/app.js":      "text/javascript; charset=utf-8",
		"GET /page/style.css":   "text/css; charset=utf-8",
		"GET /page/icon.svg":    "image/svg+xml",
		"HEAD /":                "text/html; charset=utf-8",
		"GET /page/":            "",
		"GET /page/../page.go":  "",
		"GET /page.go":          "",
		"GET /page//app.js":     "",
		"GET /nothing":          "",
		"POST /":                "",
		"GET /page/missing.css": "",
	} {
		method, path, _ := strings.Cut(target, " ")
		r := httptest.NewRequest(method, "/", nil)
		r.URL.Path = path
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if want == "" {
			if w.Code != http.StatusNotFound && w.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s: %d", target, w.Code)
			}
			continue
		}
		if got := w.Header().Get("Content-Type"); w.Code != http.StatusOK || got != want {
			t.Errorf("%s: %d %s", target, w.Code, got)
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") {
			t.Errorf("%s: policy %q", target, csp)
		}
	}
}
