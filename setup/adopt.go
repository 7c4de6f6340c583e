package setup

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/undecodable"
)

// Adopt takes over a slot that has no mark, is ahead of it, or whose publication
// or tables changed: deliberately, by naming the position LSN to go on from.
//
// LSN is the slot's confirmed LSN, which nothing is skipped by, or a later one
// up to the server's position: the slot is then advanced, and what lies between
// is skipped for good. An earlier one is refused, since a slot cannot go back.
// What may never have been published is recorded as gaps, with the mark, before
// anything is skipped. Repeating it with the same LSN changes nothing.
func Adopt(ctx context.Context, o Options) error {
	r, err := begin(ctx, o)
	if err != nil {
		return err
	}
	defer r.db.Close(ctx)
	r.command, r.skipReason = "cdc-relay adopt", "skipped by adopt"
	return catalog.Explain(r.adopt(ctx))
}

func (r *run) adopt(ctx context.Context) error {
	if err := r.checkAdoptable(ctx); err != nil {
		return err
	}
	ids, err := r.identities(ctx)
	if err != nil {
		return err
	}
	gaps, err := r.gaps(ctx, ids)
	if err != nil {
		return err
	}
	settled := r.marked && !r.mark.Intent && r.slot.Confirmed <= r.mark.LSN &&
		r.mark.Timeline == r.server.Timeline && r.mark.LSN <= r.server.CurrentLSN &&
		catalog.Compare(r.mark.Publication, r.mark.Relations, ids).Empty()
	if settled && r.LSN <= r.slot.Confirmed {
		r.say("nothing to adopt: slot %q at %s agrees with its mark at %s, and nothing is skipped", r.Slot, r.slot.Confirmed, r.mark.LSN)
		if r.isCommit(ctx) {
			r.say("note: a transaction is committed exactly at %s, and is streamed from there on; to give it up: cdc-relay adopt --lsn %s", r.LSN, r.LSN+1)
		}
		return nil
	}
	if err := r.checkLSN(); err != nil {
		return err
	}
	if r.LSN > r.slot.Confirmed && r.isCommit(ctx) {
		return fault.Stopped(fmt.Sprintf("to give it up too: cdc-relay adopt --lsn %s; to go on with it, and skip only what is before it: cdc-relay adopt --lsn %s", r.LSN+1, r.LSN-1),
			"%s is the position of a transaction itself, which is streamed from there on and would not be skipped", r.LSN)
	}
	if err := r.ask(gaps); err != nil {
		return err
	}
	// Settled: only the skip is left, over what the mark says was published.
	if !settled || len(gaps) > 0 {
		m := checkpoint.Mark{LSN: r.LSN, CheckedLSN: r.checked, Publication: ids.Publication, Relations: ids.Relations}
		m.Gaps = append(slices.Clone(r.mark.Gaps), gaps...)
		if err := r.save(ctx, m, true); err != nil {
			return err
		}
		r.say("marked slot %q at %s, with %s", r.Slot, m.LSN, count(len(m.Gaps), "open gap"))
	}
	return r.advance(ctx)
}

// checkAdoptable refuses what the relay could not run on afterwards.
func (r *run) checkAdoptable(ctx context.Context) error {
	if r.backfilling() {
		return preflight.Backfilling(r.Slot, *r.mark.Backfill)
	}
	if !r.exists {
		if r.marked && !r.mark.Intent {
			return fault.Stopped(preflight.Recover, "slot %q does not exist, and its mark is at %s", r.Slot, r.mark.LSN)
		}
		return fault.Stopped("create it: "+catalog.CreateSlotSQL(r.server.VersionNum, r.Slot, r.Failover)+
			"; then adopt it at its confirmed_flush_lsn; or, without a mark, let `cdc-relay setup` make it", "slot %q does not exist", r.Slot)
	}
	if err := r.checkSlot(); err != nil {
		return err
	}
	if r.slot.Active {
		return fault.Stopped("stop what reads it", "slot %q is being read by process %d, so that its position moves", r.Slot, r.slot.ActivePID)
	}
	if r.slot.Confirmed > r.server.CurrentLSN {
		return r.beyondEnd()
	}
	if err := r.checkTables(ctx); err != nil {
		return err
	}
	if err := r.readPublication(ctx); err != nil {
		return err
	}
	if r.pub.OID == 0 {
		return fault.Stopped("run as the owner of the tables: "+catalog.CreatePublicationSQL(r.Publication, r.Tables)+
			"; since the slot cannot decode rows from before that, adopt it at a position after it",
			"publication %q does not exist", r.Publication)
	}
	return r.checkPublication()
}

// isCommit tells whether a transaction with events is committed exactly at LSN: to
// stream from there on is not to skip it. It looks at a copy of the slot; where that
// cannot be made, it says so, and it is not known.
func (r *run) isCommit(ctx context.Context) bool {
	if r.Stream == nil {
		return false
	}
	s, err := r.search(ctx)
	if err == nil {
		var at lsn
		if at, err = undecodable.First(ctx, s, r.LSN); err == nil {
			return at == r.LSN
		}
	}
	r.say("note: whether a transaction is committed exactly at %s could not be looked up: %v", r.LSN, catalog.Explain(err))
	return false
}

// search says where to look in the WAL: from where the slot stands.
func (r *run) search(ctx context.Context) (undecodable.Search, error) {
	until, err := r.db.WrittenLSN(ctx)
	if err != nil {
		return undecodable.Search{}, err
	}
	cfg := *r.Stream
	cfg.Postgres, cfg.ApplicationName, cfg.MessagePrefix = &r.cfg.Config, r.ApplicationName+" (probe)", r.Messages
	return undecodable.Search{Stream: cfg, Slot: r.Slot, Publication: r.Publication,
		From: r.slot.Confirmed, Until: until, Published: max(r.mark.LSN, r.slot.Confirmed)}, nil
}

func (r *run) checkLSN() error {
	switch {
	case r.LSN < r.slot.Confirmed:
		return fault.Stopped(fmt.Sprintf("`cdc-relay adopt --lsn %s`, which records the gap", r.slot.Confirmed),
			"slot %q is at %s and cannot go back to %s", r.Slot, r.slot.Confirmed, r.LSN)
	case r.LSN > r.server.CurrentLSN:
		return fault.Stopped(fmt.Sprintf("name a position from %s, where the slot is, up to %s", r.slot.Confirmed, r.server.CurrentLSN),
			"%s is beyond the server's position %s: events that are not written yet would be skipped", r.LSN, r.server.CurrentLSN)
	}
	return nil
}

// gaps are the ranges that may never have been published when the relay goes on
// from LSN, without those on record already.
func (r *run) gaps(ctx context.Context, ids catalog.Identities) ([]checkpoint.Gap, error) {
	var gaps []checkpoint.Gap
	add := func(from, to lsn, table, reason string) {
		known := slices.ContainsFunc(r.mark.Gaps, func(g checkpoint.Gap) bool {
			return g.From <= from && g.To >= to && (g.Table == "" || g.Table == table)
		})
		if from < to && !known {
			gaps = append(gaps, checkpoint.Gap{From: from, To: to, Table: table, Reason: reason, Found: r.Now().UTC()})
		}
	}
	if !r.marked || r.mark.Intent {
		add(0, r.LSN, "", "adopted without a mark")
		return gaps, nil
	}
	from := r.mark.LSN
	switch {
	case r.mark.Timeline != r.server.Timeline:
		// Where the timelines parted is not known here, so the old position says
		// nothing about the new one.
		add(0, r.LSN, "", fmt.Sprintf("adopted on timeline %d with a mark at %s of timeline %d", r.server.Timeline, r.mark.LSN, r.mark.Timeline))
		from = max(r.LSN, r.slot.Confirmed)
	case r.mark.LSN > r.server.CurrentLSN:
		add(0, r.LSN, "", fmt.Sprintf("adopted after the server went back to %s, before the mark at %s", r.server.CurrentLSN, r.mark.LSN))
		from = max(r.LSN, r.slot.Confirmed)
	}
	add(from, r.slot.Confirmed, "", "the slot was moved or made again past its mark")
	add(max(from, r.slot.Confirmed), r.LSN, "", r.skipReason)
	return gaps, r.changedGaps(ctx, ids, add)
}

// inOrder is the last position at which what is published is known to have been
// as the mark says; zero when that cannot be told, since the server went back.
func (r *run) inOrder() lsn {
	checked := r.mark.CheckedLSN
	if checked == 0 {
		checked = r.mark.LSN
	}
	if r.mark.Timeline != r.server.Timeline || checked > r.server.CurrentLSN {
		return 0
	}
	return checked
}

// changedGaps adds what may not have been sent since publication or tables
// changed: all from the last look that found them in order until now.
func (r *run) changedGaps(ctx context.Context, ids catalog.Identities, add func(from, to lsn, table, reason string)) error {
	d := catalog.Compare(r.mark.Publication, r.mark.Relations, ids)
	from, now := r.inOrder(), r.server.CurrentLSN
	if d.Publication != "" {
		add(from, now, "", d.Publication)
	}
	for _, id := range d.Replaced {
		add(from, now, id.Name, "the table was dropped and created again")
	}
	if d.Publication == "" { // else the gap of all tables covers these
		for _, id := range d.Changed {
			since := from
			if r.leftRowsOut(id.OID) {
				since = 0
			}
			add(since, now, tableOf(id, ids), "the table was published in another way")
		}
		for _, id := range d.Interrupted {
			add(from, now, tableOf(id, ids), "it was not published for a while")
		}
	}
	for _, id := range d.Added {
		add(0, now, id.Name, "rows inserted before the table was published")
	}
	for _, id := range d.Detached {
		exists, err := r.db.RelationExists(ctx, id.OID)
		if err != nil {
			return err
		}
		if exists {
			add(from, now, id.Name, "the partition was detached; rows inserted into it since are not sent")
		}
	}
	for _, id := range d.Attached {
		r.say("note: partition %s was attached; rows that were in it before are never streamed", id.Name)
	}
	return nil
}

// leftRowsOut tells of a table whose row filter kept rows from being published for as
// long as it was there, which is not known.
func (r *run) leftRowsOut(oid uint32) bool {
	return slices.ContainsFunc(r.mark.Relations, func(was checkpoint.Identity) bool {
		return was.OID == oid && strings.Contains(was.Def, catalog.FilterDef)
	})
}

// tableOf is the table that is configured: of a partition, which a backfill reads with
// its table, the one that it belongs to.
func tableOf(id checkpoint.Identity, ids catalog.Identities) string {
	for _, root := range ids.Relations {
		if id.Root != 0 && root.OID == id.Root {
			return root.Name
		}
	}
	return id.Name
}

// ask shows both positions and what may be missing, and asks a person.
func (r *run) ask(gaps []checkpoint.Gap) error {
	mark := "none"
	if r.marked && !r.mark.Intent {
		mark = fmt.Sprintf("%s of timeline %d, saved %s", r.mark.LSN, r.mark.Timeline, r.mark.SavedAt.Format("2006-01-02 15:04:05 MST"))
	}
	r.say("slot:   %s at %s (the server is at %s on timeline %d)", r.Slot, r.slot.Confirmed, r.server.CurrentLSN, r.server.Timeline)
	r.say("mark:   %s", mark)
	r.say("adopt:  %s", r.LSN)
	for _, g := range gaps {
		r.say("gap:    %s", describe(g))
	}
	if r.Yes {
		return nil
	}
	if r.Confirm == nil {
		return fault.Stopped("add --yes", "adopt must be confirmed, and there is nobody to ask")
	}
	question := fmt.Sprintf("Go on from %s?", r.LSN)
	if len(gaps) > 0 {
		question = fmt.Sprintf("Go on from %s, and record %s of events that may never have been published?", r.LSN, count(len(gaps), "gap"))
	}
	if r.LSN > r.slot.Confirmed {
		question = fmt.Sprintf("Events from %s to %s will not be streamed any more. ", r.slot.Confirmed, r.LSN) + question
	}
	yes, err := r.Confirm(question)
	if err != nil {
		return elsewhere(err, "adopt was not confirmed, and nothing was changed")
	}
	if !yes {
		return fault.Stopped("", "adopt was not confirmed, and nothing was changed")
	}
	return nil
}

func describe(g checkpoint.Gap) string {
	var b strings.Builder
	if g.From == 0 {
		fmt.Fprintf(&b, "everything before %s", g.To)
	} else {
		fmt.Fprintf(&b, "from %s to %s", g.From, g.To)
	}
	if g.Table != "" {
		fmt.Fprintf(&b, " of %s", g.Table)
	}
	fmt.Fprintf(&b, " may never have been published: %s", g.Reason)
	return b.String()
}

// advance skips up to LSN; the mark has it already.
func (r *run) advance(ctx context.Context) error {
	if r.LSN > r.slot.Confirmed {
		if _, err := r.db.AdvanceSlot(ctx, r.Slot, r.LSN); err != nil {
			return fmt.Errorf("the mark is saved; run %s again to skip what is left: %w", r.command, err)
		}
	}
	s, ok, err := r.db.Slot(ctx, r.Slot)
	switch {
	case err != nil:
		return err
	case !ok || s.Confirmed != max(r.LSN, r.slot.Confirmed):
		return fault.Stopped("see `cdc-relay status`, then run "+r.command+" again", "slot %q was moved by somebody else meanwhile, to %s", r.Slot, s.Confirmed)
	}
	r.say("slot %q is adopted at %s", r.Slot, s.Confirmed)
	return nil
}
