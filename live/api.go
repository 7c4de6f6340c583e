package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	maxBody      = 1 << 10         // bytes; no request needs one
	writeTimeout = 5 * time.Second // of one event: a client that takes none is dropped
	heartbeat    = 10 * time.Second
)

// api is the HTTP interface of an engine. It answers only to names of this machine, so that no foreign name which resolves
// to loopback reaches it, and changes something only for requests with a header that no other site can have sent.
type api struct{ engine *Engine }

func newAPI(e *Engine, page http.Handler) http.Handler {
	a := api{e}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/state", a.state)
	mux.HandleFunc("GET /api/events", a.events)
	mux.HandleFunc("GET /api/walks/{id}", a.walk)
	mux.HandleFunc("POST /api/scenarios/{name}", a.scenario)
	mux.HandleFunc("POST /api/reset", a.reset)
	mux.HandleFunc("/api/", func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusNotFound, "there is no such thing") })
	mux.Handle("/", page)
	return guard(mux)
}

func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !loopback(r.Host):
			refuse(w, http.StatusForbidden, "open it by an address of this machine, such as 127.0.0.1")
		case r.Header.Get("Origin") != "" && !sameOrigin(r), strings.HasPrefix(r.URL.Path, "/api/") && otherSite(r):
			refuse(w, http.StatusForbidden, "the request comes from another site")
		case r.Method != http.MethodGet && r.Method != http.MethodHead && r.Header.Get("X-Live") != "1":
			refuse(w, http.StatusForbidden, "the header X-Live: 1 is missing")
		default:
			if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
				refuse(w, http.StatusRequestEntityTooLarge, "no body is expected")
				return
			}
			next.ServeHTTP(w, r)
		}
	})
}

func loopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func sameOrigin(r *http.Request) bool {
	u, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && u.Scheme == "http" && u.Host == r.Host
}

// otherSite tells what another page asks for, without an Origin, as an image does: it could not read the answer, but hold
// all streams of events.
func otherSite(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site != "" && site != "same-origin" && site != "none"
}

func refuse(w http.ResponseWriter, code int, problem string) {
	reply(w, code, map[string]string{"error": problem})
}

func reply(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "the answer could not be encoded", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(b) // whoever asked has gone
}

func (a api) state(w http.ResponseWriter, _ *http.Request) {
	seq, processes, walks := a.engine.rec.state()
	reply(w, http.StatusOK, map[string]any{"seq": seq, "versions": a.engine.versions, "processes": processes,
		"scenarios": listed, "walks": walks})
}

func (a api) walk(w http.ResponseWriter, r *http.Request) {
	recording, ok := a.engine.rec.walk(r.PathValue("id"))
	if !ok {
		refuse(w, http.StatusNotFound, fmt.Sprintf("the recording is not here; the last %d are kept", keepWalks))
		return
	}
	reply(w, http.StatusOK, recording)
}

func (a api) scenario(w http.ResponseWriter, r *http.Request) {
	id, err := a.engine.Run(r.PathValue("name"))
	switch {
	case errors.Is(err, ErrUnknown):
		refuse(w, http.StatusNotFound, err.Error())
	case err != nil:
		refuse(w, http.StatusConflict, err.Error())
	default:
		reply(w, http.StatusAccepted, map[string]string{"walk": id})
	}
}

func (a api) reset(w http.ResponseWriter, _ *http.Request) {
	a.engine.Reset()
	reply(w, http.StatusAccepted, struct{}{})
}

// events streams what happens, from behind the number in Last-Event-ID or ?after= on.
func (a api) events(w http.ResponseWriter, r *http.Request) {
	last := r.Header.Get("Last-Event-ID")
	if last == "" {
		last = r.URL.Query().Get("after")
	}
	after, err := strconv.ParseInt(last, 10, 64)
	if last != "" && (err != nil || after < 0) {
		refuse(w, http.StatusBadRequest, "Last-Event-ID, or after, is no number of an event")
		return
	}
	missed, sub := a.engine.rec.subscribe(after)
	if sub == nil {
		refuse(w, http.StatusServiceUnavailable, "the engine ends, or too many pages are open")
		return
	}
	defer a.engine.rec.unsubscribe(sub)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	out := eventWriter{w, http.NewResponseController(w)}
	if out.text(": from here on\n\n") != nil {
		return
	}
	for _, ev := range missed {
		if out.event(ev) != nil {
			return
		}
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for err := error(nil); err == nil; {
		select {
		case <-r.Context().Done():
			return
		case <-beat.C:
			err = out.text(": still here\n\n")
		case ev, open := <-sub.events:
			if !open {
				return
			}
			err = out.event(ev)
		}
	}
}

type eventWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (w eventWriter) event(ev event) error {
	return w.text(fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", ev.seq, ev.name, ev.data))
}

func (w eventWriter) text(s string) error {
	if err := w.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(w, s); err != nil {
		return err
	}
	return w.control.Flush()
}
