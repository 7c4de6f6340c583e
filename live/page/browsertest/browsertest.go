// Package browsertest drives a real Chromium in tests of pages that a test serves on this machine. A page that logs an
// error, throws, or asks another host for anything fails its test.
//
//	b := browsertest.Start(t)
//	p := b.Open(t, server.URL)
//	p.Click("#run-order")
//	p.Wait(`document.querySelector("#outcome").dataset.outcome === "as_expected"`)
package browsertest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	logs "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// Patience is how long Wait waits: long, since the machine may be busy with other tests.
const Patience = 30 * time.Second

// Keys that are no characters, for Page.Keys.
const (
	Tab        = kb.Tab
	Enter      = kb.Enter
	Escape     = kb.Escape
	Space      = " "
	ArrowLeft  = kb.ArrowLeft
	ArrowRight = kb.ArrowRight
	Home       = kb.Home
	End        = kb.End
)

// Browser is one Chromium process; it lives as long as the test that started it.
type Browser struct{ ctx context.Context }

// Start starts a Chromium without a window. Without one on this machine the test is skipped, and said so where RESULT lines
// are: `go test` without -v hides a skipped test. scripts/deps.sh, which installs Chromium, warns when it cannot.
func Start(t testing.TB) *Browser {
	t.Helper()
	path := find()
	if path == "" {
		Line("WARNING skipped " + t.Name() + ": no Chromium (make deps)")
		t.Skip("no Chromium: make deps installs one")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WSURLReadTimeout(time.Minute))
	if os.Geteuid() == 0 {
		opts = append(opts, chromedp.NoSandbox) // Chromium has no sandbox for root; it opens nothing but pages of the test
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	return &Browser{ctx: ctx}
}

// Line prints s on standard output and appends it to the file that CDC_RELAY_RESULTS names, where RESULT lines are gathered.
func Line(s string) {
	fmt.Println(s)
	path := os.Getenv("CDC_RELAY_RESULTS")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		fmt.Fprintln(f, s)
		err = f.Close()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "write result: %v\n", err)
	}
}

func find() string {
	for _, name := range []string{os.Getenv("CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	return ""
}

// Page is one tab. It belongs to one goroutine.
type Page struct {
	t   testing.TB
	ctx context.Context

	mu      sync.Mutex
	host    string   // where requests may go
	allowed []string // parts of the console's errors that a test provokes
	wrong   []string
}

// Open opens url in a tab of its own, closed at the end of the test, which fails by then for every error on the
// console, exception, and request to a host that is not url's.
func (b *Browser) Open(t testing.TB, address string, setup ...func(*Page)) *Page {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := chromedp.NewContext(b.ctx)
	t.Cleanup(cancel)
	p := &Page{t: t, ctx: ctx, host: u.Host}
	if err := chromedp.Do(ctx); err != nil { // the tab's life is bound to this context
		t.Fatalf("open a tab: %v", err)
	}
	if err := chromedp.Listen(ctx, p.note); err != nil {
		t.Fatalf("listen to the tab: %v", err)
	}
	t.Cleanup(func() {
		for _, w := range p.Complaints() {
			t.Errorf("the page did what it must not: %s", w)
		}
	})
	for _, f := range setup {
		f(p)
	}
	p.Navigate(address)
	return p
}

// note runs on the connection's goroutine, in the order of the events.
func (p *Page) note(ev any) {
	switch ev := ev.(type) {
	case *runtime.EventExceptionThrown:
		text := ev.ExceptionDetails.Text
		if e := ev.ExceptionDetails.Exception; e != nil {
			text += " " + e.Description
		}
		p.complain("exception: " + text)
	case *runtime.EventConsoleAPICalled:
		if ev.Type != "error" && ev.Type != "assert" && ev.Type != "warning" {
			return
		}
		var parts []string
		for _, a := range ev.Args {
			parts = append(parts, string(a.Value)+a.Description)
		}
		p.complain("console." + string(ev.Type) + ": " + strings.Join(parts, " "))
	case *logs.EventEntryAdded:
		if ev.Entry.Level == "error" || ev.Entry.Level == "warning" {
			p.complain("console: " + ev.Entry.Text + " " + ev.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		u, err := url.Parse(ev.Request.URL)
		if err != nil || (u.Host != p.host && u.Scheme != "data" && u.Scheme != "about") {
			p.complain("request to another host: " + ev.Request.URL)
		}
	}
}

func (p *Page) complain(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrong = append(p.wrong, what)
}

// Complaints is what the page did that it must not, so far; without what Allow allows.
func (p *Page) Complaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var left []string
	for _, w := range p.wrong {
		allowed := false
		for _, part := range p.allowed {
			allowed = allowed || strings.Contains(w, part)
		}
		if !allowed {
			left = append(left, w)
		}
	}
	return left
}

// Allow takes complaints that contain part as expected, such as the browser's own line about a server that is down.
func (p *Page) Allow(part string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allowed = append(p.allowed, part)
}

// Navigate goes to address and waits for the load event.
func (p *Page) Navigate(address string) {
	p.t.Helper()
	p.do("go to "+address, chromedp.Navigate(address))
}

// Back goes back in the tab's history, as the browser's button does, and does not wait: a page that was kept alive
// comes back without a load event.
func (p *Page) Back() {
	p.t.Helper()
	Eval[bool](p, "history.back() ?? true")
}

// Click clicks the middle of the first element that the CSS selector finds.
func (p *Page) Click(selector string) {
	p.t.Helper()
	p.do("click "+selector, chromedp.Click(chromedp.CSS(selector)))
}

// Keys presses keys, one after the other, wherever the focus is.
func (p *Page) Keys(keys ...string) {
	p.t.Helper()
	for _, k := range keys {
		p.do("press a key", chromedp.KeyEvent(k))
	}
}

// ShiftTab moves the focus back.
func (p *Page) ShiftTab() {
	p.t.Helper()
	p.do("press shift and tab", chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(chromedp.ModifierShift)))
}

// Size sets the size of the viewport in CSS pixels.
func (p *Page) Size(width, height int64) {
	p.t.Helper()
	p.do("resize", chromedp.EmulateViewport(width, height))
}

// Media emulates media features: pairs such as "prefers-color-scheme", "dark". Those of an earlier call are undone.
func (p *Page) Media(pairs ...string) {
	p.t.Helper()
	var features []*emulation.MediaFeature
	for i := 0; i+1 < len(pairs); i += 2 {
		features = append(features, &emulation.MediaFeature{Name: pairs[i], Value: pairs[i+1]})
	}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		p.t.Fatalf("emulate %q: %v", pairs, err)
	}
}

// Wait waits until the JavaScript expression, or the promise that it is, is true, and fails the test with what the page shows when it is not.
func (p *Page) Wait(expression string) {
	p.t.Helper()
	deadline := time.Now().Add(Patience)
	var last error
	for time.Now().Before(deadline) {
		ok, err := run(p.ctx, chromedp.Evaluate[bool]("Promise.resolve("+expression+").then(Boolean)", chromedp.EvalAwaitPromise))
		if last = err; err == nil && ok {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	text, _ := run(p.ctx, chromedp.Evaluate[string]("document.body.innerText"))
	p.t.Fatalf("not true after %s: %s (%v); complaints: %q; the page says:\n%s", Patience, expression, last, p.Complaints(), text)
}

// Eval evaluates a JavaScript expression to a T, through JSON; it awaits a promise.
func Eval[T any](p *Page, expression string) T {
	p.t.Helper()
	v, err := run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("evaluate %s: %v", expression, err)
	}
	return v
}

// Text is the text of the first element that the CSS selector finds, as rendered, trimmed.
func (p *Page) Text(selector string) string {
	p.t.Helper()
	return strings.TrimSpace(Eval[string](p, fmt.Sprintf("document.querySelector(%q).innerText", selector)))
}

// Texts is the text of every element that the CSS selector finds, hidden ones included.
func (p *Page) Texts(selector string) []string {
	p.t.Helper()
	return Eval[[]string](p, fmt.Sprintf("[...document.querySelectorAll(%q)].map(e => e.textContent.trim())", selector))
}

// Inject runs a script before those of every page that the tab opens from now on; for Open's setup.
func (p *Page) Inject(script string) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
	if err != nil {
		p.t.Fatalf("inject a script: %v", err)
	}
}

// Hide and Show make the page believe that another tab covers it, and no more: a browser without a window shows all
// its tabs at once.
func (p *Page) Hide() { p.t.Helper(); p.visibility("hidden") }

// Show undoes Hide.
func (p *Page) Show() { p.t.Helper(); p.visibility("visible") }

func (p *Page) visibility(state string) {
	p.t.Helper()
	Eval[bool](p, fmt.Sprintf(`(() => {
		Object.defineProperty(document, "visibilityState", {value: %q, configurable: true})
		Object.defineProperty(document, "hidden", {value: %t, configurable: true})
		return document.dispatchEvent(new Event("visibilitychange"))
	})()`, state, state == "hidden"))
}

// Screenshot writes name.png of the whole page into the directory CDC_RELAY_SCREENSHOTS; without one it does nothing.
func (p *Page) Screenshot(name string) { p.t.Helper(); p.shoot(name, chromedp.FullScreenshot(100)) }

// View is Screenshot of what is in the viewport.
func (p *Page) View(name string) { p.t.Helper(); p.shoot(name, chromedp.CaptureScreenshot()) }

func (p *Page) shoot(name string, how chromedp.Action[[]byte]) {
	p.t.Helper()
	dir := os.Getenv("CDC_RELAY_SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := run(p.ctx, how)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
	}
	if err != nil {
		p.t.Fatalf("take a screenshot of %s: %v", name, err)
	}
}

func (p *Page) do(what string, a chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if _, err := run(p.ctx, a); err != nil {
		p.t.Fatalf("%s: %v; complaints: %q", what, err, p.Complaints())
	}
}

// run bounds one action: an element that never comes would else hold the test until its own end.
func run[T any](ctx context.Context, a chromedp.Action[T]) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	return chromedp.Run(ctx, a)
}
