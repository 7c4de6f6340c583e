package checkpoint

import (
	"fmt"
	"sync"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/sink"
)

const (
	minRing = 64
	// keepRing is the largest ring, in transactions, that is kept once everything
	// is acked: 1.5 MiB.
	keepRing = 1 << 16
)

// Tracker turns the acks of single records into a watermark: the end of the
// longest prefix of transactions, in commit order, of which every record is
// acked. There is one per replication connection; when that ends, the tracker is
// dropped, and acks that still arrive change nothing that matters.
//
// Begin, Add, Commit and Idle are called from one goroutine, in WAL order; all
// other methods from any. In a steady state nothing is allocated.
//
// Calls that cannot be right (a second Begin, an ack of a record that was never
// added) panic: the count can then no longer be trusted, and a crash loses
// nothing. So whoever decodes must have refused frames out of order before.
type Tracker struct {
	mu sync.Mutex
	// Invariant: ring holds the transactions [head, next), each at its number
	// modulo the ring's length, which is a power of two; the one at head is not
	// complete. Ends never decrease along the ring, nor below watermark.
	ring       []tracked
	head, next uint64
	open       bool // the last one, next-1, has begun and not committed
	used       bool // the open one has had a record

	watermark pglogrepl.LSN
	ahead     int // complete transactions beyond head
}

// tracked is one transaction: 24 bytes, since a halted lane may hold up a
// million.
type tracked struct {
	end        pglogrepl.LSN // once committed; raised by idle positions behind it
	commitTime int64
	pending    int64 // records added and not acked
}

// NewTracker returns a tracker whose watermark is start.
func NewTracker(start pglogrepl.LSN) *Tracker {
	return &Tracker{ring: make([]tracked, minRing), watermark: start}
}

func (t *Tracker) at(tx uint64) *tracked { return &t.ring[tx&uint64(len(t.ring)-1)] }

// Begin opens a transaction, with its commit time in microseconds since the Unix
// epoch, and returns its number.
func (t *Tracker) Begin(commitTime int64) (tx uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open {
		panic("checkpoint: Begin within a transaction")
	}
	if t.next-t.head == uint64(len(t.ring)) {
		t.grow()
	}
	tx = t.next
	t.next++
	t.open, t.used = true, false
	*t.at(tx) = tracked{commitTime: commitTime}
	return tx
}

// Add counts n records of the open transaction that are about to be handed to
// the sink. It must be called before they are: an ack may come at once.
func (t *Tracker) Add(tx uint64, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open || tx != t.next-1 || n < 0 {
		panic(fmt.Sprintf("checkpoint: Add of %d records to transaction %d, which is not open", n, tx))
	}
	if n > 0 {
		t.used = true
		t.at(tx).pending += int64(n)
	}
}

// Commit closes the open transaction, whose commit record ends at end. done
// tells that each of its records is acked already; its commit time is then
// returned, to observe the latency. A transaction without a record counts as an
// idle position, and is never done.
func (t *Tracker) Commit(end pglogrepl.LSN) (commitTime int64, done bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open {
		panic("checkpoint: Commit without a transaction")
	}
	t.open = false
	tx := t.next - 1
	if !t.used {
		t.next-- // nobody holds its number, so the next one may have it
		t.idle(end)
		return 0, false
	}
	e := t.at(tx)
	// A server never goes back. If it does, the position that it had reached
	// stands: lower is what Kafka has not got, never less than it has.
	e.end = max(end, t.tailEnd(tx))
	if e.pending > 0 {
		return 0, false
	}
	commitTime = e.commitTime
	t.complete(tx)
	return commitTime, true
}

// tailEnd is the end of all that precedes tx.
func (t *Tracker) tailEnd(tx uint64) pglogrepl.LSN {
	if tx == t.head {
		return t.watermark
	}
	return t.at(tx - 1).end
}

// Idle reports that the server has nothing for us up to end: a keepalive's
// position. It counts once all that came before is acked, and not at all within
// a transaction, whose records may be on either side of it.
func (t *Tracker) Idle(end pglogrepl.LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open {
		t.idle(end)
	}
}

func (t *Tracker) idle(end pglogrepl.LSN) {
	if t.head == t.next {
		t.watermark = max(t.watermark, end)
		return
	}
	e := t.at(t.next - 1)
	e.end = max(e.end, end)
}

// Done reports records that are acked by the brokers or durably parked. It appends
// to finished the commit time of each transaction of which these were the last.
func (t *Tracker) Done(acked []sink.Acked, finished []int64) []int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range acked {
		if at, done := t.done(a.Tx, a.N); done {
			finished = append(finished, at)
		}
	}
	return finished
}

func (t *Tracker) done(tx uint64, n int) (commitTime int64, done bool) {
	if n == 0 {
		return 0, false
	}
	if tx < t.head || tx >= t.next || n < 0 || t.at(tx).pending < int64(n) {
		panic(fmt.Sprintf("checkpoint: ack of %d records of transaction %d, which has not as many in flight", n, tx))
	}
	e := t.at(tx)
	e.pending -= int64(n)
	if e.pending > 0 || t.open && tx == t.next-1 {
		return 0, false
	}
	commitTime = e.commitTime
	t.complete(tx)
	return commitTime, true
}

// complete accounts for a committed transaction whose records are all acked.
func (t *Tracker) complete(tx uint64) {
	t.ahead++
	for t.head != t.next && t.at(t.head).pending == 0 && !(t.open && t.head == t.next-1) {
		t.watermark = max(t.watermark, t.at(t.head).end)
		t.head++
		t.ahead--
	}
	if t.head == t.next && len(t.ring) > keepRing {
		t.ring = make([]tracked, minRing)
	}
}

func (t *Tracker) grow() {
	old := t.ring
	t.ring = make([]tracked, 2*len(old))
	for tx := t.head; tx != t.next; tx++ {
		*t.at(tx) = old[tx&uint64(len(old)-1)]
	}
}

// Watermark is the end of the fully acked prefix: the highest position that may
// be saved, and confirmed once it is. It never decreases.
func (t *Tracker) Watermark() pglogrepl.LSN {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.watermark
}

// Settled tells that every record that was added so far is acked, also those of the
// open transaction.
func (t *Tracker) Settled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.head == t.next || t.open && t.head == t.next-1 && t.at(t.head).pending == 0
}

// Oldest returns the commit time, in microseconds since the Unix epoch, of the
// oldest transaction with a record that is not acked or that has not committed,
// and how many such transactions there are. ok is false when there is none.
func (t *Tracker) Oldest() (commitTime int64, commits int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if commits = t.unfinished(); commits == 0 {
		return 0, 0, false
	}
	return t.at(t.head).commitTime, commits, true
}

// Backlog returns how many transactions beyond the watermark are fully acked, held
// up by an earlier one that is not: what a restart would publish again. open is
// how many are not fully acked, or have not committed. All are of one moment.
func (t *Tracker) Backlog() (ahead, open int, watermark pglogrepl.LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ahead, t.unfinished(), t.watermark
}

func (t *Tracker) unfinished() int {
	n := int(t.next-t.head) - t.ahead
	if t.open && !t.used {
		n--
	}
	return n
}
