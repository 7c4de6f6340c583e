package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

// ackedAtOnce is of how many acked transactions the time is taken together.
const ackedAtOnce = 128

// transaction is the one being received.
type transaction struct {
	open   bool
	number uint64 // the tracker's
	route.Tx
	xid uint32
	seq uint32 // inserts and published messages seen
}

// receive reads the stream and publishes, in WAL order, until ctx ends, the
// stream fails, or a stop reaches the end of a transaction (errStopped). pctx
// ends sooner when a stop finds a lane halted: then it does not wait to publish.
func (s *session) receive(ctx, pctx context.Context) error {
	defer s.beforeWait()
	tx, rec, ev := &s.tx, &s.rec, &s.ev
	for {
		m, err := s.stream.Next()
		switch {
		case errors.Is(err, replication.ErrInterrupted):
			if s.r.isStopping() && !tx.open {
				return errStopped
			}
			continue
		case err != nil:
			return s.streamError(err)
		case s.notice != nil:
			return s.publicationMissing(s.notice)
		case m.Data == nil:
			s.idle(tx, m.WALEnd)
			continue
		}
		s.r.bytes.Add(uint64(len(m.Data)))
		if err := s.dec.DecodeInto(ev, m.Data); err != nil {
			return fault.Stopped("report this with the server's version; the event is still in the slot",
				"decode the WAL message at %s: %v", m.WALStart, err)
		}
		if err := s.event(pctx, tx, ev, rec); err != nil {
			if pctx.Err() != nil && ctx.Err() == nil {
				return errStopped
			}
			return err
		}
		if ev.Kind == decoder.KindCommit {
			if s.r.isStopping() {
				return errStopped
			}
			if err := s.holdBack(ctx); err != nil {
				return err
			}
		}
	}
}

// streamError gives an error of the stream its meaning.
func (s *session) streamError(err error) error {
	var big *replication.FrameTooLargeError
	if errors.As(err, &big) {
		fix := "raise relay.max_row_bytes above it; it is still in the slot"
		if s.tx.open {
			fix += fmt.Sprintf(". Or give its transaction up: cdc-relay adopt --lsn %s, which records the gap", s.tx.CommitLSN+1)
		}
		return &fault.Error{Class: fault.Stop, Err: err, What: "a row or message is too large to be read, " + s.place(), Fix: fix}
	}
	if catalog.SQLState(err) == "42704" {
		return s.publicationMissing(err)
	}
	if u := s.undecodable(err); u != nil {
		return u
	}
	explained := catalog.Explain(err)
	if fault.ClassOf(explained) != fault.Stop {
		return explained
	}
	return s.here(explained)
}

// here adds the place in the WAL to an error.
func (s *session) here(err error) error {
	return &fault.Error{Class: fault.ClassOf(err), Err: err, What: "the stream cannot go on " + s.place()}
}

// place says where in the WAL the reader is. The begin of a transaction comes
// before the row that the server cannot send.
func (s *session) place() string {
	if s.tx.open {
		return fmt.Sprintf("within the transaction committed at %s (event %d)", s.tx.CommitLSN, s.tx.seq)
	}
	return fmt.Sprintf("after %s", s.receivedLSN())
}

// idle queues a position without events behind what is in flight. The server
// reports it also within a transaction; there it means nothing.
func (s *session) idle(tx *transaction, end pglogrepl.LSN) {
	if tx.open || end <= s.receivedLSN() {
		return
	}
	s.received.Store(uint64(end))
	s.r.passed(end)
	s.tracker.Idle(end)
	s.wake()
}

func (s *session) event(ctx context.Context, tx *transaction, ev *decoder.Event, rec *sink.Record) error {
	switch ev.Kind {
	case decoder.KindBegin:
		if tx.open {
			return fault.Stopped("report this with the server's version", "a transaction begins at %s before %s ended", ev.Begin.CommitLSN, tx.CommitLSN)
		}
		*tx = transaction{open: true, number: s.tracker.Begin(ev.Begin.CommitTime)}
		tx.CommitLSN, tx.CommitTime, tx.xid = ev.Begin.CommitLSN, ev.Begin.CommitTime, ev.Begin.XID
	case decoder.KindRelation:
		if err := s.router.Relation(ev.Relation); err != nil {
			return s.here(err)
		}
	case decoder.KindInsert:
		return s.insert(ctx, tx, ev.Row, rec)
	case decoder.KindCommit:
		if !tx.open || ev.Commit.CommitLSN != tx.CommitLSN {
			return fault.Stopped("report this with the server's version", "a commit of %s does not fit the transaction in hand (%s)", ev.Commit.CommitLSN, tx.CommitLSN)
		}
		tx.open = false
		s.received.Store(max(s.received.Load(), uint64(ev.Commit.EndLSN)))
		s.r.passed(tx.CommitLSN)
		s.r.transactions.Add(1)
		if s.marks != nil {
			s.marks.queue.Commit(ev.Commit.EndLSN) // before the watermark can get there
		}
		if at, done := s.tracker.Commit(ev.Commit.EndLSN); done {
			s.ackedAtCommit(at)
		}
	case decoder.KindMessage:
		return s.message(ctx, tx, ev.Message, rec)
	case decoder.KindSkip:
	default:
		return fmt.Errorf("decoded an event of the unknown kind %d", ev.Kind)
	}
	return nil
}

// insert routes a row and hands it to the sink.
func (s *session) insert(ctx context.Context, tx *transaction, row decoder.Row, rec *sink.Record) error {
	if !tx.open {
		return fault.Stopped("report this with the server's version", "an insert came outside of a transaction after %s", s.receivedLSN())
	}
	if err := s.roomToMark(ctx); err != nil {
		return err
	}
	seq := tx.seq
	tx.seq++
	s.r.rows.Add(1)
	routed, err := s.router.Route(tx.Tx, seq, row, rec)
	switch {
	case err != nil:
		return s.unroutable(ctx, rec, err)
	case !routed:
		return nil
	}
	return s.publish(ctx, tx, rec, row.Relation)
}

// publish hands a record of the transaction to the sink. rel is the table of its row;
// nil for one that has none.
func (s *session) publish(ctx context.Context, tx *transaction, rec *sink.Record, rel *decoder.Relation) error {
	s.tracker.Add(tx.number, 1)
	if s.marks != nil && rel != nil {
		if err := s.marks.add(s.router, rel, rec.ID); err != nil {
			return err
		}
	}
	s.unsent = true
	return s.sink.Publish(ctx, rec, sink.Ack{To: s, Tx: tx.number})
}

// unroutable is the end of what cannot be routed. What can never be published as
// it is halts reading: nothing is skipped.
func (s *session) unroutable(ctx context.Context, rec *sink.Record, err error) error {
	if fault.ClassOf(err) == fault.Poison {
		return s.haltReading(ctx, rec, err)
	}
	return s.here(err)
}

// beforeWait does what was put off, so as to do it once for many transactions,
// when receive is about to wait: for the server, or for anything but the sink.
func (s *session) beforeWait() {
	if s.unsent {
		s.unsent = false
		s.sink.Flush()
	}
	if len(s.acked) > 0 {
		s.finished(s.acked...)
		s.acked = s.acked[:0]
	}
}

// ackedAtCommit notes that a transaction with this commit time was fully acked
// before its commit was received.
func (s *session) ackedAtCommit(commitTime int64) {
	s.acked = append(s.acked, commitTime)
	if len(s.acked) == ackedAtOnce {
		s.finished(s.acked...)
		s.acked = s.acked[:0]
	}
}

// Done implements sink.Acker.
func (s *session) Done(acked []sink.Acked) {
	var times [ackedAtOnce]int64
	for len(acked) > 0 {
		n := min(len(acked), len(times))
		if finished := s.tracker.Done(acked[:n], times[:0]); len(finished) > 0 {
			s.finished(finished...)
		}
		acked = acked[n:]
	}
}

// finished notes that transactions with these commit times are fully acked.
func (s *session) finished(commitTimes ...int64) {
	now := time.Now()
	s.lastAck.Store(now.UnixNano())
	s.eventful.Store(true)
	s.wake()
	if s.marks != nil {
		s.marks.wake()
	}
	if s.r.deps.ObserveAck == nil {
		return
	}
	for _, at := range commitTimes {
		s.r.deps.ObserveAck(now.Sub(time.UnixMicro(at)))
	}
}

func (s *session) wake() {
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// haltReading keeps the process up, not ready, and says why, until it is
// stopped: what cannot be routed has no lane to halt.
func (s *session) haltReading(ctx context.Context, rec *sink.Record, reason error) error {
	s.beforeWait()
	ref := sink.Refusal{Topic: rec.Topic, Partition: sink.PartitionByKey, ID: string(rec.ID), LSN: rec.LSN, Seq: rec.Seq, Reason: reason, At: time.Now()}
	s.haltedTx.Store(s.tx.CommitTime)
	s.readHalt.Store(&ref)
	s.r.setFailed(StateHalted, errors.New(haltText(ref)))
	_, fix := HaltReason(ref)
	s.log.Error("event cannot be published; reading is halted and nothing after it will be confirmed", zap.String("fix", fix),
		zap.String("id", ref.ID), zap.Stringer("lsn", ref.LSN), zap.Uint32("seq", ref.Seq), zap.Error(reason))
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.r.stopping:
		return errStopped
	}
}

// holdBack waits while more than max_ahead was published past the oldest
// transaction that is not: what a restart would repeat.
func (s *session) holdBack(ctx context.Context) error {
	if !s.tooFarAhead() {
		return nil
	}
	s.beforeWait()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for s.tooFarAhead() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.r.stopping:
			return errStopped
		case <-tick.C:
		}
	}
	return nil
}

func (s *session) tooFarAhead() bool {
	ahead, open, watermark := s.tracker.Backlog()
	return ahead > s.r.cfg.MaxAheadTx || open > 1 && int64(s.receivedLSN()-watermark) > s.r.cfg.MaxAheadWAL
}
