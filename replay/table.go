package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/backfill"
	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/confirmed"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

// Table publishes rows again that are still in the tables, where the WAL of their
// transactions is gone: in the order of the mapped timestamp, or of the ids where
// none is mapped, which is not the order of their commits. It is used by one
// goroutine; Run is called once.
type Table struct {
	o    Options
	w    TableOptions
	rows *backfill.Rows

	filter      *filter
	passed      uint64
	first, last Event
}

// TableOptions of a Table, beside Options: of those, bounds are times, and History,
// KnownSince and what is of the stream are not used.
type TableOptions struct {
	// Wait is how long the relay may take to publish what the snapshot shows. Before,
	// a row could come here ahead of its first copy.
	Wait     time.Duration
	Halted   func(ctx context.Context) string
	Say      func(format string, args ...any)
	Progress backfill.Progress
}

// TableReport is what came of a Table.
type TableReport struct {
	Snapshot    pglogrepl.LSN // zero when nothing was begun
	Events      uint64        // that the filter let pass: published, or counted by a dry run
	Acked       uint64        // of those
	Filtered    uint64        // that it did not
	First, Last Event         // of Events, without the commit; zero without one
	Took        time.Duration
}

// NewTable returns a replay that is not running yet, or why the options cannot be
// used.
func NewTable(o Options, w TableOptions) (*Table, error) {
	if o.From.LSN != 0 || o.To.LSN != 0 {
		return nil, errors.New("--source table takes times: a row does not tell at which position of the WAL it was committed")
	}
	if len(o.Tables) == 0 {
		return nil, errors.New("--source table needs an outbox table, and none is configured; logical messages can be replayed from the history alone")
	}
	for _, t := range o.Tables {
		if t.Timestamp == "" && !(o.From.IsZero() && o.To.IsZero()) {
			return nil, fmt.Errorf("--from and --to need a time of each row, and outbox table %s has no column mapped as outbox[].columns.timestamp; "+
				"without them every row is replayed that --aggregate-type, --key and --id choose", t)
		}
	}
	if _, _, err := o.compile(); err != nil {
		return nil, err
	}
	t := &Table{o: o, w: w, filter: newFilter(o.Filter, o.Tables)}
	var err error
	t.rows, err = backfill.New(backfill.Config{
		Connect: o.Connect, ApplicationName: o.ApplicationName, Tables: o.retopic(), AnyOrder: true, Narrow: t.narrow, Wanted: t.wanted,
		Also: HeaderName, Rate: o.Rate, DryRun: o.DryRun, MaxRowBytes: o.MaxRowBytes, OpenSink: o.OpenSink, Progress: w.Progress,
		Correct: "correct --id, --topic, or the mapping", Leave: "leave it out by --from, --to, --aggregate-type, --key or --id",
	})
	return t, err
}

// narrow is the range in SQL, and the ids, for which there may be an index.
func (t *Table) narrow(r route.Table, is catalog.Table) (where string, columns []string, err error) {
	var conditions []string
	for _, c := range is.Columns {
		if between := catalog.Between(c.Name, c.BaseTypeOID, t.o.From.Time, t.o.To.Time); c.Name == r.Timestamp && between != "" {
			conditions = append(conditions, between, catalog.Ident(c.Name)+" IS NOT NULL")
		}
	}
	if ids := t.o.Filter.IDs; len(ids) > 0 {
		var list []string
		for _, id := range ids {
			list = append(list, catalog.Literal(id))
		}
		conditions = append(conditions, catalog.Ident(r.ID)+" IN ("+strings.Join(list, ", ")+")")
	}
	if len(t.o.Filter.AggregateTypes) > 0 {
		column := t.filter.columns[r.String()]
		if !slices.ContainsFunc(is.Columns, func(c catalog.Column) bool { return c.Name == column }) {
			return "", nil, noAggregate(r.String(), column)
		}
		columns = append(columns, column)
	}
	var known []decoder.Column
	for _, c := range is.Columns {
		known = append(known, decoder.Column{Name: c.Name})
	}
	return strings.Join(conditions, " AND "), columns, t.o.noTopicColumn(r.String(), known)
}

func (t *Table) wanted(row decoder.Row, rec *sink.Record) (bool, error) {
	wanted, err := t.filter.passes(row, rec)
	if err != nil || !wanted {
		return false, err
	}
	if t.passed++; t.passed == 1 || t.o.DryRun {
		t.last = Event{Topic: rec.Topic, ID: string(rec.ID), Time: time.UnixMilli(rec.Timestamp)}
	}
	if t.passed == 1 {
		t.first = t.last
	}
	return true, nil
}

// Run replays. The report is valid also when it ends with an error.
func (t *Table) Run(ctx context.Context) (rep TableReport, err error) {
	began := time.Now()
	rep.Snapshot, err = t.run(ctx)
	read, _, acked := t.rows.Counts()
	rep.Events, rep.Acked, rep.Filtered = t.passed, uint64(acked), uint64(read)-t.passed
	rep.First, rep.Last, rep.Took = t.first, t.last, time.Since(began)
	if ctx.Err() != nil && err != nil {
		err = ErrInterrupted
	}
	return rep, catalog.Explain(err)
}

func (t *Table) run(ctx context.Context) (pglogrepl.LSN, error) {
	cfg, err := t.o.Connect()
	if err != nil {
		return 0, err
	}
	db, err := catalog.Open(ctx, cfg, t.o.ApplicationName+" (replay, watch)")
	if err != nil {
		return 0, fmt.Errorf("connect to the database: %w", err)
	}
	defer db.Close(context.WithoutCancel(ctx))
	if err := t.check(ctx, db); err != nil {
		return 0, err
	}
	defer t.rows.Close(context.WithoutCancel(ctx))
	if err := t.rows.Import(ctx, ""); err != nil {
		return 0, err
	}
	snapshot, err := db.WrittenLSN(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := t.rows.Count(ctx); err != nil {
		return 0, err
	}
	below := snapshot // of a dry run
	if !t.o.DryRun {
		w := confirmed.Waiter{Slot: t.o.Slot, Halted: t.w.Halted, Say: t.w.Say, Timeout: t.w.Wait, Again: "replay again",
			Find: func(ctx context.Context) (catalog.Slot, bool, error) { return db.Slot(ctx, t.o.Slot) }}
		if err := w.Until(ctx, snapshot); err != nil {
			return 0, err
		}
		// Nothing that is not published yet has a position below what is confirmed.
		s, ok, err := db.Slot(ctx, t.o.Slot)
		if err != nil || !ok {
			return 0, errors.Join(err, fault.Stopped("see cdc-relay status", "slot %q is gone", t.o.Slot))
		}
		below = s.Confirmed
	}
	return snapshot, t.rows.Publish(ctx, below, snapshot)
}

func (t *Table) check(ctx context.Context, db *catalog.Session) error {
	server, err := db.Server(ctx)
	if err != nil {
		return err
	}
	if server.InRecovery {
		return fault.Stopped("connect to the primary", "the server is a standby (in recovery), where no slot tells how far the relay is")
	}
	var tables []catalog.Table
	for _, r := range t.o.Tables {
		is, ok, err := db.Table(ctx, r.Schema, r.Name)
		if err != nil {
			return err
		}
		if ok {
			tables = append(tables, is)
		}
	}
	pub, _, err := db.Publication(ctx, t.o.Publication)
	if err != nil {
		return err
	}
	return t.rows.Check(ctx, tables, pub)
}
