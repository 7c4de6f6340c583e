package setup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
)

// diagnose finds out what is the matter, and what was known before; true when slot
// and mark agree.
func (v *recovery) diagnose(ctx context.Context) (agree bool, err error) {
	switch {
	case v.exists && v.slot.Active && v.slot.Confirmed == 0:
		return false, v.checkSlot() // being made
	case v.marked && v.mark.Recovering():
		return false, v.unfinished()
	case v.backfilling():
		return false, preflight.Backfilling(v.Slot, *v.mark.Backfill)
	}
	others, err := v.others(ctx)
	if err != nil {
		return false, err
	}
	err = preflight.Disagrees(preflight.Want{Slot: v.Slot}, preflight.Facts{
		Server: v.server, SystemID: v.server.SystemID, Timeline: v.server.Timeline,
		Slot: v.slot, HasSlot: v.exists, Mark: v.mark, HasMark: v.marked, Elsewhere: others,
	})
	if err == nil {
		return true, v.agrees(ctx)
	}
	var d *preflight.Disagreement
	if !errors.As(err, &d) {
		return false, err
	}
	if v.slot.Active {
		return false, fault.Stopped("stop what reads it; then cdc-relay recover again",
			"slot %q is in use by process %d. What is the matter: %s", v.Slot, v.slot.ActivePID, whatOf(err))
	}
	v.trouble, v.what = d.Trouble, whatOf(err)
	if err := v.before(ctx, others); err != nil {
		return false, err
	}
	v.keep = v.trouble.Usable() || v.trouble == preflight.OtherCluster && v.exists && v.slot.Confirmed <= v.server.CurrentLSN
	return false, nil
}

// whatOf is an error without its way out.
func whatOf(err error) string {
	var fe *fault.Error
	if errors.As(err, &fe) {
		return fe.What
	}
	return err.Error()
}

// others are the marks of the slot on other clusters, where this one has none.
func (v *recovery) others(ctx context.Context) ([]checkpoint.Mark, error) {
	if v.marked {
		return nil, nil
	}
	others, err := v.Store.Others(ctx, v.server.SystemID, v.Slot)
	if err != nil {
		return nil, elsewhere(err, "the marks of slot %q on other clusters cannot be loaded", v.Slot)
	}
	return others, nil
}

// before finds the mark from before, with the gaps of it that no backfill has
// covered.
func (v *recovery) before(ctx context.Context, others []checkpoint.Mark) error {
	switch {
	case v.marked:
		v.was = v.mark
	case v.SystemID != "":
		i := slices.IndexFunc(others, func(m checkpoint.Mark) bool { return m.SystemID == v.SystemID })
		if i < 0 {
			return fault.Stopped("name one of the clusters: "+preflight.Elsewhere(others), "there is no mark of slot %q of a cluster with the system identifier %q", v.Slot, v.SystemID)
		}
		v.was = others[i]
	case len(others) > 1:
		return fault.Stopped("name the one that this database was, by --system-id", "there are marks of a slot named %q of several clusters: %s", v.Slot, preflight.Elsewhere(others))
	case len(others) == 1:
		v.was = others[0]
	}
	if v.was.Recovering() { // of a cluster on which it was never finished
		v.was = *v.was.Backfill.Replaces
	}
	v.was.Intent, v.was.Backfill = false, nil
	if len(v.was.Gaps) == 0 {
		return nil
	}
	covered, _, err := v.Store.Load(ctx, v.was.SystemID, checkpoint.CoverKey(v.Slot))
	if err != nil {
		return elsewhere(err, "which gaps of slot %q are covered cannot be loaded", v.Slot)
	}
	v.was.Gaps = checkpoint.Uncovered(v.was.Gaps, covered.Gaps)
	return nil
}

// agrees passes what the server cannot decode, or says that there is nothing to
// recover. What else keeps the relay from running is an error.
func (v *recovery) agrees(ctx context.Context) error {
	if v.mark.Timeline == v.server.Timeline && !v.slot.Active {
		if skipped, err := v.skip(ctx); skipped || err != nil {
			return err
		}
		ids, err := v.identities(ctx)
		if err != nil {
			return err
		}
		if d := catalog.Compare(v.mark.Publication, v.mark.Relations, ids); d.Broken() {
			return fault.Stopped(fmt.Sprintf("`cdc-relay adopt --lsn %s`, which records the gap, then cdc-relay backfill, which closes it", v.slot.Confirmed),
				"slot %q at %s and its mark at %s agree, so that there is nothing to recover; but what is published has changed since: %s", v.Slot, v.slot.Confirmed, v.mark.LSN, d)
		}
	}
	v.say("nothing to recover: slot %q at %s agrees with its mark at %s", v.Slot, v.slot.Confirmed, v.mark.LSN)
	if v.slot.Active {
		v.say("note: process %d reads the slot; whether the server can decode what comes next is looked at when the relay is stopped", v.slot.ActivePID)
	}
	if n := len(v.mark.Gaps); n > 0 {
		v.say("%s on record, see cdc-relay status; cdc-relay backfill closes those of rows that are still in a table", count(n, "gap"))
	}
	return nil
}

// unfinished takes up an earlier recovery.
func (v *recovery) unfinished() error {
	b := v.mark.Backfill
	v.was, v.trouble = *b.Replaces, preflight.Gone
	v.what = fmt.Sprintf("a recovery was begun at %s and has not finished; it starts over", b.Begun.UTC().Format("2006-01-02 15:04:05Z"))
	byHand := "SELECT pg_drop_replication_slot(" + catalog.Literal(v.Slot) + "), and then cdc-relay recover again; or cdc-relay recover --give-up, which keeps it and records the gap"
	switch {
	case !v.exists:
		return nil
	case v.slot.Active:
		return fault.Stopped("stop what reads it", "slot %q, of a recovery that was begun and has not finished, is in use by process %d", v.Slot, v.slot.ActivePID)
	case v.slot.Lost(), v.isOld(b):
		return nil
	case b.LSN != 0 && b.LSN == v.slot.Confirmed:
		v.keep = b.Kept
		return v.checkSlot()
	case b.LSN == 0:
		return fault.Stopped("if nobody else made it, it is that one and was never read: "+byHand,
			"slot %q is at %s, and a recovery that was begun at %s ended before it could note whether it had made it",
			v.Slot, v.slot.Confirmed, b.Begun.UTC().Format("2006-01-02 15:04:05Z"))
	}
	return fault.Stopped("find out who; then "+byHand,
		"slot %q is at %s, and the recovery that was begun left it at %s: somebody read it, or dropped it and made it again", v.Slot, v.slot.Confirmed, b.LSN)
}

// lookAtHistory finds out whether the history slot can stay.
func (v *recovery) lookAtHistory(ctx context.Context) (err error) {
	if v.History == "" {
		return nil
	}
	if v.history, v.there, err = v.db.Slot(ctx, v.History); err != nil || !v.there {
		return err
	}
	if err := v.checkHistory(v.history); err != nil {
		return err
	}
	otherTimeline := v.was.SystemID == v.server.SystemID && v.was.Timeline != v.server.Timeline && v.was.LSN != 0
	v.stale = !v.keep && !v.history.Lost() && (otherTimeline || v.history.Confirmed > v.server.CurrentLSN)
	if v.stale && v.history.Active {
		return fault.Stopped("stop what reads it", "history slot %q is in use by process %d", v.History, v.history.ActivePID)
	}
	return nil
}

// holdsAll tells that the history slot has everything that may not have been
// published.
func (v *recovery) holdsAll() bool {
	return v.there && !v.stale && !v.history.Lost() && v.from() != 0 && v.history.Confirmed <= v.from()
}
