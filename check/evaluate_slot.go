package check

import (
	"fmt"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/preflight"
)

func (r *report) slot(w Want, f Facts) {
	s, name := f.Slot, w.Preflight.Slot
	if !f.HasSlot {
		r.noSlot(w, f)
		return
	}
	other := "choose another source.slot, or drop this one and run cdc-relay setup"
	switch {
	case s.Type != "logical":
		r.add("slot", Fail, other, "%q is a %s slot; the relay needs a logical one", name, s.Type)
	case s.Temporary:
		r.add("slot", Fail, other, "%q is temporary and ends with its session", name)
	case s.TwoPhase:
		r.add("slot", Fail, other, "%q has two_phase on; it would deliver transactions that are not committed", name)
	case s.Synced:
		r.add("slot", Fail, "connect to the primary", "%q is kept in step from a primary and cannot be used here", name)
	case s.Active:
		r.pass("slot", "%q, in use by process %d", name, s.ActivePID)
	default:
		r.pass("slot", "%q, not in use", name)
	}
	if s.Plugin == "pgoutput" {
		r.pass("slot plugin", "pgoutput")
	} else {
		r.add("slot plugin", Fail, other, "%q has the plugin %q instead of pgoutput", name, s.Plugin)
	}
	if s.Database == f.Server.Database {
		r.pass("slot database", "%s", s.Database)
	} else {
		r.add("slot database", Fail, "connect to that database, or choose another source.slot",
			"%q belongs to the database %q, the connection to %q", name, s.Database, f.Server.Database)
	}
	r.walStatus(f)
}

// noSlot: what is to be done depends on the mark. Beside one setup makes no slot.
func (r *report) noSlot(w Want, f Facts) {
	name := w.Preflight.Slot
	unread := f.StoreErr != nil || w.MarkTopic != "" && f.BrokersErr != nil
	switch err := f.Begin(w); {
	case (f.HasMark || len(f.Elsewhere) > 0) && err != nil:
		r.fails("slot", err, "")
	case unread:
		r.add("slot", Fail, "let the mark be read first: cdc-relay setup makes a slot only where there is none", "%q does not exist", name)
	default:
		r.add("slot", Fail, runSetup, "%q does not exist", name)
	}
}

func (r *report) walStatus(f Facts) {
	s := f.Slot
	retained := ""
	if s.Restart != 0 && f.Server.CurrentLSN > s.Restart {
		retained = fmt.Sprintf("; %d MiB of WAL are kept for it", (f.Server.CurrentLSN-s.Restart)>>20)
	}
	fix := "get the relay and Kafka going, or raise max_slot_wal_keep_size before the slot is lost"
	switch {
	case s.Lost():
		r.fails("slot wal_status", preflight.Lost(s.Name, s, f.Mark.LSN, f.Server.CurrentLSN), "")
	case s.WALStatus == "unreserved":
		r.add("slot wal_status", Fail, fix, "unreserved: the slot will be lost at the next checkpoint%s", retained)
	case s.WALStatus == "extended":
		r.add("slot wal_status", Warn, fix, "extended: more WAL is kept than max_wal_size%s", retained)
	default:
		r.pass("slot wal_status", "%s%s", s.WALStatus, retained)
	}
}

// mark holds the mark against the slot, by the rules by which run begins.
func (r *report) mark(w Want, f Facts) {
	if w.MarkTopic != "" && f.BrokersErr != nil {
		r.skip("mark", "it is kept in Kafka, and the brokers could not be asked")
		return
	}
	if f.StoreErr != nil {
		r.fails("mark", f.StoreErr, "")
		return
	}
	switch {
	case !f.HasMark && w.MarkTopic != "" && f.Topics[w.MarkTopic].Missing && f.HasSlot:
		r.add("mark", Fail, "correct checkpoint.topic; for a slot that nobody used yet, cdc-relay setup --existing-slot; else cdc-relay adopt", "topic %s with the marks does not exist", w.MarkTopic)
		return
	case !f.HasMark && !f.HasSlot && len(f.Elsewhere) > 0:
		r.skip("mark", "there is none of this cluster, see the slot")
		return
	case !f.HasMark && !f.HasSlot:
		r.add("mark", Fail, runSetup, "there is none for slot %q", w.Preflight.Slot)
		return
	case f.HasMark:
		r.pass("mark", "%s, epoch %d, saved %s", f.Mark.LSN, f.Mark.Epoch, f.Mark.SavedAt.UTC().Format("2006-01-02 15:04:05Z"))
	}
	r.gaps(f)
	// What fails by itself above is not said again.
	for _, res := range r.results {
		if res.Status == Fail {
			r.skip("ready to stream", "something above has failed")
			return
		}
	}
	plan, err := f.plan(w)
	if err != nil {
		r.fails("ready to stream", err, "")
		return
	}
	r.pass("ready to stream", "from %s", plan.Start)
	for _, warning := range plan.Warnings {
		r.add("ready to stream", Warn, "", "%s", warning)
	}
}

// gaps lists the open ones; nothing is to be done about those that a backfill has
// covered.
func (r *report) gaps(f Facts) {
	for _, g := range f.Mark.Gaps {
		from := "the beginning"
		if g.From != 0 {
			from = g.From.String()
		}
		table := "every outbox table"
		if g.Table != "" {
			table = g.Table
		}
		if len(checkpoint.Uncovered([]checkpoint.Gap{g}, f.Covered)) == 0 {
			r.pass("open gap", "%s, from %s to %s: covered by a backfill; it closes at the relay's next start", table, from, g.To)
			continue
		}
		r.add("open gap", Warn, "publish the rows in doubt from the table: cdc-relay backfill", "%s, from %s to %s: %s", table, from, g.To, g.Reason)
	}
}

// Begin returns why run would refuse to begin, in its words; nil when it would
// not. The facts must hold the database's and the mark's.
func (f Facts) Begin(w Want) error {
	_, err := f.plan(w)
	return err
}

// Disagrees returns in what way slot and mark contradict each other, nil when they do
// not, or a relay that runs may have moved them between the two looks.
func (f Facts) Disagrees(w Want) error {
	if f.Slot.Active {
		return nil
	}
	return preflight.Disagrees(w.Preflight, f.preflight())
}

func (f Facts) preflight() preflight.Facts {
	return preflight.Facts{
		Server: f.Server, SystemID: f.Server.SystemID, Timeline: f.Server.Timeline,
		Slot: f.Slot, HasSlot: f.HasSlot, Mark: f.Mark, HasMark: f.HasMark, Elsewhere: f.Elsewhere,
		Publication: f.Publication, HasPublication: f.HasPublication, Identities: f.Identities, Gone: f.Gone, Now: f.Now,
	}
}

func (f Facts) plan(w Want) (preflight.Plan, error) {
	// Allowed or refused synchronous replication has its own line; so have gaps that
	// are covered, which only a start closes.
	want := w.Preflight
	want.AllowSynchronous = true
	return preflight.Decide(want, f.preflight(), preflight.Known{})
}
