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

// RecoverOptions of Recover, beside those of Setup.
type RecoverOptions struct {
	// OpenRows makes what Backfill calls Rows, and how to close them; it is called
	// once something is to be published.
	OpenRows func() (Rows, func(context.Context), error)
	// Tables are read; each is one of Options.Tables.
	Tables []catalog.TableName
	// Times are the columns that tell a row's age, of tables that have one.
	Times map[catalog.TableName]string
	// Where is the predicate, for a person; "" means every row.
	Where string
	// ClosesGaps says that what is left out, or is in no table, was published
	// otherwise, or need not be.
	ClosesGaps bool
	// GiveUp ends one that has not finished, and records what may be missing.
	GiveUp bool
	// SystemID is the cluster that this one was, before an upgrade or a restore; ""
	// takes the only one that the store knows.
	SystemID string
}

// Recover finds the way back when slot and mark do not agree: it says what is
// known, asks, and brings both in order, by publishing again every row that may
// not have been published.
//
// A slot that can still be read stays where it is, since it holds what nobody else
// does: rows that were deleted meanwhile, and logical messages. Any other is dropped
// and made anew. Before that an intent is saved which holds the mark as it was, and
// stays until the last row is acknowledged; so whatever dies, run refuses, and the
// next Recover starts over. Of slots it drops only the one that was shown, and one
// of its own, which it knows by its position.
func Recover(ctx context.Context, o Options, b RecoverOptions) error {
	r, err := begin(ctx, o)
	if err != nil {
		return err
	}
	defer r.db.Close(ctx)
	r.command = "cdc-relay recover"
	return catalog.Explain((&recovery{run: r, RecoverOptions: b}).do(ctx))
}

type recovery struct {
	*run
	RecoverOptions
	trouble preflight.Trouble
	what    string          // is the matter, for a person
	was     checkpoint.Mark // from before; zero when none is known
	keep    bool            // the slot is
	// history is the history slot, where one is configured and there; stale when it
	// cannot be that of the slot that is made.
	history      catalog.Slot
	stale, there bool
}

// do finds out what is the matter, and goes one of the ways. Those which a person
// names come first, since a slot and a mark that agree may need them; each is a
// file of its own.
func (v *recovery) do(ctx context.Context) error {
	if v.GiveUp {
		return v.giveUp(ctx)
	}
	return v.again(ctx)
}

// again publishes what may not have been published.
func (v *recovery) again(ctx context.Context) error {
	if agree, err := v.diagnose(ctx); agree || err != nil {
		return err
	}
	if err := v.lookAtHistory(ctx); err != nil {
		return err
	}
	v.report(ctx)
	rows, done, err := v.OpenRows()
	if err != nil {
		return err
	}
	defer done(ctx)
	f := &backfill{run: v.run, recovery: v, BackfillOptions: BackfillOptions{Rows: rows, Tables: v.RecoverOptions.Tables, Where: v.Where, ClosesGaps: v.ClosesGaps}}
	if err := v.checkRecoverable(ctx, f); err != nil {
		return err
	}
	if v.DryRun {
		return f.dryRun(ctx, "would publish")
	}
	if err := v.confirm("Do this?"); err != nil {
		return err
	}
	if v.keep {
		return v.goOn(ctx, f)
	}
	return v.startAnew(ctx, f)
}

func (v *recovery) checkRecoverable(ctx context.Context, f *backfill) error {
	if err := f.checkRows(ctx); err != nil {
		return err
	}
	if free := v.server.MaxReplicationSlots - v.server.ReplicationSlots; free <= 0 && (v.keep || !v.exists) {
		return fault.Stopped("raise max_replication_slots and restart the server, or drop a slot that is not used",
			"all %d replication slots are in use, and this needs one", v.server.MaxReplicationSlots)
	}
	if v.pub.OID != 0 {
		return v.checkPublication()
	}
	if v.keep {
		return fault.Stopped("run as the owner of the tables: "+catalog.CreatePublicationSQL(v.Publication, v.run.Tables)+"; then cdc-relay recover again",
			"publication %q does not exist", v.Publication)
	}
	return nil
}

// confirm asks a person, unless that was answered before.
func (v *recovery) confirm(question string) error {
	if v.Yes {
		return nil
	}
	if v.Confirm == nil {
		return fault.Stopped("add --yes", "a recovery must be confirmed, and there is nobody to ask")
	}
	yes, err := v.Confirm(question)
	if err != nil {
		return elsewhere(err, "the recovery was not confirmed, and nothing was changed")
	}
	if !yes {
		return fault.Stopped("", "the recovery was not confirmed, and nothing was changed")
	}
	return nil
}

// goOn publishes beside the slot that is there, in the snapshot of a temporary one.
func (v *recovery) goOn(ctx context.Context, f *backfill) error {
	ids, err := v.identities(ctx)
	if err != nil {
		return err
	}
	if err := v.announce(ctx, ids, checkpoint.Backfill{LSN: v.slot.Confirmed, Kept: true}); err != nil {
		return err
	}
	if err := v.beside(ctx, f); err != nil {
		return f.unfinished(err)
	}
	if err := f.finish(ctx); err != nil {
		return err
	}
	return v.ensureHistory(ctx)
}

func (v *recovery) beside(ctx context.Context, f *backfill) error {
	if err := v.createTopics(ctx); err != nil {
		return err
	}
	conn, err := v.Replicate(ctx, v.cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	point, err := f.temporary(ctx, conn)
	if err != nil {
		return err
	}
	// Nothing that the slot can still deliver has a position below it.
	return f.publish(ctx, conn, point, v.slot.Confirmed)
}

// startAnew drops the slot where there is one, and makes it as a backfill does.
func (v *recovery) startAnew(ctx context.Context, f *backfill) error {
	ids, err := v.identities(ctx)
	if err != nil {
		return err
	}
	if err := v.announce(ctx, ids, checkpoint.Backfill{Old: v.slot.Confirmed}); err != nil {
		return err
	}
	if v.exists {
		if err := v.db.DropSlot(ctx, v.Slot); err != nil {
			return f.unfinished(err)
		}
		v.say("dropped slot %q, which was at %s", v.Slot, v.slot.Confirmed)
		v.exists, v.slot = false, catalog.Slot{}
	}
	if v.stale {
		if err := v.db.DropSlot(ctx, v.history.Name); err != nil {
			return f.unfinished(err)
		}
		v.say("dropped history slot %q, which was at %s", v.history.Name, v.history.Confirmed)
	}
	return f.makeAnew(ctx)
}

// announce saves the intent, in which the mark from before is kept.
func (v *recovery) announce(ctx context.Context, ids catalog.Identities, b checkpoint.Backfill) error {
	b.Begun, b.Where, b.Replaces = v.Now().UTC(), brief(v.Where), &v.was
	return v.save(ctx, checkpoint.Mark{Intent: true, Backfill: &b, CheckedLSN: v.checked,
		Publication: ids.Publication, Relations: ids.Relations, Gaps: v.was.Gaps}, true)
}

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

// from is up to where everything was published, by the mark from before; zero where
// that says nothing of this server's WAL.
func (v *recovery) from() lsn {
	if v.was.SystemID != v.server.SystemID || v.was.Timeline != v.server.Timeline || v.was.LSN > v.server.CurrentLSN {
		return 0
	}
	return v.was.LSN
}

// moved is a gap of the mark from before in this server's WAL, of which all up to to
// is meant when the positions of both say nothing of each other.
func (v *recovery) moved(g checkpoint.Gap, to lsn) checkpoint.Gap {
	if v.from() == 0 {
		g.Reason = fmt.Sprintf("%s (up to %s of timeline %d of the cluster %s)", g.Reason, g.To, v.was.Timeline, v.was.SystemID)
		g.From, g.To = 0, to
	}
	return g
}

// left are the gaps that stay when the rows are published and the slot goes on at
// to.
func (v *recovery) left(ctx context.Context, f *backfill, to lsn) ([]checkpoint.Gap, error) {
	var gaps []checkpoint.Gap
	messages := v.Messages != "" && !v.ClosesGaps
	for _, g := range v.was.Gaps {
		switch {
		case g.Table == "" && messages && f.whyUnread(g) == "":
			g.Table = checkpoint.LogicalMessages // the rows of it were read
			gaps = append(gaps, v.moved(g, to))
		case f.whyUnread(g) != "":
			gaps = append(gaps, v.moved(g, to))
		default:
			v.say("gap closed: %s", describe(g))
		}
	}
	add := func(g checkpoint.Gap) {
		g.From, g.Found = v.from(), v.Now().UTC()
		if known := slices.ContainsFunc(gaps, func(k checkpoint.Gap) bool {
			return k.From <= g.From && k.To >= g.To && k.Table == g.Table
		}); g.From < g.To && !known {
			gaps = append(gaps, g)
		}
	}
	if messages {
		add(checkpoint.Gap{To: to, Table: checkpoint.LogicalMessages, Reason: "logical messages are in no table, from which they could be published again"})
	}
	if v.was.SystemID != v.server.SystemID {
		return gaps, nil
	}
	d := catalog.Compare(v.was.Publication, v.was.Relations, catalog.Identities{Publication: v.mark.Publication, Relations: v.mark.Relations})
	for _, id := range d.Detached {
		exists, err := v.db.RelationExists(ctx, id.OID)
		if err != nil {
			return nil, err
		}
		if exists {
			add(checkpoint.Gap{To: max(to, v.mark.CheckedLSN), Table: id.Name, Reason: "the partition was detached; rows of it are not in the table any more"})
		}
	}
	return gaps, nil
}
