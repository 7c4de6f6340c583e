package backfill

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

// Publish publishes every row of the snapshot, and returns when all of them are
// acknowledged. A record that can never be written, and a row that cannot be
// routed, end it: nothing is skipped.
func (r *Rows) Publish(ctx context.Context, below, snapshot pglogrepl.LSN) error {
	err := r.withSink(ctx, func(ctx context.Context, sk sink.Sink) error { return r.publish(ctx, sk, below, snapshot) })
	if err != nil {
		return fmt.Errorf("after %d of %d rows: %w", r.acked.Load(), r.total, err)
	}
	return nil
}

// withSink opens the sink, and calls f and waits for the acknowledgements of all
// that it published. In a dry run the sink is nil.
func (r *Rows) withSink(ctx context.Context, f func(context.Context, sink.Sink) error) error {
	if r.cfg.DryRun {
		return f(ctx, nil)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sk, err := r.cfg.OpenSink(ctx, func(_ context.Context, ref sink.Refusal, _ *sink.Record) (sink.Verdict, error) {
		cancel(&fault.Error{Class: fault.Stop, Err: ref.Reason,
			What: fmt.Sprintf("the record of id %q for topic %s can never be written", ref.ID, ref.Topic),
			Fix:  "mend the cause, or " + r.cfg.Leave})
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
	err = f(ctx, sk)
	if err == nil {
		err = r.settle(ctx, sk)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	cancel(nil)
	wg.Wait()
	if cerr := sk.Close(); err == nil {
		err = cerr
	}
	return err
}

// settle waits until everything is acknowledged and, where rows are marked, marked.
func (r *Rows) settle(ctx context.Context, sk sink.Sink) error {
	if err := sk.Drain(ctx); err != nil {
		return fmt.Errorf("wait for the acknowledgements: %w", err)
	}
	if sent := int64(r.seq); r.acked.Load() != sent {
		return fault.Stopped("report this as a bug", "%d rows were published, and %d acknowledged", sent, r.acked.Load())
	}
	return r.marks.mark(ctx, true)
}

func (r *Rows) publish(ctx context.Context, sk sink.Sink, below, snapshot pglogrepl.LSN) error {
	at := r.at(below, snapshot)
	r.cfg.Progress.Begin(r.total)
	defer r.cfg.Progress.End()
	for _, s := range r.sources {
		if err := r.table(ctx, sk, s, at); err != nil {
			return err
		}
	}
	if r.read != r.total {
		return fault.Stopped("give --where an expression that is the same whenever it is evaluated",
			"%d rows were counted in the snapshot, and %d read: the predicate is not stable", r.total, r.read)
	}
	return nil
}

// place is the position that rows are given, and the value of their header.
type place struct {
	tx   route.Tx
	mark []byte
	// poison hears of a row that cannot be routed, which is then left out; nil ends it
	// there.
	poison func(id []byte, err error) error
	wanted func(decoder.Row, *sink.Record) (bool, error) // nil: all
}

// at is one less than any position that the stream can still come with.
func (r *Rows) at(below, snapshot pglogrepl.LSN) place {
	return place{tx: route.Tx{CommitLSN: below - 1, CommitTime: r.cfg.Now().UnixMicro(), Table: true},
		mark: []byte(fmt.Sprintf("%016X", uint64(snapshot))), wanted: r.cfg.Wanted}
}

// Counts are how many rows were read, of them published (or counted by a dry run),
// and of those acknowledged.
func (r *Rows) Counts() (read, published, acked int64) {
	return r.read, int64(r.seq), r.acked.Load()
}

// table publishes the rows of one table, batch by batch.
func (r *Rows) table(ctx context.Context, sk sink.Sink, s source, at place) error {
	if err := r.reader.Declare(ctx, s.query); err != nil {
		return err
	}
	for {
		r.marks.begin()
		n, err := r.reader.Fetch(ctx, batch, func(values [][]byte) error { return r.row(ctx, sk, s.relation, values, at) })
		if err != nil && catalog.IsTooLarge(err) {
			return &fault.Error{Class: fault.Stop, Err: err, Fix: "raise relay.max_row_bytes above it",
				What: fmt.Sprintf("a row of table %s, after %d rows, is too large to be read", s.query.Table, r.read)}
		}
		if perhaps, _ := catalog.Undecodable(err); perhaps {
			return &fault.Error{Class: fault.Stop, Err: errors.New(catalog.DecodingFault(err)), Fix: "mend it, or " + r.cfg.Leave,
				What: fmt.Sprintf("a row of table %s, in the batch after the first %d rows, cannot be read", s.query.Table, r.read)}
		}
		if err != nil {
			return err
		}
		if sk != nil {
			sk.Flush()
		}
		r.cfg.Progress.Add(int64(n))
		if err := r.marks.end(ctx); err != nil {
			return err
		}
		if n < batch {
			return r.reader.CloseCursor(ctx)
		}
	}
}

func (r *Rows) row(ctx context.Context, sk sink.Sink, rel *decoder.Relation, values [][]byte, at place) error {
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
	r.read++
	row := decoder.Row{Relation: rel, Values: r.values}
	routed, err := r.router.Route(at.tx, r.seq, row, &r.rec)
	switch {
	case fault.ClassOf(err) == fault.Poison && at.poison != nil:
		return at.poison(r.rec.ID, err)
	case fault.ClassOf(err) == fault.Poison:
		return &fault.Error{Class: fault.Stop, Err: err, Fix: "mend the row, or " + r.cfg.Leave}
	case err != nil:
		return err
	case !routed:
		return fault.Stopped("report this as a bug", "a row of table %s.%s is not mapped", rel.Namespace, rel.Name)
	}
	if at.wanted != nil {
		if wanted, err := at.wanted(row, &r.rec); err != nil || !wanted {
			return err
		}
	}
	if sk == nil {
		r.seq++
		return nil
	}
	if err := r.pace(ctx, sk); err != nil {
		return err
	}
	r.seq++
	r.headers = append(append(r.headers[:0], r.rec.Headers...), sink.Header{Key: Header, Value: at.mark})
	if r.cfg.Also != "" {
		r.headers = append(r.headers, sink.Header{Key: r.cfg.Also, Value: at.mark})
	}
	r.rec.Headers = r.headers
	return sk.Publish(ctx, &r.rec, sink.Ack{To: r, Tx: r.marks.add(rel, r.rec.ID)})
}

// pace waits where the rate is limited: once for a piece of rows, which are then
// published without a wait and sent together.
func (r *Rows) pace(ctx context.Context, sk sink.Sink) error {
	if r.limit == nil {
		return nil
	}
	if r.granted > 0 {
		r.granted--
		return nil
	}
	piece := r.limit.Burst()
	if !r.limit.AllowN(time.Now(), piece) {
		sk.Flush()
		if err := r.limit.WaitN(ctx, piece); err != nil {
			return fmt.Errorf("keep the rate: %w", err)
		}
	}
	r.granted = piece - 1
	return nil
}

// Done implements sink.Acker.
func (r *Rows) Done(acked []sink.Acked) {
	for _, a := range acked {
		r.acked.Add(int64(a.N))
	}
	if r.marks != nil {
		r.marks.tracker.Done(acked, nil)
	}
}
