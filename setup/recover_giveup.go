package setup

import (
	"context"
	"errors"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
)

// restore takes the intent of a recovery back: the mark is as it was before.
func (r *run) restore(ctx context.Context) error {
	was := *r.mark.Backfill.Replaces
	if was.SystemID != r.server.SystemID {
		was = checkpoint.Mark{} // there was none under this key
	}
	epoch := r.mark.Epoch + 1
	if was.LSN == 0 {
		return r.save(ctx, checkpoint.Mark{}, true)
	}
	was.Epoch = epoch // the timeline, and when it was saved, are still those of before
	if err := r.Store.Save(ctx, was); err != nil {
		return elsewhere(err, "the mark of slot %q cannot be saved", r.Slot)
	}
	r.mark = was
	return nil
}

// giveUp ends a recovery that has not finished. Where there is a slot to go on from,
// that is what the relay does, and what may be missing is a gap; else all is as it
// was before.
func (v *recovery) giveUp(ctx context.Context) error {
	b := v.mark.Backfill
	switch {
	case !v.marked || !v.mark.Recovering():
		return fault.Stopped("", "there is no recovery of slot %q to give up", v.Slot)
	case v.exists && v.slot.Active:
		return fault.Stopped("stop what reads it", "slot %q is in use by process %d", v.Slot, v.slot.ActivePID)
	case !v.exists, v.slot.Lost(), v.isOld(b):
		if err := v.restore(ctx); err != nil {
			return err
		}
		v.say("given up: the mark of slot %q is as before the recovery, and so is what is the matter: cdc-relay recover", v.Slot)
		return nil
	case v.slot.Confirmed > v.server.CurrentLSN:
		return v.beyondEnd()
	}
	if err := errors.Join(v.checkSlot(), v.checkTables(ctx)); err != nil {
		return err
	}
	ids, err := v.identities(ctx)
	if err != nil {
		return err
	}
	if d := catalog.Compare(v.mark.Publication, v.mark.Relations, ids); d.Broken() {
		return fault.Stopped("run cdc-relay recover again", "the catalog was changed since the recovery was begun: %s", d)
	}
	v.was = *b.Replaces
	to := v.slot.Confirmed
	m := checkpoint.Mark{LSN: to, CheckedLSN: v.checked, Publication: ids.Publication, Relations: ids.Relations}
	for _, g := range v.was.Gaps {
		m.Gaps = append(m.Gaps, v.moved(g, to))
	}
	m.Gaps = append(m.Gaps, checkpoint.Gap{From: v.from(), To: to, Reason: "a recovery was begun and given up", Found: v.Now().UTC()})
	if err := v.save(ctx, m, false); err != nil {
		return err
	}
	v.say("gap: %s", describe(m.Gaps[len(m.Gaps)-1]))
	v.say("given up: cdc-relay run goes on from slot %q at %s", v.Slot, to)
	return nil
}

// isOld tells that the slot is the one that the recovery b was to drop.
func (v *recovery) isOld(b *checkpoint.Backfill) bool {
	return !b.Kept && b.LSN == 0 && b.Old != 0 && v.slot.Confirmed == b.Old
}
