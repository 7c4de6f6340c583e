package progress

import (
	"strings"
	"testing"
	"time"
)

// clock is a reporter's clock that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func reporter() (*Reporter, *strings.Builder, *clock) {
	var out strings.Builder
	c := &clock{at: time.Unix(1_000_000, 0)}
	r := New(&out)
	r.now = c.now
	return r, &out, c
}

func TestStage_SaysRateAndTimeLeftInLines(t *testing.T) {
	r, out, c := reporter()
	s := r.Stage("read the table", 1000, "rows")
	s.Add(10)
	c.at = c.at.Add(10 * time.Second)
	s.Add(90)
	c.at = c.at.Add(time.Second)
	s.Add(10) // too soon for another line
	c.at = c.at.Add(9 * time.Second)
	s.Add(1000) // more than was thought
	s.End()
	want := `read the table: 100 of about 1000 rows, 10/s, 1m30s left
read the table: 1110 rows, 56/s
read the table: 1110 rows in 20s
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}

func TestStage_UnknownTotal(t *testing.T) {
	r, out, c := reporter()
	s := r.Stage("read", -1, "rows")
	c.at = c.at.Add(20 * time.Second)
	s.Add(100)
	if got := out.String(); got != "read: 100 rows, 5/s\n" {
		t.Errorf("got %q", got)
	}
}

// TestStage_BarOutgrowsItsEstimate: the bar of the library refuses what is above
// its end.
func TestStage_BarOutgrowsItsEstimate(t *testing.T) {
	r, out, _ := reporter()
	r.terminal = true
	s := r.Stage("read", 10, "rows")
	s.Add(5)
	s.Add(20)
	if s.bar.State().CurrentNum != 25 {
		t.Errorf("the bar is at %d", s.bar.State().CurrentNum)
	}
	s.End()
	if !strings.Contains(out.String(), "read: 25 rows in") {
		t.Errorf("got %q", out)
	}
}

// TestStage_ShowsWhatItIsTold: for whoever looks by itself.
func TestStage_ShowsWhatItIsTold(t *testing.T) {
	r, out, _ := reporter()
	if r.Every(time.Minute).Interval() != time.Minute {
		t.Error("the interval of lines is not taken")
	}
	s := r.Stage("connecting", -1, "")
	s.Show(1, 0, "looking")
	s.Show(5, 10, "half")
	s.Close()
	if out.String() != "looking\nhalf\n" {
		t.Errorf("got %q", out)
	}
	r.terminal = true
	s = r.Stage("connecting", -1, "")
	s.Show(10, 10, "all of it")
	if s.bar.State().CurrentNum != 9 || r.Interval() != barInterval {
		t.Errorf("the bar is at %d", s.bar.State().CurrentNum)
	}
	s.Close()
}
