// Package backfill publishes rows that are in the outbox tables: it reads them in
// a snapshot, in bounded batches, and sends them through the same router and sink
// as the stream, so that their records are the same byte for byte.
package backfill

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/marking"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

// Header marks a record that was read from the table. Its value is the position
// of the snapshot, in the form of the header lsn: the row was committed before.
const Header = "backfilled"

// batch is how many rows are fetched at once. They are published as they arrive,
// so that it bounds no memory, but how often the sink is flushed.
const batch = 2000

// pacePiece is the time whose rows are published at once where the rate is limited:
// to wait for each one would send each one alone, beside the live stream.
const pacePiece = 20 * time.Millisecond

// Config of Rows.
type Config struct {
	Connect         func() (*pgx.ConnConfig, error)
	ApplicationName string
	// Tables are read one after the other, in this order.
	Tables []route.Table
	// Where is an SQL expression; "" takes every row.
	Where string
	// OrderBy names a column; "" takes the one that is mapped as timestamp. Rows that
	// are equal in it come in the order of their ids.
	OrderBy string
	// AnyOrder takes that of the ids where no column is named or mapped.
	AnyOrder bool
	// Narrow says which rows of a table to read, by an SQL expression, "" for all, and
	// which columns beside those that are mapped. It is called by Check; nil adds
	// nothing to Where.
	Narrow func(t route.Table, is catalog.Table) (where string, columns []string, err error)
	// MaxRowBytes bounds a row in memory.
	MaxRowBytes int64
	// Also is one more header, with the value of Header; "" for none.
	Also string
	// Wanted chooses among the rows, once they are routed; nil takes all.
	Wanted func(decoder.Row, *sink.Record) (bool, error)
	// Rate is how many rows are published per second at most; 0 for no limit.
	Rate float64
	// DryRun reads, routes and counts, and publishes nothing.
	DryRun bool
	// OpenSink opens where it is published to; not used by a dry run.
	OpenSink func(ctx context.Context, refused sink.Refused) (sink.Sink, error)
	Progress Progress
	// Correct and Leave say, for a person, what to correct where the rows cannot be
	// read, and how one is left out; "" speaks of the flags of cdc-relay backfill.
	Correct, Leave string
	// Marking of rows that are acknowledged. MarkingFails hears why that is tried again.
	Marking      marking.Settings
	MarkingFails func(error)
	// Now is the clock of records without a timestamp of their own; nil takes
	// time.Now.
	Now func() time.Time
}

// Progress hears how far it has come; from one goroutine.
type Progress interface {
	Counted(table string, rows int64) // once per table
	Begin(rows int64)
	Add(rows int64)
	End()
}

// Rows are those that a configuration names, see setup.Rows. They are used by one
// goroutine, in the order Check, Import, Count, Publish, Close.
type Rows struct {
	cfg     Config
	router  *route.Router
	reader  *catalog.Reader
	sources []source
	total   int64
	limit   *rate.Limiter // nil: none
	marks   *marks        // nil when no row is marked

	acked atomic.Int64
	// Of Publish's goroutine.
	granted int    // rows that may be published before the limit is asked again
	read    int64  // rows
	seq     uint32 // of them, that were wanted
	rec     sink.Record
	values  []decoder.Value
	headers []sink.Header
}

// source is a table to read.
type source struct {
	query    catalog.Select
	relation *decoder.Relation
}

// New returns rows of which nothing is known yet. An error of class fault.Stop
// names what in the configuration is in the way.
func New(cfg Config) (*Rows, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Correct == "" {
		cfg.Correct = "correct --where (an expression as in a WHERE clause, on columns of this table; names are looked up in the role's search_path), --order-by, or the mapping"
	}
	if cfg.Leave == "" {
		cfg.Leave = "leave it out by --where"
	}
	router, err := route.Compile(cfg.Tables)
	if err != nil {
		return nil, err
	}
	r := &Rows{cfg: cfg, router: router, marks: newMarks(cfg)}
	if cfg.Rate > 0 {
		r.limit = rate.NewLimiter(rate.Limit(cfg.Rate), max(1, int(cfg.Rate*pacePiece.Seconds())))
	}
	for _, t := range cfg.Tables {
		by := cfg.OrderBy
		if by == "" {
			by = t.Timestamp
		}
		if by == "" && cfg.AnyOrder {
			by = t.ID
		}
		if by == "" {
			return nil, fault.Stopped("name one with --order-by, such as the column with the time of the insert",
				"no order is given for the rows of table %s, and none of its columns is mapped as timestamp", t)
		}
		if taken := slices.ContainsFunc(t.Headers, func(h route.HeaderColumn) bool { return h.Header == Header }); taken ||
			t.IDHeader == Header || t.TypeHeader == Header {
			return nil, fault.Stopped("give that header another name", "table %s maps a column to the header %q, by which rows of a backfill are known", t, Header)
		}
		order := []string{by}
		if by != t.ID {
			order = append(order, t.ID)
		}
		r.sources = append(r.sources, source{query: catalog.Select{
			Table: catalog.TableName{Schema: t.Schema, Name: t.Name}, Columns: t.Columns(), Where: cfg.Where, OrderBy: order,
		}})
	}
	return r, nil
}

// Close ends its connections. Closing twice is safe.
func (r *Rows) Close(ctx context.Context) {
	if r.reader != nil {
		r.reader.Close(ctx)
	}
	if r.marks != nil {
		r.marks.marker.Close(ctx)
	}
}

// Check connects, and has the server plan the reading of every table: it fails
// for a column, a privilege or a predicate, and reads no row. Where rows are marked
// it finds out whether they can be.
func (r *Rows) Check(ctx context.Context, tables []catalog.Table, pub catalog.Publication) error {
	cfg, err := r.cfg.Connect()
	if err != nil {
		return err
	}
	r.reader, err = catalog.OpenReader(ctx, cfg, r.cfg.ApplicationName+" (backfill)", r.cfg.MaxRowBytes)
	if err != nil {
		return err
	}
	if err := r.reader.Begin(ctx, ""); err != nil {
		return err
	}
	for i := range r.sources {
		q := &r.sources[i].query
		n := slices.IndexFunc(tables, func(t catalog.Table) bool { return t.Schema == q.Table.Schema && t.Name == q.Table.Name })
		if n < 0 {
			return fault.Stopped("correct outbox[].table", "outbox table %s does not exist", q.Table)
		}
		q.Partitioned = tables[n].Kind == catalog.KindPartitioned
		if err := r.narrow(i, tables[n]); err != nil {
			return err
		}
		if err := r.check(ctx, i, pub, cfg.User); err != nil {
			return err
		}
	}
	if r.marks != nil {
		if err := r.marks.marker.Open(ctx); err != nil {
			return err
		}
	}
	return r.reader.Rollback(ctx)
}

func (r *Rows) narrow(i int, is catalog.Table) error {
	if r.cfg.Narrow == nil {
		return nil
	}
	q, t := &r.sources[i].query, r.cfg.Tables[i]
	where, columns, err := r.cfg.Narrow(t, is)
	if err != nil {
		return err
	}
	q.Where, q.Columns = where, t.Columns()
	for _, c := range columns {
		if !slices.Contains(q.Columns, c) {
			q.Columns = append(q.Columns, c)
		}
	}
	return nil
}

func (r *Rows) check(ctx context.Context, i int, pub catalog.Publication, role string) error {
	s := &r.sources[i]
	published, _ := pub.Table(s.query.Table)
	s.query.RowFilter = published.RowFilter // what the stream would not publish
	columns, err := r.reader.Describe(ctx, s.query)
	switch state := catalog.SQLState(err); {
	case state == "42501":
		return &fault.Error{Class: fault.Stop, Err: err, What: "the rows may not be read",
			Fix: fmt.Sprintf("GRANT SELECT ON %s TO %s, which run does not need. With row-level security on the table the role needs BYPASSRLS as well: rows would be left out otherwise",
				s.query.Table.SQL(), catalog.Ident(role))}
	case len(state) == 5 && (state[:2] == "42" || state[:2] == "22"):
		return &fault.Error{Class: fault.Stop, Err: err, What: "the rows cannot be read in this way",
			Fix: r.cfg.Correct}
	case err != nil:
		return err
	}
	// The OID is a key for the router, and no more.
	rel := &decoder.Relation{OID: uint32(i + 1), Namespace: s.query.Table.Schema, Name: s.query.Table.Name}
	for _, c := range columns {
		rel.Columns = append(rel.Columns, decoder.Column{Name: c.Name, TypeOID: c.TypeOID, TypeMod: c.TypeMod})
	}
	s.relation = rel
	return r.router.Relation(rel)
}

// Import begins the reading transaction in a snapshot; "" takes one of now.
func (r *Rows) Import(ctx context.Context, snapshot string) error {
	return r.reader.Begin(ctx, snapshot)
}

// Unreadable finds the rows of the snapshot that the server cannot print in UTF-8,
// and leaves them out of what Count and Publish see.
func (r *Rows) Unreadable(ctx context.Context) ([]catalog.UnreadableRow, error) {
	var all []catalog.UnreadableRow
	for i := range r.sources {
		q := &r.sources[i].query
		bad, err := r.reader.Unreadable(ctx, *q, r.cfg.Tables[i].ID)
		if err != nil {
			return nil, err
		}
		for _, row := range bad {
			q.Except = append(q.Except, row.At)
		}
		all = append(all, bad...)
	}
	return all, nil
}

// Count counts the rows of the snapshot.
func (r *Rows) Count(ctx context.Context) (int64, error) {
	r.total = 0
	for _, s := range r.sources {
		n, err := r.reader.Count(ctx, s.query)
		if err != nil {
			return 0, err
		}
		r.total += n
		r.cfg.Progress.Counted(s.query.Table.String(), n)
	}
	return r.total, nil
}
