package check

import "github.com/cdc-relay/cdc-relay/catalog"

// history tells which range can be replayed. One that is wanted and not there is a
// failure, although run does not need it: it is missed when it is too late.
func (r *report) history(w Want, f Facts) {
	h, name := f.HistorySlot, w.HistorySlot
	again := "drop it (SELECT pg_drop_replication_slot(" + catalog.Literal(name) + ")) and run cdc-relay setup, which makes it where the slot is then"
	switch {
	case !w.History && !f.HasHistory:
		return
	case !w.History:
		r.add("history slot", Warn, "drop it: SELECT pg_drop_replication_slot("+catalog.Literal(name)+"); or set history.max_bytes or history.max_age",
			"%q exists and no history is kept: nothing advances it, so that WAL is kept for it without limit", name)
		return
	case !f.HasHistory:
		r.add("history slot", Fail, runSetup, "%q does not exist: nothing can be replayed", name)
		return
	case h.Type != "logical" || h.Plugin != catalog.Plugin || h.Database != f.Server.Database:
		r.add("history slot", Fail, "choose another history.slot and run cdc-relay setup",
			"%q is not a logical slot of %s in database %q", name, catalog.Plugin, f.Server.Database)
		return
	case h.Lost():
		r.add("history slot", Fail, "run cdc-relay setup, which makes it anew",
			"%q is lost (wal_status %s %s): nothing can be replayed", name, h.WALStatus, h.InvalidationReason)
		return
	}
	kept := f.Server.CurrentLSN - min(h.Restart, f.Server.CurrentLSN)
	alone := kept // what is kept for the relay's slot in any case does not count
	if f.HasSlot && f.Slot.Restart != 0 {
		alone = f.Slot.Restart - min(h.Restart, f.Slot.Restart)
	}
	switch {
	case h.Restart != 0 && int64(alone) > w.HistoryHardMax && w.HistoryHardMax > 0:
		r.add("history slot", Warn, "get the relay going, and end transactions that are open for long",
			"%q: %d MiB of WAL are kept for it that the relay's slot does not need, more than history.hard_max_bytes; the relay will drop it unless that shrinks", name, alone>>20)
	case h.WALStatus == "unreserved":
		r.add("history slot", Warn, "raise max_slot_wal_keep_size, or shorten the history; once it is lost, "+again,
			"%q: unreserved, it will be lost at the next checkpoint", name)
	default:
		r.pass("history slot", "%q: what was committed from %s to %s can be replayed; %d MiB of WAL are kept for it",
			name, h.Confirmed, f.Slot.Confirmed, kept>>20)
	}
	if t := f.Server.IdleSlotTimeout; t > 0 {
		r.add("history slot timeout", Warn, "set idle_replication_slot_timeout to 0, or to more than a few times the pause between two advances (an eighth of the history's window)",
			"idle_replication_slot_timeout is %s: the history slot is in use only while it is advanced, and the server gives up a slot that is not for that long", t)
	}
}
