// Package load writes events into an outbox at a fixed rate, whatever becomes of them, and measures when each arrives.
package load

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// Ledger knows when each event, numbered from 0, was committed and when it arrived. Its methods may be called from any goroutine.
type Ledger struct {
	began      time.Time
	committed  []atomic.Int64 // nanoseconds since began; 0: not yet
	arrived    []atomic.Int64
	commits    atomic.Int64
	arrivals   atomic.Int64
	duplicates atomic.Int64
}

// NewLedger is a ledger for n events.
func NewLedger(n int) *Ledger {
	return &Ledger{began: time.Now(), committed: make([]atomic.Int64, n), arrived: make([]atomic.Int64, n)}
}

// Commit notes that event n is committed as of now.
func (l *Ledger) Commit(n int) {
	if l.committed[n].CompareAndSwap(0, int64(time.Since(l.began))) {
		l.commits.Add(1)
	}
}

// Arrive notes that a consumer has event n. Only the first copy counts.
func (l *Ledger) Arrive(n int, at time.Time) {
	if n < 0 || n >= len(l.arrived) {
		return
	}
	if l.arrived[n].CompareAndSwap(0, int64(at.Sub(l.began))) {
		l.arrivals.Add(1)
	} else {
		l.duplicates.Add(1)
	}
}

// Waiting is how many committed events have not arrived.
func (l *Ledger) Waiting() int64 { return l.commits.Load() - l.arrivals.Load() }

// Latency is the time from commit to arrival.
type Latency struct {
	P50, P99, P999, Max time.Duration
	// Missing events have not arrived; they count with the time that they have waited until now, which is too short.
	Missing    int
	Duplicates int
	// PerSecond is the rate at which events were committed.
	PerSecond float64
}

// Since is the latency of the events from number first on.
func (l *Ledger) Since(first int) Latency {
	now := int64(time.Since(l.began))
	var out Latency
	var all []int64
	from, to := int64(math.MaxInt64), int64(0)
	for n := first; n < len(l.committed); n++ {
		at := l.committed[n].Load()
		if at == 0 {
			continue
		}
		from, to = min(from, at), max(to, at)
		arrived := l.arrived[n].Load()
		if arrived == 0 {
			out.Missing++
			arrived = now
		}
		// A record may be consumed before the client has the answer to its COMMIT.
		all = append(all, max(0, arrived-at))
	}
	if len(all) == 0 {
		return out
	}
	slices.Sort(all)
	at := func(q float64) time.Duration { return time.Duration(all[min(len(all)-1, int(q*float64(len(all))))]) }
	out.P50, out.P99, out.P999, out.Max = at(0.5), at(0.99), at(0.999), time.Duration(all[len(all)-1])
	out.Duplicates = int(l.duplicates.Load())
	if to > from {
		out.PerSecond = float64(len(all)-1) / (float64(to-from) / 1e9)
	}
	return out
}

// BySecond is the 99th percentile of the latency of the events from number first on, for each second in which they were committed.
func (l *Ledger) BySecond(first int) []time.Duration {
	now := int64(time.Since(l.began))
	seconds := map[int64][]int64{}
	low, high := int64(math.MaxInt64), int64(-1)
	for n := first; n < len(l.committed); n++ {
		at := l.committed[n].Load()
		if at == 0 {
			continue
		}
		arrived := l.arrived[n].Load()
		if arrived == 0 {
			arrived = now
		}
		k := at / int64(time.Second)
		low, high = min(low, k), max(high, k)
		seconds[k] = append(seconds[k], max(0, arrived-at))
	}
	var out []time.Duration
	for k := low; k <= high; k++ {
		all := seconds[k]
		if len(all) == 0 {
			out = append(out, 0)
			continue
		}
		slices.Sort(all)
		out = append(out, time.Duration(all[min(len(all)-1, len(all)*99/100)]))
	}
	return out
}
