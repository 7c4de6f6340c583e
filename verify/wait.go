package verify

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

// waiter waits until what was in the table is acknowledged by the brokers. A slot
// is confirmed only after that, so its position is all that needs to be looked at.
type waiter struct {
	slot    string
	find    func(ctx context.Context) (catalog.Slot, bool, error)
	halted  func(ctx context.Context) string // why the relay will never get there; "" is not known
	say     func(format string, args ...any)
	timeout time.Duration
}

// until returns when the slot is confirmed up to target, or says why it will not be.
func (w waiter) until(ctx context.Context, target pglogrepl.LSN) error {
	deadline := time.Now().Add(w.timeout)
	var unread, asked time.Time // since when nobody reads the slot; when the relay was asked
	for told := false; ; {
		s, ok, err := w.find(ctx)
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
			w.say("waiting until the relay has published and confirmed everything up to %s; slot %q is at %s", target, w.slot, s.Confirmed)
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

func (w waiter) usable(s catalog.Slot, ok bool) error {
	switch {
	case !ok:
		return fault.Stopped("run cdc-relay setup, or correct source.slot", "slot %q does not exist, so that it is not known what should have been published", w.slot)
	case s.Lost():
		return fault.Stopped("see cdc-relay status", "slot %q is lost: rows that are in the table may never be published, and cannot be told from those that are on their way", w.slot)
	}
	return nil
}

func (w waiter) notHalted(ctx context.Context, s catalog.Slot, target pglogrepl.LSN) error {
	why := w.halted(ctx)
	if why == "" {
		return nil
	}
	return fault.Stopped("mend that first: until then rows that wait behind it cannot be told from missing ones",
		"the relay is halted and will not get to %s (slot %q is at %s): %s", target, w.slot, s.Confirmed, why)
}

func (w waiter) hopeless(s catalog.Slot, target pglogrepl.LSN, now, unread, deadline time.Time) error {
	switch {
	case !unread.IsZero() && now.Sub(unread) >= min(idleGrace, w.timeout):
		return fault.Stopped("start cdc-relay run, and verify again",
			"no relay reads slot %q, which is at %s: what was committed up to %s is not published yet and cannot be told from what is missing",
			w.slot, s.Confirmed, target)
	case now.After(deadline):
		return fault.Stopped("see cdc-relay status for what holds it up (a halted partition, Kafka, a long transaction), or give it longer by --wait",
			"the relay did not get to %s within %s: slot %q is at %s, %d bytes behind", target, w.timeout, w.slot, s.Confirmed, int64(target-s.Confirmed))
	}
	return nil
}
