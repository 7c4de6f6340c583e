package load

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestLedger_MeasuresFromCommitToTheFirstCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger(102)
		for n := range 102 {
			time.Sleep(10 * time.Millisecond)
			l.Commit(n)
			if n > 0 && n < 101 {
				l.Arrive(n, time.Now().Add(time.Duration(n)*time.Millisecond))
				l.Arrive(n, time.Now().Add(time.Hour))
			}
		}
		l.Arrive(7000, time.Now())
		if l.Waiting() != 2 {
			t.Errorf("%d wait", l.Waiting())
		}
		time.Sleep(time.Second)
		got := l.Since(1)
		want := Latency{P50: 51 * time.Millisecond, P99: 100 * time.Millisecond, P999: time.Second, Max: time.Second, Missing: 1, Duplicates: 100, PerSecond: 100}
		if got != want {
			t.Errorf("%+v, not %+v", got, want)
		}
		if by := l.BySecond(1); len(by) != 2 || by[0] != 98*time.Millisecond || by[1] != time.Second {
			t.Errorf("by second %v", by)
		}
	})
}
