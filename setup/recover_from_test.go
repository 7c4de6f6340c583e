package setup

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/catalog"
)

// historyEnv has a history slot, and a slot and a mark that are two rows further.
func historyEnv(t *testing.T) (e *env, first, mark lsn) {
	t.Helper()
	e = newEnv(t, outbox)
	e.withHistory()
	e.mustSetup()
	e.sql("INSERT INTO outbox (type) VALUES ('one')")
	first = e.current()
	e.sql("INSERT INTO outbox (type) VALUES ('two')")
	mark = e.current()
	e.store.saves++
	m := e.mark()
	m.LSN = mark
	e.store.marks[m.SystemID+"/"+m.Slot] = m
	if _, err := e.session().AdvanceSlot(t.Context(), e.o.Slot, mark); err != nil {
		t.Fatal(err)
	}
	e.sql("INSERT INTO outbox (type) VALUES ('three')")
	return e, first, mark
}

func at(from lsn) func(*Options, *RecoverOptions) {
	return func(_ *Options, ro *RecoverOptions) { ro.From = from }
}

func (e *env) beginsAt(want lsn) {
	e.t.Helper()
	s, ok := e.slot()
	if !ok || s.Confirmed != want || s.Temporary || s.Lost() {
		e.t.Errorf("the slot is %+v, want it at %s", s, want)
	}
	if err := e.begins(); err != nil {
		e.t.Errorf("a relay refuses: %v", err)
	}
}

func TestRecover_FromBeginsAgainThere(t *testing.T) {
	for name, breaks := range map[string]func(e *env){
		"beside a slot": func(*env) {},
		"slot dropped":  func(e *env) { e.sql("SELECT pg_drop_replication_slot('" + e.o.Slot + "')") },
		"slot ahead of its mark": func(e *env) {
			if _, err := e.session().AdvanceSlot(e.t.Context(), e.o.Slot, e.current()); err != nil {
				e.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, first, mark := historyEnv(t)
			breaks(e)
			saved := e.mark()
			if _, err := e.recovers(&crasher{}, at(first)); err != nil {
				t.Fatal(err)
			}
			e.beginsAt(first)
			if m := e.mark(); m.LSN != mark || m.Epoch != saved.Epoch {
				t.Errorf("the mark is %+v", m)
			}
			if e.streams(first, "one") || !e.streams(first, "two") || !e.streams(first, "three") {
				t.Error("it does not stream what was committed from there on, and nothing else")
			}
		})
	}
}

// A crash while the slot is replaced leaves none, or the old one; never one that
// leaves out events. Another run finishes it.
func TestRecover_FromIsFinishedAfterACrash(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("drop after=%t", after), func(t *testing.T) {
			e, first, mark := historyEnv(t)
			c := &crasher{at: 1, after: after}
			if _, err := e.recovers(c, at(first)); !errors.Is(err, errCrash) {
				t.Fatalf("no crash: %v", err)
			}
			if s, ok := e.slot(); ok == after || ok && s.Confirmed != mark {
				t.Fatalf("the slot is %+v, %t", s, ok)
			}
			if err := e.begins(); after == (err == nil) {
				t.Errorf("a relay begins: %v", err)
			}
			if _, err := e.recovers(&crasher{}, at(first)); err != nil {
				t.Fatal(err)
			}
			e.beginsAt(first)
		})
	}
}

func TestRecover_FromRefusesWhatIsNotRetained(t *testing.T) {
	e, first, mark := historyEnv(t)
	h, _, err := e.session().Slot(t.Context(), e.o.History)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := e.slot()
	span := fmt.Sprintf("from %s up to %s", h.Confirmed, mark)
	refuses := func(from lsn, words ...string) {
		t.Helper()
		saves := e.store.saves
		_, err := e.recovers(&crasher{}, at(from))
		e.stops(err, saves, words...)
		if now, _ := e.slot(); now.Confirmed != s.Confirmed {
			t.Errorf("the slot moved to %s", now.Confirmed)
		}
	}
	refuses(h.Confirmed-1, "not retained as a whole", span)
	refuses(mark+1, "beyond what was published", span)
	if _, err := e.recovers(&crasher{}, at(first), func(o *Options, _ *RecoverOptions) { o.DryRun = true }); err != nil {
		t.Fatal(err)
	}
	e.says("nothing was changed", first.String())
	conn := e.stream(mark)
	e.await("the slot is in use", func() bool { s, _ := e.slot(); return s.Active })
	refuses(first, "stop the relay")
	conn.Close(t.Context())
	e.await("the slot is free", func() bool { s, _ := e.slot(); return !s.Active })
	e.sql("SELECT pg_drop_replication_slot(" + catalog.Literal(e.o.History) + ")")
	refuses(first, "does not exist", "cdc-relay backfill")
	e.o.History = ""
	refuses(first, "no history is kept")
}
