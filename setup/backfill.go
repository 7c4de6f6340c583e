package setup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/replication"
)

// Rows are what a backfill publishes: who reads them and where they go is no
// business of this package.
type Rows interface {
	// Check finds out, before anything is changed, whether the rows can be read and
	// routed as the configuration says.
	Check(ctx context.Context, tables []catalog.Table, pub catalog.Publication) error
	// Import takes over an exported snapshot; "" takes one of now. The exporting
	// connection may end when it returns.
	Import(ctx context.Context, snapshot string) error
	// Count returns how many rows the snapshot holds, and tells of each table.
	Count(ctx context.Context) (int64, error)
	// Publish publishes every row of the snapshot, and returns when each of them is
	// acknowledged. below is where the slot's stream goes on: the rows get a
	// position before it. snapshot is where the snapshot was taken.
	Publish(ctx context.Context, below, snapshot lsn) error
}

// Exporter is a replication connection that makes a slot with a snapshot.
type Exporter interface {
	PID() uint32
	CreateSlot(context.Context, replication.SlotSpec) (replication.Exported, error)
	Close()
}

// BackfillOptions of Backfill, beside those of Setup.
type BackfillOptions struct {
	Rows Rows
	// Tables are read; each is one of Options.Tables.
	Tables []catalog.TableName
	// Where is the predicate, for a person; "" means every row.
	Where string
	// ClosesGaps says that the rows which Where leaves out were published otherwise,
	// or need not be.
	ClosesGaps bool
	// GiveUp ends one that has not finished, and records what may be missing.
	GiveUp bool
	// Alone: no relay may run beside, since the store is for one process at a time.
	Alone bool
}

// Backfill publishes rows that are in the outbox tables.
//
// Where there is no slot yet, it makes it with a snapshot of its beginning, and
// publishes what the snapshot shows: the stream of the slot is the rest, without a
// gap and without an overlap. An intent is saved before the slot is made, as Setup
// does, and stays until the last row is acknowledged: what a crash left is told by
// run, which refuses, and begun again by the next Backfill, which drops the slot
// that it made; a snapshot does not outlive its session.
//
// Where there is a slot and a mark, the snapshot is that of a temporary slot. Rows
// that were streamed already come again. The mark belongs to the relay, which may
// be running; so the gaps that were covered are noted beside it, and the relay
// closes them at its next start.
func Backfill(ctx context.Context, o Options, b BackfillOptions) error {
	r, err := begin(ctx, o)
	if err != nil {
		return err
	}
	defer r.db.Close(ctx)
	r.command = "cdc-relay backfill"
	return catalog.Explain((&backfill{run: r, BackfillOptions: b}).do(ctx))
}

type backfill struct {
	*run
	BackfillOptions
	recovery *recovery // of which it is a part, or nil
	// detached are partitions that the relay detached and has not dropped: no row of
	// them is read.
	detached []catalog.Detached
}

func (f *backfill) do(ctx context.Context) error {
	switch {
	case f.marked && f.mark.Recovering():
		return preflight.Recovering(f.Slot, *f.mark.Backfill)
	case f.GiveUp:
		return f.giveUp(ctx)
	case f.exists && f.marked && !f.mark.Intent:
		return f.existing(ctx)
	}
	return f.fresh(ctx)
}

// fresh makes the slot, and publishes what was there before it.
func (f *backfill) fresh(ctx context.Context) error {
	if err := f.refuse(); err != nil {
		return err
	}
	if err := f.checkRows(ctx); err != nil {
		return err
	}
	if f.DryRun {
		return f.dryRun(ctx, fmt.Sprintf("would make slot %q with a snapshot, and publish", f.Slot))
	}
	if err := f.dropOwn(ctx); err != nil {
		return err
	}
	return f.makeAnew(ctx)
}

// makeAnew makes the slot, and all else that is missing, and publishes what was
// there before it.
func (f *backfill) makeAnew(ctx context.Context) error {
	if err := f.ensurePublication(ctx); err != nil {
		return f.early(err)
	}
	if err := f.createTopics(ctx); err != nil {
		return f.early(err)
	}
	ids, err := f.identities(ctx)
	if err != nil {
		return f.early(err)
	}
	conn, err := f.Replicate(ctx, f.cfg)
	if err != nil {
		return f.early(err)
	}
	defer conn.Close()
	point, err := f.makeOwn(ctx, conn, ids)
	if err != nil {
		return err
	}
	if err := f.noteOwn(ctx, point, ids); err != nil {
		return f.unfinished(err)
	}
	if err := f.publish(ctx, conn, point, point.LSN); err != nil {
		return f.unfinished(err)
	}
	if err := f.finish(ctx); err != nil {
		return err
	}
	return f.ensureHistory(ctx)
}

// refuse refuses, before anything is changed, a slot that this does not make.
func (f *backfill) refuse() error {
	began := f.backfilling()
	switch {
	case f.marked && f.mark.Intent && !began && f.exists:
		return fault.Stopped(fmt.Sprintf("run cdc-relay setup, which finishes; a backfill then publishes rows beside the stream. Or drop the slot, which was never read (SELECT pg_drop_replication_slot(%s)), and run cdc-relay backfill",
			catalog.Literal(f.Slot)), "setup of slot %q was begun and not finished", f.Slot)
	case began && f.exists:
		return f.refuseOwn()
	case began, f.marked && f.mark.Intent:
		return nil
	}
	return f.refuseSlot()
}

func (f *backfill) checkRows(ctx context.Context) error {
	if err := f.checkTables(ctx); err != nil {
		return err
	}
	if err := f.readPublication(ctx); err != nil {
		return err
	}
	var err error
	if f.detached, err = f.db.Detached(ctx, "", f.Slot); err != nil { // also from before an upgrade
		return err
	}
	return f.Rows.Check(ctx, f.tables, f.pub)
}

func (f *backfill) dryRun(ctx context.Context, would string) error {
	if err := f.Rows.Import(ctx, ""); err != nil {
		return err
	}
	n, err := f.Rows.Count(ctx)
	if err != nil {
		return err
	}
	f.say("%s %s", would, count(int(n), "row"))
	return nil
}

// publish lets the snapshot's connection go as soon as it is imported: the reading
// transaction keeps it.
func (f *backfill) publish(ctx context.Context, conn Exporter, point replication.Exported, below lsn) error {
	if err := f.Rows.Import(ctx, point.Snapshot); err != nil {
		return err
	}
	conn.Close()
	if _, err := f.Rows.Count(ctx); err != nil {
		return err
	}
	return f.Rows.Publish(ctx, below, point.LSN)
}

// unfinished tells what state is left.
func (f *backfill) unfinished(cause error) error {
	if cause == nil {
		return nil
	}
	if f.recovery != nil {
		return explainEnd(cause, "recovery", fmt.Sprintf("has not finished; cdc-relay run refuses slot %q until it has", f.Slot),
			"run cdc-relay recover again, which starts over (rows that were published come twice, with the same id), or cdc-relay recover --give-up, which records the gap")
	}
	return explainEnd(cause, "backfill", fmt.Sprintf("has not finished; cdc-relay run refuses slot %q until it has, and the slot keeps WAL", f.Slot),
		"run cdc-relay backfill again, which starts over (rows that were published come twice, with the same id), or cdc-relay backfill --give-up, which records the gap")
}

// early is an error from before the slot is announced, as a recovery has done by
// then.
func (f *backfill) early(cause error) error {
	if f.recovery == nil {
		return cause
	}
	return f.unfinished(cause)
}

// explainEnd says why a backfill or a recovery ended before its time, and what to do:
// about the cause, and then.
func explainEnd(cause error, which, left, then string) error {
	class, _ := catalog.Classify(cause)
	e := &fault.Error{Class: class, What: "the " + which + " " + left, Fix: then, Err: catalog.Explain(cause)}
	if errors.Is(cause, context.Canceled) {
		e.What, e.Err = "the "+which+" was interrupted and "+left, cause
	}
	var inner *fault.Error
	if errors.As(e.Err, &inner) && inner.Fix != "" {
		e.Fix = inner.Fix + "; then " + then
		e.Err = &told{e.Err, strings.Replace(e.Err.Error(), ". To fix it: "+inner.Fix, "", 1)}
	}
	return e
}

// told is an error whose way out is told elsewhere.
type told struct {
	error
	text string
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.error }

// finish makes the mark: from here on the slot is like one of Setup's.
func (f *backfill) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout) // all is published; a late signal changes nothing
	defer cancel()
	if err := f.stillOurs(ctx); err != nil {
		return f.unfinished(err)
	}
	was := f.mark
	m := checkpoint.Mark{LSN: f.slot.Confirmed, CheckedLSN: was.CheckedLSN, Publication: was.Publication, Relations: was.Relations}
	var err error
	if m.Gaps, err = f.leftOut(ctx, m.LSN); err != nil {
		return f.unfinished(err)
	}
	if err := f.save(ctx, m, false); err != nil {
		return f.unfinished(err)
	}
	f.say("marked slot %q at %s: cdc-relay run goes on from there", f.Slot, m.LSN)
	return nil
}

// leftOut are the gaps that stay when the stream goes on at to.
func (f *backfill) leftOut(ctx context.Context, to lsn) (gaps []checkpoint.Gap, err error) {
	var from lsn
	prefix, which := "rows inserted before the slot existed", "backfill"
	if f.recovery != nil {
		if gaps, err = f.recovery.left(ctx, f, to); err != nil {
			return nil, err
		}
		from, which = f.recovery.from(), "recovery"
		prefix = "rows that may never have been published"
	}
	for i, t := range f.run.Tables {
		reason := ""
		switch read := slices.Contains(f.BackfillOptions.Tables, t); {
		case !read:
			// Rows are never fewer than before; a table read earlier may have had none yet.
			fresh, ok, err := f.db.Table(ctx, t.Schema, t.Name)
			if err != nil {
				return nil, err
			}
			if !ok || fresh.HasRows || f.tables[i].HasRows {
				reason = fmt.Sprintf("%s; the %s was of other tables", prefix, which)
			}
		case f.Where != "" && !f.ClosesGaps:
			reason = fmt.Sprintf("%s: a %s published only those where %s", prefix, which, brief(f.Where))
		}
		if reason != "" && from < to {
			gaps = append(gaps, checkpoint.Gap{From: from, To: to, Table: t.String(), Reason: reason, Found: f.Now().UTC()})
			f.say("gap: rows of %s that were inserted before %s and are not published by this", t, to)
		}
	}
	return gaps, nil
}

// stillOurs tells that slot and mark are as this backfill left them. That the
// session answers means that nobody else could begin: it holds the lock.
func (f *backfill) stillOurs(ctx context.Context) error {
	s, ok, err := f.db.Slot(ctx, f.Slot)
	switch {
	case err != nil:
		return err
	case !ok:
		return fault.Stopped("", "slot %q was dropped during the backfill", f.Slot)
	case s.Lost():
		return fault.Stopped("raise max_slot_wal_keep_size", "slot %q was lost during the backfill (wal_status %s %s)", f.Slot, s.WALStatus, s.InvalidationReason)
	case s.Confirmed != f.mark.Backfill.LSN:
		return fault.Stopped("", "slot %q was moved from %s to %s during the backfill", f.Slot, f.mark.Backfill.LSN, s.Confirmed)
	}
	m, ok, err := f.Store.Load(ctx, f.server.SystemID, f.Slot)
	if err != nil {
		return elsewhere(err, "the mark of slot %q cannot be loaded", f.Slot)
	}
	if !ok || m.Epoch != f.mark.Epoch || m.Backfill == nil {
		return fault.Stopped("", "the mark of slot %q was changed by somebody else during the backfill", f.Slot)
	}
	return nil
}

// giveUp makes a slot of a backfill that has not finished like one of Setup's, with
// the gap; without the slot it takes the intent back.
func (f *backfill) giveUp(ctx context.Context) error {
	if !f.backfilling() {
		return fault.Stopped("", "there is no backfill of slot %q to give up", f.Slot)
	}
	if !f.exists {
		if err := f.withdraw(ctx); err != nil {
			return err
		}
		f.say("given up: slot %q does not exist, and it is as before the backfill; cdc-relay setup makes it", f.Slot)
		return nil
	}
	if f.slot.Lost() {
		return fault.Stopped("drop it (SELECT pg_drop_replication_slot("+catalog.Literal(f.Slot)+")), then give up once more and run cdc-relay setup, or cdc-relay backfill",
			"slot %q is lost, so that nothing can be streamed from it", f.Slot)
	}
	if err := f.refuseMoved(); err != nil {
		return err
	}
	if err := f.checkTables(ctx); err != nil {
		return err
	}
	ids, err := f.identities(ctx)
	if err != nil {
		return err
	}
	if d := catalog.Compare(f.mark.Publication, f.mark.Relations, ids); d.Broken() {
		return fault.Stopped("drop the slot, which was never read: SELECT pg_drop_replication_slot("+catalog.Literal(f.Slot)+"); then give up once more",
			"a backfill made slot %q and did not finish, and the catalog was changed since: %s", f.Slot, d)
	}
	return f.firstMarkWithout(ctx, ids, "rows inserted before the slot existed; a backfill of them was begun and given up")
}

// brief bounds a text that goes into every mark.
func brief(s string) string {
	const longest = 200
	if r := []rune(s); len(r) > longest {
		return string(r[:longest]) + "..."
	}
	return s
}
