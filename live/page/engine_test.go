package page_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/live/page"
)

type (
	fact struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	step struct {
		Seq    int               `json:"seq"`
		Walk   string            `json:"walk"`
		N      int               `json:"n"`
		At     string            `json:"at"`
		Box    string            `json:"box"`
		Kind   string            `json:"kind"`
		Title  string            `json:"title"`
		Text   string            `json:"text"`
		Facts  []fact            `json:"facts"`
		Fields map[string]string `json:"fields"`
	}
	walk struct {
		Seq      int     `json:"seq"`
		ID       string  `json:"id"`
		Scenario string  `json:"scenario"`
		Began    string  `json:"began"`
		Ended    *string `json:"ended"`
		Outcome  string  `json:"outcome"`
		Expected string  `json:"expected"`
		Got      string  `json:"got"`
		Problem  string  `json:"problem"`
	}
	process struct {
		Seq    int    `json:"seq"`
		Name   string `json:"name"`
		Up     bool   `json:"up"`
		PID    int    `json:"pid"`
		Starts int    `json:"starts"`
	}
	scenario struct {
		Name  string `json:"name"`
		Title string `json:"title"`
		About string `json:"about"`
	}
)

type event struct {
	seq  int
	name string
	data any
}

// engine speaks the engine's API from recorded data, and counts who listens.
type engine struct {
	t       testing.TB
	address string
	server  *http.Server

	mu        sync.Mutex
	changed   chan struct{} // closed at every change
	seq       int
	events    []event
	processes []process
	walks     []walk
	steps     map[string][]step
	listening int
	requests  map[string]int // by method and path
	run       func(name string) (id, refusal string)
}

func start(t testing.TB) *engine {
	t.Helper()
	e := &engine{t: t, changed: make(chan struct{}), steps: map[string][]step{}, requests: map[string]int{}}
	for i, name := range []string{"serve", "relay", "postgres", "kafka", "bill", "mail", "provider"} {
		e.processes = append(e.processes, process{Name: name, Up: true, PID: 4711 + 13*i, Starts: 1})
	}
	e.address = "127.0.0.1:0"
	e.up()
	t.Cleanup(e.down)
	return e
}

func (e *engine) url() string { return "http://" + e.address }

// up listens where it listened before.
func (e *engine) up() {
	e.t.Helper()
	l, err := net.Listen("tcp", e.address)
	if err != nil {
		e.t.Fatal(err)
	}
	e.address = l.Addr().String()
	mux := http.NewServeMux()
	mux.Handle("/", page.Handler())
	mux.HandleFunc("GET /api/state", e.state)
	mux.HandleFunc("GET /api/events", e.stream)
	mux.HandleFunc("GET /api/walks/{id}", e.recording)
	mux.HandleFunc("POST /api/scenarios/{name}", e.scenario)
	mux.HandleFunc("POST /api/reset", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	e.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.requests[r.Method+" "+r.URL.Path]++
		e.mu.Unlock()
		if r.Method == http.MethodPost && r.Header.Get("X-Live") != "1" {
			e.t.Errorf("%s %s without X-Live: 1", r.Method, r.URL.Path)
		}
		mux.ServeHTTP(w, r)
	})}
	go e.server.Serve(l) // ends with down
}

// down is a killed engine: every connection is cut, and nobody listens.
func (e *engine) down() { e.server.Close() }

func (e *engine) state(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	json.NewEncoder(w).Encode(map[string]any{"seq": e.seq, "processes": e.processes, "scenarios": scenarios, "walks": e.walks,
		"versions": map[string]string{"postgresql": "15.8", "kafka": "4.1.1", "relay": "0.9.0"}})
}

func (e *engine) recording(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, known := range e.walks {
		if known.ID == r.PathValue("id") {
			json.NewEncoder(w).Encode(map[string]any{"walk": known, "steps": e.steps[known.ID]})
			return
		}
	}
	http.NotFound(w, r)
}

func (e *engine) scenario(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	run := e.run
	e.mu.Unlock()
	id, refusal := run(r.PathValue("name"))
	if refusal != "" {
		w.WriteHeader(http.StatusConflict)
		json.NewEncoder(w).Encode(map[string]string{"error": refusal})
		return
	}
	w.WriteHeader(http.StatusAccepted)
	json.NewEncoder(w).Encode(map[string]string{"walk": id})
}

func (e *engine) stream(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.Atoi(r.URL.Query().Get("after"))
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		after, _ = strconv.Atoi(last)
	}
	e.mu.Lock()
	e.listening++
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.listening--
		e.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, ": here\n\n")
	for {
		e.mu.Lock()
		changed := e.changed
		for _, ev := range e.events {
			if ev.seq <= after {
				continue
			}
			data, _ := json.Marshal(ev.data)
			fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", ev.seq, ev.name, data)
			after = ev.seq
		}
		e.mu.Unlock()
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// emit numbers something new and tells everyone who listens.
func (e *engine) emit(v any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq++
	switch v := v.(type) {
	case step:
		v.Seq = e.seq
		e.steps[v.Walk] = append(e.steps[v.Walk], v)
		e.events = append(e.events, event{e.seq, "step", v})
	case walk:
		v.Seq = e.seq
		found := false
		for i := range e.walks {
			if e.walks[i].ID == v.ID {
				e.walks[i], found = v, true
			}
		}
		if !found {
			e.walks = append(e.walks, v)
		}
		e.events = append(e.events, event{e.seq, "walk", v})
	case process:
		v.Seq = e.seq
		for i := range e.processes {
			if e.processes[i].Name == v.Name {
				e.processes[i] = v
			}
		}
		e.events = append(e.events, event{e.seq, "process", v})
	default:
		panic(fmt.Sprintf("emit %T", v))
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// record emits a whole walk at once, ended.
func (e *engine) record(w walk, steps ...step) {
	running := w
	running.Outcome, running.Got, running.Ended, running.Problem = "running", "", nil, ""
	e.emit(running)
	for _, s := range steps {
		e.emit(s)
	}
	ended := "2026-12-01T02:00:09.000000Z"
	w.Ended = &ended
	e.emit(w)
}

func (e *engine) listeners() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.listening
}

func (e *engine) asked(request string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.requests[request]
}

// until waits for what the server sees.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

var scenarios = []scenario{
	{"order", "Place an order", "The plain way: one order, one event, one invoice and one mail."},
	{"relay_after_ack", "Kill the relay after the ack", "Kafka has the record, and the relay dies before it confirms its position. It sends the record again: two records with one id, and still one invoice and one mail."},
	{"worker_before_commit", "Kill the worker before its commit", "The billing worker dies with the invoice written and not committed. PostgreSQL takes it back, the record comes again: one invoice."},
	{"worker_before_offset", "Kill the worker before its offset", "The invoice is committed, the offset is not. The record comes again, its id is known, and nothing is done twice."},
	{"kafka", "Kill Kafka", "The order is placed while the broker is down. It waits in PostgreSQL, and goes on its way when the broker is back."},
	{"twice", "Deliver a record twice", "The same record is written to the topic once more. The workers find its id in their inbox and drop it."},
	{"retry_http", "Lose the answer to the client", "The client hears nothing and sends the order again with the same key: it gets the first answer, and there is one order."},
	{"exhaust", "Exhaust the retries", "The mail provider refuses for ever. After the last attempt the record is a dead letter first, and only then the offset moves."},
}

const id = "7f3a91c2-5d0e-4b8a-9c41-0d2be64f7a18"

// steps of the walk w, in short: box, kind, title, why, fields, and pairs of facts.
func at(w string, n int, box, kind, title, text string, fields [4]string, facts ...string) step {
	s := step{Walk: w, N: n, At: fmt.Sprintf("2026-12-01T02:00:%02d.%06dZ", n/4, n*53000+417), Box: box, Kind: kind, Title: title, Text: text, Facts: []fact{},
		Fields: map[string]string{"order": fields[0], "outbox": fields[1], "effects": fields[2], "offset": fields[3]}}
	for i := 0; i+1 < len(facts); i += 2 {
		s.Facts = append(s.Facts, fact{facts[i], facts[i+1]})
	}
	return s
}

const (
	noEffects = "invoices 0, mails 0, repeats dropped 0"
	allOf     = "bill 0:5 of 5, mail 0:5 of 5"
	behind    = "bill 0:5 of 6, mail 0:5 of 6"
)

func plain(w string) (walk, []step) {
	row := "id 7f3a91c2 at 0/1A2B3C8"
	return walk{ID: w, Scenario: "order", Began: "2026-12-01T02:00:00.000000Z", Outcome: "as_expected",
			Expected: "orders=1 invoices=1 mails=1 records=1", Got: "orders=1 invoices=1 mails=1 records=1"},
		[]step{
			at(w, 1, "request", "passed", "The client sends an order", "The key lets the service know the order again, should the client have to repeat it.",
				[4]string{"none", "none", noEffects, allOf}, "Idempotency-Key", "c0ffee-17", "amount", "120.00 EUR"),
			at(w, 2, "transaction", "passed", "Order 42 and its event are committed", "Both rows are in one transaction, so there is no order without its event.",
				[4]string{"42 committed", row, noEffects, allOf}, "event", id, "order", "42", "xid", "771", "LSN", "0/1A2B3C8"),
			at(w, 3, "relay", "passed", "The relay read the commit", "The server sends it only after the commit; what is rolled back never comes.",
				[4]string{"42 committed", row, noEffects, allOf}, "event", id, "LSN", "0/1A2B3C8", "xid", "771"),
			at(w, 4, "partition", "passed", "Kafka has the record", "All in-sync replicas acknowledged it; only now may the relay confirm its position.",
				[4]string{"42 committed", row, noEffects, behind}, "topic", "orders", "partition", "0", "offset", "5"),
			at(w, 5, "worker", "passed", "The billing worker got the record", "It asks its inbox whether it knows the id already.",
				[4]string{"42 committed", row, noEffects, behind}, "consumer", "bill", "partition", "0", "offset", "5"),
			at(w, 6, "effect", "passed", "The inbox row and the invoice are committed", "Both are in one transaction, so the effect cannot happen again without being noticed.",
				[4]string{"42 committed", row, "invoices 1, mails 0, repeats dropped 0", behind}, "consumer", "bill", "event", id, "invoice", "17", "xid", "772"),
			at(w, 7, "effect", "passed", "The inbox row is committed, and the mail is out", "The provider drops repeats by the key of the mail.",
				[4]string{"42 committed", row, "invoices 1, mails 1, repeats dropped 0", behind}, "consumer", "mail", "event", id, "message", "mail-42"),
			at(w, 8, "offset", "passed", "The offsets moved", "They are last: after a crash before them the record would come again, and be dropped.",
				[4]string{"42 committed", row, "invoices 1, mails 1, repeats dropped 0", "bill 0:6 of 6, mail 0:6 of 6"}, "bill", "0:6", "mail", "0:6"),
		}
}

func relayKilled(w string) (walk, []step) {
	p, s := plain(w)
	p.Scenario, p.Began = "relay_after_ack", "2026-12-01T02:01:00.000000Z"
	p.Expected, p.Got = "orders=1 records=2 ids=1 invoices=1 mails=1 dropped=2", "orders=1 records=2 ids=1 invoices=1 mails=1 dropped=2"
	field := [4]string{"42 committed", "id 7f3a91c2 at 0/1A2B3C8", noEffects, behind}
	steps := append(s[:4:4],
		at(w, 5, "relay", "killed", "The relay is killed before it confirms", "Kafka has the record, and PostgreSQL does not know it: the position stays where it was.", field, "pid", "4724", "signal", "SIGKILL", "confirmed", "0/1A2B1F0"),
		at(w, 6, "relay", "started", "The relay starts again", "It begins at the last confirmed position, before the order's commit.", field, "pid", "5120", "from", "0/1A2B1F0"),
		at(w, 7, "partition", "repeated", "The record comes a second time", "At least once: a copy with the same id, at the next offset.", field, "event", id, "partition", "0", "offset", "6"))
	for i, rest := range s[4:] {
		rest.N = 8 + i
		steps = append(steps, rest)
	}
	steps = append(steps, at(w, 12, "worker", "skipped", "Both workers drop the copy", "Its id is in their inbox; the offset moves, and nothing is done.",
		[4]string{"42 committed", "id 7f3a91c2 at 0/1A2B3C8", "invoices 1, mails 1, repeats dropped 2", "bill 0:7 of 7, mail 0:7 of 7"}, "event", id, "offset", "6"))
	return p, steps
}

func join(s []string) string { return strings.Join(s, "|") }
