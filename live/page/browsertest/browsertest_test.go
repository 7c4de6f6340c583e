package browsertest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// What a page must not do is seen, or every test of a page would pass in vain.
func TestPage_MisbehaviourIsSeen(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/favicon.ico" {
			return
		}
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, `<!doctype html><title>t</title><h1>here</h1><script>
			if (location.hash === "#log") console.error("logged", 1)
			if (location.hash === "#throw") setTimeout(() => { throw new Error("thrown") })
			if (location.hash === "#image") document.body.append(Object.assign(new Image(), {src: "`+other.URL+`/a.png"}))
			document.title = "done"
		</script>`)
	}))
	defer server.Close()
	b := Start(t)
	if p := b.Open(t, server.URL); p.Text("h1") != "here" || len(p.Complaints()) > 0 {
		t.Fatalf("a page that does nothing wrong: %q, %q", p.Text("h1"), p.Complaints())
	}
	for fragment, want := range map[string]string{"log": "logged", "throw": "thrown", "image": "another host"} {
		p := b.Open(t, server.URL+"/#"+fragment)
		p.Wait(`document.title === "done"`)
		p.Wait(`new Promise(r => setTimeout(r, 50, true))`)
		if got := strings.Join(p.Complaints(), "\n"); !strings.Contains(got, want) {
			t.Errorf("#%s: no complaint with %q: %q", fragment, want, got)
		}
		p.Allow("") // expected here
	}
}
