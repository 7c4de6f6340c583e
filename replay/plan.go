package replay

import (
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/fault"
)

// facts are what the server was found to be.
type facts struct {
	server              catalog.Server
	main, history       catalog.Slot
	hasMain, hasHistory bool
}

// plan is the range, as far as it is known before anything is read.
type plan struct {
	start pglogrepl.LSN // where to start streaming: From, or for a time the beginning of the history
	to    pglogrepl.LSN
}

// decide returns the plan, or why there is none: an error of class fault.Stop. It
// is pure. Nothing is shortened: a range that cannot be replayed as a whole is
// refused.
func decide(o Options, f facts) (plan, error) {
	if err := checkHistory(o, f); err != nil {
		return plan{}, err
	}
	if err := checkRoom(f.server); err != nil {
		return plan{}, err
	}
	p := plan{start: o.From.LSN, to: o.To.LSN}
	end := f.main.Confirmed
	if !f.hasMain {
		end = f.server.CurrentLSN
		if p.to == 0 {
			return plan{}, fault.Stopped(fmt.Sprintf("say where to end with --to, at most %s", end),
				"slot %q does not exist, so that it is not known up to where events were published", o.Slot)
		}
	}
	if p.to == 0 {
		p.to = end
	}
	if p.start == 0 {
		p.start = f.history.Confirmed
	}
	can := fmt.Sprintf("what was committed from %s up to %s can be replayed", f.history.Confirmed, end)
	switch {
	case p.start < f.history.Confirmed:
		return plan{}, outside(p.start, can)
	case p.to > end:
		return plan{}, fault.Stopped(fmt.Sprintf("leave out --to, or choose one up to %s", end),
			"%s is beyond what is published (%s): the live stream publishes that itself, and in order", p.to, end)
	case p.start >= p.to && o.From.LSN != 0:
		return plan{}, fault.Stopped("choose a --from that is before --to; "+can, "the range from %s to %s is empty", p.start, p.to)
	}
	return p, nil
}

// outside is the refusal of a range that is not retained as a whole.
func outside(from pglogrepl.LSN, can string) error {
	return fault.Stopped("choose a later --from; or publish rows that are still in the table again, by cdc-relay replay --source table",
		"what was committed from %s on is not retained as a whole: %s", from, can)
}

func checkHistory(o Options, f facts) error {
	h := f.history
	switch {
	case !f.hasHistory:
		return fault.Stopped("set history.max_bytes or history.max_age, and run cdc-relay setup; events that are published from then on can be replayed, and rows that are still in the table by cdc-relay replay --source table",
			"the history slot %q does not exist: nothing can be replayed", o.History)
	case h.Lost():
		return fault.Stopped("run cdc-relay setup, which makes it anew; see max_slot_wal_keep_size, and idle_replication_slot_timeout of PostgreSQL 18",
			"the history slot %q is lost (wal_status %s %s): nothing can be replayed", o.History, h.WALStatus, h.InvalidationReason)
	case h.Type != "logical" || h.Plugin != catalog.Plugin || h.Database != f.server.Database:
		return fault.Stopped("correct history.slot", "slot %q is not a logical slot of %s in database %q, so that it is no history",
			o.History, catalog.Plugin, f.server.Database)
	}
	return nil
}

// checkRoom refuses what would take the last place from somebody. The server has
// the last word.
func checkRoom(s catalog.Server) error {
	switch {
	case s.ReplicationSlots >= s.MaxReplicationSlots:
		return fault.Stopped("wait until another replay has ended, drop a slot that is not used, or raise max_replication_slots and restart the server",
			"all %d replication slots are in use, and a replay needs one while it runs", s.MaxReplicationSlots)
	case s.WALSenders >= s.MaxWALSenders:
		return fault.Stopped("wait until another replay has ended, or raise max_wal_senders and restart the server",
			"all %d walsenders are in use, and a replay needs one while it runs", s.MaxWALSenders)
	}
	return nil
}
