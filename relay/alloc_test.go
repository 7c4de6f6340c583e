package relay

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/blackhole"
	"github.com/cdc-relay/cdc-relay/sink/null"
)

// allocRows are read while allocations are counted.
const allocRows = 20_000

// checkAllocations reads allocRows and fails when there is a tenth of an
// allocation for each, or more: some come for each mark, status and growing
// slice, and a single one in the way of a row or of a transaction is ten times
// the limit where a transaction is a row.
func (p *pipeline) checkAllocations(t *testing.T) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p.transactions(t, allocRows/p.perTx)
	runtime.ReadMemStats(&after)
	n := after.Mallocs - before.Mallocs
	t.Logf("%d allocations for %d rows", n, allocRows)
	if n >= allocRows/10 {
		t.Fatalf("%d allocations for %d rows, want next to none", n, allocRows)
	}
}

// TestPipeline_AllocatesNothing takes events from the bytes of a stream through
// the null sink to the watermark.
func TestPipeline_AllocatesNothing(t *testing.T) {
	for _, perTx := range []int{1, 1000} {
		t.Run(fmt.Sprintf("perTx=%d", perTx), func(t *testing.T) {
			p := startPipeline(t, null.Open(), perTx)
			p.transactions(t, max(1, 5000/perTx)) // to a steady state
			p.checkAllocations(t)
		})
	}
}

// TestPipeline_AllocatesNothingUpToTheBatch does so with Kafka's sink, while the
// broker holds its answers: batches are filled and closed, and not sent. All
// buffers are there from the rounds before.
func TestPipeline_AllocatesNothingUpToTheBatch(t *testing.T) {
	for _, perTx := range []int{1, 1000} {
		t.Run(fmt.Sprintf("perTx=%d", perTx), func(t *testing.T) {
			b := blackhole.Start(t, 6)
			k := openBlackhole(t, b, "none")
			p := startPipeline(t, k, perTx)
			held := func(f func()) {
				release := b.Hold()
				defer release()
				f()
				release()
				if err := k.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				held(func() { p.transactions(t, allocRows/perTx) })
			}
			held(func() { p.checkAllocations(t) })
		})
	}
}
