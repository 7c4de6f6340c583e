package setup

import (
	"context"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/fault"
)

// ensureHistory makes the history slot as a copy of the slot, so that it stands
// where that one stands, or behind it when it is being read; or verifies the one
// that is there. A lost one holds nothing and is replaced.
func (r *run) ensureHistory(ctx context.Context) error {
	if r.History == "" {
		return nil
	}
	h, ok, err := r.db.Slot(ctx, r.History)
	if err != nil {
		return err
	}
	if ok {
		if err := r.checkHistory(h); err != nil {
			return err
		}
		if !h.Lost() {
			r.say("history slot %q exists; it can replay from %s on", h.Name, h.Confirmed)
			return nil
		}
		if err := r.db.DropSlot(ctx, h.Name); err != nil {
			return err
		}
		r.say("dropped history slot %q, which was lost (wal_status %s %s)", h.Name, h.WALStatus, h.InvalidationReason)
	}
	at, err := r.db.CopySlot(ctx, r.Slot, r.History)
	switch {
	case err != nil && catalog.SQLState(err) == slotsInUse:
		return &fault.Error{Class: fault.Stop, What: "all replication slots are in use, so that no history can be kept", Err: err,
			Fix: "raise max_replication_slots and restart the server, or drop a slot that is not used; a replay needs one more while it runs"}
	case err != nil:
		return err
	}
	r.say("created history slot %q at %s; a relay that runs must be started again with this configuration: until then nobody moves the slot on, and it retains WAL", r.History, at)
	return nil
}

// checkHistory refuses a slot that cannot be a history of ours.
func (r *run) checkHistory(h catalog.Slot) error {
	way := "choose another history.slot, or drop it: SELECT pg_drop_replication_slot(" + catalog.Literal(h.Name) + ")"
	switch {
	case h.Type != "logical" || h.Plugin != catalog.Plugin || h.Temporary || h.TwoPhase:
		return fault.Stopped(way, "slot %q exists and cannot be the history slot, which is a logical one of %s, neither temporary nor two_phase",
			h.Name, catalog.Plugin)
	case h.Database != r.server.Database:
		return fault.Stopped(way, "slot %q belongs to database %q, and this is %q", h.Name, h.Database, r.server.Database)
	}
	return nil
}
