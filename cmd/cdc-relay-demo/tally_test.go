package main

import (
	"strings"
	"testing"
	"time"
)

func TestTally_TellsWhatIsWrong(t *testing.T) {
	t0 := time.Unix(1000, 0)
	c := newTally()
	for i, id := range []string{"a", "b", "c", "d"} {
		c.committing(id, t0)
		c.committed(i == 0)
	}
	c.rolledBack("r")
	if got := c.snapshot(); got.ok() || got.Waiting != 4 || got.Committed != 4 || got.Orders != 1 {
		t.Fatalf("before anything arrived: %+v", got)
	}
	at := t0.Add(5 * time.Millisecond)
	if a := c.arrive("a", "1", 1, at); !a.Known || a.Latency != 5*time.Millisecond || a.Duplicate {
		t.Errorf("first copy: %+v", a)
	}
	if a := c.arrive("a", "1", 1, at); !a.Duplicate {
		t.Errorf("second copy: %+v", a)
	}
	c.arrive("c", "1", 3, at)
	if a := c.arrive("b", "1", 2, at); !a.OutOfOrder {
		t.Errorf("version 2 after 3: %+v", a)
	}
	if a := c.arrive("r", "9", 1, at); !a.RolledBack {
		t.Errorf("rolled back: %+v", a)
	}
	if a := c.arrive("x", "9", 1, at); a.Known || a.Duplicate || a.RolledBack {
		t.Errorf("somebody else's: %+v", a)
	}
	got := c.snapshot()
	if got.ok() || got.Waiting != 1 || got.Arrived != 3 || got.Duplicates != 1 || got.OutOfOrder != 1 || got.Uncommitted != 1 || got.Foreign != 2 {
		t.Errorf("counts: %+v", got)
	}
}

func TestTally_ArrivalBeforeTheAnswerToCommit(t *testing.T) {
	c := newTally()
	c.committing("a", time.Unix(1, 0))
	if a := c.arrive("a", "1", 1, time.Unix(2, 0)); !a.Known {
		t.Errorf("%+v", a)
	}
	c.committed(true)
	if got := c.snapshot(); !got.ok() || got.Committed != 1 || got.Arrived != 1 {
		t.Errorf("%+v", got)
	}
}

func TestHistogram_QuantilesAreAtMostTwoPercentHigh(t *testing.T) {
	var h histogram
	if h.quantile(0.5) != 0 {
		t.Error("empty")
	}
	for i := 1; i <= 1000; i++ {
		h.add(time.Duration(i) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond, 1: time.Second} {
		if got := h.quantile(q); got < want || float64(got) > 1.021*float64(want) {
			t.Errorf("quantile %v: %v, want %v or little more", q, got, want)
		}
	}
	h.add(-time.Second)
	h.add(48 * time.Hour)
	if h.quantile(1) != 48*time.Hour {
		t.Errorf("longest: %v", h.quantile(1))
	}
}

func TestScreen_ShowsForeignTextOnOneLine(t *testing.T) {
	var b strings.Builder
	s := newScreen(&b, false)
	s.event(event{Key: "k\n\x1b[31m", Payload: strings.Repeat("é", 200)}, arrival{}, time.Unix(0, 0))
	if got := b.String(); strings.Count(got, "\n") != 1 || strings.Contains(got, "\x1b") || !strings.Contains(got, "…") {
		t.Errorf("%q", got)
	}
}

func TestScreen_LeavesOutWhatNobodyCanRead(t *testing.T) {
	var b strings.Builder
	s := newScreen(&b, false)
	for range linesPerSecond + 7 {
		s.event(event{}, arrival{Known: true}, time.Unix(0, 0))
	}
	if n := strings.Count(b.String(), "\n"); n != linesPerSecond {
		t.Errorf("%d lines", n)
	}
	if n := s.takeSkipped(); n != 7 {
		t.Errorf("%d skipped", n)
	}
}
