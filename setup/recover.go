package setup

import (
	"context"

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
	// OpenReadable is OpenRows where rows that cannot be read may have to be left out;
	// where is a predicate that takes the place of Where.
	OpenReadable func(where string) (ReadableRows, func(context.Context), error)
	// From is where to begin again, by the history slot; zero for none of that.
	From lsn
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
	switch {
	case v.GiveUp:
		return v.giveUp(ctx)
	case v.From != 0:
		return v.beginAgain(ctx)
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
	rows, done, err := v.openRows()
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
	if err := v.asShown(ctx); err != nil {
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

// asShown tells that slot and mark are still what a person said yes to.
func (v *recovery) asShown(ctx context.Context) error {
	s, ok, err := v.db.Slot(ctx, v.Slot)
	if err != nil {
		return err
	}
	m, marked, err := v.Store.Load(ctx, v.server.SystemID, v.Slot)
	if err != nil {
		return elsewhere(err, "the mark of slot %q cannot be loaded", v.Slot)
	}
	if ok != v.exists || s.Confirmed != v.slot.Confirmed || s.Active || s.Lost() != v.slot.Lost() {
		return fault.Stopped("run cdc-relay recover again", "slot %q was changed while the recovery was being confirmed; nothing was done", v.Slot)
	}
	if marked && (m.Epoch != v.mark.Epoch || m.LSN != v.mark.LSN) {
		return fault.Stopped("run cdc-relay recover again", "the mark of slot %q was changed while the recovery was being confirmed; nothing was done", v.Slot)
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
