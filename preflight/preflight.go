// Package preflight owns the rules by which a slot may be streamed: what server,
// slot, mark and publication must look like, and what each contradiction means.
// It is pure: facts in, a plan or a sentence out.
package preflight

import (
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
)

// Want is what the configuration asks for.
type Want struct {
	Slot        string
	Publication string
	Tables      []catalog.TableName
	// Columns are those that the mapping of each table names.
	Columns          map[catalog.TableName][]string
	ApplicationName  string
	AllowSynchronous bool
	Messages         bool // logical messages are asked for
}

// Facts are what was found. The slot is read before the mark: an instance that
// takes over must not see a new slot beside an old mark.
type Facts struct {
	Server   catalog.Server
	SystemID string // of the replication connection
	Timeline int32
	Slot     catalog.Slot
	HasSlot  bool
	Mark     checkpoint.Mark
	HasMark  bool
	// Elsewhere are the marks of slots of this name on other clusters; they matter
	// where this one has none.
	Elsewhere []checkpoint.Mark
	// Covered are gaps whose rows a backfill has published since.
	Covered        []checkpoint.Gap
	Publication    catalog.Publication
	HasPublication bool
	Identities     catalog.Identities
	// Columns are those of each configured table that exists; nil means that nobody
	// looked.
	Columns map[catalog.TableName][]string
	// Now is the time to record.
	Now time.Time
	// Gone holds the OIDs of relations in the mark that do not exist any more, or
	// that retention detached.
	Gone map[uint32]bool
}

// Known is what this process knows from its earlier connection to the server.
type Known struct {
	StartedAt time.Time     // pg_postmaster_start_time
	Durable   pglogrepl.LSN // the mark that it saved
}

// Plan says how to begin.
type Plan struct {
	Start pglogrepl.LSN   // where to start streaming
	Mark  checkpoint.Mark // what later marks are made from
	Seen  checkpoint.Mark // as it was read
	// SaveFirst: Mark has changed and must be durable before anything is confirmed.
	SaveFirst bool
	// Warnings are sentences for the operator.
	Warnings []string
}

// Decide returns the plan, or why the slot must not be streamed: a *fault.Error
// of class Stop, or Retry where time may heal it.
func Decide(w Want, f Facts, k Known) (Plan, error) {
	f.HasMark = f.HasMark && !f.Mark.Withdrawn()
	checks := []func(Want, Facts) error{
		checkServer, checkSameServer, checkBackfill, checkSlot, checkSlotAndMark, checkPositions, checkPublication,
	}
	for _, check := range checks {
		if err := check(w, f); err != nil {
			return Plan{}, err
		}
	}
	if err := Changed(f.Mark.Publication, configured(w, f.Mark.Relations, f.Identities), f.Identities, f.Gone, inDoubtFrom(f), f.Server.CurrentLSN); err != nil {
		return Plan{}, err
	}
	return plan(w, f, k), nil
}

func checkServer(w Want, f Facts) error {
	s := f.Server
	switch {
	case s.VersionNum < catalog.MinVersion:
		return fault.Stopped("use PostgreSQL 13 or newer", "the server's version %d is too old", s.VersionNum)
	case w.Messages && s.VersionNum < catalog.MessagesVersion:
		return fault.Stopped("use PostgreSQL 14 or newer, or empty messages.prefix",
			"messages.prefix is set, and a server of version %d sends no logical messages", s.VersionNum)
	case s.InRecovery:
		return &fault.Error{Class: fault.Retry, What: "the server is a standby (in recovery); waiting until it is promoted",
			Fix: "connect to the primary if this is the wrong server"}
	case s.WALLevel != "logical":
		return fault.Stopped("set wal_level = logical and restart the server", "the server's wal_level is %q, so it cannot decode", s.WALLevel)
	case !w.AllowSynchronous && MatchesSynchronous(s.SynchronousStandbyNames, w.ApplicationName):
		return fault.Stopped("leave this application_name out of synchronous_standby_names, choose another source.application_name, or set source.allow_synchronous: true if it is wanted",
			"synchronous_standby_names (%s) can match the relay's application_name %q: every commit of the application would wait for Kafka",
			s.SynchronousStandbyNames, w.ApplicationName)
	}
	return nil
}

// checkSameServer: a name with several addresses can lead the two connections to
// two servers, and the checks of one say nothing about the stream of the other.
func checkSameServer(_ Want, f Facts) error {
	switch {
	case f.Server.SystemID != f.SystemID:
		return &fault.Error{Class: fault.Retry,
			What: fmt.Sprintf("the two connections of the relay reached two clusters, with the system identifiers %s and %s", f.Server.SystemID, f.SystemID),
			Fix:  "name one server in source.host"}
	case f.Server.Timeline != f.Timeline:
		return &fault.Error{Class: fault.Retry,
			What: fmt.Sprintf("the two connections of the relay reached the timelines %d and %d: two servers, or a promotion in between", f.Server.Timeline, f.Timeline)}
	case f.HasMark && f.Mark.SystemID != f.SystemID:
		return fault.Stopped("use the store that holds the marks of this cluster",
			"the mark that was found (%s) is of the cluster with the system identifier %s, the server's is %s", f.Mark.LSN, f.Mark.SystemID, f.SystemID)
	}
	return nil
}

func checkSlotAndMark(w Want, f Facts) error {
	if err := checkElsewhere(w, f); err != nil {
		return err
	}
	switch {
	case !f.HasSlot && f.HasMark && f.Mark.Intent:
		return fault.Stopped("run cdc-relay setup again; it finishes what it began", "setup of slot %q was begun and not finished", w.Slot)
	case !f.HasSlot && f.HasMark:
		return disagree(Gone, "find out who dropped it; then "+Recover,
			"slot %q does not exist, but it was published up to %s: events committed from %s to %s may be lost to the stream",
			w.Slot, f.Mark.LSN, f.Mark.LSN, f.Server.CurrentLSN)
	case !f.HasSlot:
		return fault.Stopped("run cdc-relay setup", "slot %q does not exist, and no mark of it", w.Slot)
	case !f.HasMark:
		return disagree(Unmarked,
			fmt.Sprintf("for a slot that was made by hand for this relay and never used, run cdc-relay setup --existing-slot; if the events before it were published, or nobody misses them, cdc-relay adopt --lsn %s; where that is not known, %s", f.Slot.Confirmed, recoverKept),
			"slot %q exists (confirmed up to %s) on the cluster with the system identifier %s, but there is no mark of what was published from it: events before %s may never have been published",
			w.Slot, f.Slot.Confirmed, f.SystemID, f.Slot.Confirmed)
	case f.Mark.Intent:
		return fault.Stopped("run cdc-relay setup again; it finishes what it began", "setup of slot %q was begun and not finished", w.Slot)
	}
	return nil
}

// checkBackfill comes before the slot is looked at: it is dropped when the backfill
// starts over, whatever it is like.
func checkBackfill(w Want, f Facts) error {
	if f.HasMark && f.Mark.Intent && f.Mark.Backfill != nil {
		return Backfilling(w.Slot, *f.Mark.Backfill)
	}
	return nil
}

// Backfilling is the error for a slot whose backfill has not ended.
func Backfilling(slot string, b checkpoint.Backfill) error {
	if b.Replaces != nil {
		return Recovering(slot, b)
	}
	from := "its slot"
	if b.LSN != 0 {
		from = b.LSN.String()
	}
	return fault.Stopped("wait for it if it still runs; else run cdc-relay backfill again, which starts over, or cdc-relay backfill --give-up, which records the gap",
		"a backfill of slot %q was begun at %s and has not finished: rows from before %s may not be published yet",
		slot, b.Begun.UTC().Format("2006-01-02 15:04:05Z"), from)
}

// checkSlot looks at what a slot is, before anything is said about its mark: no
// adopt makes a slot of the wrong kind usable.
func checkSlot(w Want, f Facts) error {
	s := f.Slot
	published := s.Confirmed // without a mark it is all that is known
	inDoubt := fmt.Sprintf("it is confirmed up to %s, and there is no mark of what was published from it", s.Confirmed)
	if f.HasMark {
		published = f.Mark.LSN
		inDoubt = fmt.Sprintf("it is confirmed up to %s, and events from %s on are not published yet", s.Confirmed, published)
	}
	switch {
	case !f.HasSlot:
		return nil
	case s.Type != "logical":
		return fault.Stopped("choose another source.slot", "slot %q is a %s slot; the relay needs a logical one; %s", w.Slot, s.Type, inDoubt)
	case s.Plugin != "pgoutput":
		return fault.Stopped("choose another source.slot, or drop this one and "+anew(f),
			"slot %q has the plugin %q instead of pgoutput; %s", w.Slot, s.Plugin, inDoubt)
	case s.Database != f.Server.Database:
		return fault.Stopped("connect to that database, or choose another source.slot",
			"slot %q belongs to the database %q, the connection to %q; %s", w.Slot, s.Database, f.Server.Database, inDoubt)
	case s.TwoPhase:
		return fault.Stopped("drop it and "+anew(f),
			"slot %q has two_phase on: it would deliver transactions that are prepared and not committed; %s", w.Slot, inDoubt)
	case s.Temporary:
		return fault.Stopped("choose another source.slot", "slot %q is temporary and ends with its session; %s", w.Slot, inDoubt)
	case s.Synced:
		return &fault.Error{Class: fault.Retry, What: fmt.Sprintf("slot %q is kept in step from a primary and cannot be used before this server is promoted", w.Slot)}
	case s.Lost():
		return Lost(w.Slot, s, published, f.Server.CurrentLSN)
	case s.Confirmed == 0:
		return &fault.Error{Class: fault.Retry, What: fmt.Sprintf("slot %q has no confirmed position yet: it is still being created", w.Slot)}
	}
	return nil
}

// Lost is the error for a slot whose WAL the server has given up.
func Lost(slot string, s catalog.Slot, from, to pglogrepl.LSN) error {
	why := s.InvalidationReason
	switch why {
	case "", "wal_removed":
		why = "its WAL was removed; see max_slot_wal_keep_size"
	case "idle_timeout":
		why = "idle_timeout; see idle_replication_slot_timeout"
	}
	return disagree(Invalid, "the rows are still in the table unless they were deleted: "+Recover,
		"slot %q is lost (%s): events committed from %s to %s may not have been published and cannot be streamed any more",
		slot, why, from, to)
}

// checkPositions holds mark and slot against each other (acked >= durable mark
// >= confirmed) and both against the server's WAL.
func checkPositions(w Want, f Facts) error {
	mark, slot, now := f.Mark, f.Slot, f.Server.CurrentLSN
	switch {
	case f.Timeline < mark.Timeline:
		return disagree(OlderTimeline, "connect to the primary if this is the wrong server; where the older state is what is wanted, "+Recover,
			"the server is on timeline %d, but slot %q was published up to %s on timeline %d: this is an older state of the database, and events up to %s may have been published that it does not have",
			f.Timeline, w.Slot, mark.LSN, mark.Timeline, mark.LSN)
	case slot.Confirmed > now:
		return disagree(Beyond, "a slot cannot be moved back: "+Recover,
			"slot %q is confirmed up to %s, beyond the end of the server's WAL (%s), and was published up to %s: it would skip every event up to there, and events from %s on may never have been published",
			w.Slot, slot.Confirmed, now, mark.LSN, mark.LSN)
	case slot.Confirmed > mark.LSN:
		return disagree(Ahead, adoptHint(slot.Confirmed),
			"slot %q is confirmed up to %s, ahead of the mark %s: someone else advanced it or made it anew, and events between %s and %s may never have been published",
			w.Slot, slot.Confirmed, mark.LSN, mark.LSN, slot.Confirmed)
	case mark.LSN > now && f.Timeline == mark.Timeline:
		return disagree(WentBack, adoptHint(slot.Confirmed),
			"slot %q was published up to %s, but the server's WAL ends at %s on the same timeline %d: the server went back (restored from a backup?), and events from %s to %s were published that it does not have",
			w.Slot, mark.LSN, now, f.Timeline, now, mark.LSN)
	case f.Timeline > mark.Timeline && !slot.Failover:
		return disagree(NewerTimeline, "when you know why, "+Recover+fmt.Sprintf("; only if somebody made the slot here after the promotion, and rows are deleted soon after they were written, cdc-relay adopt --lsn %s and then cdc-relay backfill", slot.Confirmed),
			"the server is on timeline %d, but slot %q was published up to %s on timeline %d, and it is not a failover slot: after a promotion its position (%s) cannot be trusted, and events between the two may be missing or may come twice",
			f.Timeline, w.Slot, mark.LSN, mark.Timeline, slot.Confirmed)
	}
	return nil
}

// Repaired says how a stretch of WAL that the slot cannot decode, or in which rows
// are missing, is passed once the publication is there.
const Repaired = "run cdc-relay adopt --lsn with a position after that (SELECT pg_current_wal_lsn()), which records the gap, and publish the rows in doubt from the table (cdc-relay backfill), which closes it"

func adoptHint(at pglogrepl.LSN) string {
	return fmt.Sprintf("when you know why, %s; or cdc-relay adopt --lsn %s, which goes on from there and only records the gap", recoverKept, at)
}

func checkPublication(w Want, f Facts) error {
	doubt := "no row is in doubt yet"
	if from := inDoubtFrom(f); from < f.Server.CurrentLSN {
		doubt = fmt.Sprintf("rows inserted from %s to %s may not be sent", from, f.Server.CurrentLSN)
	}
	if !f.HasPublication {
		return fault.Stopped(
			"create it: "+catalog.CreatePublicationSQL(w.Publication, w.Tables)+"; then "+Repaired,
			"publication %q does not exist; %s", w.Publication, doubt)
	}
	p := f.Publication
	if !p.Insert {
		return fault.Stopped(fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert'), then cdc-relay adopt, which records the gap", catalog.Ident(w.Publication)),
			"publication %q does not publish inserts; %s", w.Publication, doubt)
	}
	published := map[string]bool{}
	for _, r := range f.Identities.Relations {
		if r.Root == 0 {
			published[r.Name] = true
		}
	}
	for _, t := range w.Tables {
		if _, ok := f.Columns[t]; !ok && f.Columns != nil {
			return fault.Stopped("correct the name under outbox; if the table was dropped, create it, add it to the publication, then run cdc-relay adopt, which records the gap",
				"table %s does not exist in database %q; %s", t, f.Server.Database, doubt)
		}
		if !published[t.String()] {
			return fault.Stopped(
				fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s, then cdc-relay adopt, which records the gap", catalog.Ident(w.Publication), t.SQL()),
				"table %s is not in publication %q (a table that was dropped and created again has left it; a partitioned one needs publish_via_partition_root = true); %s", t, w.Publication, doubt)
		}
	}
	return nil
}

// inDoubtFrom is where WAL begins in which the identities are not known to have
// been in order. After a failover that is the slot's position at the latest: what
// was found at a later one may have been the old primary's.
func inDoubtFrom(f Facts) pglogrepl.LSN {
	from := f.Mark.LSN
	if f.Mark.CheckedLSN != 0 {
		from = f.Mark.CheckedLSN
	}
	if f.Timeline > f.Mark.Timeline && f.HasSlot {
		from = min(from, f.Slot.Confirmed)
	}
	return from
}

// configured leaves out the relations of tables that the configuration does not
// name any more: their rows are not wanted. One that it names differently, since
// it was renamed, stays.
func configured(w Want, rels []checkpoint.Identity, now catalog.Identities) []checkpoint.Identity {
	names := map[string]bool{}
	for _, t := range w.Tables {
		names[t.String()] = true
	}
	here := map[uint32]bool{}
	for _, r := range now.Relations {
		here[r.OID] = r.Root == 0
	}
	wanted := map[uint32]bool{}
	for _, r := range rels {
		if r.Root == 0 && (names[r.Name] || here[r.OID]) {
			wanted[r.OID] = true
		}
	}
	var out []checkpoint.Identity
	for _, r := range rels {
		if wanted[r.OID] || wanted[r.Root] {
			out = append(out, r)
		}
	}
	return out
}

// plan is made when every check has passed.
func plan(w Want, f Facts, k Known) Plan {
	p := Plan{Start: f.Slot.Confirmed, Mark: f.Mark, Seen: f.Mark}
	if !k.StartedAt.IsZero() && k.StartedAt.Equal(f.Server.StartedAt) && k.Durable > p.Start && k.Durable <= f.Mark.LSN {
		p.Start = k.Durable // the server lost our last confirm, not its WAL
	}
	if f.Timeline > f.Mark.Timeline {
		p.SaveFirst = true
		p.Mark.Epoch++
		p.Mark.Timeline = f.Timeline
		p.Mark.LSN = p.Start
		p.Warnings = append(p.Warnings, fmt.Sprintf(
			"the server is on the new timeline %d (it was %d): a failover. Events up to %s were published; streaming begins at %s. What lies between may be published again, and what the new primary did not receive is published but gone from the database",
			f.Timeline, f.Mark.Timeline, f.Mark.LSN, p.Start))
	}
	if open := checkpoint.Uncovered(f.Mark.Gaps, f.Covered); len(open) < len(f.Mark.Gaps) {
		p.SaveFirst = true
		p.Mark.Gaps = open
		p.Warnings = append(p.Warnings, fmt.Sprintf(
			"%d of %d open gaps are closed: a backfill has published the rows of them that were still in the table", len(f.Mark.Gaps)-len(open), len(f.Mark.Gaps)))
	}
	p.Mark.CheckedLSN = f.Server.CurrentLSN
	p.Mark.Publication = f.Identities.Publication
	p.Mark.Relations = f.Identities.Relations
	if len(f.Mark.Relations) > 0 || f.Mark.Publication.OID != 0 { // without a table, only messages were published
		addGapsForNewTables(w, f, &p)
	}
	p.Warnings = append(p.Warnings, missingColumns(w, f)...)
	return p
}

// missingColumns warns of a mapping that the next row will not fit. It is no
// reason to refuse: rows from before a column was dropped may be waiting.
func missingColumns(w Want, f Facts) (warnings []string) {
	for _, t := range w.Tables {
		there, known := f.Columns[t]
		for _, c := range w.Columns[t] {
			if known && !slices.Contains(there, c) {
				warnings = append(warnings, fmt.Sprintf(
					"table %s has no column %q, which the configuration maps: the relay will stop at the next row that is inserted. To fix it: correct outbox.columns (or topic, headers)", t, c))
			}
		}
	}
	return warnings
}

// addGapsForNewTables records that what an outbox table held before it was added
// to the configuration was not published.
func addGapsForNewTables(w Want, f Facts, p *Plan) {
	known := map[string]bool{}
	for _, r := range f.Mark.Relations {
		known[r.Name] = true
	}
	for _, t := range w.Tables {
		if known[t.String()] {
			continue
		}
		p.SaveFirst = true
		p.Mark.Epoch = f.Mark.Epoch + 1 // as with every new gap: retention goes by it
		p.Mark.Gaps = append(slices.Clip(p.Mark.Gaps), checkpoint.Gap{
			To: f.Server.CurrentLSN, Table: t.String(), Found: f.Now,
			Reason: "the table was added to the configuration later; rows from before were not published",
		})
		p.Warnings = append(p.Warnings, fmt.Sprintf(
			"table %s is new in the configuration: rows inserted before %s may not be published; the gap is recorded", t, f.Server.CurrentLSN))
	}
}
