// Package backfill publishes rows that are in the outbox tables: it reads them in
// a snapshot, in bounded batches, and sends them through the same router and sink
// as the stream, so that their records are the same byte for byte.
package backfill

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

// Header marks a record that was read from the table. Its value is the position
// of the snapshot, in the form of the header lsn: the row was committed before.
const Header = "backfilled"

// batch is how many rows are fetched at once. They are published as they arrive,
// so that it bounds no memory, but how often the sink is flushed.
const batch = 2000

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
	// MaxRowBytes bounds a row in memory.
	MaxRowBytes int64
	OpenSink    func(ctx context.Context, refused sink.Refused) (sink.Sink, error)
	Progress    Progress
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

	acked atomic.Int64
	// Of Publish's goroutine.
	seq     uint32
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
	router, err := route.Compile(cfg.Tables)
	if err != nil {
		return nil, err
	}
	r := &Rows{cfg: cfg, router: router}
	for _, t := range cfg.Tables {
		by := cfg.OrderBy
		if by == "" {
			by = t.Timestamp
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

// Close ends the reading connection. Closing twice is safe.
func (r *Rows) Close(ctx context.Context) {
	if r.reader != nil {
		r.reader.Close(ctx)
	}
}

// Check connects, and has the server plan the reading of every table: it fails
// for a column, a privilege or a predicate, and reads no row.
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
		q.Partitioned = slices.ContainsFunc(tables, func(t catalog.Table) bool {
			return t.Schema == q.Table.Schema && t.Name == q.Table.Name && t.Kind == catalog.KindPartitioned
		})
		if err := r.check(ctx, i, pub, cfg.User); err != nil {
			return err
		}
	}
	return r.reader.Rollback(ctx)
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
			Fix: "correct --where (an expression as in a WHERE clause, on columns of this table; names are looked up in the role's search_path), --order-by, or the mapping"}
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

// Publish publishes every row of the snapshot, and returns when all of them are
// acknowledged. A record that can never be written, and a row that cannot be
// routed, end it: nothing is skipped.
func (r *Rows) Publish(ctx context.Context, below, snapshot pglogrepl.LSN) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sk, err := r.cfg.OpenSink(ctx, func(_ context.Context, ref sink.Refusal, _ *sink.Record) (sink.Verdict, error) {
		cancel(&fault.Error{Class: fault.Stop, Err: ref.Reason,
			What: fmt.Sprintf("the record of id %q for topic %s can never be written", ref.ID, ref.Topic),
			Fix:  "mend the cause, or leave the row out by --where"})
		return sink.Halt, nil
	})
	if err != nil {
		return fmt.Errorf("open the sink: %w", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-sk.Failed():
			cancel(sk.Err())
		case <-ctx.Done():
		}
	})
	err = r.publish(ctx, sk, below, snapshot)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	cancel(nil)
	wg.Wait()
	if cerr := sk.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("after %d of %d rows: %w", r.acked.Load(), r.total, err)
	}
	return nil
}

func (r *Rows) publish(ctx context.Context, sk sink.Sink, below, snapshot pglogrepl.LSN) error {
	// One less than any position that the stream can still come with.
	tx := route.Tx{CommitLSN: below - 1, CommitTime: r.cfg.Now().UnixMicro(), Table: true}
	mark := []byte(fmt.Sprintf("%016X", uint64(snapshot)))
	r.cfg.Progress.Begin(r.total)
	defer r.cfg.Progress.End()
	for _, s := range r.sources {
		if err := r.table(ctx, sk, s, tx, mark); err != nil {
			return err
		}
	}
	if err := sk.Drain(ctx); err != nil {
		return fmt.Errorf("wait for the acknowledgements: %w", err)
	}
	if sent := int64(r.seq); r.acked.Load() != sent {
		return fault.Stopped("report this as a bug", "%d rows were published, and %d acknowledged", sent, r.acked.Load())
	}
	if int64(r.seq) != r.total {
		return fault.Stopped("give --where an expression that is the same whenever it is evaluated",
			"%d rows were counted in the snapshot, and %d read: the predicate is not stable", r.total, r.seq)
	}
	return nil
}

// table publishes the rows of one table, batch by batch.
func (r *Rows) table(ctx context.Context, sk sink.Sink, s source, tx route.Tx, mark []byte) error {
	if err := r.reader.Declare(ctx, s.query); err != nil {
		return err
	}
	for {
		n, err := r.reader.Fetch(ctx, batch, func(values [][]byte) error { return r.row(ctx, sk, s.relation, values, tx, mark) })
		if err != nil && catalog.IsTooLarge(err) {
			return &fault.Error{Class: fault.Stop, Err: err, Fix: "raise relay.max_row_bytes above it",
				What: fmt.Sprintf("a row of table %s, after %d rows, is too large to be read", s.query.Table, r.seq)}
		}
		if err != nil {
			return err
		}
		sk.Flush()
		r.cfg.Progress.Add(int64(n))
		if n < batch {
			return r.reader.CloseCursor(ctx)
		}
	}
}

func (r *Rows) row(ctx context.Context, sk sink.Sink, rel *decoder.Relation, values [][]byte, tx route.Tx, mark []byte) error {
	if r.seq == math.MaxUint32 {
		return fault.Stopped("publish them in parts, by --where", "more than %d rows cannot be numbered", uint32(math.MaxUint32))
	}
	r.values = r.values[:0]
	for _, v := range values {
		value := decoder.Value{Kind: decoder.Text, Data: v}
		if v == nil {
			value.Kind = decoder.Null
		}
		r.values = append(r.values, value)
	}
	routed, err := r.router.Route(tx, r.seq, decoder.Row{Relation: rel, Values: r.values}, &r.rec)
	if fault.ClassOf(err) == fault.Poison {
		return &fault.Error{Class: fault.Stop, Err: err, Fix: "mend the row, or leave it out by --where"}
	}
	if err != nil {
		return err
	}
	if !routed {
		return fault.Stopped("report this as a bug", "a row of table %s.%s is not mapped", rel.Namespace, rel.Name)
	}
	r.seq++
	r.headers = append(append(r.headers[:0], r.rec.Headers...), sink.Header{Key: Header, Value: mark})
	r.rec.Headers = r.headers
	return sk.Publish(ctx, &r.rec, sink.Ack{To: r})
}

// Done implements sink.Acker.
func (r *Rows) Done(acked []sink.Acked) {
	for _, a := range acked {
		r.acked.Add(int64(a.N))
	}
}
