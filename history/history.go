// Package history owns the rules of the second slot, which stays a window behind
// the relay so that what was published can be published again: when it is
// advanced, when it is dropped, and which range it covers. It is pure: facts in,
// a step out.
package history

import (
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
)

// Window is how much a history holds. Zero means no limit.
type Window struct {
	// MaxBytes and MaxAge bound the range that can be replayed: WAL, and time,
	// behind what is published.
	MaxBytes int64
	MaxAge   time.Duration
	// HardMaxBytes bounds the WAL that the server keeps for it alone. That is more
	// than the range: a transaction that was open for long holds it back.
	HardMaxBytes int64
}

// On tells whether a history is kept.
func (w Window) On() bool { return w.MaxBytes > 0 || w.MaxAge > 0 }

// Facts are what was found at one look.
type Facts struct {
	Now time.Time
	// Published is the main slot's confirmed position: all before it is acked and
	// saved. The history slot never passes it.
	Published pglogrepl.LSN
	Start     pglogrepl.LSN // the history slot's confirmed position: the first that can be replayed
	Restart   pglogrepl.LSN // and from where the server keeps WAL for it
	// MainRestart is from where the server keeps WAL for the main slot; zero when it
	// keeps none.
	MainRestart pglogrepl.LSN
	// OverSince is since when it is above HardMaxBytes, and Pressed how often it was
	// advanced since.
	OverSince time.Time
	Pressed   int
}

// Kept is the WAL that the server keeps for the history alone, in bytes: what it
// keeps for the main slot in any case would not be freed by dropping this one.
func (f Facts) Kept() int64 {
	if f.MainRestart == 0 {
		return behind(f.Published, f.Restart)
	}
	return behind(f.MainRestart, f.Restart)
}

// Kind of a step.
type Kind uint8

const (
	Keep    Kind = iota // leave the slot where it is
	Advance             // move it forward to Step.To
	Drop                // drop it, before it fills the server's disk
)

// Step is what to do with the history slot.
type Step struct {
	Kind Kind
	To   pglogrepl.LSN // of Advance
	Why  string        // of Drop
}

// share of the window that an advance frees at least. Each advance reads the WAL
// again from the slot's restart position, so it is made rarely.
const share = 8

// A slot above the hard limit is pressed, which is to say advanced, before it is
// dropped: unless a transaction pins it, its restart position follows to the last
// record of running transactions but one. The server writes one every 15 seconds.
const (
	pressEvery = 15 * time.Second
	presses    = 2              // at least
	grace      = 3 * pressEvery // and for so long
)

// Over tells whether the server keeps more for the history alone than it may.
func (w Window) Over(f Facts) bool { return w.HardMaxBytes > 0 && f.Kept() > w.HardMaxBytes }

// Next returns the step that is due.
func (w Window) Next(f Facts, s *Samples) Step {
	if f.Start == 0 || f.Published == 0 {
		return Step{}
	}
	to := w.target(f, s)
	over := f.Now.Sub(f.OverSince)
	switch {
	case w.Over(f) && f.Pressed >= presses && over >= grace:
		return Step{Kind: Drop, Why: fmt.Sprintf("the server keeps %d bytes of WAL for it that the relay's slot does not need, above the hard limit of %d: "+
			"a transaction that was open for long holds it back", f.Kept(), w.HardMaxBytes)}
	case to > f.Start:
		return Step{Kind: Advance, To: to}
	case w.Over(f) && over >= time.Duration(f.Pressed)*pressEvery:
		return Step{Kind: Advance, To: f.Start} // also that moves the restart position
	}
	return Step{}
}

// target is where the slot should be; 0 when the window is not exceeded.
func (w Window) target(f Facts, s *Samples) (to pglogrepl.LSN) {
	if w.MaxBytes > 0 && behind(f.Published, f.Start) > w.MaxBytes {
		to = f.Published - pglogrepl.LSN(w.MaxBytes-w.MaxBytes/share)
	}
	if w.MaxAge > 0 && s.At(f.Now.Add(-w.MaxAge)) > f.Start {
		to = max(to, s.At(f.Now.Add(-(w.MaxAge - w.MaxAge/share))))
	}
	return min(to, f.Published)
}

// behind is how many bytes at is behind end; 0 when it is not.
func behind(end, at pglogrepl.LSN) int64 {
	if at == 0 || at >= end {
		return 0
	}
	return int64(end - at)
}
