// Package undecodable finds what is in the WAL that the server cannot decode: it
// reads copies of a slot, which end with their connection, and moves nothing.
package undecodable

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/replication"
)

type lsn = pglogrepl.LSN

const (
	// sameFailures make a finding of an error that could heal.
	sameFailures = 3
	failurePause = time.Second
)

// MaxProbes bounds how often the WAL is read to find where a stretch ends, when the
// server does not say. Each halves what is in question, and is safe to be the last.
const MaxProbes = 48

// Search says where to look.
type Search struct {
	// Stream is how to connect; OnNotice is Find's own.
	Stream      replication.Config
	Slot        string
	Publication string
	// From is where the slot stands, or later; Until where the WAL ends that is read.
	From, Until lsn
	// Published is the position before which everything is published already.
	Published lsn
	// Progress hears when the WAL has to be read again and again, and between which
	// positions; may be nil.
	Progress func(from, to lsn)
}

// Finding is what the server cannot decode.
type Finding struct {
	// From and To: what commits before From was decoded, and the stream can go on at
	// To. What commits in between is lost to the stream.
	From, To lsn
	// CommitLSN is the position of the transaction; zero when it is not known, or
	// when there may be several.
	CommitLSN  lsn
	XID        uint32 // zero: not known
	CommitTime time.Time
	// Unpublished is how many transactions with events come before it and are not
	// published; FirstUnpublished the position of the first.
	Unpublished      int
	FirstUnpublished lsn
	// Err is the server's; nil when it only passes over rows in silence (PostgreSQL 18
	// and newer, where the publication did not exist).
	Err error
}

// Why says in words, without data, why it cannot be decoded.
func (f Finding) Why() string {
	if f.Err == nil {
		return "the publication did not exist at that point of the WAL, and the server left rows out"
	}
	return catalog.DecodingFault(f.Err)
}

// String names it for a person.
func (f Finding) String() string {
	if f.CommitLSN == 0 {
		return fmt.Sprintf("what was committed from %s up to %s", f.From, f.To)
	}
	if f.XID == 0 {
		return fmt.Sprintf("the transaction committed at %s", f.CommitLSN)
	}
	return fmt.Sprintf("the transaction committed at %s (xid %d, %s)", f.CommitLSN, f.XID, f.CommitTime.UTC().Format("2006-01-02 15:04:05Z"))
}

// Find reads from the slot's position until the server fails, or Until; found is
// false when everything can be decoded. What a probe leaves on the server ends
// with its connection.
func Find(ctx context.Context, s Search) (f Finding, found bool, err error) {
	r, err := s.readSurely(ctx)
	if err != nil {
		return f, false, err
	}
	f = Finding{From: max(r.end, s.From), Unpublished: r.unpublished, FirstUnpublished: r.firstUnpublished, Err: r.failed}
	switch {
	case r.failed == nil && !r.noticed:
		return f, false, nil
	case r.failed == nil:
		f.From, f.To = max(r.endBeforeNotice, s.From), r.pastNotice
		return f, true, nil
	case r.open && catalog.SQLState(r.failed) != "42704":
		f.CommitLSN, f.XID, f.CommitTime = r.begin.CommitLSN, r.begin.XID, time.UnixMicro(r.begin.CommitTime)
		f.To = f.CommitLSN + 1 // a transaction is skipped when its position is below where streaming starts
		return f, true, nil
	}
	found, err = s.bound(ctx, &f)
	return f, found, err
}

// readSurely reads from From on, and once more where the error of the server could
// heal: only one that comes each time is a finding.
func (s Search) readSurely(ctx context.Context) (r *reading, err error) {
	for try := 1; try <= sameFailures; try++ {
		if r, err = s.read(ctx, s.From, false); err != nil {
			return nil, err
		}
		if _, certain := catalog.Undecodable(r.failed); certain || r.failed == nil {
			return r, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(failurePause):
		}
	}
	return r, nil
}

// bound finds where the stretch ends which begins behind From: the server failed
// before it named a transaction, or does so for every one of the stretch. It is not
// found when it lies behind Until: it was written since.
//
// Invariant: streaming from lo fails at once, and from hi it does not.
func (s Search) bound(ctx context.Context, f *Finding) (found bool, err error) {
	first := catalog.DecodedLSN(f.Err)
	lo, hi, last := max(first, f.From), s.Until, first
	if lo >= hi {
		return false, nil
	}
	if s.Progress != nil {
		s.Progress(lo, hi)
	}
	step := lsn(1 << 10)
	for probe := 0; hi > lo+1 && probe < MaxProbes; probe++ {
		at := lo + (hi-lo)/2
		if step != 0 { // it is near more often than not
			at = min(lo+step, at)
			step *= 8
		}
		r, err := s.read(ctx, at, true)
		if err != nil {
			return false, err
		}
		if r.failed != nil && !r.decoded {
			lo, last = at, catalog.DecodedLSN(r.failed)
			continue
		}
		hi, step = at, 0
	}
	f.To = hi
	if hi == lo+1 && last == first && first != 0 { // the last of the stretch is the first
		f.CommitLSN = lo
	}
	return true, nil
}

// First returns the position of the first transaction with events that is streamed
// from at on; zero when there is none up to Until, or none that can be decoded.
func First(ctx context.Context, s Search, at lsn) (lsn, error) {
	r, err := s.read(ctx, at, true)
	if err != nil || r.begin.CommitLSN < at {
		return 0, err
	}
	return r.begin.CommitLSN, nil
}

// CanSkip tells, by a copy of the slot, whether the server can move it to lsn.
func CanSkip(ctx context.Context, s Search, to lsn) error {
	conn, slot, err := s.copy(ctx, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.AdvanceSlot(ctx, slot, to)
}

// tooLarge explains a row that the server can decode and this configuration does
// not read.
func tooLarge(err error, at string) error {
	var big *replication.FrameTooLargeError
	if !errors.As(err, &big) {
		return err
	}
	return &fault.Error{Class: fault.Stop, Err: err, What: "a row or message " + at + " is too large to be read; the server can decode it",
		Fix: "raise relay.max_row_bytes above it"}
}
