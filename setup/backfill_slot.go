package setup

import (
	"context"
	"errors"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/replication"
)

// refuseOwn refuses a slot that is not for certain the one that an earlier backfill
// made: it is about to be dropped.
func (f *backfill) refuseOwn() error {
	b := f.mark.Backfill
	if err := f.refuseMoved(); err != nil || b.LSN != 0 || f.slot.Lost() {
		return err
	}
	return fault.Stopped("if nobody else made it, it is that one and was never read: drop it (SELECT pg_drop_replication_slot("+catalog.Literal(f.Slot)+
		")) and run cdc-relay backfill again, which publishes from the beginning; or cdc-relay backfill --give-up, which keeps it and records the gap",
		"slot %q is at %s, and a backfill that was begun at %s ended before it could note whether it had made it",
		f.Slot, f.slot.Confirmed, b.Begun.UTC().Format("2006-01-02 15:04:05Z"))
}

// refuseMoved refuses a slot of an earlier backfill that somebody uses, or has used.
func (f *backfill) refuseMoved() error {
	b := f.mark.Backfill
	switch {
	case f.slot.Active:
		return fault.Stopped("stop what reads it", "slot %q, of a backfill that was begun at %s, is in use by process %d",
			f.Slot, b.Begun.UTC().Format("2006-01-02 15:04:05Z"), f.slot.ActivePID)
	case f.slot.Lost():
		return nil // nothing can be read from it any more
	case b.LSN != 0 && f.slot.Confirmed != b.LSN:
		return fault.Stopped("find out who; then drop it (SELECT pg_drop_replication_slot("+catalog.Literal(f.Slot)+")) and run cdc-relay backfill, which publishes from the beginning",
			"slot %q is at %s, and the backfill that was begun made it at %s: somebody read it, or dropped it and made it again", f.Slot, f.slot.Confirmed, b.LSN)
	}
	return f.checkSlot()
}

// dropOwn drops the slot that an earlier backfill made.
func (f *backfill) dropOwn(ctx context.Context) error {
	if !f.backfilling() {
		return nil
	}
	f.say("starting over: a backfill that was begun at %s has not finished", f.mark.Backfill.Begun.UTC().Format("2006-01-02 15:04:05Z"))
	if !f.exists {
		return nil
	}
	if err := f.db.DropSlot(ctx, f.Slot); err != nil {
		return err
	}
	f.exists, f.slot = false, catalog.Slot{}
	f.say("dropped slot %q, which that one made and nobody read", f.Slot)
	return nil
}

// makeOwn announces the slot, and creates it with its snapshot.
func (f *backfill) makeOwn(ctx context.Context, conn Exporter, ids catalog.Identities) (replication.Exported, error) {
	if err := f.announce(ctx, ids); err != nil {
		return replication.Exported{}, err
	}
	f.creator = conn.PID()
	f.say("creating slot %q; this waits for transactions that are open in any database, for at most %s", f.Slot, f.SlotTimeout)
	point, err := f.export(ctx, conn, replication.SlotSpec{Name: f.Slot, Failover: f.Failover})
	if err != nil {
		return point, f.slotFailed(ctx, err)
	}
	return point, nil
}

func (f *backfill) announce(ctx context.Context, ids catalog.Identities) error {
	if f.recovery != nil {
		return f.recovery.announce(ctx, ids, checkpoint.Backfill{})
	}
	return f.save(ctx, checkpoint.Mark{Intent: true, Backfill: &checkpoint.Backfill{Begun: f.Now().UTC(), Where: brief(f.Where)},
		Publication: ids.Publication, Relations: ids.Relations}, true)
}

// noteOwn saves where the slot begins, by which the next run knows it again.
func (f *backfill) noteOwn(ctx context.Context, point replication.Exported, ids catalog.Identities) (err error) {
	if f.slot, f.exists, err = f.db.Slot(ctx, f.Slot); err != nil {
		return err
	}
	if !f.exists || f.slot.Confirmed != point.LSN {
		return fault.Stopped("", "slot %q was dropped or moved by somebody as soon as it was made at %s", f.Slot, point.LSN)
	}
	now, err := f.identities(ctx)
	if err != nil {
		return err
	}
	f.checked = max(f.checked, point.LSN)
	if d := catalog.Compare(ids.Publication, ids.Relations, now); d.Broken() {
		return fault.Stopped("", "the catalog was changed while slot %q was made: %s", f.Slot, d)
	}
	m, b := f.mark, *f.mark.Backfill
	b.LSN = point.LSN
	m.Backfill, m.Publication, m.Relations, m.CheckedLSN = &b, now.Publication, now.Relations, f.checked
	if err := f.save(ctx, m, false); err != nil {
		return err
	}
	f.say("created slot %q at %s", f.Slot, point.LSN)
	return nil
}

// export makes the slot, and has the server give up after SlotTimeout.
func (f *backfill) export(ctx context.Context, conn Exporter, spec replication.SlotSpec) (replication.Exported, error) {
	type result struct {
		point replication.Exported
		err   error
	}
	cctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan result, 1) // never closed; filled once, before export returns
	go func() {
		point, err := conn.CreateSlot(cctx, spec)
		done <- result{point, err}
	}()
	bound, stop := context.WithTimeout(ctx, f.SlotTimeout)
	defer stop()
	select {
	case r := <-done:
		return r.point, r.err
	case <-bound.Done():
	}
	cause := ctx.Err()
	if cause == nil {
		cause = f.db.Cancel(ctx, conn.PID()) // it answers with a 57014, unless it was ready just now
	}
	if cause != nil {
		cancel()
	}
	r := <-done
	if r.err != nil && cause != nil {
		return r.point, errors.Join(cause, r.err)
	}
	return r.point, r.err
}
