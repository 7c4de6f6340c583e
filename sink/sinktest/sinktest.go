// Package sinktest is the suite that every sink.Sink must pass.
package sinktest

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/sink"
)

// Peer is a sink that was just opened, with a hand on what it publishes to.
type Peer struct {
	Sink       sink.Sink
	Topic      string // exists
	Partitions int32  // of Topic; at least 2
	// Hold keeps records from being acked until release is called. It is nil for a
	// sink that acks at once and is never full.
	Hold func() (release func())
	// Read returns, per partition, the values of the first n records that arrived.
	// It is nil for a sink that keeps nothing.
	Read func(t *testing.T, n int) map[int32][]string
	// Cleanup releases what Open made beside the sink; may be nil.
	Cleanup func()
}

// Budget is the in-flight budget in bytes with which peers are opened.
const Budget = 1 << 20

const timeout = 30 * time.Second

// Run runs the suite. open returns a new peer with Budget and no record; the
// suite closes its sink.
func Run(t *testing.T, open func(t *testing.T) Peer) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Peer)
	}{
		{"AcksEachRecordOnce", acksOnce},
		{"KeepsOrderPerPartition", keepsOrder},
		{"CopiesTheRecord", copies},
		{"BudgetBlocksAndUnblocks", budgetBlocks},
		{"LargerThanBudgetIsAdmittedAlone", largerThanBudget},
		{"FlushSends", flushSends},
		{"CancelledPublishTakesNothing", cancelledPublish},
		{"DrainEndsWithItsContext", drainEnds},
		{"AbortDropsWithoutAckAndGoesOn", abortDrops},
		{"CloseTwiceIsSafe", closeTwice},
		{"StatusIsSafeFromAnyGoroutine", statusAnywhere},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			p := open(t)
			defer func() { // also when the test fails
				if err := p.Sink.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				if p.Cleanup != nil {
					p.Cleanup()
				}
				if !t.Failed() {
					noLeak(t, before)
				}
			}()
			c.test(t, p)
		})
	}
}

// noLeak waits for goroutines to end; those of a fake server may take a while on
// a busy machine.
func noLeak(t *testing.T, before goleak.Option) {
	deadline := time.Now().Add(timeout)
	for {
		err := goleak.Find(before)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// Acks counts acks per transaction.
type Acks struct {
	mu    sync.Mutex
	byTx  map[uint64]int
	total int
}

// Done counts.
func (a *Acks) Done(acked []sink.Acked) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byTx == nil {
		a.byTx = make(map[uint64]int)
	}
	for _, d := range acked {
		a.byTx[d.Tx] += d.N
		a.total += d.N
	}
}

func (a *Acks) sum() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	return ctx
}

func (p *Peer) record(i int, size int) *sink.Record {
	value := append([]byte(strconv.Itoa(i)), bytes.Repeat([]byte("."), size)...)
	return &sink.Record{Topic: p.Topic, Partition: int32(i) % p.Partitions, Key: []byte("k"), Value: value,
		ID: []byte(strconv.Itoa(i)), LSN: 1, Seq: uint32(i), Timestamp: 1_700_000_000_000}
}

func (p *Peer) publish(t *testing.T, rec *sink.Record, a *Acks, tx uint64) {
	t.Helper()
	if err := p.Sink.Publish(within(t), rec, sink.Ack{To: a, Tx: tx}); err != nil {
		t.Fatalf("publish: %v", err)
	}
}

func (p *Peer) drain(t *testing.T) {
	t.Helper()
	if err := p.Sink.Drain(within(t)); err != nil {
		t.Fatalf("drain: %v", err)
	}
}

func acksOnce(t *testing.T, p Peer) {
	var a Acks
	const n = 5000
	for i := range n {
		p.publish(t, p.record(i, 20), &a, uint64(i/7))
	}
	p.drain(t)
	for tx := range uint64((n + 6) / 7) {
		want := min(7, n-int(tx)*7)
		if a.byTx[tx] != want {
			t.Fatalf("transaction %d: %d acks for %d records", tx, a.byTx[tx], want)
		}
	}
	if st := p.Sink.Stats(); st.Published != n || st.Topics[p.Topic] != n {
		t.Fatalf("published %d, by topic %v; want %d", st.Published, st.Topics, n)
	}
}

func keepsOrder(t *testing.T, p Peer) {
	if p.Read == nil {
		t.Skip("this sink keeps nothing")
	}
	var a Acks
	const n = 3000
	for i := range n {
		p.publish(t, p.record(i, 0), &a, 1)
	}
	p.drain(t)
	for part, values := range p.Read(t, n) {
		for j, v := range values {
			if want := strconv.Itoa(j*int(p.Partitions) + int(part)); v != want {
				t.Fatalf("partition %d: record %d is %s, want %s", part, j, v, want)
			}
		}
	}
}

func copies(t *testing.T, p Peer) {
	if p.Read == nil || p.Hold == nil {
		t.Skip("this sink keeps nothing")
	}
	release := p.Hold()
	var a Acks
	rec := p.record(1, 0)
	for range 3 {
		p.publish(t, rec, &a, 1)
	}
	rec.Value[0], rec.Key[0] = 'X', 'X'
	release()
	p.drain(t)
	for _, values := range p.Read(t, 3) {
		for _, v := range values {
			if v != "1" {
				t.Fatalf("the record's value was read after Publish returned: %q", v)
			}
		}
	}
}

func budgetBlocks(t *testing.T, p Peer) {
	if p.Hold == nil {
		t.Skip("this sink is never full")
	}
	release := p.Hold()
	defer release()
	var a Acks
	taken := p.fill(t, &a)
	if taken == 0 || taken > Budget/1024 {
		t.Fatalf("%d records of 1 KiB fitted into %d bytes", taken, Budget)
	}
	if st := p.Sink.Stats(); st.InFlightBytes > Budget {
		t.Fatalf("%d bytes in flight, the budget is %d", st.InFlightBytes, Budget)
	}
	blocked := make(chan error, 1)
	ctx := within(t)
	go func() { blocked <- p.Sink.Publish(ctx, p.record(taken, 1024), sink.Ack{To: &a, Tx: 1}) }()
	release()
	if err := <-blocked; err != nil {
		t.Fatalf("publish after the budget was freed: %v", err)
	}
	p.drain(t)
	if a.sum() != taken+1 {
		t.Fatalf("%d acks for %d records", a.sum(), taken+1)
	}
}

// fill publishes records of 1 KiB until the budget is full, and returns how many
// were taken.
func (p *Peer) fill(t *testing.T, a *Acks) int {
	t.Helper()
	for i := 0; ; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		err := p.Sink.Publish(ctx, p.record(i, 1024), sink.Ack{To: a, Tx: 1})
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return i
		}
		if err != nil {
			t.Fatalf("publish: %v", err)
		}
	}
}

func largerThanBudget(t *testing.T, p Peer) {
	var a Acks
	for i := range 3 {
		p.publish(t, p.record(i, 2*Budget), &a, 1)
	}
	p.publish(t, p.record(3, 10), &a, 1)
	p.drain(t)
	if a.sum() != 4 {
		t.Fatalf("%d acks for 4 records", a.sum())
	}
}

func flushSends(t *testing.T, p Peer) {
	var a Acks
	for i := range 5 { // also when what was flushed before is acked, or still on its way
		p.publish(t, p.record(i, 10), &a, 1)
		p.publish(t, p.record(i+1, 10), &a, 1)
		p.Sink.Flush()
		if i == 2 {
			continue
		}
		for deadline := time.Now().Add(timeout); a.sum() < 2*(i+1); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d records are acked %s after Flush, want %d", a.sum(), timeout, 2*(i+1))
			}
		}
	}
}

func cancelledPublish(t *testing.T, p Peer) {
	var a Acks
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.Sink.Publish(ctx, p.record(0, 10), sink.Ack{To: &a, Tx: 1}); !errors.Is(err, context.Canceled) {
		t.Fatalf("publish with an ended context: %v", err)
	}
	taken := 0
	if p.Hold != nil {
		release := p.Hold()
		taken = p.fill(t, &a) // ends with a Publish that was given up
		release()
	}
	p.drain(t)
	if a.sum() != taken {
		t.Fatalf("%d acks, %d records were taken", a.sum(), taken)
	}
}

func drainEnds(t *testing.T, p Peer) {
	if p.Hold == nil {
		t.Skip("this sink acks at once")
	}
	release := p.Hold()
	defer release()
	var a Acks
	p.publish(t, p.record(0, 10), &a, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := p.Sink.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("drain: %v", err)
	}
	release()
	p.drain(t)
	if a.sum() != 1 {
		t.Fatalf("%d acks for 1 record", a.sum())
	}
}

func abortDrops(t *testing.T, p Peer) {
	if p.Hold == nil {
		t.Skip("this sink acks at once")
	}
	release := p.Hold()
	defer release()
	var before, after Acks
	taken := p.fill(t, &before)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_ = p.Sink.Abort(ctx) // requests are held up, so it may end with its context
	p.publish(t, p.record(0, 10), &after, 2)
	p.publish(t, p.record(1, 10), &after, 2)
	release()
	p.drain(t)
	if after.sum() != 2 {
		t.Fatalf("%d acks for 2 records after Abort", after.sum())
	}
	if err := p.Sink.Abort(within(t)); err != nil {
		t.Fatalf("abort with nothing in flight: %v", err)
	}
	if before.sum() >= taken {
		t.Fatalf("all %d records were acked: Abort dropped none", taken)
	}
	for _, ln := range p.Sink.Lanes() {
		if ln.Queued != 0 {
			t.Fatalf("lane %s/%d has %d records after Abort and Drain", ln.Topic, ln.Partition, ln.Queued)
		}
	}
}

func closeTwice(t *testing.T, p Peer) {
	var a Acks
	p.publish(t, p.record(0, 10), &a, 1)
	for range 2 {
		if err := p.Sink.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	if err := p.Sink.Publish(within(t), p.record(1, 10), sink.Ack{To: &a, Tx: 1}); !errors.Is(err, sink.ErrClosed) {
		t.Fatalf("publish on a closed sink: %v", err)
	}
}

func statusAnywhere(t *testing.T, p Peer) {
	var a Acks
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, _, _ = p.Sink.Stats(), p.Sink.Lanes(), p.Sink.Err()
				time.Sleep(time.Millisecond)
			}
		})
	}
	for i := range 2000 {
		p.publish(t, p.record(i, 100), &a, uint64(i))
	}
	p.drain(t)
	close(stop)
	wg.Wait()
	select {
	case <-p.Sink.Failed():
		t.Fatal("the sink has failed")
	default:
	}
}
