package setup

import (
	"context"
	"fmt"
	"slices"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/undecodable"
)

// ReadableRows are Rows of which those that the server cannot print are left out.
type ReadableRows interface {
	Rows
	// Unreadable finds them in the snapshot, before Count and Publish.
	Unreadable(context.Context) ([]catalog.UnreadableRow, error)
}

// skip is the way past what the server can never decode, on a slot that agrees
// with its mark. It is named, with what comes before it; after a yes the gap is
// saved, the slot is moved to behind it, and its rows are published from the table,
// where they can be read. Where nothing of the kind is found, nothing is changed.
//
// The snapshot is taken before anything is changed, so that it is known by then
// which rows can be brought back. What a crash leaves: a mark that has the gap
// (the next run goes on with the skip), or the slot behind it (a backfill closes the
// gap).
func (v *recovery) skip(ctx context.Context) (found bool, err error) {
	if v.Stream == nil {
		return false, nil
	}
	if err := v.readPublication(ctx); err != nil {
		return false, err
	}
	if v.pub.OID == 0 {
		return false, fault.Stopped("run as the owner of the tables: "+catalog.CreatePublicationSQL(v.Publication, v.run.Tables)+
			"; then cdc-relay recover again, which finds the stretch in which it was not there", "publication %q does not exist", v.Publication)
	}
	ids, err := v.identities(ctx)
	if err != nil {
		return false, err
	}
	s, err := v.search(ctx)
	if err != nil {
		return false, err
	}
	s.Progress = func(from, to lsn) {
		v.say("the server names no transaction; looking for its end between %s and %s, by reading the WAL again, at most %d times", from, to, undecodable.MaxProbes)
	}
	v.say("reading what slot %q has not passed yet, from %s to %s, from a copy of it", v.Slot, s.From, s.Until)
	f, found, err := undecodable.Find(ctx, s)
	if err != nil || !found {
		return false, err
	}
	if err := v.checkAdoptable(ctx); err != nil {
		return true, err
	}
	p := &passing{recovery: v, search: s, finding: f, ids: ids}
	return true, p.do(ctx)
}

// passing is one skip: what was found, and what it takes.
type passing struct {
	*recovery
	search  undecodable.Search
	finding undecodable.Finding
	ids     catalog.Identities
	all     bool // every row is read, not only those since the transaction
	gaps    []checkpoint.Gap
	main    []checkpoint.Gap // those of gaps that the rows which can be read close
	unread  map[string]bool  // reasons of gaps of rows that cannot
}

func (p *passing) do(ctx context.Context) error {
	f := p.finding
	p.say("found:  %s: %s", f, f.Why())
	changed := catalog.Compare(p.mark.Publication, p.mark.Relations, p.ids).Broken()
	if f.Unpublished > 0 && !changed {
		return fault.Stopped("start cdc-relay run: it publishes them, and halts at what cannot be decoded; then stop it, and run cdc-relay recover again",
			"not published yet before it, and still in reach of the stream: %s, from %s on", count(f.Unpublished, "transaction"), f.FirstUnpublished)
	}
	p.all = changed || f.XID == 0 || f.CommitLSN == 0
	p.LSN = f.To
	p.skipReason = fmt.Sprintf("the server cannot decode %s: %s", f, f.Why())
	var err error
	if p.gaps, err = p.recovery.gaps(ctx, p.ids); err != nil {
		return err
	}
	p.main = slices.Clone(p.gaps)
	if err := undecodable.CanSkip(ctx, p.search, f.To); err != nil {
		return p.dead(err)
	}
	rows, closeRows, err := p.openReadable(p.predicate())
	if err != nil {
		return err
	}
	defer closeRows(ctx)
	return p.with(ctx, rows)
}

// dead explains a slot that the server cannot move past it either.
func (p *passing) dead(err error) error {
	if perhaps, _ := catalog.Undecodable(err); !perhaps {
		return err
	}
	return &fault.Error{Class: fault.Stop, Err: catalog.Explain(err),
		What: fmt.Sprintf("slot %q cannot be moved past it, nor can any slot of that age", p.Slot),
		Fix: "drop the slot (SELECT pg_drop_replication_slot(" + catalog.Literal(p.Slot) + ")) and run cdc-relay recover again, which makes a new one and publishes the rows from the table; " +
			"the history slot is of no use either"}
}

// predicate is which rows are read: those that a person names; else those which
// the transaction, or one that began later, wrote; else all.
func (p *passing) predicate() string {
	switch {
	case p.Where != "":
		return p.Where
	case p.all:
		return ""
	}
	return catalog.InsertedSince(p.finding.XID)
}

// with reads the rows, asks, and does it.
func (p *passing) with(ctx context.Context, rows ReadableRows) error {
	b := &backfill{run: p.run, BackfillOptions: BackfillOptions{Rows: rows, Tables: p.RecoverOptions.Tables, Where: p.Where, ClosesGaps: p.ClosesGaps}}
	if err := b.checkRows(ctx); err != nil {
		return err
	}
	if p.DryRun {
		if err := rows.Import(ctx, ""); err != nil {
			return err
		}
		_, err := p.plan(ctx, rows)
		return err
	}
	if err := p.createTopics(ctx); err != nil {
		return err
	}
	conn, err := p.Replicate(ctx, p.cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	point, err := b.temporary(ctx, conn)
	if err != nil {
		return err
	}
	if err := rows.Import(ctx, point.Snapshot); err != nil {
		return err
	}
	conn.Close()
	n, err := p.plan(ctx, rows)
	if err != nil {
		return err
	}
	if err := p.confirm(p.question(n)); err != nil {
		return err
	}
	if err := p.asShown(ctx); err != nil {
		return err
	}
	if err := p.pass(ctx); err != nil {
		return err
	}
	if err := rows.Publish(ctx, p.mark.LSN, point.LSN); err != nil {
		return explainEnd(err, "backfill", fmt.Sprintf("of what was skipped has not finished; slot %q is past it, at %s, and the gap is on record", p.Slot, p.LSN),
			"run cdc-relay backfill, which publishes rows from the table and closes gaps")
	}
	return b.cover(ctx, p.verdicts(b, point.LSN))
}

// plan finds out which rows can be brought back, and shows what would be done.
func (p *passing) plan(ctx context.Context, rows ReadableRows) (n int64, err error) {
	bad, err := rows.Unreadable(ctx)
	if err != nil {
		return 0, err
	}
	if n, err = rows.Count(ctx); err != nil {
		return 0, err
	}
	p.rowGaps(bad)
	p.say("slot:   %s at %s, would go on at %s (the server is at %s)", p.Slot, p.slot.Confirmed, max(p.LSN, p.slot.Confirmed), p.server.CurrentLSN)
	which := "every row of the tables"
	switch {
	case p.Where != "":
		which = "rows where " + brief(p.Where)
	case !p.all:
		which = fmt.Sprintf("rows of transaction %d and of all that began to write later", p.finding.XID)
	}
	p.say("rows:   would publish %s: %s; those that were streamed already come twice, with the same id", count(int(n), "row"), which)
	for _, g := range p.gaps {
		p.say("gap:    %s", describe(g))
	}
	if p.DryRun {
		p.say("dry run: nothing was changed")
	}
	return n, nil
}

// rowGaps records each row that cannot be read from the table either; of many the
// first ones by name.
func (p *passing) rowGaps(bad []catalog.UnreadableRow) {
	const named = 20
	from := min(max(p.mark.LSN, p.slot.Confirmed), p.finding.From)
	p.unread = map[string]bool{}
	for i, row := range bad {
		what := "row " + row.ID
		if i == named && len(bad) > named+1 {
			what = fmt.Sprintf("row %s, and %s more,", row.ID, count(len(bad)-named-1, "row"))
		}
		g := checkpoint.Gap{From: from, To: p.LSN, Table: row.Table.String(), Found: p.Now().UTC(),
			Reason: fmt.Sprintf("%s cannot be read from the table either (%s); mend or delete it", what, row.Why)}
		known := slices.ContainsFunc(p.mark.Gaps, func(o checkpoint.Gap) bool { return o.Table == g.Table && o.Reason == g.Reason })
		if p.unread[g.Reason] = true; !known { // by an earlier run
			p.gaps = append(p.gaps, g)
		}
		if i == named {
			break
		}
	}
}

// question is what a person is asked.
func (p *passing) question(rows int64) string {
	left := ""
	if n := len(p.unread); n > 0 {
		left = fmt.Sprintf(", leave out %s that cannot be read", count(n, "row"))
	}
	return fmt.Sprintf("Skip %s%s, and publish %s from the table?", p.finding, left, count(int(rows), "row"))
}

// pass records the gaps, and then moves the slot. With a mark that is past it
// already, only the move is left of an earlier run.
func (p *passing) pass(ctx context.Context) error {
	if len(p.gaps) > 0 || p.LSN > p.mark.LSN {
		m := checkpoint.Mark{LSN: max(p.LSN, p.mark.LSN), CheckedLSN: p.checked, Publication: p.ids.Publication, Relations: p.ids.Relations}
		m.Gaps = append(slices.Clone(p.mark.Gaps), p.gaps...)
		if err := p.save(ctx, m, true); err != nil {
			return err
		}
		p.say("marked slot %q at %s, with %s", p.Slot, m.LSN, count(len(m.Gaps), "open gap"))
	}
	return p.advance(ctx)
}

// verdicts on the open gaps. Where only the rows since the transaction were read,
// those are its own alone.
func (p *passing) verdicts(b *backfill, point lsn) []verdict {
	var all []verdict
	for _, v := range b.judge(point) {
		own := slices.ContainsFunc(p.main, v.gap.Same) || v.gap.Reason == p.skipReason // of an earlier run
		switch {
		case p.unread[v.gap.Reason]:
			v.why = "the row was left out"
		case !own && !p.all && v.why == "" && p.Where == "":
			v.why = "only rows since the transaction that was skipped were read"
		}
		all = append(all, v)
	}
	return all
}
