package live_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/lab/stage"
	"github.com/cdc-relay/cdc-relay/live"
)

// One stage for all tests of the package.
var shared struct {
	sync.Once
	stage  *stage.Stage
	engine *live.Engine
	err    error
}

func TestMain(m *testing.M) {
	code := e2e.Main(m)
	if shared.engine != nil {
		shared.engine.Close()
	}
	if shared.stage != nil {
		shared.stage.Close()
	}
	os.Exit(code)
}

// engine is the running engine and its stage.
func engine(t *testing.T) (*live.Engine, *stage.Stage) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts servers")
	}
	shared.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		if shared.stage, shared.err = stage.Start(ctx, stage.Options{DeadLetters: true}); shared.err == nil {
			shared.engine, shared.err = live.Start(ctx, shared.stage)
		}
	})
	if errors.Is(shared.err, kafkaserver.ErrNoJars) {
		fmt.Println("WARNING skipped " + t.Name() + ": no Apache Kafka (make deps)")
		t.Skip(shared.err)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.engine, shared.stage
}

// truth is what PostgreSQL, Kafka and the provider hold of one customer's order, read without the engine.
type truth struct {
	Orders, Outbox, Invoices, Letters, Messages, IDs, Mails int
	Order, Event                                            string
	BillBehind, MailBehind                                  int64
	Records                                                 []*kgo.Record
}

// lookUp reads it of the customer of the newest order, who has no other.
func lookUp(t *testing.T, s *stage.Stage) (r truth) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := s.DB.QueryRow(ctx, `WITH last AS (SELECT customer FROM orders ORDER BY id DESC LIMIT 1), o AS (SELECT id FROM orders WHERE customer = (SELECT customer FROM last)),
		x AS (SELECT id FROM outbox WHERE aggregateid IN (SELECT id::text FROM o))
		SELECT (SELECT count(*) FROM o), (SELECT count(*) FROM x), (SELECT count(*) FROM invoices WHERE order_id IN (SELECT id FROM o)),
		(SELECT count(*) FROM inbox_dead_letters WHERE event_id IN (SELECT id::text FROM x)), (SELECT min(id)::text FROM o), (SELECT min(id::text) FROM x)`).
		Scan(&r.Orders, &r.Outbox, &r.Invoices, &r.Letters, &r.Order, &r.Event)
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.Records(ctx, stage.Topic)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, rec := range all {
		if string(rec.Key) == r.Order {
			r.Records = append(r.Records, rec)
			ids[headerOf(rec, "id")] = true
		}
	}
	r.Messages, r.IDs = len(r.Records), len(ids)
	mails, err := s.Mails(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mails.Mails {
		if strings.Contains(m.Key, r.Event) {
			r.Mails++
		}
	}
	r.BillBehind, r.MailBehind = behind(t, s, stage.BillGroup), behind(t, s, stage.MailGroup)
	return r
}

func behind(t *testing.T, s *stage.Stage, group string) (n int64) {
	t.Helper()
	offsets, err := s.Offsets(t.Context(), group, stage.Topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range offsets {
		n += o.End - max(0, o.Committed)
	}
	return n
}

func headerOf(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// counts are the truth's, as a walk writes them, but for the repeats, which no table holds.
func (r truth) counts() map[string]string {
	return map[string]string{"orders": fmt.Sprint(r.Orders), "outbox": fmt.Sprint(r.Outbox), "messages": fmt.Sprint(r.Messages), "ids": fmt.Sprint(r.IDs),
		"invoices": fmt.Sprint(r.Invoices), "mails": fmt.Sprint(r.Mails), "dead_letters": fmt.Sprint(r.Letters),
		"bill_behind": fmt.Sprint(r.BillBehind), "mail_behind": fmt.Sprint(r.MailBehind)}
}

func pairs(s string) map[string]string {
	m := map[string]string{}
	for _, p := range strings.Fields(s) {
		k, v, _ := strings.Cut(p, "=")
		m[k] = v
	}
	return m
}

// serve serves the engine, with that page, until the end of the test.
func serve(t *testing.T, e *live.Engine, page http.Handler) *httptest.Server {
	server := httptest.NewServer(e.Handler(page))
	t.Cleanup(server.Close)
	return server
}

func post(t *testing.T, url string) (int, map[string]string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Live", "1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body := map[string]string{}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, body
}

type recording struct {
	Walk  live.Walk
	Steps []live.Step
}

func get(t *testing.T, url string, into any) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		t.Fatal(err)
	}
}

// follow reads the stream of events until a walk has ended, and returns the steps that came, and the last event's id.
func follow(t *testing.T, url, after, walk string) (steps []live.Step, last string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Last-Event-ID", after)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var name string
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "id":
			last = value
		case "event":
			name = value
		case "data":
			var s live.Step
			var w live.Walk
			switch {
			case name == "step" && json.Unmarshal([]byte(value), &s) == nil && s.Walk == walk:
				steps = append(steps, s)
			case name == "walk" && json.Unmarshal([]byte(value), &w) == nil && w.ID == walk && w.Ended != nil:
				return steps, last
			}
		}
	}
	t.Fatalf("the stream of events ended before the walk %s", walk)
	return nil, ""
}
