package record_test

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/cdc-relay/cdc-relay/bench/record"
)

func round(system string, n int, rate float64) record.Round {
	return record.Round{Group: "drain/300B/tx1", System: system, Params: "rows=10", Round: n, Build: "b", Figures: map[string]float64{"rows_per_s": rate}}
}

func TestStore_KeepsFinishedRoundsOverARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "results.json")
	s, err := record.Open(path, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Skip(record.Skipped{Group: "drain/300B/tx1", System: "null", Why: "no binary"}); err != nil {
		t.Fatal(err)
	}
	for _, r := range []record.Round{round("null", 1, 10), round("null", 2, 30), round("null", 2, 20), round("recv", 1, 5), round("recv", 2, 20)} {
		if err := s.Add(r, record.Machine{Cores: 2}); err != nil {
			t.Fatal(err)
		}
	}
	if s, err = record.Open(path, false); err != nil {
		t.Fatal(err)
	}
	if !s.Has(round("null", 2, 0)) || s.Has(round("null", 3, 0)) {
		t.Error("a round that is there is not found, or one that is not there is")
	}
	other := round("null", 2, 0)
	other.Build = "c"
	if s.Has(other) {
		t.Error("a round of another build counts")
	}
	f := s.File()
	if len(f.Rounds) != 4 || len(f.Skipped) != 0 {
		t.Fatalf("%d rounds, %d skipped: a repeated round is kept twice, or a cell is both run and skipped", len(f.Rounds), len(f.Skipped))
	}
	if r := f.Ratio("drain/300B/tx1", "null", "recv", "rows_per_s"); r.N != 2 || r.Median != 1.5 || r.Min != 1 || r.Max != 2 {
		t.Errorf("ratio by rounds %+v", r)
	}
	if fresh, err := record.Open(path, true); err != nil || len(fresh.File().Rounds) != 0 {
		t.Errorf("a fresh store holds old rounds, %v", err)
	}
}

func TestSpreadOf_LeavesOutWhatIsNoNumber(t *testing.T) {
	if s := record.SpreadOf([]float64{3, math.NaN(), 1}); s.Median != 2 || s.N != 2 {
		t.Errorf("%+v", s)
	}
	if s := record.SpreadOf(nil); !math.IsNaN(s.Median) {
		t.Errorf("the median of nothing is %v", s.Median)
	}
}
