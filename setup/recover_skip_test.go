package setup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/undecodable"
)

// readableRows are snapshotRows without those that cannot be printed. The type of a
// row is its id here.
type readableRows struct {
	*snapshotRows
	except []catalog.Address
}

func (r *readableRows) Unreadable(ctx context.Context) ([]catalog.UnreadableRow, error) {
	q := r.query()
	q.Columns = append(q.Columns, "payload")
	found, err := r.reader.Unreadable(ctx, q, "type")
	for _, row := range found {
		r.except = append(r.except, row.At)
	}
	return found, err
}

func (r *readableRows) narrowed() catalog.Select {
	q := r.query()
	q.Except = r.except
	return q
}

func (r *readableRows) Count(ctx context.Context) (int64, error) {
	return r.reader.Count(ctx, r.narrowed())
}

func (r *readableRows) Publish(ctx context.Context, below, at lsn) error {
	r.below, r.at = below, at
	return r.c.step(func() error {
		if err := r.reader.Declare(ctx, r.narrowed()); err != nil {
			return err
		}
		_, err := r.reader.Fetch(ctx, 1000, func(v [][]byte) error {
			r.published = append(r.published, string(v[0]))
			return r.fails
		})
		return err
	})
}

// recovers runs one that may crash, and returns what it published.
func (e *env) recovers(c *crasher, change ...func(*Options, *RecoverOptions)) ([]string, error) {
	e.t.Helper()
	e.out.Reset()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	o := e.crashing(c)
	o.Yes = true
	o.Stream = &replication.Config{SilenceTimeout: time.Minute, StatusInterval: time.Second, MaxMessageBytes: 1 << 20}
	o.Replicate = func(ctx context.Context, cfg *pgx.ConnConfig) (Exporter, error) {
		return replication.Connect(ctx, replication.Config{Postgres: &cfg.Config, ApplicationName: "exporter", SilenceTimeout: time.Minute})
	}
	rows := &readableRows{snapshotRows: &snapshotRows{e: e, c: c}}
	ro := RecoverOptions{Tables: o.Tables}
	ro.OpenReadable = func(where string) (ReadableRows, func(context.Context), error) {
		rows.where = where
		return rows, func(ctx context.Context) {
			if rows.reader != nil {
				rows.reader.Close(ctx)
			}
		}, nil
	}
	for _, f := range change {
		f(&o, &ro)
	}
	err := Recover(ctx, o, ro)
	return rows.published, err
}

const (
	outboxOfText = "CREATE TABLE outbox (id uuid, aggregatetype text, aggregateid text, type text, payload text)"
	badText      = `convert_from('\xff'::bytea, 'SQL_ASCII')`
)

// undecodableEnv has a transaction with three rows, one of which cannot be printed,
// and a row behind it.
func undecodableEnv(t *testing.T) *env {
	t.Helper()
	e := newEnvIn(t, "SQL_ASCII", outboxOfText)
	e.mustSetup()
	e.sql("INSERT INTO outbox (type, payload) VALUES ('with-1', 'x'), ('bad', "+badText+"), ('with-2', 'x')",
		"INSERT INTO outbox (type, payload) VALUES ('after', 'x')")
	return e
}

// passes tells whether the slot can be decoded to its end.
func (e *env) passes() bool {
	e.t.Helper()
	s, _ := e.slot()
	cfg, err := e.o.Connect()
	if err != nil {
		e.t.Fatal(err)
	}
	until, err := e.session().WrittenLSN(context.Background())
	if err != nil {
		e.t.Fatal(err)
	}
	_, found, err := undecodable.Find(context.Background(), undecodable.Search{
		Stream: replication.Config{Postgres: &cfg.Config, SilenceTimeout: time.Minute, StatusInterval: time.Second, MaxMessageBytes: 1 << 20},
		Slot:   e.o.Slot, Publication: e.o.Publication, From: s.Confirmed, Until: until,
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return !found
}

func (e *env) openGaps() (reasons []string) {
	note := e.store.marks[e.mark().SystemID+"/"+checkpoint.CoverKey(e.o.Slot)]
	for _, g := range checkpoint.Uncovered(e.mark().Gaps, note.Gaps) {
		reasons = append(reasons, g.Reason)
	}
	return reasons
}

// What a crash leaves is told by the gap, whatever step it comes at, and another run
// goes on from there: the slot is never past what is neither published nor on record.
func TestRecover_SkipRecordsTheGapBeforeAnythingIsSkipped(t *testing.T) {
	const steps = 4 // mark, advance, publish, cover
	for at := 1; at <= steps; at++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("step %d after=%t", at, after), func(t *testing.T) {
				e := undecodableEnv(t)
				first, err := e.recovers(&crasher{at: at, after: after})
				if !errors.Is(err, errCrash) {
					t.Fatalf("no crash: %v", err)
				}
				s, _ := e.slot()
				skipped := e.passes()
				if s.Confirmed > e.mark().LSN {
					t.Fatalf("slot at %s, ahead of the mark at %s", s.Confirmed, e.mark().LSN)
				}
				if gaps := len(e.openGaps()); skipped && gaps < 2 && !slices.Contains(first, "with-1") {
					t.Fatalf("skipped with %d open gaps, and %v published", gaps, first)
				}
				second, err := e.recovers(&crasher{})
				if err != nil {
					t.Fatalf("the next run: %v\n%s", err, e.out.String())
				}
				if !e.passes() {
					t.Fatal("the next run did not pass it")
				}
				all := append(first, second...)
				open := strings.Join(e.openGaps(), "; ")
				if both := slices.Contains(all, "with-1") && slices.Contains(all, "with-2"); !both && !strings.Contains(open, "the server cannot decode") {
					t.Errorf("published %v, with open gaps %s", all, open)
				}
				if !strings.Contains(open, `row "bad" cannot be read`) || strings.Count(open, `row "bad"`) != 1 {
					t.Errorf("open gaps: %s", open)
				}
				if err := e.begins(); err != nil {
					t.Errorf("a relay refuses: %v", err)
				}
			})
		}
	}
	e := undecodableEnv(t)
	c := &crasher{}
	published, err := e.recovers(c)
	if err != nil || c.steps != steps {
		t.Fatalf("%d steps, want %d, each with a crash: %v\n%s", c.steps, steps, err, e.out.String())
	}
	if got := fmt.Sprint(published); got != "[after with-1 with-2]" {
		t.Errorf("published %s", got)
	}
	if open := e.openGaps(); len(open) != 1 || strings.Contains(e.out.String(), "0xff") {
		t.Errorf("open gaps: %v\n%s", open, e.out.String())
	}
}

func TestRecover_SkipRefusesAndDeclines(t *testing.T) {
	t.Run("what is not published yet before it", func(t *testing.T) {
		e := newEnvIn(t, "SQL_ASCII", outboxOfText)
		e.mustSetup()
		e.sql("INSERT INTO outbox (type) VALUES ('before')", "INSERT INTO outbox (type, payload) VALUES ('bad', "+badText+")")
		saves := e.store.saves
		_, err := e.recovers(&crasher{})
		e.stops(err, saves, "not published yet", "1 transaction", "start cdc-relay run")
	})
	t.Run("a dry run, and a no", func(t *testing.T) {
		e := undecodableEnv(t)
		s, _ := e.slot()
		saves := e.store.saves
		if _, err := e.recovers(&crasher{}, func(o *Options, _ *RecoverOptions) { o.DryRun = true }); err != nil {
			t.Fatal(err)
		}
		e.says("found:", "22021", `row "bad"`, "would publish 3 rows", "nothing was changed")
		_, err := e.recovers(&crasher{}, func(o *Options, _ *RecoverOptions) {
			o.Yes, o.Confirm = false, func(string) (bool, error) { return false, nil }
		})
		e.stops(err, saves, "nothing was changed")
		if now, _ := e.slot(); now.Confirmed != s.Confirmed {
			t.Errorf("the slot moved to %s", now.Confirmed)
		}
	})
	t.Run("nothing to skip", func(t *testing.T) {
		e := newEnv(t, outbox)
		e.mustSetup()
		e.sql("INSERT INTO outbox (type) VALUES ('fine')")
		saves := e.store.saves
		if _, err := e.recovers(&crasher{}); err != nil || e.store.saves != saves {
			t.Fatalf("saved %d times: %v", e.store.saves-saves, err)
		}
		e.says("nothing to recover")
	})
	t.Run("a slot in use", func(t *testing.T) {
		e := undecodableEnv(t)
		s, _ := e.slot()
		e.stream(s.Confirmed + 1<<20) // beyond, so that it does not fail
		e.await("the slot is in use", func() bool { s, _ := e.slot(); return s.Active })
		saves := e.store.saves
		if _, err := e.recovers(&crasher{}); err != nil || e.store.saves != saves {
			t.Fatalf("saved %d times: %v", e.store.saves-saves, err)
		}
		e.says("nothing to recover", "when the relay is stopped")
	})
}

// adopt with the position of a transaction would stream it, and not skip it.
func TestAdopt_RefusesTheTransactionsOwnPosition(t *testing.T) {
	e := newEnv(t, outbox)
	e.o.Stream = &replication.Config{SilenceTimeout: time.Minute, StatusInterval: time.Second, MaxMessageBytes: 1 << 20}
	e.mustSetup()
	e.sql("INSERT INTO outbox (type) VALUES ('passed')", "INSERT INTO outbox (type) VALUES ('halted')")
	s, _ := e.slot()
	cfg, err := e.o.Connect()
	if err != nil {
		t.Fatal(err)
	}
	search := undecodable.Search{Stream: *e.o.Stream, Slot: e.o.Slot, Publication: e.o.Publication, From: s.Confirmed, Until: e.current()}
	search.Stream.Postgres = &cfg.Config
	first, err := undecodable.First(t.Context(), search, s.Confirmed)
	if err != nil || first == 0 {
		t.Fatalf("%s: %v", first, err)
	}
	second, err := undecodable.First(t.Context(), search, first+1)
	if err != nil || second <= first {
		t.Fatalf("%s after %s: %v", second, first, err)
	}
	saves := e.store.saves
	e.stops(e.adopt(second), saves, "the position of a transaction itself", fmt.Sprintf("--lsn %s", second+1), fmt.Sprintf("--lsn %s", second-1))
	if err := e.adopt(second + 1); err != nil {
		t.Fatal(err)
	}
	if e.streams(second, "halted") {
		t.Error("it is not skipped")
	}
}
