package inbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
)

func (e *kafkaEnv) deadLetters() *inbox.DeadLetters {
	d := inbox.DeadLettersForPGX(e.pool.Begin, []string{e.addr}, nil, nil)
	e.t.Cleanup(d.Close)
	return d
}

func (e *kafkaEnv) letters(state inbox.State) []inbox.DeadLetter {
	e.t.Helper()
	l, err := e.deadLetters().List(context.Background(), inbox.Filter{Owner: e.group, State: state})
	e.must(err)
	return l
}

// failing bills, but fails for ids that are not healed.
type failing struct {
	mu    sync.Mutex
	ids   map[string]bool
	order []string
}

func (f *failing) set(id string, fails bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids[id] = fails
}

func (f *failing) handled() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.order)
}

func (f *failing) handle(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ids[r.ID] {
		return errors.New("no such order")
	}
	f.order = append(f.order, r.ID)
	return bill(ctx, tx, r)
}

func TestDeadLetters_AreRedrivenWithTheSameID(t *testing.T) {
	e := newKafkaEnv(t, 1)
	ctx := t.Context()
	f := &failing{ids: map[string]bool{"a": true, "x": true}}
	e.produce(0, "a:k:secret", "x:other", "b:k", "-::noid")
	r := e.run(f.handle)
	waitFor(t, "the dead letters", func() bool { return r.count(inbox.DeadLettered) == 3 && e.offset(e.topic, 0) == 4 })
	d, open := e.deadLetters(), e.letters("")
	if len(open) != 3 || open[0].EventID != "a" || open[0].Later != 1 || open[1].Later != 0 || open[0].Attempts != 3 || open[2].Attempts != 0 || open[2].Reason != "the record has no header id" {
		t.Fatalf("%+v", open)
	}
	if l, err := d.List(ctx, inbox.Filter{OlderThan: time.Hour}); err != nil || len(l) != 0 {
		t.Error("young letters are old:", l, err)
	}
	_, _, rec, err := d.Show(ctx, open[0].ID)
	if err != nil || string(rec.Value) != "secret" || string(rec.Key) != "k" || string(rec.Header("id")) != "a" || rec.Offset != 0 || rec.Topic != e.topic {
		t.Errorf("%+v %v", rec, err)
	}
	// Its key has gone on: that is said.
	by := inbox.Redrive{Actor: "ann", Note: "order 42 was restored"}
	f.set("a", false)
	if err := d.Redrive(ctx, open[0].ID, by); !errors.Is(err, inbox.ErrLater) {
		t.Error(err)
	}
	by.Anyway = true
	e.must(d.Redrive(ctx, open[0].ID, by))
	waitFor(t, "the redriven record", func() bool { return len(e.letters(inbox.Done)) == 1 })
	// A second redrive of what was handled is skipped.
	if err := d.Redrive(ctx, open[0].ID, by); !errors.Is(err, inbox.ErrState) {
		t.Error(err)
	}
	// One that fails again is open again.
	e.must(d.Redrive(ctx, open[1].ID, inbox.Redrive{Actor: "ann", Note: "try"}))
	waitFor(t, "the letter to be open again", func() bool { return r.count(inbox.DeadLettered) == 4 })
	e.must(d.Discard(ctx, open[1].ID, "bob", "a test order"))
	if err := d.Discard(ctx, open[1].ID, "bob", "again"); !errors.Is(err, inbox.ErrState) {
		t.Error(err)
	}
	if err := d.Discard(ctx, 1e9, "bob", "none"); !errors.Is(err, inbox.ErrNoLetter) {
		t.Error(err)
	}
	if err := d.Discard(ctx, open[2].ID, "", "none"); !errors.Is(err, inbox.ErrActor) {
		t.Error(err)
	}
	_, actions, _, err := d.Show(ctx, open[1].ID)
	if err != nil || len(actions) != 2 || actions[0].Action != "redrive" || actions[0].Actor != "ann" || actions[1].Action != "discard" || actions[1].Note != "a test order" {
		t.Errorf("%+v %v", actions, err)
	}
	if e.invoices() != 2 || e.markers() != 2 {
		t.Errorf("%d invoices, %d markers", e.invoices(), e.markers())
	}
}

// A copy of the record was handled meanwhile: the redriven one must not be a second
// effect, and its letter is done.
func TestDeadLetters_RedriveOfAHandledEventIsSkipped(t *testing.T) {
	e := newKafkaEnv(t, 1)
	f := &failing{ids: map[string]bool{"a": true}}
	e.produce(0, "a:k")
	r := e.run(f.handle)
	waitFor(t, "the dead letter", func() bool { return e.offset(e.topic, 0) == 1 })
	f.set("a", false)
	e.produce(0, "a:k")
	waitFor(t, "the copy", func() bool { return e.offset(e.topic, 0) == 2 })
	e.must(e.deadLetters().Redrive(t.Context(), e.letters(inbox.Open)[0].ID, inbox.Redrive{Actor: "ann", Note: "now", Anyway: true}))
	waitFor(t, "the redriven record", func() bool { return e.offset(e.retry, 0) == 1 })
	if e.invoices() != 1 || r.count(inbox.Duplicates) != 1 || len(e.letters(inbox.Done)) != 1 {
		t.Errorf("%d invoices, %d duplicates", e.invoices(), r.count(inbox.Duplicates))
	}
}

// With Retry, or when a letter failed again, what is behind it was handled long before it
// failed: that is told, too.
func TestRedrive_TellsLaterRecordsOfLongBefore(t *testing.T) {
	e := newKafkaEnv(t, 1)
	f := &failing{ids: map[string]bool{"a": true}}
	e.produce(0, "a:k", "b:k", "c:k", "o:other")
	e.run(f.handle)
	waitFor(t, "the dead letter", func() bool { return len(e.letters(inbox.Open)) == 1 && e.offset(e.topic, 0) == 4 })
	e.must(server.Exec(t.Context(), e.db, "UPDATE inbox SET processed_at = now() - interval '3 days'"))
	l := e.letters(inbox.Open)[0]
	err := e.deadLetters().Redrive(t.Context(), l.ID, inbox.Redrive{Actor: "ann", Note: "mended"})
	if l.Later != 2 || !errors.Is(err, inbox.ErrLater) {
		t.Errorf("%d later, %v", l.Later, err)
	}
}

// A key that is parked has a letter for each of its records: the list does not count each
// against each, nor goes through the inbox for each.
func TestList_TakesNoTimeByTheSquare(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.must(server.Exec(t.Context(), e.db,
		"INSERT INTO inbox_dead_letters (consumer, event_id, kafka_topic, kafka_partition, kafka_offset, key_hash, letter_topic, letter_partition, letter_offset, redrive_topic, reason, attempts)"+
			" SELECT '"+e.group+"', 'e' || i, 't', 0, i, '\\x01', 'd', 0, i, 'r', 'r', 1 FROM generate_series(1, 5000) i",
		"INSERT INTO inbox SELECT '"+e.group+"', 'm' || i, now(), 't', 0, i, decode(md5(i::text), 'hex') FROM generate_series(1, 50000) i",
		"ANALYZE inbox", "ANALYZE inbox_dead_letters"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	began := time.Now()
	l, err := e.deadLetters().List(ctx, inbox.Filter{Owner: e.group, Limit: 5000})
	if err != nil || len(l) != 5000 || l[50].Earlier != 50 || l[4999].Earlier != 100 || l[0].Later != 0 {
		t.Fatalf("%d letters, %v", len(l), err)
	}
	t.Logf("%d letters of one key, and 50000 markers: %v", len(l), time.Since(began))
}

func TestPark_KeepsTheOrderOfAKey(t *testing.T) {
	e := newKafkaEnv(t, 1)
	f := &failing{ids: map[string]bool{"k1": true}}
	e.produce(0, "k1:k", "o1:other", "k2:k", "n1")
	r := e.run(f.handle, func(c *inbox.Config) { c.Policy = inbox.Park })
	waitFor(t, "the first two letters", func() bool { return e.offset(e.topic, 0) == 4 })
	e.produce(0, "k3:k", "o2:other")
	waitFor(t, "the third", func() bool { return e.offset(e.topic, 0) == 6 })
	open := e.letters(inbox.Open)
	if len(open) != 3 || open[0].EventID != "k1" || open[1].EventID != "k2" || open[2].EventID != "k3" || open[1].Attempts != 0 || e.invoices() != 3 {
		t.Fatalf("%+v, %d invoices", open, e.invoices())
	}
	d := e.deadLetters()
	by := inbox.Redrive{Actor: "ann", Note: "mended"}
	if err := d.Redrive(t.Context(), open[1].ID, by); !errors.Is(err, inbox.ErrEarlier) {
		t.Error(err)
	}
	// The first fails again: those that were redriven behind it are parked again, untried.
	for _, l := range open {
		e.must(d.Redrive(t.Context(), l.ID, by))
	}
	waitFor(t, "all to be open again", func() bool { return e.offset(e.retry, 0) == 3 })
	if n := len(e.letters(inbox.Open)); n != 3 || r.count(inbox.DeadLettered) != 6 {
		t.Errorf("%d letters, %d given up", n, r.count(inbox.DeadLettered))
	}
	f.set("k1", false)
	for _, l := range open {
		e.must(d.Redrive(t.Context(), l.ID, by))
	}
	waitFor(t, "all to be done", func() bool { return len(e.letters(inbox.Done)) == 3 })
	e.produce(0, "k4:k")
	waitFor(t, "the key to go on", func() bool { return e.offset(e.topic, 0) == 7 })
	order := slices.DeleteFunc(f.handled(), func(id string) bool { return id[0] != 'k' })
	if got := strings.Join(order, " "); got != "k1 k2 k3 k4" || e.invoices() != 7 {
		t.Errorf("order %s, %d invoices", got, e.invoices())
	}
}

func TestRetry_GoesOnAndTriesAgainLater(t *testing.T) {
	e := newKafkaEnv(t, 1)
	f := &failing{ids: map[string]bool{"a": true, "never": true}}
	e.produce(0, "a:k", "b:k", "never")
	r := e.run(f.handle, func(c *inbox.Config) {
		c.Policy = inbox.Retry
		c.Observe = func(ev inbox.Event) {
			if ev.Kind == inbox.SentToRetry && ev.ID == "a" {
				f.set("a", false)
			}
		}
	})
	waitFor(t, "the dead letter", func() bool { return len(e.letters(inbox.Open)) == 1 })
	if l := e.letters(inbox.Open)[0]; l.EventID != "never" || l.Attempts != 3 || l.Topic != e.topic || l.Offset != 2 {
		t.Errorf("%+v", l)
	}
	waitFor(t, "the offset of the retry topic", func() bool { return e.offset(e.retry, 0) == 3 })
	if strings.Join(f.handled(), " ") != "b a" || e.invoices() != 2 || r.count(inbox.SentToRetry) != 3 || e.offset(e.topic, 0) != 3 {
		t.Errorf("order %v, %d invoices, %d retries", f.handled(), e.invoices(), r.count(inbox.SentToRetry))
	}
}

func TestRunner_AnAbsentDatabaseIsNoAttempt(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a")
	var away, lost atomic.Bool
	begin := e.pool.Begin
	seen := make(chan inbox.Kind, 1000)
	runner, err := inbox.ForPGX(func(ctx context.Context) (pgx.Tx, error) {
		if away.Load() {
			return nil, errors.New("connection refused")
		}
		return begin(ctx)
	}, func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		if lost.CompareAndSwap(false, true) {
			away.Store(true)
			return errors.New("connection lost")
		}
		return bill(ctx, tx, r)
	}, e.config(func(c *inbox.Config) {
		var n atomic.Int64
		c.Observe = func(ev inbox.Event) {
			if ev.Kind == inbox.Waiting {
				if n.Add(1) == 8 { // more than Attempts
					away.Store(false)
				}
			}
			if ev.Kind == inbox.DeadLettered {
				seen <- ev.Kind
			}
		}
	}))
	e.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	waitFor(t, "the effect or a dead letter", func() bool { return len(seen) > 0 || e.offset(e.topic, 0) == 1 })
	cancel()
	e.must(<-done)
	if len(seen) > 0 {
		t.Error("a record became a dead letter while the database was away")
	}
}

func TestRun_RefusesWhatWouldLoseOrRepeat(t *testing.T) {
	e := newKafkaEnv(t, 1)
	day := 24 * time.Hour
	short, forever := e.db+".short", e.db+".forever"
	e.makeTopic(short, 1, "retention.ms", "86400000", "segment.ms", "3600000")
	e.makeTopic(forever, 1, "retention.ms", "-1")
	for name, c := range map[string]struct {
		change func(*inbox.Config)
		says   string
	}{
		"no topic":           {func(c *inbox.Config) { c.Topics = []string{"nowhere"} }, "nowhere"},
		"letters forgotten":  {func(c *inbox.Config) { c.DeadLetterTopic = short }, "retention.ms=-1"},
		"markers too short":  {func(c *inbox.Config) { c.Topics, c.RetryTopic, c.Cleanup.Keep = []string{short}, "", day }, "25h0m0s"},
		"unlimited topic":    {func(c *inbox.Config) { c.Topics, c.RetryTopic, c.Cleanup.Keep = []string{forever}, "", 1000*day }, "for ever"},
		"retry topic longer": {func(c *inbox.Config) { c.Topics, c.Cleanup.Keep = []string{short}, 26*time.Hour }, e.retry},
	} {
		runner, err := inbox.ForPGX(e.pool.Begin, bill, e.config(c.change))
		e.must(err)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := runner.Run(ctx); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	if _, err := inbox.ForPGX(e.pool.Begin, bill, inbox.Config{Policy: inbox.Park, Topics: []string{"a", "a"}}); err == nil ||
		!strings.Contains(err.Error(), "named twice") || !strings.Contains(err.Error(), "Park needs RetryTopic") || !strings.Contains(err.Error(), "Brokers") {
		t.Error(err)
	}
}

func TestCleanup_DeletesOldMarkersButNoneOfADeadLetter(t *testing.T) {
	e := newKafkaEnv(t, 1)
	short := e.db + ".short"
	e.makeTopic(short, 1, "retention.ms", "86400000", "segment.ms", "3600000")
	e.must(server.Exec(t.Context(), e.db,
		"INSERT INTO inbox (consumer, event_id, processed_at) SELECT c, 'old-' || i, now() - interval '27 hours' FROM generate_series(1, 25) i, unnest(ARRAY['"+e.group+"', 'other']) c",
		"INSERT INTO inbox (consumer, event_id, processed_at) VALUES ('"+e.group+"', 'young', now() - interval '25 hours')",
		"INSERT INTO inbox_dead_letters (consumer, event_id, kafka_topic, kafka_partition, kafka_offset, letter_topic, letter_partition, letter_offset, redrive_topic, reason, attempts, state, changed_at)"+
			" SELECT '"+e.group+"', 'old-' || i, 't', 0, i, 'd', 0, i, '', 'r', 1, CASE WHEN i = 1 THEN 'open' ELSE 'done' END, now() - CASE WHEN i = 3 THEN interval '30 hours' ELSE '1 hour' END FROM generate_series(1, 3) i"))
	r := e.run(bill, func(c *inbox.Config) {
		c.Topics, c.RetryTopic, c.Cleanup = []string{short}, "", inbox.Cleanup{Keep: 26 * time.Hour, Batch: 10}
	})
	waitFor(t, "the cleanup", func() bool { return r.count(inbox.CleanedUp) > 0 })
	// 25 old ones, but those of the open letter and of the one that was redriven lately.
	if n := e.count("SELECT count(*) FROM inbox WHERE consumer = $1", e.group); n != 3 || e.count("SELECT count(*) FROM inbox WHERE consumer = 'other'") != 25 {
		t.Errorf("%d markers are left", n)
	}
}
