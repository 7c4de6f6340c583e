package history

import (
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
)

// maxSamples bounds the list; past it every second one is left out.
const maxSamples = 512

// Samples remember when which position was published, in memory: a process that
// starts knows nothing of the time before, and then keeps rather more than less.
// The zero value is empty.
type Samples struct {
	// Invariant: both times and positions rise along the list.
	list []sample
	gap  time.Duration // between two; grows when the list is full
}

type sample struct {
	at  time.Time
	lsn pglogrepl.LSN
}

// Add notes that everything before lsn was published, and so committed, at the
// time at. start is where the history begins: what is older is forgotten, but for
// the last one.
func (s *Samples) Add(at time.Time, lsn, start pglogrepl.LSN) {
	if lsn == 0 {
		return
	}
	for len(s.list) > 1 && s.list[1].lsn <= start {
		s.list = slices.Delete(s.list, 0, 1)
	}
	if n := len(s.list); n > 0 {
		last := &s.list[n-1]
		switch {
		case at.Before(last.at) || lsn < last.lsn: // a clock set back; another slot
			s.list = s.list[:0]
		case lsn == last.lsn:
			return // all that came since comes after this position too
		case at.Sub(last.at) < s.gap:
			return
		}
	}
	s.list = append(s.list, sample{at, lsn})
	if len(s.list) > maxSamples {
		s.thin()
	}
}

// thin leaves out every second sample, and lets later ones be as far apart.
func (s *Samples) thin() {
	kept := s.list[:0]
	for i, v := range s.list {
		if i%2 == 0 {
			kept = append(kept, v)
		}
	}
	s.list = kept
	s.gap = s.list[len(s.list)-1].at.Sub(s.list[0].at) / time.Duration(len(s.list))
}

// At returns a position before which everything was committed at the time t or
// earlier: the highest that is known, or 0.
func (s *Samples) At(t time.Time) (lsn pglogrepl.LSN) {
	for _, v := range s.list {
		if v.at.After(t) {
			break
		}
		lsn = v.lsn
	}
	return lsn
}

// Since returns a time such that all that was committed at it or later lies at or
// behind start: the earliest that is known. ok is false when none is.
func (s *Samples) Since(start pglogrepl.LSN) (t time.Time, ok bool) {
	for _, v := range s.list {
		if v.lsn >= start {
			return v.at, true
		}
	}
	return time.Time{}, false
}
