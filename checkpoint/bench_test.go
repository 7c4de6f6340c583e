package checkpoint

import (
	"fmt"
	"testing"

	"github.com/jackc/pglogrepl"
)

// manyInFlight begins, fills and commits window transactions of rows rows, and
// returns what goes on: the next transaction, and the acks of the oldest one in as
// many calls as it has rows. The ring wraps, and does not grow any more.
func manyInFlight(rows, window int) (next func()) {
	tr := NewTracker(0)
	var lsn pglogrepl.LSN
	begin := func() uint64 {
		tx := tr.Begin(1)
		for range rows {
			tr.Add(tx, 1)
		}
		lsn += 10
		tr.Commit(lsn)
		return tx
	}
	for range window {
		begin()
	}
	return func() {
		tx := begin() - uint64(window)
		for range rows {
			done(tr, tx, 1)
		}
	}
}

func TestTracker_AllocatesNothingWithManyInFlight(t *testing.T) {
	for _, rows := range []int{1, 1000} {
		if n := testing.AllocsPerRun(2000, manyInFlight(rows, 5000/rows)); n != 0 {
			t.Errorf("%d rows per transaction: %v allocations per transaction, want 0", rows, n)
		}
	}
}

// BenchmarkTracker_InFlight's operation is a transaction.
func BenchmarkTracker_InFlight(b *testing.B) {
	for _, rows := range []int{1, 1000} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			next := manyInFlight(rows, 5000/rows)
			b.ReportAllocs()
			for b.Loop() {
				next()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows), "ns/row")
		})
	}
}
