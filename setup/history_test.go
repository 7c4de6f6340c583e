package setup

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/catalog"
)

// withHistory wants a history slot, and returns how to look at it.
func (e *env) withHistory() (history func() (catalog.Slot, bool)) {
	e.t.Helper()
	e.o.History = e.o.Slot + "_history"
	e.t.Cleanup(func() {
		_ = server.Exec(context.Background(), e.db, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '"+e.o.History+"'")
	})
	return func() (catalog.Slot, bool) {
		e.t.Helper()
		s, ok, err := e.session().Slot(context.Background(), e.o.History)
		if err != nil {
			e.t.Fatal(err)
		}
		return s, ok
	}
}

func TestSetup_HistorySlotStandsWhereTheSlotStands(t *testing.T) {
	e := newEnv(t, outbox)
	history := e.withHistory()
	e.mustSetup()
	e.complete()
	s, _ := e.slot()
	h, ok := history()
	if !ok || h.Confirmed != s.Confirmed || h.Restart > s.Restart || h.Plugin != s.Plugin || h.Temporary {
		t.Errorf("the history slot is %+v, the slot %+v", h, s)
	}
	e.says(`created history slot "` + e.o.History + `" at ` + s.Confirmed.String())
	e.mustSetup()
	e.says("already set up", "it can replay from "+h.Confirmed.String())
}

// TestSetup_HistoryIsAddedToARunningRelay also while the slot is being read.
func TestSetup_HistoryIsAddedToARunningRelay(t *testing.T) {
	e := newEnv(t, outbox)
	e.mustSetup()
	s, _ := e.slot()
	e.stream(s.Confirmed)
	e.await("the slot is in use", func() bool { s, _ := e.slot(); return s.Active })
	history := e.withHistory()
	e.mustSetup()
	if h, ok := history(); !ok || h.Confirmed > s.Confirmed {
		t.Errorf("the history slot is %+v, the slot was at %s", h, s.Confirmed)
	}
}

func TestSetup_HistorySlotIsFinishedAfterACrash(t *testing.T) {
	const steps = 5 // publication, intent, slot, mark, history slot
	for at := 4; at <= steps; at++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("step %d after=%t", at, after), func(t *testing.T) {
				e := newEnv(t, outbox)
				history := e.withHistory()
				if err := Setup(t.Context(), e.crashing(&crasher{at: at, after: after})); !errors.Is(err, errCrash) {
					t.Fatalf("no crash: %v", err)
				}
				e.mustSetup()
				e.complete()
				s, _ := e.slot()
				if h, ok := history(); !ok || h.Confirmed != s.Confirmed {
					t.Errorf("the history slot is %+v, the slot %+v", h, s)
				}
			})
		}
	}
}

func TestSetup_RefusesAHistorySlotOfAnotherKind(t *testing.T) {
	e := newEnv(t, outbox)
	e.withHistory()
	e.sql("SELECT pg_create_logical_replication_slot('" + e.o.History + "', 'test_decoding')")
	err := e.setup()
	e.stops(err, e.store.saves, e.o.History, "choose another history.slot")
	e.complete() // the relay can run all the same
}
