package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/sink"
)

// receive reads the stream and publishes, in WAL order, up to the end of the range
// (nil), until ctx ends (its cause) or the stream fails.
func (r *Replay) receive(ctx context.Context) error {
	defer r.flush()
	for {
		m, err := r.stream.Next()
		switch {
		case errors.Is(err, replication.ErrInterrupted):
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			continue
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx) // why the stream was closed
		case err != nil:
			return r.here(catalog.Explain(err))
		case r.notice != nil:
			return r.here(r.notice)
		case m.Data == nil:
			if r.tx.open { // there it means nothing
				continue
			}
			r.passed(m.WALEnd)
			if t := r.tracker.Load(); t != nil {
				t.Idle(m.WALEnd)
			}
			if m.WALEnd >= r.plan.to {
				return nil
			}
			continue
		}
		if err := r.dec.DecodeInto(&r.ev, m.Data); err != nil {
			return fault.Stopped("report this with the server's version", "decode the WAL message at %s: %v", m.WALStart, err)
		}
		done, err := r.event(ctx)
		if done || err != nil {
			return err
		}
	}
}

// passed notes how far the server has read.
func (r *Replay) passed(lsn pglogrepl.LSN) {
	if uint64(lsn) > r.read.Load() {
		r.read.Store(uint64(lsn))
	}
}

// here adds the place in the WAL to an error.
func (r *Replay) here(err error) error {
	place := "after " + pglogrepl.LSN(r.read.Load()).String()
	if r.tx.open {
		place = fmt.Sprintf("within the transaction committed at %s (insert %d)", r.tx.CommitLSN, r.tx.seq)
	}
	return &fault.Error{Class: fault.ClassOf(err), Err: err, What: "the replay cannot go on " + place}
}

// event handles one event; done says that the range has ended.
func (r *Replay) event(ctx context.Context) (done bool, err error) {
	ev, tx := &r.ev, &r.tx
	switch ev.Kind {
	case decoder.KindBegin:
		if tx.open {
			return false, fault.Stopped("report this with the server's version", "a transaction begins at %s before %s ended", ev.Begin.CommitLSN, tx.CommitLSN)
		}
		return r.transaction(ctx, ev.Begin)
	case decoder.KindRelation:
		if err := r.relation(ev.Relation); err != nil {
			return false, r.here(err)
		}
	case decoder.KindInsert:
		return false, r.insert(ctx, ev.Row)
	case decoder.KindCommit:
		if !tx.open || ev.Commit.CommitLSN != tx.CommitLSN {
			return false, fault.Stopped("report this with the server's version", "a commit of %s does not fit the transaction in hand (%s)", ev.Commit.CommitLSN, tx.CommitLSN)
		}
		tx.open = false
		r.passed(ev.Commit.EndLSN)
		if tx.wanted {
			r.transactions.Add(1)
			r.tracker.Load().Commit(ev.Commit.EndLSN)
		}
	case decoder.KindMessage:
		return false, r.message(ctx, ev.Message)
	case decoder.KindSkip:
	default:
		return false, fmt.Errorf("decoded an event of the unknown kind %d", ev.Kind)
	}
	return false, nil
}

// transaction decides whether one that begins is in the range; done says that the
// range ends before it.
func (r *Replay) transaction(ctx context.Context, b decoder.Begin) (done bool, err error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	at := time.UnixMicro(b.CommitTime)
	began := r.tracker.Load() != nil
	if !began && b.CommitLSN < r.plan.to && !at.Before(r.o.From.Time) {
		if err := r.reachesBack(b, at); err != nil {
			return false, err
		}
		r.begin(b.CommitLSN)
		began = true
	}
	if b.CommitLSN >= r.plan.to {
		return true, nil
	}
	if began && !r.o.To.Time.IsZero() && !at.Before(r.o.To.Time) {
		r.to.Store(uint64(b.CommitLSN))
		return true, nil
	}
	r.before = true
	r.tx = transaction{open: true, wanted: began && b.CommitLSN >= r.plan.start}
	r.tx.CommitLSN, r.tx.CommitTime = b.CommitLSN, b.CommitTime
	if r.tx.wanted {
		r.tx.number = r.tracker.Load().Begin(b.CommitTime)
	}
	return false, nil
}

// reachesBack refuses a time when an earlier transaction, which is not retained,
// may have been committed at it or later.
func (r *Replay) reachesBack(b decoder.Begin, at time.Time) error {
	known := !r.o.KnownSince.IsZero() && !r.o.KnownSince.After(r.o.From.Time)
	if r.before || known {
		return nil
	}
	return fault.Stopped(fmt.Sprintf("to replay all that is retained, give --from %s", r.plan.start),
		"what was committed at %s or later is not known to be retained as a whole: the first transaction that is retained was committed at %s (%s), "+
			"and what can be replayed begins at %s", r.o.From, at.UTC().Format(time.RFC3339Nano), b.CommitLSN, r.plan.start)
}

// begin fixes where the range begins.
func (r *Replay) begin(lsn pglogrepl.LSN) {
	const digits = "0123456789ABCDEF"
	for i := range r.mark {
		r.mark[i] = digits[lsn>>(60-4*i)&15]
	}
	r.tracker.Store(checkpoint.NewTracker(lsn))
	r.from.Store(uint64(lsn))
	r.passed(lsn)
}

// insert routes a row and publishes it when the filter lets it pass.
func (r *Replay) insert(ctx context.Context, row decoder.Row) error {
	seq, wanted, err := r.ordinal("an insert")
	if err != nil || !wanted {
		return err
	}
	routed, err := r.router.Route(r.tx.Tx, seq, row, &r.rec)
	if err != nil {
		return r.unroutable(err)
	}
	if !routed {
		return nil
	}
	if wanted, err = r.filter.passes(row, &r.rec); err != nil {
		return err
	}
	return r.take(ctx, wanted)
}

// message is insert for a logical message. Those that the relay ignores count in
// no ordinal here either.
func (r *Replay) message(ctx context.Context, m decoder.LogicalMessage) error {
	if r.messages == nil || !m.Transactional || !r.messages.Matches(m.Prefix) {
		return nil
	}
	seq, wanted, err := r.ordinal("a transactional message")
	if err != nil || !wanted {
		return err
	}
	if err := r.messages.Route(r.tx.Tx, seq, m, &r.rec); err != nil {
		return r.unroutable(err)
	}
	aggregate, _ := r.messages.AggregateType()
	return r.take(ctx, r.filter.wants(&r.rec, aggregate))
}

// unroutable is about an event that cannot be routed.
func (r *Replay) unroutable(err error) error {
	if r.o.Poison == nil || fault.ClassOf(err) != fault.Poison {
		return r.here(err)
	}
	r.filtered.Add(1)
	return r.o.Poison(r.rec.ID, err)
}

// ordinal counts an event of the transaction in hand; wanted says that it is in the
// range.
func (r *Replay) ordinal(what string) (seq uint32, wanted bool, err error) {
	tx := &r.tx
	if !tx.open {
		return 0, false, fault.Stopped("report this with the server's version", "%s came outside of a transaction after %s", what, pglogrepl.LSN(r.read.Load()))
	}
	seq = tx.seq
	tx.seq++
	return seq, tx.wanted, nil
}

// take publishes the record in hand, unless it is left out.
func (r *Replay) take(ctx context.Context, wanted bool) (err error) {
	rec := &r.rec
	if wanted && r.o.Wanted != nil {
		if wanted, err = r.o.Wanted(rec); err != nil {
			return err
		}
	}
	switch {
	case !wanted:
		r.filtered.Add(1)
		return nil
	case r.sink != nil:
		err = r.publish(ctx, rec)
	case r.o.Read != nil:
		err = r.o.Read(rec)
	}
	if err != nil {
		return err
	}
	r.note(rec)
	return nil
}

func (r *Replay) publish(ctx context.Context, rec *sink.Record) error {
	if err := r.pace(ctx); err != nil {
		return err
	}
	// The router's headers are the table's: they are not appended to.
	r.headers = append(append(r.headers[:0], rec.Headers...), sink.Header{Key: HeaderName, Value: r.mark[:]})
	rec.Headers = r.headers
	r.tracker.Load().Add(r.tx.number, 1)
	r.unsent = true
	if err := r.sink.Publish(ctx, rec, sink.Ack{To: r, Tx: r.tx.number}); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	return nil
}

// pace waits where the rate is limited: once for a piece of events, which are then
// published without a wait and sent together.
func (r *Replay) pace(ctx context.Context) error {
	if r.limit == nil {
		return nil
	}
	if r.granted > 0 {
		r.granted--
		return nil
	}
	piece := r.limit.Burst()
	if !r.limit.AllowN(time.Now(), piece) {
		r.flush()
		if err := r.limit.WaitN(ctx, piece); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("keep the rate: %w", err)
		}
	}
	r.granted = piece - 1
	return nil
}

// flush sends what was put off, when receive is about to wait.
func (r *Replay) flush() {
	if r.unsent {
		r.unsent = false
		r.sink.Flush()
	}
}

// Done implements sink.Acker.
func (r *Replay) Done(acked []sink.Acked) {
	t := r.tracker.Load()
	var times [64]int64
	for len(acked) > 0 {
		part := acked[:min(len(acked), len(times))]
		t.Done(part, times[:0])
		for _, a := range part {
			r.acked.Add(uint64(a.N))
		}
		acked = acked[len(part):]
	}
}
