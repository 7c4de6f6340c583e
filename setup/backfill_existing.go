package setup

import (
	"context"
	"fmt"
	"slices"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/replication"
)

// existing publishes beside a slot that is there, in the snapshot of a temporary
// one: what committed before its position is in it, and the gaps that end before
// that position are covered. It changes neither slot nor mark.
func (f *backfill) existing(ctx context.Context) error {
	if err := f.checkSlot(); err != nil {
		return err
	}
	if err := f.disagreement(); err != nil {
		return err
	}
	if f.mark.Timeline != f.server.Timeline {
		return fault.Stopped("start the relay once, which accepts the new timeline or says why not",
			"the server is on timeline %d while the mark is of timeline %d", f.server.Timeline, f.mark.Timeline)
	}
	if f.Alone && f.slot.Active {
		return fault.Stopped("stop the relay, or keep the marks in Kafka (checkpoint.store: kafka)",
			"process %d reads slot %q, and the file with the marks is for one process at a time", f.slot.ActivePID, f.Slot)
	}
	if err := f.checkRows(ctx); err != nil {
		return err
	}
	f.say("slot %q exists: rows that were streamed already are published again, with the same id", f.Slot)
	if f.DryRun {
		f.sayGaps(f.judge(f.server.CurrentLSN), "would be covered")
		return f.dryRun(ctx, "would publish")
	}
	if err := f.createTopics(ctx); err != nil {
		return err
	}
	conn, err := f.Replicate(ctx, f.cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	point, err := f.temporary(ctx, conn)
	if err != nil {
		return err
	}
	// Nothing that is not published yet has a position below the mark.
	if err := f.publish(ctx, conn, point, f.mark.LSN); err != nil {
		return explainEnd(err, "backfill", "has not finished; slot and mark are as before, and no gap is closed",
			"run cdc-relay backfill again, which starts over: rows that were published come twice, with the same id")
	}
	return f.cover(ctx, f.judge(point.LSN))
}

// temporary makes a slot that ends with the connection, for its snapshot.
func (f *backfill) temporary(ctx context.Context, conn Exporter) (replication.Exported, error) {
	const longest = 63
	suffix := fmt.Sprintf("_backfill_%d", conn.PID())
	name := f.Slot[:min(len(f.Slot), longest-len(suffix))] + suffix
	f.say("taking a snapshot; this waits for transactions that are open in any database, for at most %s", f.SlotTimeout)
	point, err := f.export(ctx, conn, replication.SlotSpec{Name: name, Temporary: true})
	switch state := catalog.SQLState(err); {
	case err == nil:
		f.say("took a snapshot at %s", point.LSN)
		return point, nil
	case ctx.Err() != nil:
		return point, err // the slot goes with its connection
	case state == queryCanceled:
		who, berr := f.blockers(ctx)
		if berr != nil {
			return point, berr
		}
		return point, f.blockedBy(name, who, err)
	case state == slotsInUse:
		return point, &fault.Error{Class: fault.Stop, What: "all replication slots are in use, and a snapshot needs one for a moment", Err: err,
			Fix: "raise max_replication_slots and restart the server, or drop a slot that is not used"}
	default:
		return point, err
	}
}

// verdict on an open gap: why it stays open; "" when it is covered.
type verdict struct {
	gap checkpoint.Gap
	why string
}

// judge tells of each open gap whether every row of it that is in the tables is in
// a snapshot taken at point, and was read.
func (f *backfill) judge(point lsn) []verdict {
	var all []verdict
	for _, g := range f.mark.Gaps {
		all = append(all, verdict{g, f.whyOpen(g, point)})
	}
	return all
}

func (f *backfill) whyOpen(g checkpoint.Gap, point lsn) string {
	switch {
	case g.To > point:
		return fmt.Sprintf("it ends after the snapshot at %s", point)
	case (g.Table == "" || g.Table == checkpoint.LogicalMessages) && f.Messages != "":
		return fmt.Sprintf("logical messages with the prefix %q that were skipped in it are in no table: emit again those that are missed; "+
			"when none is, a backfill with messages.prefix empty closes it", f.Messages)
	}
	return f.whyUnread(g)
}

// whyUnread tells why not every row of a gap that is in the tables was read.
func (f *backfill) whyUnread(g checkpoint.Gap) string {
	read := func(t catalog.TableName) bool { return slices.Contains(f.BackfillOptions.Tables, t) }
	unread := slices.ContainsFunc(f.run.Tables, func(t catalog.TableName) bool { return !read(t) })
	named := slices.ContainsFunc(f.run.Tables, func(t catalog.TableName) bool { return t.String() == g.Table })
	switch {
	case g.Table == checkpoint.LogicalMessages:
		return "" // none is
	case g.Table == "" && unread:
		return "it is of every outbox table, and not all were read"
	case g.Table != "" && !named:
		return g.Table + " is not a table of the configuration"
	case g.Table != "" && !slices.ContainsFunc(f.BackfillOptions.Tables, func(t catalog.TableName) bool { return t.String() == g.Table }):
		return g.Table + " was not read"
	case f.Where != "" && !f.ClosesGaps:
		return "the predicate may leave out rows of it; --closes-gaps says that it leaves out none"
	}
	for _, d := range f.detached {
		if d.LSN > g.From && (g.Table == "" || g.Table == d.Parent.String()) {
			return detachedRows(d)
		}
	}
	return ""
}

// detachedRows says what is in doubt of a partition that the relay detached.
func detachedRows(d catalog.Detached) string {
	return fmt.Sprintf("partition %s, which the relay detached at %s and has not dropped, may hold rows of it, and was not read: drop it if they are published, or make it a partition again (%s); then cdc-relay backfill",
		d.TableName, d.LSN, d.WayBack())
}

func (f *backfill) sayGaps(all []verdict, covered string) {
	for _, v := range all {
		if v.why == "" {
			f.say("gap %s: %s", covered, describe(v.gap))
		} else {
			f.say("gap stays open, since %s: %s", v.why, describe(v.gap))
		}
	}
}

// cover notes, beside the mark, the gaps that were covered. The mark itself belongs
// to the relay: raised by somebody else while that runs, it would fall behind the
// slot.
func (f *backfill) cover(ctx context.Context, all []verdict) error {
	var gaps []checkpoint.Gap
	for _, v := range all {
		if v.why == "" {
			gaps = append(gaps, v.gap)
		}
	}
	if len(gaps) > 0 {
		if err := f.saveCovered(ctx, gaps); err != nil {
			return err
		}
	}
	f.sayGaps(all, "covered")
	if len(gaps) > 0 {
		f.say("the relay closes %s at its next start. Rows of them that had been deleted from the table were never published, and cannot be", count(len(gaps), "gap"))
	}
	return nil
}

func (f *backfill) saveCovered(ctx context.Context, gaps []checkpoint.Gap) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout) // all is published; a late signal changes nothing
	defer cancel()
	key := checkpoint.CoverKey(f.Slot)
	note, _, err := f.Store.Load(ctx, f.server.SystemID, key)
	if err != nil {
		return elsewhere(err, "all rows are published, but which gaps were covered before cannot be loaded, so that none is closed")
	}
	note.SystemID, note.Slot, note.Timeline, note.LSN = f.server.SystemID, key, f.server.Timeline, 0
	note.Epoch++
	// Of those noted before only what is still open matters.
	note.Gaps = append(slices.DeleteFunc(slices.Clone(note.Gaps), func(g checkpoint.Gap) bool {
		return !slices.ContainsFunc(f.mark.Gaps, g.Same) || slices.ContainsFunc(gaps, g.Same)
	}), gaps...)
	note.SavedAt = f.Now().UTC()
	if err := f.Store.Save(ctx, note); err != nil {
		return elsewhere(err, "all rows are published, but which gaps that covers cannot be saved, so that none is closed")
	}
	return nil
}
