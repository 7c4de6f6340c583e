package main

import (
	"math"
	"sync"
	"time"
)

// keepIDs is how many ids a generation of the consumer's memory holds: copies
// that come later than one to two of these are not recognised.
const keepIDs = 500_000

// tally compares what was committed with what arrived. It is pure but for its
// lock; times are given to it.
type tally struct {
	mu       sync.Mutex
	waiting  map[string]time.Time // by id: when COMMIT was sent, of events that did not arrive yet
	rolled   idSet                // ids whose transaction was rolled back
	seen     idSet
	versions map[string]int // by key: of the last first copy that arrived
	latency  histogram
	counts
}

// counts is what a summary is made of.
type counts struct {
	Orders      int // placed
	Committed   int // transactions, one event each
	RolledBack  int // transactions, on purpose
	Failed      int // transactions that ended in an error; their outcome may be unknown
	Arrived     int // first copies of events of this demo
	Duplicates  int // further copies
	OutOfOrder  int // first copies behind a later one of the same key
	Uncommitted int // events of a rolled back transaction
	Foreign     int // events that somebody else inserted
	Waiting     int
	P50, P99    time.Duration
	Max         time.Duration
}

// ok tells whether everything that was committed arrived as it should.
func (c counts) ok() bool { return c.Waiting == 0 && c.OutOfOrder == 0 && c.Uncommitted == 0 }

func newTally() *tally {
	return &tally{waiting: map[string]time.Time{}, versions: map[string]int{}}
}

// committing is called just before COMMIT is sent: the event may arrive before
// the answer does.
func (t *tally) committing(id string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[id] = at
}

// committed is called when COMMIT was answered.
func (t *tally) committed(newOrder bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Committed++
	if newOrder {
		t.Orders++
	}
}

// rolledBack is called before ROLLBACK is sent.
func (t *tally) rolledBack(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.RolledBack++
	t.rolled.add(id)
}

// failed is called when the answer to COMMIT, or to what came before, was an
// error: nobody knows whether the event is to arrive. id may be "".
func (t *tally) failed(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Failed++
	delete(t.waiting, id)
}

// arrival is what an event turned out to be.
type arrival struct {
	Duplicate  bool
	OutOfOrder bool
	RolledBack bool
	Known      bool          // of this demo: Latency is set
	Latency    time.Duration // from COMMIT sent to consumed
}

func (t *tally) arrive(id, key string, version int, at time.Time) arrival {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen.has(id) {
		t.Duplicates++
		return arrival{Duplicate: true}
	}
	t.seen.add(id)
	var a arrival
	if t.rolled.has(id) {
		t.Uncommitted++
		a.RolledBack = true
	}
	sent, ok := t.waiting[id]
	if !ok {
		t.Foreign++
		return a
	}
	delete(t.waiting, id)
	t.Arrived++
	if version <= t.versions[key] {
		t.OutOfOrder++
		a.OutOfOrder = true
	} else {
		t.versions[key] = version
	}
	a.Known, a.Latency = true, at.Sub(sent)
	t.latency.add(a.Latency)
	return a
}

// done forgets a key that has no more events.
func (t *tally) done(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.versions, key)
}

func (t *tally) snapshot() counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counts
	c.Waiting = len(t.waiting)
	c.P50, c.P99, c.Max = t.latency.quantile(0.5), t.latency.quantile(0.99), t.latency.max
	return c
}

// idSet remembers the last keepIDs to 2*keepIDs ids.
type idSet struct{ young, old map[string]struct{} }

func (s *idSet) add(id string) {
	if s.young == nil || len(s.young) >= keepIDs {
		s.old, s.young = s.young, map[string]struct{}{}
	}
	s.young[id] = struct{}{}
}

func (s *idSet) has(id string) bool {
	if _, ok := s.young[id]; ok {
		return true
	}
	_, ok := s.old[id]
	return ok
}

// histogram counts durations in buckets that each end 2% above the one before,
// from a microsecond to more than an hour.
type histogram struct {
	buckets [1200]int
	n       int
	max     time.Duration
}

const bucketRatio = 1.02

func (h *histogram) add(d time.Duration) {
	i := 0
	if us := float64(d) / float64(time.Microsecond); us > 1 {
		i = min(int(math.Ceil(math.Log(us)/math.Log(bucketRatio))), len(h.buckets)-1)
	}
	h.buckets[i]++
	h.n++
	h.max = max(h.max, d)
}

// quantile is the upper end of the bucket in which the q-th value lies, at most
// 2% too high; 0 when there is none.
func (h *histogram) quantile(q float64) time.Duration {
	left := int(math.Ceil(q * float64(h.n)))
	if left == 0 {
		return 0
	}
	for i, n := range h.buckets[:len(h.buckets)-1] {
		if left -= n; left <= 0 {
			d := time.Duration(math.Pow(bucketRatio, float64(i)) * float64(time.Microsecond))
			return min(d, h.max)
		}
	}
	return h.max
}
