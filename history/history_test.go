package history

import (
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

const mb = 1 << 20

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// hourly are samples of 24 hours up to noon, 100 MB each.
func hourly() *Samples {
	var s Samples
	for h := range 25 {
		s.Add(noon.Add(time.Duration(h-24)*time.Hour), pglogrepl.LSN((h+1)*100*mb), 0)
	}
	return &s
}

func TestWindow_NextStep(t *testing.T) {
	bytes := Window{MaxBytes: 800 * mb, HardMaxBytes: 1600 * mb}
	age := Window{MaxAge: 8 * time.Hour, HardMaxBytes: 5000 * mb}
	both := Window{MaxBytes: 800 * mb, MaxAge: 4 * time.Hour, HardMaxBytes: 1600 * mb}
	for _, c := range []struct {
		name string
		w    Window
		f    Facts // in MB
		none bool  // no samples: the process has just started
		want Step
	}{
		{"within the window", bytes, Facts{Published: 2500, Start: 1700, Restart: 1650}, false, Step{}},
		{"past it by bytes: an eighth is let go", bytes, Facts{Published: 2500, Start: 1699, Restart: 1650}, false, Step{Kind: Advance, To: 1800 * mb}},
		{"bytes need no time", bytes, Facts{Published: 2500, Start: 1000, Restart: 1000}, true, Step{Kind: Advance, To: 1800 * mb}},
		{"within the age", age, Facts{Published: 2500, Start: 1700, Restart: 1600}, false, Step{}},
		{"past the age: to what is seven eighths old", age, Facts{Published: 2500, Start: 1600, Restart: 1600}, false, Step{Kind: Advance, To: 1800 * mb}},
		{"age is not known after a start: keep", age, Facts{Published: 2500, Start: 100, Restart: 100}, true, Step{}},
		{"with both the shorter range counts", both, Facts{Published: 2500, Start: 1900, Restart: 1900}, false, Step{Kind: Advance, To: 2100 * mb}},
		{"never past what is published", age, Facts{Published: 1650, Start: 1600, Restart: 1600}, false, Step{Kind: Advance, To: 1650 * mb}},
		{"nothing published since", bytes, Facts{Published: 1000, Start: 1000, Restart: 900}, false, Step{}},
		{"behind after an outage: advance first", bytes, Facts{Published: 2500, Start: 100, Restart: 100}, false, Step{Kind: Advance, To: 1800 * mb}},
		{"over the limit, within the window: press", bytes, Facts{Published: 2500, Start: 2000, Restart: 800, OverSince: noon}, false, Step{Kind: Advance, To: 2000 * mb}},
		{"pressed just now", bytes, Facts{Published: 2500, Start: 2000, Restart: 800, OverSince: noon.Add(-14 * time.Second), Pressed: 1}, false, Step{}},
		{"press again", bytes, Facts{Published: 2500, Start: 2000, Restart: 800, OverSince: noon.Add(-15 * time.Second), Pressed: 1}, false, Step{Kind: Advance, To: 2000 * mb}},
		{"pressed twice, the server may have written no record", bytes, Facts{Published: 2500, Start: 2000, Restart: 800, OverSince: noon.Add(-29 * time.Second), Pressed: 2}, false, Step{}},
		{"not pressed yet", bytes, Facts{Published: 2500, Start: 2000, Restart: 800, OverSince: noon.Add(-time.Hour)}, false, Step{Kind: Advance, To: 2000 * mb}},
		{"pinned: drop", bytes, Facts{Published: 2500, Start: 2000, Restart: 800, OverSince: noon.Add(-45 * time.Second), Pressed: 3}, false, Step{Kind: Drop}},
		{"pinned, and an advance is due: drop", bytes, Facts{Published: 2900, Start: 2000, Restart: 800, OverSince: noon.Add(-45 * time.Second), Pressed: 2}, false, Step{Kind: Drop}},
		{"at the limit: keep", bytes, Facts{Published: 2500, Start: 2000, Restart: 900, OverSince: noon.Add(-time.Hour), Pressed: 2}, false, Step{}},
		{"the main slot keeps the same WAL: keep", bytes, Facts{Published: 2500, Start: 2000, Restart: 800, MainRestart: 800, OverSince: noon.Add(-time.Hour), Pressed: 9}, false, Step{}},
		{"the main slot keeps more: keep", bytes, Facts{Published: 2500, Start: 2000, Restart: 800, MainRestart: 700, OverSince: noon.Add(-time.Hour), Pressed: 9}, false, Step{}},
		{"the main slot keeps nearly the same: keep", bytes, Facts{Published: 2500, Start: 2000, Restart: 800, MainRestart: 2400, OverSince: noon.Add(-time.Hour), Pressed: 9}, false, Step{}},
		{"the main slot has let go of it: drop", bytes, Facts{Published: 2500, Start: 2000, Restart: 800, MainRestart: 2401, OverSince: noon.Add(-time.Hour), Pressed: 2}, false, Step{Kind: Drop}},
		{"the main slot is in an outage, and an advance is due all the same", bytes, Facts{Published: 2900, Start: 2000, Restart: 800, MainRestart: 800, OverSince: noon.Add(-time.Hour), Pressed: 2}, false, Step{Kind: Advance, To: 2200 * mb}},
		{"what the main slot holds up is not held against it", bytes, Facts{Published: 900, Start: 800, Restart: 700, OverSince: noon.Add(-time.Hour), Pressed: 2}, false, Step{}},
		{"no hard limit: never drop", Window{MaxBytes: 800 * mb}, Facts{Published: 9000, Start: 8900, Restart: 1, OverSince: noon.Add(-time.Hour), Pressed: 9}, false, Step{}},
		{"no slot", bytes, Facts{Published: 2500}, false, Step{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := hourly()
			if c.none {
				s = &Samples{}
			}
			c.f.Now = noon
			c.f.Published, c.f.Start, c.f.Restart, c.f.MainRestart = c.f.Published*mb, c.f.Start*mb, c.f.Restart*mb, c.f.MainRestart*mb
			got := c.w.Next(c.f, s)
			if got.Kind != c.want.Kind || got.To != c.want.To || (got.Kind == Drop) != (got.Why != "") {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestWindow_StaysWithin lets hours pass: the start stays within the window, and is
// moved only now and then.
func TestWindow_StaysWithin(t *testing.T) {
	w := Window{MaxBytes: 800 * mb, MaxAge: time.Hour, HardMaxBytes: 1600 * mb}
	var s Samples
	f := Facts{Published: 10 * mb, Start: 10 * mb, Restart: 10 * mb}
	moves := 0
	for second := 0; second < 4*3600; second += 3 {
		f.Now = noon.Add(time.Duration(second) * time.Second)
		rate := pglogrepl.LSN(mb / 10)
		if second > 2*3600 {
			rate = mb
		}
		f.Published += 3 * rate
		s.Add(f.Now, f.Published, f.Start)
		step := w.Next(f, &s)
		if step.Kind == Drop || step.Kind == Advance && step.To <= f.Start {
			t.Fatalf("after %d s: %+v of %+v", second, step, f)
		}
		if step.Kind == Advance {
			moves++
			f.Start, f.Restart = step.To, step.To
		}
		if kept := f.Published - f.Start; kept > 800*mb {
			t.Fatalf("after %d s: %d MB", second, kept/mb)
		}
		if second > 3600+600 && second < 2*3600 {
			if kept := f.Published - f.Start; kept < 300*mb || kept > 361*mb {
				t.Fatalf("after %d s the range holds %d MB, at 360 MB an hour", second, kept/mb)
			}
		}
	}
	if moves < 50 || moves > 120 {
		t.Errorf("%d moves in 4 hours", moves)
	}
}

func TestSamples_AreBoundedAndHonest(t *testing.T) {
	var s Samples
	start := pglogrepl.LSN(5000)
	for i := range 100_000 {
		s.Add(noon.Add(time.Duration(i)*time.Second), pglogrepl.LSN(1000+i), start)
	}
	if len(s.list) > maxSamples {
		t.Errorf("%d samples", len(s.list))
	}
	for _, second := range []int{0, 5000, 50_000, 99_999} {
		at := noon.Add(time.Duration(second) * time.Second)
		if got := s.At(at); got > pglogrepl.LSN(1000+second) {
			t.Errorf("at %d s not all before %d was committed", second, got)
		}
		if got := int(s.At(at)); got < 1000+second-600 && second >= 5000 {
			t.Errorf("at %d s: %d is long ago", second, got)
		}
	}
	since, ok := s.Since(start)
	if !ok || since.Before(noon.Add(4000*time.Second)) || since.After(noon.Add(4600*time.Second)) {
		t.Errorf("the range from %d is complete since %s", start, since)
	}
	if _, ok := s.Since(1 << 40); ok {
		t.Error("a time for what was not published")
	}
}

func TestSamples_KnowNothingAfterAStepBack(t *testing.T) {
	var s Samples
	s.Add(noon, 1000, 1)
	s.Add(noon.Add(time.Hour), 2000, 1)
	s.Add(noon.Add(time.Minute), 3000, 1) // the clock was set back
	if got := s.At(noon.Add(30 * time.Second)); got != 0 {
		t.Errorf("%d", got)
	}
	s.Add(noon.Add(2*time.Hour), 500, 1) // another slot
	if got := s.At(noon.Add(3 * time.Hour)); got != 500 {
		t.Errorf("%d", got)
	}
}
