package setup

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/preflight"
)

const migrationsTable = migrations.VersionTable

// Setup makes, in this order: outbox table (where asked for), publication,
// intent, slot, first mark, topics. Each step that is done already is left as it
// is, so that Setup finishes what an earlier one did not.
//
// The intent is what tells our slot from somebody else's: it is saved only while
// no slot of that name exists, and withdrawn when the slot turns out to have
// been made by somebody else. What remains: setup dies after the intent, and
// somebody makes a slot of the same name before it is repeated; it is then taken
// for ours. Nothing that is in the table is lost silently by that, since the gap
// up to the slot's position is recorded.
func Setup(ctx context.Context, o Options) error {
	if o.DryRun {
		return dryRun(o)
	}
	r, err := begin(ctx, o)
	if err != nil {
		return err
	}
	defer r.db.Close(ctx)
	return catalog.Explain(r.setup(ctx))
}

func (r *run) setup(ctx context.Context) error {
	if err := r.refuseSlot(); err != nil {
		return err
	}
	if err := r.noteOthers(ctx); err != nil {
		return err
	}
	if err := r.checkTables(ctx); err != nil {
		return err
	}
	if err := r.ensurePublication(ctx); err != nil {
		return err
	}
	ids, err := r.identities(ctx)
	if err != nil {
		return err
	}
	switch {
	case r.marked && !r.mark.Intent:
		err = r.already(ctx, ids)
	case r.exists:
		err = r.takeSlot(ctx, ids)
	default:
		err = r.makeSlot(ctx, ids)
	}
	if err != nil {
		return err
	}
	if err := r.ensureHistory(ctx); err != nil {
		return err
	}
	r.noteMessages()
	if err := r.noteMarking(ctx); err != nil {
		return err
	}
	return r.createTopics(ctx)
}

// refuseSlot refuses, before anything is changed, what Setup must not touch.
func (r *run) refuseSlot() error {
	switch {
	case r.backfilling():
		return preflight.Backfilling(r.Slot, *r.mark.Backfill)
	case r.exists && !r.marked && !r.ExistingSlot:
		return fault.Stopped("if it was made for this relay, `cdc-relay setup --existing-slot`; if events before a position "+
			"are known to be published, or may be missing, `cdc-relay adopt --lsn "+r.slot.Confirmed.String()+"`; else choose another source.slot",
			"slot %q exists at %s without a mark, so that nobody knows what was published; setup does not take over what it did not make",
			r.Slot, r.slot.Confirmed)
	case !r.exists && r.marked && !r.mark.Intent:
		return fault.Stopped(preflight.Recover,
			"slot %q is gone, although its mark says that events up to %s were published; those after it are not streamed any more",
			r.Slot, r.mark.LSN)
	case !r.exists && r.ExistingSlot:
		return fault.Stopped("create it: "+catalog.CreateSlotSQL(r.server.VersionNum, r.Slot, r.Failover)+
			"; or leave out --existing-slot", "slot %q does not exist", r.Slot)
	case r.exists:
		return r.checkSlot()
	case r.server.ReplicationSlots >= r.server.MaxReplicationSlots:
		return fault.Stopped("raise max_replication_slots and restart the server, or drop a slot that is not used",
			"all %d replication slots are in use", r.server.MaxReplicationSlots)
	}
	return nil
}

// noteOthers tells of marks of the slot on other clusters, where there is none of
// this: it may have been upgraded. That is no reason to refuse, since clusters may
// share a store.
func (r *run) noteOthers(ctx context.Context) error {
	if r.marked {
		return nil
	}
	others, err := r.Store.Others(ctx, r.server.SystemID, r.Slot)
	if err != nil {
		return elsewhere(err, "the marks of slot %q on other clusters cannot be loaded", r.Slot)
	}
	if len(others) > 0 {
		r.say("note: there is a mark of a slot of this name %s. If this database is one of those, after pg_upgrade or a dump and restore, "+
			"publish what is in the table by `cdc-relay backfill`", preflight.Elsewhere(others))
	}
	return nil
}

// ensurePublication makes the publication, or verifies the one that is there.
func (r *run) ensurePublication(ctx context.Context) error {
	if err := r.readPublication(ctx); err != nil {
		return err
	}
	if r.pub.OID != 0 {
		return r.checkPublication()
	}
	create := catalog.CreatePublicationSQL(r.Publication, r.Tables)
	if r.exists && r.marked && !r.mark.Intent {
		return fault.Stopped("run as the owner of the tables: "+create+"; then `cdc-relay adopt --lsn` with a position after that, which records the gap",
			"publication %q does not exist; rows inserted until it does cannot be decoded from slot %q", r.Publication, r.Slot)
	}
	if r.exists {
		return fault.Stopped("drop the slot: SELECT pg_drop_replication_slot("+catalog.Literal(r.Slot)+"); then `cdc-relay setup`",
			"slot %q exists and publication %q does not; made after the slot, rows in between could not be decoded", r.Slot, r.Publication)
	}
	if err := r.db.Exec(ctx, create); err != nil {
		if catalog.SQLState(err) != insufficientPrivilege {
			return fmt.Errorf("create publication %q: %w", r.Publication, err)
		}
		grant := "GRANT CREATE ON DATABASE " + catalog.Ident(r.server.Database) + " TO " + r.role() +
			", which must own the tables too (" + tableList(r.Tables) + ")"
		if r.server.Role.CreateInDatabase {
			grant = "a publication needs the owner of its tables: run as such " + create
		}
		return r.lacks(err, "create publication "+catalog.Ident(r.Publication), grant)
	}
	if len(r.Tables) == 0 {
		r.say("created publication %q without a table, for logical messages alone", r.Publication)
	} else {
		r.say("created publication %q for %s", r.Publication, tableList(r.Tables))
	}
	return r.readPublication(ctx)
}

func (r *run) readPublication(ctx context.Context) (err error) {
	r.pub, _, err = r.db.Publication(ctx, r.Publication)
	return err
}

// makeSlot announces the slot, creates it, and marks it.
func (r *run) makeSlot(ctx context.Context, ids catalog.Identities) error {
	intent := checkpoint.Mark{Intent: true, Publication: ids.Publication, Relations: ids.Relations}
	if err := r.save(ctx, intent, true); err != nil {
		return err
	}
	r.say("creating slot %q; this waits for transactions that are open in any database, for at most %s", r.Slot, r.SlotTimeout)
	if _, err := r.db.CreateSlot(ctx, r.Slot, r.Failover, r.SlotTimeout); err != nil {
		return r.slotFailed(ctx, err)
	}
	var err error
	if r.slot, r.exists, err = r.db.Slot(ctx, r.Slot); err != nil {
		return err
	}
	if !r.exists {
		return fault.Stopped("run setup again", "slot %q was dropped by somebody as soon as it was made", r.Slot)
	}
	r.say("created slot %q at %s", r.Slot, r.slot.Confirmed)
	now, err := r.identities(ctx)
	if err != nil {
		return err
	}
	r.checked = max(r.checked, r.slot.Confirmed)
	// Made in this run and never read, so it can go without loss.
	if d := catalog.Compare(ids.Publication, ids.Relations, now); d.Broken() {
		if err := r.db.DropSlot(ctx, r.Slot); err != nil {
			return err
		}
		return fault.Stopped("run setup again", "the catalog was changed during setup (%s); the new slot was dropped", d)
	}
	return r.firstMark(ctx, now)
}

// takeSlot marks a slot that is there: one that an earlier run made, or that was
// made for us.
func (r *run) takeSlot(ctx context.Context, ids catalog.Identities) error {
	if r.slot.Active {
		return fault.Stopped("stop what reads it",
			"slot %q is being read by process %d, so that its position moves; it cannot be marked", r.Slot, r.slot.ActivePID)
	}
	if r.slot.Confirmed > r.server.CurrentLSN {
		return r.beyondEnd()
	}
	if r.ExistingSlot {
		may, err := r.db.MayFollowSlot(ctx, r.Publication, r.Slot)
		if err != nil {
			return err
		}
		if may {
			r.say("warning: nothing proves that publication %q was there, as it is, before slot %q: it was made or altered later, or another slot or an "+
				"open transaction held back the catalog horizon when the slot was made. If it was later, the server errs on the rows in "+
				"between (18 and newer: drops them silently). When in doubt drop the slot and let setup create it", r.Publication, r.Slot)
		}
		return r.firstMark(ctx, ids)
	}
	if d := catalog.Compare(r.mark.Publication, r.mark.Relations, ids); d.Broken() {
		return fault.Stopped("drop the slot, which was never read: SELECT pg_drop_replication_slot("+catalog.Literal(r.Slot)+
			"); then `cdc-relay setup`", "an earlier setup made slot %q and did not finish, and the catalog was changed since: %s", r.Slot, d)
	}
	r.say("finishing an earlier setup, which made slot %q at %s", r.Slot, r.slot.Confirmed)
	return r.firstMark(ctx, ids)
}

// backfilling tells that a backfill was begun and has not ended.
func (r *run) backfilling() bool { return r.marked && r.mark.Intent && r.mark.Backfill != nil }

// firstMark saves where the slot begins. Rows that were visible before it are a
// gap. Whether there are any is told from the table's storage, which needs no
// SELECT: a table that was emptied, or got its first rows since the slot was
// made, may give a gap without rows.
func (r *run) firstMark(ctx context.Context, ids catalog.Identities) error {
	return r.firstMarkWithout(ctx, ids, "rows inserted before the slot existed")
}

func (r *run) firstMarkWithout(ctx context.Context, ids catalog.Identities, reason string) error {
	m := checkpoint.Mark{LSN: r.slot.Confirmed, CheckedLSN: r.checked, Publication: ids.Publication, Relations: ids.Relations}
	for i, t := range r.Tables {
		fresh, ok, err := r.db.Table(ctx, t.Schema, t.Name)
		if err != nil {
			return err
		}
		// Rows are never fewer than before; a table read earlier may have none yet.
		if !ok || fresh.HasRows || r.tables[i].HasRows {
			m.Gaps = append(m.Gaps, checkpoint.Gap{To: r.slot.Confirmed, Table: t.String(),
				Reason: reason, Found: r.Now().UTC()})
			r.say("gap: rows of %s that were inserted before %s are not streamed", t, r.slot.Confirmed)
		}
	}
	// Of the intent's epoch, which its own save raised; else a new one.
	if err := r.save(ctx, m, !r.mark.Intent); err != nil {
		return err
	}
	r.say("marked slot %q at %s", r.Slot, m.LSN)
	return nil
}

// already verifies that mark and slot agree, and records tables that were added.
func (r *run) already(ctx context.Context, ids catalog.Identities) error {
	if err := r.disagreement(); err != nil {
		return err
	}
	d := catalog.Compare(r.mark.Publication, r.mark.Relations, ids)
	if d.Broken() {
		return fault.Stopped(fmt.Sprintf("`cdc-relay adopt --lsn %s`, which records the gap", r.slot.Confirmed),
			"what is published has changed since the mark at %s: %s; rows inserted between %s and %s may not have been sent",
			r.mark.LSN, d, r.inOrder(), r.server.CurrentLSN)
	}
	if len(d.Added) == 0 {
		r.say("already set up: slot %q at %s, mark at %s", r.Slot, r.slot.Confirmed, r.mark.LSN)
		return nil
	}
	if r.mark.Timeline != r.server.Timeline {
		return fault.Stopped("start the relay once, which accepts the new timeline or says why not; then stop it and run setup again",
			"%s, and the server is on timeline %d while the mark is of timeline %d", d, r.server.Timeline, r.mark.Timeline)
	}
	if r.slot.Active {
		return fault.Stopped("stop the relay, then run setup again",
			"%s, which must be recorded with the mark, while process %d reads slot %q", d, r.slot.ActivePID, r.Slot)
	}
	m := r.mark
	m.Publication, m.Relations, m.CheckedLSN = ids.Publication, ids.Relations, r.checked
	m.Gaps = append(m.Gaps[:len(m.Gaps):len(m.Gaps)], addedGaps(d, r.server.CurrentLSN, r.Now().UTC())...)
	if err := r.save(ctx, m, true); err != nil {
		return err
	}
	r.say("recorded: %s; rows inserted before it was published are a gap up to %s", d, r.server.CurrentLSN)
	return nil
}

func addedGaps(d catalog.Diff, to lsn, found time.Time) []checkpoint.Gap {
	var gaps []checkpoint.Gap
	for _, id := range d.Added {
		gaps = append(gaps, checkpoint.Gap{To: to, Table: id.Name, Reason: "rows inserted before the table was published", Found: found})
	}
	return gaps
}

// disagreement refuses a slot and a mark that do not fit together.
func (r *run) disagreement() error {
	adopt := fmt.Sprintf("`cdc-relay recover`, which publishes the rows that are still in the table and goes on from there; or `cdc-relay adopt --lsn %s`, which only records the gap", r.slot.Confirmed)
	switch {
	case r.slot.Confirmed > r.server.CurrentLSN:
		return r.beyondEnd()
	case r.mark.Timeline != r.server.Timeline && r.mark.LSN > r.server.CurrentLSN:
		return fault.Stopped(adopt, "the server is on timeline %d at %s, and the mark says that events up to %s of timeline %d were published: "+
			"events in between may be gone from the database", r.server.Timeline, r.server.CurrentLSN, r.mark.LSN, r.mark.Timeline)
	case r.mark.LSN > r.server.CurrentLSN:
		return fault.Stopped(adopt, "the mark says that events up to %s were published, and the server is only at %s: it went back, as after a restore",
			r.mark.LSN, r.server.CurrentLSN)
	case r.slot.Confirmed > r.mark.LSN:
		return fault.Stopped(adopt, "slot %q is at %s, ahead of its mark at %s: it was moved or made again by somebody else, "+
			"and events in between may never have been published", r.Slot, r.slot.Confirmed, r.mark.LSN)
	}
	return nil
}

func (r *run) beyondEnd() error {
	return fault.Stopped(preflight.Recover,
		"slot %q is at %s, beyond the server's position %s: rows would be skipped until the server gets there",
		r.Slot, r.slot.Confirmed, r.server.CurrentLSN)
}

func (r *run) createTopics(ctx context.Context) error {
	for _, t := range r.Topics {
		made, partitions, err := r.CreateTopic(ctx, t)
		switch {
		case err != nil:
			return elsewhere(err, "topic %q cannot be created", t.Name)
		case made:
			r.say("created topic %q with %s", t.Name, count(partitions, "partition"))
		default:
			r.say("topic %q exists, with %s", t.Name, count(partitions, "partition"))
		}
	}
	return nil
}

// identities reads what is published now, between two positions of the server: at
// r.checked it was in order already, or is a change; and what changed before it
// was read cannot concern rows after r.server.CurrentLSN.
func (r *run) identities(ctx context.Context) (catalog.Identities, error) {
	r.checked = r.server.CurrentLSN
	ids, err := r.db.Identities(ctx, r.Publication, r.Tables)
	if err != nil {
		return ids, err
	}
	r.server, err = r.db.Server(ctx)
	return ids, err
}

func tableList(tables []catalog.TableName) string {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.String()
	}
	return strings.Join(names, ", ")
}

// count is a number of things, such as 1 gap and 2 gaps.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
