package page_test

import (
	"os"
	"testing"

	"github.com/cdc-relay/cdc-relay/live/page/browsertest"
)

// What the page looks like, for eyes: CDC_RELAY_SCREENSHOTS=<directory> go test -run Screenshots ./live/page
func TestPage_Screenshots(t *testing.T) {
	if os.Getenv("CDC_RELAY_SCREENSHOTS") == "" {
		t.Skip("CDC_RELAY_SCREENSHOTS names no directory")
	}
	e := start(t)
	b := browsertest.Start(t)
	p := b.Open(t, e.url(), func(p *browsertest.Page) { p.Size(1440, 900) })
	p.Wait(`document.querySelector("#connection").dataset.connection === "up"`)
	p.Screenshot("wide-empty")

	w, steps := plain("w1")
	e.record(w, steps...)
	p.Wait(`document.querySelectorAll("#steps > li").length === 8`)
	p.Click("#latest")
	p.Wait(`document.querySelector("#where").textContent.startsWith("Step 8")`)
	p.Wait(`document.getAnimations().length === 0`)
	p.Screenshot("wide-done")
	p.Keys(browsertest.ArrowLeft, browsertest.ArrowLeft, browsertest.ArrowLeft, browsertest.ArrowLeft)
	p.Wait(`document.getAnimations().length === 0`)
	p.Screenshot("wide-mid")
	p.Media("prefers-color-scheme", "dark")
	p.Screenshot("dark-mid")

	w, steps = relayKilled("w2")
	w.Outcome, w.Got, w.Problem = "not_as_expected", "orders=1 records=2 ids=1 invoices=2 mails=1 dropped=1",
		"Two invoices exist for order 42: the marker of the billing worker was not in the transaction of the invoice."
	e.record(w, steps...)
	e.emit(process{Name: "relay", Up: false, Starts: 1})
	p.Wait(`document.querySelectorAll("#walks option").length === 2`)
	browsertest.Eval[bool](p, `(() => { const s = document.querySelector("#walks"); s.value = "w2"; return s.dispatchEvent(new Event("change")) })()`)
	p.Wait(`document.querySelector("#where").textContent === "Step 12 of 12"`)
	p.Wait(`document.getAnimations().length === 0`)
	p.Screenshot("dark-failed")
	p.Media()
	p.Screenshot("wide-failed")
	for range 7 {
		p.Keys(browsertest.ArrowLeft)
	}
	p.Wait(`document.getAnimations().length === 0`)
	p.Screenshot("wide-killed")
	p.Size(820, 1100)
	p.Wait(`document.getAnimations().length === 0`)
	p.Screenshot("middle-killed")
	p.Size(360, 780)
	p.Wait(`document.getAnimations().length === 0`)
	p.Screenshot("narrow-killed")
	p.View("narrow-view")
	browsertest.Eval[bool](p, `void document.querySelector('.box[data-box="relay"]').scrollIntoView({block: "center"}) ?? true`)
	p.View("narrow-view-player")
	p.Media("prefers-reduced-motion", "reduce", "prefers-color-scheme", "dark")
	p.Keys(browsertest.ArrowRight)
	p.Screenshot("narrow-dark-reduced")
	p.Media()
	p.Size(1440, 900)
	p.Allow("ERR_CONNECTION_REFUSED")
	p.Allow("ERR_INCOMPLETE_CHUNKED_ENCODING")
	e.down()
	p.Wait(`document.querySelector("#connection").dataset.connection === "gone"`)
	p.Screenshot("wide-gone")
}
