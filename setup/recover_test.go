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
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/replication"
)

// recover runs a recovery that may crash, and returns what it published.
func (e *env) recover(c *crasher, change ...func(*Options, *RecoverOptions, *snapshotRows)) ([]string, error) {
	e.t.Helper()
	e.out.Reset()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	o := e.crashing(c)
	o.Yes = true
	o.Replicate = func(ctx context.Context, cfg *pgx.ConnConfig) (Exporter, error) {
		conn, err := replication.Connect(ctx, replication.Config{Postgres: &cfg.Config, ApplicationName: "exporter", SilenceTimeout: time.Minute})
		return crashExporter{conn, c}, err
	}
	rows := &snapshotRows{e: e, c: c}
	b := RecoverOptions{Tables: o.Tables, OpenRows: func() (Rows, func(context.Context), error) {
		return rows, func(ctx context.Context) {
			if rows.reader != nil {
				rows.reader.Close(ctx)
			}
		}, nil
	}}
	for _, f := range change {
		f(&o, &b, rows)
	}
	rows.where = b.Where
	err := Recover(ctx, o, b)
	return rows.published, err
}

func (e *env) mustRecover(change ...func(*Options, *RecoverOptions, *snapshotRows)) []string {
	e.t.Helper()
	published, err := e.recover(&crasher{}, change...)
	if err != nil {
		e.t.Fatalf("recover: %v\n%s", err, e.out.String())
	}
	return published
}

// broken is a slot that was in use, with two gaps on record, and a row from before
// and after the mark.
func broken(t *testing.T, breaks func(*env)) *env {
	t.Helper()
	e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('before')")
	e.mustSetup() // a gap of the table
	e.edit(func(m *checkpoint.Mark) {
		m.Gaps = append(m.Gaps, checkpoint.Gap{From: 1, To: m.LSN, Table: "public.other", Reason: "another table", Found: m.SavedAt})
	})
	e.sql("INSERT INTO outbox (type) VALUES ('doubt')")
	breaks(e)
	if err := e.begins(); err == nil || !strings.Contains(err.Error(), "cdc-relay recover") {
		t.Fatalf("run does not ask for a recovery: %v", err)
	}
	return e
}

func dropSlot(e *env) { e.sql("SELECT pg_drop_replication_slot('" + e.o.Slot + "')") }

// otherTimeline: as after a promotion, or on an old primary.
func otherTimeline(e *env) { e.edit(func(m *checkpoint.Mark) { m.Timeline = 7 }) }

// moved: the row in doubt is behind the slot, one more is before it.
func moved(e *env) {
	e.sql("SELECT pg_replication_slot_advance('"+e.o.Slot+"', pg_current_wal_lsn())", "INSERT INTO outbox (type) VALUES ('ahead')")
}

// upgraded: the mark is of another cluster.
func upgraded(e *env) {
	m := e.mark()
	delete(e.store.marks, m.Key())
	m.SystemID, m.LSN = "42", m.LSN+1<<32
	e.store.marks[m.Key()] = m
}

func TestRecover_FindsTheWayBack(t *testing.T) {
	for name, c := range map[string]struct {
		breaks   func(*env)
		keeps    bool
		expected []string
	}{
		"dropped":                  {dropSlot, false, []string{"before", "doubt"}},
		"on another timeline":      {otherTimeline, false, []string{"before", "doubt"}},
		"ahead of its mark":        {moved, true, []string{"ahead", "before", "doubt"}},
		"upgraded":                 {func(e *env) { dropSlot(e); upgraded(e) }, false, []string{"before", "doubt"}},
		"upgraded with its slot":   {upgraded, true, []string{"before", "doubt"}},
		"without a mark":           {func(e *env) { e.store.marks = map[string]checkpoint.Mark{} }, true, []string{"before", "doubt"}},
		"the server has gone back": {func(e *env) { e.edit(func(m *checkpoint.Mark) { m.LSN += 1 << 32 }) }, true, []string{"before", "doubt"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := broken(t, c.breaks)
			was, _ := e.slot()
			saves := e.store.saves
			e.o.DryRun = true
			if published := e.mustRecover(); len(published) != 0 || e.store.saves != saves {
				t.Errorf("a dry run publishes %v", published)
			}
			e.says("trouble:", "mark:", "may be missing:", "cannot be known:", "public.outbox retains", "would publish")
			e.o.DryRun = false
			published := e.mustRecover()
			if !slices.Equal(published, c.expected) {
				t.Errorf("published %v, want %v", published, c.expected)
			}
			e.sql("INSERT INTO outbox (type) VALUES ('later')")
			now, _ := e.slot()
			if kept := now.Confirmed == was.Confirmed; kept != c.keeps {
				t.Errorf("the slot was at %s and is at %s", was.Confirmed, now.Confirmed)
			}
			if err := e.begins(); err != nil {
				t.Errorf("run refuses: %v", err)
			}
			if !e.streams(0, "later") || e.streams(0, "ahead") != slices.Contains(c.expected, "ahead") {
				t.Error("the stream does not go on where the slot is")
			}
			m, ok, _ := e.store.Load(t.Context(), e.serverID(), e.o.Slot)
			if gaps := m.Gaps; !ok || name != "without a mark" && (len(gaps) != 1 || gaps[0].Table != "public.other" || gaps[0].To > e.current()) {
				t.Errorf("gaps: %+v", gaps)
			}
			e.mustRecover()
			e.says("nothing to recover")
		})
	}
}

func (e *env) serverID() string {
	e.t.Helper()
	v, err := e.session().Server(context.Background())
	if err != nil {
		e.t.Fatal(err)
	}
	return v.SystemID
}

func TestRecover_StartsOverAfterACrash(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(*env)
		steps  int
		from   lsn // of a gap that stays open: a position of another timeline says nothing
	}{
		// intent, drop, intent, slot, where it begins, rows, mark
		"made anew": {otherTimeline, 7, 0},
		// intent, snapshot, rows, mark
		"kept": {moved, 4, 1},
	} {
		for at := 1; at <= c.steps; at++ {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, step %d after=%t", name, at, after), func(t *testing.T) {
					e := broken(t, c.breaks)
					if _, err := e.recover(&crasher{at: at, after: after}); !errors.Is(err, errCrash) {
						t.Fatalf("no crash: %v", err)
					}
					e.recoveryIsTold(at == c.steps && after, at > 1 || after)
					e.sql("INSERT INTO outbox (type) VALUES ('between')")
					if at == c.steps && after {
						return
					}
					if s, exists := e.slot(); exists && e.unknown(s) {
						e.recoverWantsADecision(s)
					}
					published := e.mustRecover()
					for _, want := range []string{"before", "doubt", "between"} {
						if !slices.Contains(published, want) && !(want == "between" && e.streams(0, want)) {
							t.Errorf("%s is not published: %v", want, published)
						}
					}
					e.complete()
					e.gapsAre(checkpoint.Gap{From: c.from, To: e.mark().Gaps[0].To, Table: "public.other"})
					if err := e.begins(); err != nil {
						t.Errorf("run refuses: %v", err)
					}
				})
			}
		}
		e := broken(t, c.breaks)
		count := &crasher{}
		if _, err := e.recover(count); err != nil || count.steps != c.steps {
			t.Errorf("%s: %d steps, want %d, each with a crash: %v", name, count.steps, c.steps, err)
		}
	}
}

// unknown: whether the slot is the recovery's is not noted.
func (e *env) unknown(s catalog.Slot) bool {
	b := e.mark().Backfill
	return b != nil && !b.Kept && b.LSN == 0 && s.Confirmed != b.Old
}

// recoveryIsTold: run refuses unless the recovery has finished, and once it was
// announced the others leave it alone, and know what was known.
func (e *env) recoveryIsTold(finished, announced bool) {
	e.t.Helper()
	err := e.begins()
	switch {
	case finished && err != nil:
		e.t.Errorf("run refuses a recovery that has finished: %v", err)
	case !finished && err == nil:
		e.t.Error("run accepts a recovery that has not finished")
	case !finished && !strings.Contains(err.Error(), "cdc-relay recover"):
		e.t.Errorf("run does not name the way out: %v", err)
	}
	if finished || !announced {
		return
	}
	saves := e.store.saves
	e.stops(e.setup(), saves, "recovery", "--give-up")
	e.stops(e.adopt(1), saves, "recovery", "--give-up")
	_, err = e.backfill(&crasher{})
	e.stops(err, saves, "recovery", "cdc-relay recover again")
	if m := e.mark(); len(m.Gaps) != 2 || m.Backfill.Replaces.LSN == 0 {
		e.t.Errorf("what the mark knew is gone: %+v", m)
	}
}

func (e *env) recoverWantsADecision(s catalog.Slot) {
	e.t.Helper()
	saves := e.store.saves
	_, err := e.recover(&crasher{})
	e.stops(err, saves, s.Confirmed.String(), "ended before it could note", "pg_drop_replication_slot", "--give-up")
	if now, ok := e.slot(); !ok || now.Confirmed != s.Confirmed {
		e.t.Errorf("a slot of which nobody knows who made it is gone or moved: %t %+v", ok, now)
	}
	dropSlot(e)
}

func TestRecover_GivenUpRecordsTheGap(t *testing.T) {
	giveUp := func(_ *Options, b *RecoverOptions, _ *snapshotRows) { b.GiveUp = true }
	for name, breaks := range map[string]func(*env){"made anew": otherTimeline, "kept": moved, "dropped": dropSlot} {
		for _, at := range []int{1, 4, 5, 7} { // announced; made, or nearly done; noted; done
			t.Run(fmt.Sprintf("%s, step %d", name, at), func(t *testing.T) {
				e := broken(t, breaks)
				was := e.mark()
				_, _ = e.recover(&crasher{at: at, after: true})
				if !e.mark().Intent {
					saves := e.store.saves
					_, err := e.recover(&crasher{}, giveUp)
					e.stops(err, saves, "no recovery")
					return
				}
				s, exists := e.slot()
				e.mustRecover(giveUp)
				m := e.mark()
				if m.Intent || m.Epoch <= was.Epoch {
					t.Fatalf("mark %+v", m)
				}
				if !exists || at == 1 && name == "made anew" { // as before
					if m.LSN != was.LSN || m.Timeline != was.Timeline || !m.SavedAt.Equal(was.SavedAt) || len(m.Gaps) != 2 {
						t.Errorf("the mark is not as before: %+v", m)
					}
					if err := e.begins(); err == nil {
						t.Error("run accepts what it refused before")
					}
					e.mustRecover()
					return
				}
				if m.LSN != s.Confirmed || len(m.Gaps) != 3 || m.Gaps[2].To != s.Confirmed || m.Gaps[2].Table != "" {
					t.Errorf("mark %+v", m)
				}
				if err := e.begins(); err != nil {
					t.Errorf("run refuses: %v", err)
				}
			})
		}
	}
}

func TestRecover_DropsNoSlotThatItDidNotShow(t *testing.T) {
	made := func(e *env) catalog.Slot {
		e.sql("INSERT INTO outbox (type) VALUES ('x')", "SELECT pg_create_logical_replication_slot('"+e.o.Slot+"', 'pgoutput')")
		s, _ := e.slot()
		return s
	}
	for name, at := range map[string]int{"before its own was made": 4, "in place of its own": 6} {
		e := broken(t, otherTimeline)
		_, _ = e.recover(&crasher{at: at})
		if _, ok := e.slot(); ok {
			dropSlot(e)
		}
		was, saves := made(e), e.store.saves
		_, err := e.recover(&crasher{})
		e.stops(err, saves, was.Confirmed.String(), "pg_drop_replication_slot")
		if now, ok := e.slot(); !ok || now.Confirmed != was.Confirmed {
			t.Errorf("%s: the slot of somebody else is gone or moved: %t %+v", name, ok, now)
		}
		dropSlot(e)
		e.mustRecover()
		e.complete()
	}
	e := broken(t, otherTimeline)
	conn := e.stream(0)
	saves := e.store.saves
	_, err := e.recover(&crasher{})
	e.stops(err, saves, "in use by process")
	conn.Close(context.Background())
}

func TestRecover_AsksBeforeAnythingIsChanged(t *testing.T) {
	e := broken(t, otherTimeline)
	was, saves := e.store.saves, e.mark()
	s, _ := e.slot()
	for _, confirm := range []func(string) (bool, error){nil, func(string) (bool, error) { return false, nil }} {
		_, err := e.recover(&crasher{}, func(o *Options, _ *RecoverOptions, _ *snapshotRows) { o.Yes, o.Confirm = false, confirm })
		e.stops(err, was, "confirmed")
	}
	if now, ok := e.slot(); !ok || now.Confirmed != s.Confirmed || e.mark().Epoch != saves.Epoch {
		t.Error("something was changed without a yes")
	}
}

func TestRecover_DoesOnlyWhatWasShown(t *testing.T) {
	for name, meanwhile := range map[string]func(*env){
		"slot made by somebody": func(e *env) {
			e.sql("INSERT INTO outbox (type) VALUES ('x')", "SELECT pg_create_logical_replication_slot('"+e.o.Slot+"', 'pgoutput')")
		},
		"mark moved": func(e *env) { e.edit(func(m *checkpoint.Mark) { m.Epoch++ }) },
	} {
		e := broken(t, dropSlot)
		saves := e.store.saves
		_, err := e.recover(&crasher{}, func(o *Options, _ *RecoverOptions, _ *snapshotRows) {
			o.Yes = false
			o.Confirm = func(string) (bool, error) { meanwhile(e); return true, nil }
		})
		e.stops(err, saves, "was changed while", "recover again")
		if _, ok := e.slot(); ok != (name == "slot made by somebody") {
			t.Errorf("%s: slot exists: %t", name, ok)
		}
	}
}

func TestRecover_BlockedLeavesTheMarkAsItWas(t *testing.T) {
	e := broken(t, func(e *env) { dropSlot(e); e.sql("CREATE TABLE held (t text)") })
	was := e.mark()
	conn, err := server.Connect(t.Context(), e.db)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "BEGIN; INSERT INTO held VALUES ('x')"); err != nil {
		t.Fatal(err)
	}
	_, err = e.recover(&crasher{}, func(o *Options, _ *RecoverOptions, _ *snapshotRows) { o.SlotTimeout = 500 * time.Millisecond })
	if fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), "idle in transaction") || !strings.Contains(err.Error(), "cdc-relay recover again") {
		t.Errorf("got %v", err)
	}
	m := e.mark()
	if m.Epoch <= was.Epoch || m.LSN != was.LSN || m.Intent || len(m.Gaps) != 2 || !m.SavedAt.Equal(was.SavedAt) {
		t.Errorf("the mark was %+v and is %+v", was, m)
	}
	conn.Close(t.Context())
	e.await("the transaction has ended", func() bool {
		_, err := e.recover(&crasher{})
		return err == nil
	})
	e.complete()
}

func TestRecover_WhatItDoesNotPublishIsAGap(t *testing.T) {
	partly := func(_ *Options, b *RecoverOptions, _ *snapshotRows) { b.Where = "type = 'before'" }
	e := broken(t, dropSlot)
	from := e.mark().LSN
	if published := e.mustRecover(partly); !slices.Equal(published, []string{"before"}) {
		t.Errorf("published %v", published)
	}
	m := e.mark()
	if len(m.Gaps) != 3 || m.Gaps[2].From != from || m.Gaps[2].To != m.LSN || m.Gaps[2].Table != "public.outbox" || !strings.Contains(m.Gaps[2].Reason, "type = 'before'") {
		t.Errorf("gaps %+v", m.Gaps)
	}
	// Messages are in no table, and their gap does not keep retention from deleting.
	for _, closes := range []bool{false, true} {
		e := broken(t, dropSlot)
		e.edit(func(m *checkpoint.Mark) {
			m.Gaps = []checkpoint.Gap{{To: m.LSN, Reason: "adopted", Found: m.SavedAt}}
		})
		from := e.mark().LSN
		e.o.Messages = "outbox"
		e.mustRecover(func(_ *Options, b *RecoverOptions, _ *snapshotRows) { b.ClosesGaps = closes })
		switch m := e.mark(); {
		case closes && len(m.Gaps) != 0:
			t.Errorf("gaps %+v", m.Gaps)
		case closes:
		case len(m.Gaps) != 2 || len(checkpoint.OfRows(m.Gaps)) != 0 || m.Gaps[0].To != from || m.Gaps[1].From != from || m.Gaps[1].To != m.LSN:
			t.Errorf("gaps %+v, from %s", m.Gaps, from)
		}
	}
}

func TestRecover_HistoryOfAnotherTimelineIsMadeAnew(t *testing.T) {
	for _, other := range []bool{true, false} {
		e := broken(t, func(e *env) {
			if other {
				otherTimeline(e)
			} else {
				dropSlot(e)
			}
			e.sql("SELECT pg_create_logical_replication_slot('" + e.o.Slot + "_history', 'pgoutput')")
		})
		e.o.History = e.o.Slot + "_history"
		t.Cleanup(func() {
			_ = server.Exec(context.Background(), e.db, "SELECT pg_drop_replication_slot('"+e.o.History+"')")
		})
		was, _, err := e.session().Slot(t.Context(), e.o.History)
		if err != nil {
			t.Fatal(err)
		}
		e.mustRecover()
		now, ok, err := e.session().Slot(t.Context(), e.o.History)
		if err != nil || !ok || (now.Confirmed == was.Confirmed) == other {
			t.Errorf("other timeline %t: the history slot was at %s, and is at %s: %v", other, was.Confirmed, now.Confirmed, err)
		}
	}
}

// Where logical messages alone are published there is no row to bring back, and the
// way back is the slot, with a gap of them on record.
func TestRecover_MessagesWithoutATable(t *testing.T) {
	e := newEnv(t)
	e.o.Tables, e.o.Messages = nil, "outbox"
	e.mustSetup()
	was := e.mark()
	dropSlot(e)
	none := func(_ *Options, b *RecoverOptions, _ *snapshotRows) {
		b.OpenRows = func() (Rows, func(context.Context), error) {
			t.Fatal("rows were opened where there is no table")
			return nil, nil, nil
		}
	}
	if published := e.mustRecover(none); len(published) != 0 {
		t.Errorf("published %v", published)
	}
	m := e.mark()
	if s, _ := e.slot(); m.Intent || m.LSN <= was.LSN || s.Confirmed != m.LSN {
		t.Errorf("mark %+v, slot %s", m, s.Confirmed)
	}
	e.gapsAre(checkpoint.Gap{From: was.LSN, To: m.LSN, Table: checkpoint.LogicalMessages})
}
