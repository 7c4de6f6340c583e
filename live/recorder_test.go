package live

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestRecorder_KeepsABoundedPast(t *testing.T) {
	r := newRecorder()
	for i := range keepWalks + 10 {
		id := fmt.Sprintf("w%d", i)
		r.begin(id, "order", "a=1")
		for range keepSteps + 10 {
			r.step(Step{Walk: id, Box: Relay, Kind: Passed})
		}
		r.finish(id, AsExpected, "a=1", "")
	}
	seq, _, walks := r.state()
	if len(walks) != keepWalks || len(r.events) > keepEvents || cap(r.events) > 2*keepEvents {
		t.Errorf("%d walks, %d events in room for %d", len(walks), len(r.events), cap(r.events))
	}
	if _, ok := r.walk("w0"); ok {
		t.Error("the first walk is kept")
	}
	w, ok := r.walk(fmt.Sprintf("w%d", keepWalks+9))
	if !ok || len(w.Steps) != keepSteps || w.Walk.Outcome != AsExpected || w.Walk.Ended == nil {
		t.Errorf("the last walk: %v, %d steps, %+v", ok, len(w.Steps), w.Walk)
	}
	if last := r.events[len(r.events)-1].seq; last != seq {
		t.Errorf("the last event is %d, and the state of %d", last, seq)
	}
}

func TestRecorder_ResumesBehindTheLastEventSeen(t *testing.T) {
	r := newRecorder()
	r.begin("w1", "order", "")
	for range 5 {
		r.step(Step{Walk: "w1"})
	}
	for after, want := range map[int64]int{0: 6, 4: 2, 6: 0, 99: 6} { // 99 was never given: of an engine before
		missed, s := r.subscribe(after)
		if len(missed) != want {
			t.Errorf("behind %d: %d events, want %d", after, len(missed), want)
		}
		r.unsubscribe(s)
	}
	missed, s := r.subscribe(6)
	r.step(Step{Walk: "w1"})
	if ev := <-s.events; len(missed) != 0 || ev.seq != 7 || ev.name != "step" {
		t.Errorf("%d missed, then %+v", len(missed), ev)
	}
	r.close()
	if _, open := <-s.events; open {
		t.Error("the stream goes on behind the end")
	}
	if _, s := r.subscribe(0); s != nil {
		t.Error("a new stream behind the end")
	}
}

// A client that takes nothing is dropped, and nobody waits for it.
func TestRecorder_DropsASlowClient(t *testing.T) {
	r := newRecorder()
	_, slow := r.subscribe(0)
	_, quick := r.subscribe(0)
	r.begin("w1", "order", "")
	<-quick.events
	for i := range subscriptionBuffer {
		r.process(Process{Name: "relay", PID: i + 1})
		<-quick.events
	}
	n := 0
	for range slow.events {
		n++
	}
	if n != subscriptionBuffer || !r.subs[quick] || len(r.subs) != 1 {
		t.Errorf("the slow one got %d, and %d clients are left", n, len(r.subs))
	}
}

func TestRecorder_TellsAProcessOnlyWhenItChanged(t *testing.T) {
	r := newRecorder()
	for _, p := range []Process{{Name: "relay", Up: true, PID: 5, Starts: 1}, {Name: "relay", Up: true, PID: 5, Starts: 1}, {Name: "relay", Starts: 1}} {
		r.process(p)
	}
	if seq, all, _ := r.state(); seq != 2 || len(all) != 1 || all[0].Up || all[0].Seq != 2 {
		t.Errorf("%d events, %+v", seq, all)
	}
}

// The API answers to names of this machine, and changes something only for the page.
func TestAPI_RefusesWhatIsNotThePage(t *testing.T) {
	e := &Engine{rec: newRecorder()}
	e.life, e.end = t.Context(), func() {}
	_, done, err := e.occupy()
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	h := e.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { reply(w, 299, map[string]string{"error": "none"}) }))
	for name, c := range map[string]struct {
		method, path, host, origin, live, body string
		want                                   int
		site                                   string // Sec-Fetch-Site
	}{
		"state":           {"GET", "/api/state", "127.0.0.1:7070", "", "", "", 200, ""},
		"by name":         {"GET", "/api/state", "localhost:7070", "", "", "", 200, ""},
		"by IPv6":         {"GET", "/api/state", "[::1]:7070", "", "", "", 200, ""},
		"rebound":         {"GET", "/api/state", "evil.example:7070", "", "", "", 403, ""},
		"no host":         {"GET", "/api/state", "", "", "", "", 403, ""},
		"other site":      {"GET", "/api/state", "127.0.0.1:7070", "http://evil.example", "", "", 403, ""},
		"other port":      {"POST", "/api/scenarios/order", "127.0.0.1:7070", "http://127.0.0.1:8080", "1", "", 403, ""},
		"null origin":     {"POST", "/api/scenarios/order", "127.0.0.1:7070", "null", "1", "", 403, ""},
		"no header":       {"POST", "/api/scenarios/order", "127.0.0.1:7070", "", "", "", 403, ""},
		"busy":            {"POST", "/api/scenarios/order", "127.0.0.1:7070", "http://127.0.0.1:7070", "1", "", 409, ""},
		"large":           {"POST", "/api/scenarios/order", "127.0.0.1:7070", "", "1", strings.Repeat("x", maxBody+1), 413, ""},
		"no scenario":     {"POST", "/api/scenarios/nothing", "127.0.0.1:7070", "", "1", "", 404, ""},
		"get a scenario":  {"GET", "/api/scenarios/order", "127.0.0.1:7070", "", "1", "", 404, ""},
		"no walk":         {"GET", "/api/walks/w1", "127.0.0.1:7070", "", "", "", 404, ""},
		"no number":       {"GET", "/api/events?after=x", "127.0.0.1:7070", "", "", "", 400, ""},
		"other page":      {"GET", "/api/events", "127.0.0.1:7070", "", "", "", 403, "cross-site"},
		"other port's":    {"GET", "/api/events", "127.0.0.1:7070", "", "", "", 403, "same-site"},
		"by hand":         {"GET", "/api/state", "127.0.0.1:7070", "", "", "", 200, "none"},
		"the page":        {"GET", "/api/state", "127.0.0.1:7070", "", "", "", 200, "same-origin"},
		"a link":          {"GET", "/", "127.0.0.1:7070", "", "", "", 299, "cross-site"},
		"nothing of ours": {"GET", "/api/secret", "127.0.0.1:7070", "", "", "", 404, ""},
	} {
		req := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		req.Host = c.host
		if c.origin != "" {
			req.Header.Set("Origin", c.origin)
		}
		if c.site != "" {
			req.Header.Set("Sec-Fetch-Site", c.site)
		}
		req.Header.Set("X-Live", c.live)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		body, err := io.ReadAll(w.Body)
		if err != nil || w.Code != c.want || !json.Valid(body) || c.want != 200 && !strings.Contains(string(body), `"error"`) {
			t.Errorf("%s: %d %s, want %d", name, w.Code, body, c.want)
		}
	}
}

// What did not answer is no number, so that no walk can end as expected by it.
func TestSight_WhatIsNotKnownIsNotAsExpected(t *testing.T) {
	for _, sc := range listed {
		if strings.Contains(sc.expected, unknown) {
			t.Errorf("%s expects what is unknown", sc.Name)
		}
	}
	// Nothing of it is behind, and there are no mails: neither was seen.
	blind := sight{orders: []int64{1}, lsn: 1, confirmed: 1, read: true}
	for name, s := range map[string]sight{"nobody": blind, "no Kafka": {provider: true, lsn: 1, confirmed: 1, read: true}, "no provider": {kafka: true, lsn: 1, confirmed: 1, read: true}} {
		if !strings.Contains(s.counts(), unknown) || s.settled() {
			t.Errorf("%s: %s, settled %v", name, s.counts(), s.settled())
		}
	}
	blind.kafka, blind.provider = true, true
	if strings.Contains(blind.counts(), unknown) || !blind.settled() {
		t.Errorf("%s, settled %v", blind.counts(), blind.settled())
	}
}

func TestDuplicates_AreReadFromTheWorkersLog(t *testing.T) {
	log := `{"time":"2026-12-01T03:00:00Z","msg":"inbox","kind":"duplicates","topic":"outbox.event.order","offset":4,"n":1}
{"time":"2026-12-01T03:00:02Z","msg":"inbox","kind":"processed","topic":"outbox.event.order","n":7}
{"time":"2026-12-01T03:00:02Z","msg":"inbox","kind":"duplicates","topic":"outbox.event.order","offset":5,"n":2}
{"time":"2026-12-01T03:00:03Z","msg":"inbox","kind":"dupl` // it was killed while it wrote
	var since Time
	if err := json.Unmarshal([]byte(`"2026-12-01T03:00:01Z"`), &since.Time); err != nil {
		t.Fatal(err)
	}
	if n := duplicates(log, since.Time); n != 2 {
		t.Errorf("%d", n)
	}
}
