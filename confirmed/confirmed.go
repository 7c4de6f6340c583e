// Package confirmed waits until what was committed is published: a slot is
// confirmed only after the brokers have acknowledged everything before.
package confirmed

import (
	"context"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/fault"
)

const (
	pollInterval = 200 * time.Millisecond
	askInterval  = 2 * time.Second
	// idleGrace is how long the slot may be without a reader: a relay that connects
	// again, or a standby instance that takes over, is back before.
	idleGrace = 30 * time.Second
)

// Waiter waits for a position of a slot, which is all that needs to be looked at.
type Waiter struct {
	Slot   string
	Find   func(ctx context.Context) (catalog.Slot, bool, error)
	Halted func(ctx context.Context) string // why the relay will never get there; "" is not known
	Say    func(format string, args ...any)
	// Timeout is how long the relay may take.
	Timeout time.Duration
	// Again is what to do once the relay runs, for a person: "verify again".
	Again string
}

// Until returns when the slot is confirmed up to target, or says why it will not be.
func (w Waiter) Until(ctx context.Context, target pglogrepl.LSN) error {
	deadline := time.Now().Add(w.Timeout)
	var unread, asked time.Time // since when nobody reads the slot; when the relay was asked
	for told := false; ; {
		s, ok, err := w.Find(ctx)
		if err != nil {
			return err
		}
		if err := w.usable(s, ok); err != nil {
			return err
		}
		if s.Confirmed >= target {
			return nil
		}
		if !told {
			told = true
			w.Say("waiting until the relay has published and confirmed everything up to %s; slot %q is at %s", target, w.Slot, s.Confirmed)
		}
		now := time.Now()
		if s.Active {
			unread = time.Time{}
		} else if unread.IsZero() {
			unread = now
		}
		if now.Sub(asked) >= askInterval {
			asked = now
			if err := w.notHalted(ctx, s, target); err != nil {
				return err
			}
		}
		if err := w.hopeless(s, target, now, unread, deadline); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

func (w Waiter) usable(s catalog.Slot, ok bool) error {
	switch {
	case !ok:
		return fault.Stopped("see cdc-relay status: cdc-relay recover if it was dropped, cdc-relay setup if there never was one; or correct source.slot", "slot %q does not exist, so that it is not known what should have been published", w.Slot)
	case s.Lost():
		return fault.Stopped("see cdc-relay status", "slot %q is lost: rows that are in the table may never be published, and cannot be told from those that are on their way", w.Slot)
	}
	return nil
}

func (w Waiter) notHalted(ctx context.Context, s catalog.Slot, target pglogrepl.LSN) error {
	why := w.Halted(ctx)
	if why == "" {
		return nil
	}
	return fault.Stopped("mend that first: until then rows that wait behind it cannot be told from missing ones",
		"the relay is halted and will not get to %s (slot %q is at %s): %s", target, w.Slot, s.Confirmed, why)
}

func (w Waiter) hopeless(s catalog.Slot, target pglogrepl.LSN, now, unread, deadline time.Time) error {
	switch {
	case !unread.IsZero() && now.Sub(unread) >= min(idleGrace, w.Timeout):
		return fault.Stopped("start cdc-relay run, and "+w.Again,
			"no relay reads slot %q, which is at %s: what was committed up to %s is not published yet and cannot be told from what is missing",
			w.Slot, s.Confirmed, target)
	case now.After(deadline):
		return fault.Stopped("see cdc-relay status for what holds it up (a halted partition, Kafka, a long transaction), or give it longer by --wait",
			"the relay did not get to %s within %s: slot %q is at %s, %d bytes behind", target, w.Timeout, w.Slot, s.Confirmed, int64(target-s.Confirmed))
	}
	return nil
}
