package setup

import (
	"context"
	"fmt"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/replication"
)

// beginAgain puts a copy of the history slot in the place of the slot, at From: every
// event that was committed there or later is published again, and the stream goes
// on behind it. The mark stays as it is, since what it says was published was; a
// slot behind its mark is what a crash of the relay leaves too.
//
// While the slot is dropped and made again, a temporary copy holds the position. A
// crash in between leaves no slot, which run refuses, or one that begins earlier
// than was asked for; run again, it goes on from there.
func (v *recovery) beginAgain(ctx context.Context) error {
	if err := v.checkAgain(); err != nil {
		return err
	}
	h, exists, err := v.db.Slot(ctx, v.History)
	if err != nil {
		return err
	}
	if err := v.checkRetained(h, exists); err != nil {
		return err
	}
	if err := v.checkFrom(h); err != nil {
		return err
	}
	from := "is gone"
	if v.exists {
		from = "is at " + v.slot.Confirmed.String()
	}
	v.say("slot:   %s %s; would be replaced by a copy of %s, which begins at %s, and go on at %s", v.Slot, from, v.History, h.Confirmed, v.From)
	v.say("again:  everything that was committed from %s on: with the same ids and positions, to the same topics; up to %s it was published once already", v.From, v.mark.LSN)
	if v.DryRun {
		v.say("dry run: nothing was changed; cdc-relay replay --from %s --dry-run counts the events", v.From)
		return nil
	}
	if err := v.confirm(fmt.Sprintf("Replace slot %q, and publish everything from %s on again?", v.Slot, v.From)); err != nil {
		return err
	}
	if err := v.asShown(ctx); err != nil {
		return err
	}
	return v.replaceByHistory(ctx)
}

// checkAgain refuses what a position cannot mend.
func (v *recovery) checkAgain() error {
	switch {
	case v.History == "":
		return fault.Stopped("set history.max_bytes or history.max_age, and run cdc-relay setup: from then on it is kept. Rows that are in the table are published again by cdc-relay backfill",
			"no history is kept, so that nothing can be published again from a position")
	case v.marked && v.mark.Recovering():
		return preflight.Recovering(v.Slot, *v.mark.Backfill)
	case v.backfilling():
		return preflight.Backfilling(v.Slot, *v.mark.Backfill)
	case !v.marked || v.mark.Intent:
		return fault.Stopped("run cdc-relay recover without --from", "there is no mark of what was published from slot %q", v.Slot)
	case v.mark.Timeline != v.server.Timeline || v.mark.LSN > v.server.CurrentLSN:
		return fault.Stopped("run cdc-relay recover without --from",
			"the server is on timeline %d at %s, and the mark at %s of timeline %d: its positions are not those of this history",
			v.server.Timeline, v.server.CurrentLSN, v.mark.LSN, v.mark.Timeline)
	case v.exists && v.slot.Active:
		return fault.Stopped("stop the relay", "slot %q is being read by process %d", v.Slot, v.slot.ActivePID)
	case v.exists && (v.slot.Type != "logical" || v.slot.Plugin != catalog.Plugin || v.slot.Database != v.server.Database):
		return fault.Stopped("correct source.slot", "slot %q is not a logical slot of %s in database %q, and not dropped for that", v.Slot, catalog.Plugin, v.server.Database)
	}
	return nil
}

func (v *recovery) checkRetained(h catalog.Slot, exists bool) error {
	switch {
	case !exists:
		return fault.Stopped("cdc-relay setup makes it, for what is published from then on; rows that are in the table are published again by cdc-relay backfill",
			"the history slot %q does not exist: nothing is retained", v.History)
	case h.Lost():
		return fault.Stopped("rows that are in the table are published again by cdc-relay backfill; cdc-relay setup makes the history slot anew",
			"the history slot %q is lost (wal_status %s %s): nothing is retained", v.History, h.WALStatus, h.InvalidationReason)
	case h.Type != "logical" || h.Plugin != catalog.Plugin || h.Database != v.server.Database || h.TwoPhase || h.Temporary:
		return fault.Stopped("correct history.slot", "slot %q is not a logical slot of %s in database %q, so that it is no history", v.History, catalog.Plugin, v.server.Database)
	case h.Active:
		return fault.Stopped("stop the relay, or what reads it", "the history slot %q is in use by process %d, so that its position moves", v.History, h.ActivePID)
	}
	return nil
}

// checkFrom refuses a position that is not retained: the server would begin later,
// and say nothing. So it would for one that leaves out events.
func (v *recovery) checkFrom(h catalog.Slot) error {
	can := fmt.Sprintf("from %s up to %s", h.Confirmed, v.mark.LSN)
	switch {
	case h.Confirmed > v.mark.LSN:
		return fault.Stopped("run cdc-relay recover without --from",
			"the history slot %q begins at %s, after the mark at %s: it does not hold all that was not published yet", v.History, h.Confirmed, v.mark.LSN)
	case v.From < h.Confirmed:
		return fault.Stopped("choose a position "+can+"; rows that are still in the table are published again by cdc-relay backfill",
			"what was committed from %s on is not retained as a whole: what is, begins at %s", v.From, h.Confirmed)
	case v.From > v.mark.LSN:
		return fault.Stopped("choose a position "+can,
			"%s is beyond what was published, %s: events in between would be skipped", v.From, v.mark.LSN)
	}
	return nil
}

// replaceByHistory drops the slot and makes it again. Everything that can fail for a
// reason of its own is tried on the temporary copy before.
func (v *recovery) replaceByHistory(ctx context.Context) error {
	cfg := *v.Stream
	cfg.Postgres, cfg.ApplicationName = &v.cfg.Config, v.ApplicationName+" (recover)"
	conn, err := replication.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	held := fmt.Sprintf("%.40s_recover_%d", v.Slot, conn.PID())
	at, err := conn.CopySlot(ctx, v.History, held)
	switch {
	case catalog.SQLState(err) == slotsInUse:
		return &fault.Error{Class: fault.Stop, Err: err, What: "all replication slots are in use, and this needs one for a moment",
			Fix: "raise max_replication_slots and restart the server, or drop a slot that is not used"}
	case err != nil:
		return err
	case at > v.From:
		return fault.Stopped("stop the relay, and choose a later position", "the history slot %q was moved to %s meanwhile", v.History, at)
	}
	if err := conn.AdvanceSlot(ctx, held, v.From); err != nil {
		return err
	}
	if !v.exists && v.server.ReplicationSlots+2 > v.server.MaxReplicationSlots {
		return fault.Stopped("raise max_replication_slots and restart the server, or drop a slot that is not used",
			"%d of %d replication slots are in use, and two are needed, one for a moment", v.server.ReplicationSlots, v.server.MaxReplicationSlots)
	}
	if v.exists {
		if err := v.db.DropSlot(ctx, v.Slot); err != nil {
			return err // somebody reads it, or dropped it: nothing was changed
		}
		v.say("dropped slot %q", v.Slot)
	}
	if err := conn.CopySlotFor(ctx, held, v.Slot, v.Failover); err != nil {
		return &fault.Error{Class: fault.Stop, Err: catalog.Explain(err), What: fmt.Sprintf("slot %q was dropped and could not be made again as it was; the history slot still holds the events", v.Slot),
			Fix: fmt.Sprintf("run cdc-relay recover --from %s again", v.From)}
	}
	s, ok, err := v.db.Slot(ctx, v.Slot)
	if err != nil {
		return err
	}
	if !ok || s.Confirmed != v.From {
		return fault.Stopped(fmt.Sprintf("run cdc-relay recover --from %s again", v.From), "slot %q is at %s, and should be at %s", v.Slot, s.Confirmed, v.From)
	}
	v.say("slot %q is at %s: cdc-relay run publishes everything from there on again, and goes on", v.Slot, s.Confirmed)
	for _, g := range v.mark.Gaps {
		v.say("open gap: %s", describe(g))
	}
	return nil
}
