package setup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/replication"
)

// snapshotRows reads the column type of the default table, and keeps what it read
// for published.
type snapshotRows struct {
	e         *env
	c         *crasher
	where     string
	reader    *catalog.Reader
	published []string
	below, at lsn
	during    func() // between two rows, or nil
	fails     error  // after a row
}

func (r *snapshotRows) query() catalog.Select {
	return catalog.Select{Table: DefaultTable, Columns: []string{"type"}, Where: r.where, OrderBy: []string{"type"}}
}

func (r *snapshotRows) Check(ctx context.Context, _ []catalog.Table, _ catalog.Publication) error {
	cfg, err := r.e.o.Connect()
	if err != nil {
		return err
	}
	r.reader, err = catalog.OpenReader(ctx, cfg, "rows", 1<<20)
	return err
}

func (r *snapshotRows) Import(ctx context.Context, snapshot string) error {
	return r.reader.Begin(ctx, snapshot)
}

func (r *snapshotRows) Count(ctx context.Context) (int64, error) {
	return r.reader.Count(ctx, r.query())
}

func (r *snapshotRows) Publish(ctx context.Context, below, at lsn) error {
	r.below, r.at = below, at
	return r.c.step(func() error {
		if err := r.reader.Declare(ctx, r.query()); err != nil {
			return err
		}
		_, err := r.reader.Fetch(ctx, 1000, func(v [][]byte) error {
			r.published = append(r.published, string(v[0]))
			if r.during != nil {
				r.during()
			}
			return r.fails
		})
		return err
	})
}

type crashExporter struct {
	Exporter
	c *crasher
}

func (x crashExporter) CreateSlot(ctx context.Context, spec replication.SlotSpec) (out replication.Exported, err error) {
	err = x.c.step(func() error { out, err = x.Exporter.CreateSlot(ctx, spec); return err })
	return out, err
}

// backfill runs one that may crash, and returns what it published.
func (e *env) backfill(c *crasher, change ...func(*Options, *BackfillOptions, *snapshotRows)) ([]string, error) {
	e.t.Helper()
	e.out.Reset()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	o := e.crashing(c)
	o.Replicate = func(ctx context.Context, cfg *pgx.ConnConfig) (Exporter, error) {
		conn, err := replication.Connect(ctx, replication.Config{Postgres: &cfg.Config, ApplicationName: "exporter", SilenceTimeout: time.Minute})
		return crashExporter{conn, c}, err
	}
	rows := &snapshotRows{e: e, c: c}
	b := BackfillOptions{Rows: rows, Tables: o.Tables}
	for _, f := range change {
		f(&o, &b, rows)
	}
	rows.where = b.Where
	err := Backfill(ctx, o, b)
	if rows.reader != nil {
		rows.reader.Close(ctx)
	}
	return rows.published, err
}

func (e *env) mustBackfill(change ...func(*Options, *BackfillOptions, *snapshotRows)) []string {
	e.t.Helper()
	published, err := e.backfill(&crasher{}, change...)
	if err != nil {
		e.t.Fatalf("backfill: %v\n%s", err, e.out.String())
	}
	return published
}

// begins returns why a relay would refuse to run.
func (e *env) begins() error {
	e.t.Helper()
	ctx, db := context.Background(), e.session()
	var f preflight.Facts
	var err error
	note := func(e2 error) { err = errors.Join(err, e2) }
	f.Slot, f.HasSlot, err = db.Slot(ctx, e.o.Slot)
	f.Server, err = db.Server(ctx)
	f.SystemID, f.Timeline, f.Now = f.Server.SystemID, f.Server.Timeline, time.Now()
	var e2 error
	f.Mark, f.HasMark, e2 = e.store.Load(ctx, f.SystemID, e.o.Slot)
	note(e2)
	covered, _, e2 := e.store.Load(ctx, f.SystemID, checkpoint.CoverKey(e.o.Slot))
	note(e2)
	f.Covered = covered.Gaps
	f.Elsewhere, e2 = e.store.Others(ctx, f.SystemID, e.o.Slot)
	note(e2)
	f.Publication, f.HasPublication, e2 = db.Publication(ctx, e.o.Publication)
	note(e2)
	f.Identities, e2 = db.Identities(ctx, e.o.Publication, e.o.Tables)
	note(e2)
	if err != nil {
		e.t.Fatal(err)
	}
	plan, err := preflight.Decide(preflight.Want{Slot: e.o.Slot, Publication: e.o.Publication, Tables: e.o.Tables, Messages: e.o.Messages != ""}, f, preflight.Known{})
	if err == nil && plan.SaveFirst {
		e.edit(func(m *checkpoint.Mark) { *m = plan.Mark })
	}
	return err
}

// meanwhileExporter has a row committed between the slot's beginning and the
// import of its snapshot.
type meanwhileExporter struct {
	Exporter
	e *env
}

func (x meanwhileExporter) CreateSlot(ctx context.Context, spec replication.SlotSpec) (replication.Exported, error) {
	out, err := x.Exporter.CreateSlot(ctx, spec)
	x.e.sql("INSERT INTO outbox (type) VALUES ('meanwhile')")
	return out, err
}

func TestBackfill_HandsOverWithoutGapOrOverlap(t *testing.T) {
	e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('before-1'), ('before-2')")
	published := e.mustBackfill(func(o *Options, _ *BackfillOptions, r *snapshotRows) {
		r.during = func() { e.sql("INSERT INTO outbox (type) VALUES ('during')") }
		replicate := o.Replicate
		o.Replicate = func(ctx context.Context, cfg *pgx.ConnConfig) (Exporter, error) {
			conn, err := replicate(ctx, cfg)
			return meanwhileExporter{conn, e}, err
		}
	})
	e.sql("INSERT INTO outbox (type) VALUES ('after')")
	e.complete()
	e.gapsAre()
	e.says("created slot", "marked slot")
	if err := e.begins(); err != nil {
		t.Errorf("run refuses: %v", err)
	}
	if !slices.Equal(published, []string{"before-1", "before-2"}) {
		t.Errorf("published %v", published)
	}
	for text, want := range map[string]bool{"before-1": false, "before-2": false, "meanwhile": true, "during": true, "after": true} {
		if e.streams(0, text) != want {
			t.Errorf("%s is streamed: %t", text, !want)
		}
	}
}

const backfillSteps = 6 // publication, intent, slot, where it begins, rows, mark

func TestBackfill_StartsOverAfterACrash(t *testing.T) {
	for at := 1; at <= backfillSteps; at++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("step %d after=%t", at, after), func(t *testing.T) {
				e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('before')")
				if _, err := e.backfill(&crasher{at: at, after: after}); !errors.Is(err, errCrash) {
					t.Fatalf("no crash: %v", err)
				}
				finished := at == backfillSteps && after
				e.crashIsTold(finished, at > 2 || at == 2 && after)
				e.sql("INSERT INTO outbox (type) VALUES ('between')")
				if finished {
					e.complete()
					return
				}
				if slot, exists := e.slot(); exists && e.mark().Backfill.LSN == 0 {
					e.wantsADecision(slot)
				}
				published := e.mustBackfill()
				e.sql("INSERT INTO outbox (type) VALUES ('after')")
				e.complete()
				e.gapsAre()
				if !slices.Equal(published, []string{"before", "between"}) {
					t.Errorf("published %v", published)
				}
				if e.streams(0, "between") || !e.streams(0, "after") {
					t.Error("the stream does not begin where the snapshot ends")
				}
				if err := e.begins(); err != nil {
					t.Errorf("run refuses: %v", err)
				}
			})
		}
	}
	e := newEnv(t, outbox)
	c := &crasher{}
	if _, err := e.backfill(c); err != nil || c.steps != backfillSteps {
		t.Errorf("%d steps, want %d, each with a crash: %v", c.steps, backfillSteps, err)
	}
}

// crashIsTold: run refuses unless the backfill has finished, and as soon as an
// intent was saved setup and adopt leave it alone.
func (e *env) crashIsTold(finished, intent bool) {
	e.t.Helper()
	err := e.begins()
	switch {
	case finished && err != nil:
		e.t.Errorf("run refuses a backfill that has finished: %v", err)
	case !finished && err == nil:
		e.t.Error("run accepts a backfill that has not finished")
	}
	if finished || !intent {
		return
	}
	if !strings.Contains(err.Error(), "--give-up") {
		e.t.Errorf("run does not say how to go on: %v", err)
	}
	saves := e.store.saves
	e.stops(e.setup(), saves, "backfill", "--give-up")
	e.stops(e.adopt(1), saves, "backfill", "--give-up")
}

// wantsADecision: whose slot it is cannot be told, when the backfill ended before it
// noted where its own begins; so a person has to drop it, as is done here.
func (e *env) wantsADecision(s catalog.Slot) {
	e.t.Helper()
	saves := e.store.saves
	_, err := e.backfill(&crasher{})
	e.stops(err, saves, s.Confirmed.String(), "ended before it could note", "pg_drop_replication_slot", "--give-up")
	if now, ok := e.slot(); !ok || now.Confirmed != s.Confirmed {
		e.t.Errorf("a slot of which nobody knows who made it is gone or moved: %t %+v", ok, now)
	}
	e.sql("SELECT pg_drop_replication_slot('" + e.o.Slot + "')")
}

func TestBackfill_CrashWhileStartingOver(t *testing.T) {
	for at := 1; at <= 4; at++ { // drop, intent, slot, where it begins
		for _, after := range []bool{false, true} {
			e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('before')")
			if _, err := e.backfill(&crasher{at: 5, after: true}); !errors.Is(err, errCrash) { // all rows, and not the mark
				t.Fatalf("no crash: %v", err)
			}
			if _, err := e.backfill(&crasher{at: at, after: after}); !errors.Is(err, errCrash) {
				t.Fatalf("step %d after=%t: no crash: %v", at, after, err)
			}
			e.crashIsTold(false, true)
			if slot, exists := e.slot(); exists && e.mark().Backfill.LSN == 0 {
				e.wantsADecision(slot)
			}
			if published := e.mustBackfill(); !slices.Equal(published, []string{"before"}) {
				t.Errorf("step %d after=%t: published %v", at, after, published)
			}
			e.complete()
			e.gapsAre()
		}
	}
}

func TestBackfill_GivenUpRecordsTheGap(t *testing.T) {
	giveUp := func(_ *Options, b *BackfillOptions, _ *snapshotRows) { b.GiveUp = true }
	for at := 2; at <= backfillSteps; at++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("step %d after=%t", at, after), func(t *testing.T) {
				e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('before')")
				_, _ = e.backfill(&crasher{at: at, after: after})
				if !e.mark().Intent {
					saves := e.store.saves
					_, err := e.backfill(&crasher{}, giveUp)
					e.stops(err, saves, "no backfill")
					return
				}
				s, exists := e.slot()
				e.mustBackfill(giveUp)
				if !exists {
					e.mustSetup()
				}
				e.complete()
				if now, _ := e.slot(); exists && now.Confirmed != s.Confirmed {
					t.Errorf("the slot was at %s and is at %s", s.Confirmed, now.Confirmed)
				}
				e.gapsAre(checkpoint.Gap{To: e.mark().LSN, Table: "public.outbox"})
				if err := e.begins(); err != nil {
					t.Errorf("run refuses: %v", err)
				}
			})
		}
	}
}

func TestBackfill_DropsNoSlotThatItDidNotMake(t *testing.T) {
	e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('before')")
	_, _ = e.backfill(&crasher{at: 5})
	e.sql("SELECT pg_drop_replication_slot('"+e.o.Slot+"')", "INSERT INTO outbox (type) VALUES ('x')",
		"SELECT pg_create_logical_replication_slot('"+e.o.Slot+"', 'pgoutput')")
	was, _ := e.slot()
	saves := e.store.saves
	_, err := e.backfill(&crasher{})
	e.stops(err, saves, "made it at", was.Confirmed.String(), "pg_drop_replication_slot")
	if now, ok := e.slot(); !ok || now.Confirmed != was.Confirmed {
		t.Errorf("the slot of somebody else is gone or moved: %t %+v", ok, now)
	}

	e = newEnv(t, outbox)
	e.sql("SELECT pg_create_logical_replication_slot('" + e.o.Slot + "', 'pgoutput')")
	_, err = e.backfill(&crasher{})
	e.stops(err, 0, "without a mark")

	e = newEnv(t, outbox)
	_ = Setup(t.Context(), e.crashing(&crasher{at: 4}))
	saves = e.store.saves
	_, err = e.backfill(&crasher{})
	e.stops(err, saves, "setup of slot", "run cdc-relay setup")
	e.mustSetup()
	e.complete()
}

func TestBackfill_WhatThePredicateLeavesOutIsAGap(t *testing.T) {
	where := func(closes bool) func(*Options, *BackfillOptions, *snapshotRows) {
		return func(_ *Options, b *BackfillOptions, _ *snapshotRows) {
			b.Where, b.ClosesGaps = "type = 'a' -- only", closes
		}
	}
	e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('a'), ('b')")
	if published := e.mustBackfill(where(false)); !slices.Equal(published, []string{"a"}) {
		t.Errorf("published %v", published)
	}
	e.complete()
	e.gapsAre(checkpoint.Gap{To: e.mark().LSN, Table: "public.outbox"})
	if r := e.mark().Gaps[0].Reason; !strings.Contains(r, "type = 'a'") {
		t.Errorf("the gap does not name the predicate: %s", r)
	}
	e = newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('a'), ('b')")
	e.mustBackfill(where(true))
	e.complete()
	e.gapsAre()
}

// TestBackfill_ClosesNoGapInWhichMessagesWereSkipped: no table holds them, whatever
// is said of the rows.
func TestBackfill_ClosesNoGapInWhichMessagesWereSkipped(t *testing.T) {
	e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('before')")
	e.mustSetup()
	found := time.Now().UTC()
	e.edit(func(m *checkpoint.Mark) {
		m.Gaps = []checkpoint.Gap{{From: 1, To: m.LSN, Reason: "adopted", Found: found}, {To: m.LSN, Table: "public.outbox", Reason: "rows alone", Found: found}}
	})
	all := checkpoint.Gap{From: 1, To: e.mark().LSN}
	for _, closes := range []bool{false, true} {
		published := e.mustBackfill(func(o *Options, b *BackfillOptions, _ *snapshotRows) {
			o.Messages, b.ClosesGaps = "outbox", closes
			if closes {
				b.Where = "true"
			}
		})
		if !slices.Equal(published, []string{"before"}) {
			t.Errorf("published %v", published)
		}
		e.says(`gap stays open, since logical messages with the prefix "outbox"`, "closes 1 gap ")
	}
	if err := e.begins(); err != nil {
		t.Fatal(err)
	}
	e.gapsAre(all)
	e.mustBackfill() // none is published any more, or missed
	if err := e.begins(); err != nil {
		t.Fatal(err)
	}
	e.gapsAre()
}

func TestBackfill_BesideASlotCoversTheGapsThatItHasRead(t *testing.T) {
	e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('before')")
	e.mustSetup()
	e.sql("INSERT INTO outbox (type) VALUES ('after')")
	found := time.Now().UTC()
	e.edit(func(m *checkpoint.Mark) {
		m.Gaps = append(m.Gaps, checkpoint.Gap{From: 1, To: m.LSN, Reason: "adopted", Found: found},
			checkpoint.Gap{From: 1, To: m.LSN + 1<<40, Reason: "ends later", Found: found},
			checkpoint.Gap{From: 1, To: m.LSN, Table: "public.other", Reason: "another table", Found: found})
	})
	m, saves := e.mark(), e.store.saves
	e.mustBackfill(func(_ *Options, b *BackfillOptions, _ *snapshotRows) { b.Where = "true" })
	if e.store.saves != saves {
		t.Error("a backfill with a predicate covers a gap")
	}
	e.says("gap stays open, since the predicate may leave out rows")
	var below, at pglogrepl.LSN
	published := e.mustBackfill(func(_ *Options, _ *BackfillOptions, r *snapshotRows) {
		r.during = func() { below, at = r.below, r.at }
	})
	if !slices.Equal(published, []string{"after", "before"}) || below != m.LSN || at <= m.LSN {
		t.Errorf("published %v, below %s, at %s", published, below, at)
	}
	if now := e.mark(); now.Epoch != m.Epoch || now.LSN != m.LSN || len(now.Gaps) != 4 {
		t.Errorf("the mark, which belongs to the relay, was changed: %+v", now)
	}
	e.says("streamed already are published again", "closes 2 gaps", "ends after the snapshot", "public.other is not a table")
	e.mustBackfill() // again: nothing is noted twice
	if note := e.store.marks[e.mark().SystemID+"/"+checkpoint.CoverKey(e.o.Slot)]; len(note.Gaps) != 2 {
		t.Errorf("noted %+v", note)
	}
	if err := e.begins(); err != nil {
		t.Fatal(err)
	}
	e.gapsAre(checkpoint.Gap{From: 1, To: m.LSN + 1<<40}, checkpoint.Gap{From: 1, To: m.LSN, Table: "public.other"})
	e.await("no temporary slot is left", func() bool {
		return server.Exec(context.Background(), e.db, "DO $$ BEGIN IF EXISTS (SELECT FROM pg_replication_slots WHERE temporary) THEN RAISE 'one is left'; END IF; END $$") == nil
	})
}

func TestBackfill_BlockedNamesWhoHoldsItUp(t *testing.T) {
	for _, existing := range []bool{false, true} {
		e := newEnv(t, outbox, "CREATE TABLE held (t text)")
		if existing {
			e.mustSetup()
		}
		conn, err := server.Connect(t.Context(), e.db)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "BEGIN; INSERT INTO held VALUES ('x')"); err != nil {
			t.Fatal(err)
		}
		saves := e.store.saves
		if !existing {
			saves += 2 // the intent, and taken back
		}
		_, err = e.backfill(&crasher{}, func(o *Options, _ *BackfillOptions, _ *snapshotRows) { o.SlotTimeout = 500 * time.Millisecond })
		e.stops(err, saves, fmt.Sprint(conn.PgConn().PID()), "idle in transaction", "cdc-relay backfill again")
		if _, ok := e.slot(); ok != existing {
			t.Errorf("existing=%t: slot exists: %t", existing, ok)
		}
		conn.Close(t.Context())
		e.await("the transaction has ended", func() bool {
			_, err := e.backfill(&crasher{})
			return err == nil
		})
		e.complete()
	}
}

func TestBackfill_InterruptedSaysWhatIsLeft(t *testing.T) {
	e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('a'), ('b')")
	_, err := e.backfill(&crasher{}, func(_ *Options, _ *BackfillOptions, r *snapshotRows) {
		r.fails = context.Canceled
	})
	if err == nil || !strings.Contains(err.Error(), "has not finished") || !strings.Contains(err.Error(), "--give-up") {
		t.Errorf("got %v", err)
	}
	e.crashIsTold(false, true)
}

func TestBackfill_DryRunChangesNothing(t *testing.T) {
	dry := func(o *Options, _ *BackfillOptions, _ *snapshotRows) { o.DryRun = true }
	e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('a'), ('b')")
	if published := e.mustBackfill(dry); len(published) != 0 || e.store.saves != 0 {
		t.Errorf("published %v, %d saves", published, e.store.saves)
	}
	e.says("would make slot", "2 rows")
	if _, ok := e.slot(); ok {
		t.Error("a dry run made a slot")
	}
	e.mustSetup()
	saves := e.store.saves
	if published := e.mustBackfill(dry); len(published) != 0 || e.store.saves != saves {
		t.Errorf("published %v", published)
	}
	e.says("would publish 2 rows", "gap would be covered")
}

func TestBackfill_KeepsOthersOut(t *testing.T) {
	e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('a')")
	var second, adopted error
	e.mustBackfill(func(_ *Options, _ *BackfillOptions, r *snapshotRows) {
		r.during = func() {
			e2 := *e
			_, second = e2.backfill(&crasher{})
			adopted = e2.adopt(1)
		}
	})
	for _, err := range []error{second, adopted} {
		if fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), "is running") {
			t.Errorf("got %v", err)
		}
	}
	e.complete()
}
