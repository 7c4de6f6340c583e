package relay

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/history"
)

// TestHistory_IsToldLoudlyOnce follows a history slot from its making to its end.
func TestHistory_IsToldLoudlyOnce(t *testing.T) {
	core, logs := observer.New(zapcore.ErrorLevel)
	const mb = 1 << 20
	r := New(Config{Slot: "s", History: HistoryConfig{Slot: "h", Window: history.Window{MaxBytes: 8 * mb, HardMaxBytes: 16 * mb}}},
		Deps{Log: zap.New(core)})
	good := catalog.Slot{Name: "h", Type: "logical", Plugin: "pgoutput", Database: "d", Confirmed: 100 * mb, Restart: 99 * mb}
	look := func(published pglogrepl.LSN, h catalog.Slot, exists bool) history.Step {
		return r.noteHistory(catalog.Server{Database: "d", CurrentLSN: published}, catalog.Slot{Confirmed: published, Restart: published}, h, exists, r.historyDrops())
	}
	says := func(errors int, problem string) {
		t.Helper()
		st := r.Status().History
		if logs.Len() != errors || !strings.Contains(st.Problem, problem) || (problem == "") != (st.Problem == "") {
			t.Fatalf("%d errors in the log, want %d; status %+v, want %q", logs.Len(), errors, st, problem)
		}
		if problem != "" && st.From != 0 {
			t.Fatalf("a range without a slot: %+v", st)
		}
	}
	says(0, "not looked at yet")
	for range 2 {
		look(100*mb, catalog.Slot{}, false)
		says(1, "does not exist")
	}
	if step := look(104*mb, good, true); step.Kind != history.Keep {
		t.Fatalf("%+v", step)
	}
	says(1, "")
	if st := r.Status().History; st.From != 100*mb || st.To != 104*mb || st.RetainedBytes != 5*mb || st.Since.IsZero() {
		t.Fatalf("%+v", st)
	}
	lost := good
	lost.WALStatus, lost.InvalidationReason = "lost", "idle_timeout"
	for range 2 {
		look(105*mb, lost, true)
		says(2, "idle_timeout")
	}
	for range 9 { // pinned, as the main slot is
		main := catalog.Slot{Confirmed: 120 * mb, Restart: 99 * mb}
		if step := r.noteHistory(catalog.Server{Database: "d", CurrentLSN: 200 * mb}, main, good, true, r.historyDrops()); step.Kind == history.Drop {
			t.Fatalf("%+v although that frees nothing", step)
		}
		r.historyMoved()
		r.history.over = r.history.over.Add(-time.Minute)
	}
	for range 2 { // pinned alone
		if step := look(120*mb, good, true); step.Kind != history.Advance {
			t.Fatalf("%+v", step)
		}
		r.historyMoved()
		r.history.over = r.history.over.Add(-time.Minute)
	}
	step := look(120*mb, good, true)
	if step.Kind != history.Drop {
		t.Fatalf("%+v", step)
	}
	r.historyDropped(step.Why)
	says(3, "above the hard limit")
	if r.noteHistory(catalog.Server{Database: "d"}, catalog.Slot{Confirmed: 120 * mb}, good, true, 0).Kind != history.Keep {
		t.Fatal("a look from before the drop counts")
	}
	look(121*mb, catalog.Slot{}, false)
	says(3, "above the hard limit")
	if r.Status().History.Dropped != 1 {
		t.Fatal("the drop is not counted")
	}
	good.Confirmed, good.Restart = 121*mb, 121*mb // setup made it again
	look(121*mb, good, true)
	says(3, "")
}
