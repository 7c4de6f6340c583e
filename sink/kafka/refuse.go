package kafka

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/sink"
)

// narrow splits the head, which was refused as a whole, so that the refused
// record is found: around the records that the broker blames, or in halves.
// s.mu is held.
func (s *Sink) narrow(ln *lane, b *batch, indexes []int32) {
	n := int32(b.records())
	cuts := make([]int32, 0, 2*len(indexes)+2)
	for _, i := range indexes {
		if i >= 0 && i < n {
			cuts = append(cuts, i, i+1)
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	cuts = slices.DeleteFunc(cuts, func(c int32) bool { return c == 0 || c == n })
	if len(cuts) == 0 {
		cuts = append(cuts, n/2)
	}
	parts := s.split(b, cuts)
	if b.unsure {
		// An attempt may have written all of it: its sequence numbers must not
		// stand for anything else.
		s.resetIdentity(ln, b, errSplitUnsure, "")
	}
	ln.replaceHead(parts)
	s.pool.release(b)
}

// split makes a batch of each stretch of b between the cuts, which are in order
// and within b. Their memory comes on top of the budget until b is released.
func (s *Sink) split(b *batch, cuts []int32) []*batch {
	var parts []*batch
	var part *batch
	i := int32(0)
	s.mustWalk(b, func(e *entry) {
		if part == nil || len(cuts) > 0 && i == cuts[0] {
			if part != nil {
				cuts = cuts[1:]
			}
			part = s.pool.batch()
			parts = append(parts, part)
		}
		i++
		in := incoming{timestamp: e.raw.timestamp, tail: len(e.raw.tail), note: e.note, run: e.run}
		size := part.enc.recordSize(in.timestamp, in.tail)
		var lone lane
		s.grow(part, s.plan(&lone, part, &in, size, b.size()), s.factor)
		part.enc.appendTail(in.timestamp, e.raw.tail)
		part.notes = in.note.append(part.notes)
		part.addRun(in.run)
	})
	return parts
}

// refuseHead refuses the first record of a lane that nobody else moves on.
// s.mu is held.
func (s *Sink) refuseHead(ln *lane, reason error) {
	if b := ln.head(); b.records() > 1 {
		s.narrow(ln, b, []int32{0})
	}
	ln.failing(reason, time.Now())
	s.refuse(ln, reason)
}

// refuse asks what becomes of the head, which is a single record that can never
// be written. s.mu is held.
func (s *Sink) refuse(ln *lane, reason error) {
	b := ln.head()
	var rec sink.Record
	refusal := s.refusal(ln, b, reason, &rec)
	ln.state = laneRefusing
	s.flying++
	ctx := s.refusals
	s.wg.Go(func() {
		verdict, err := sink.Halt, error(nil)
		if s.cfg.Refused != nil {
			verdict, err = s.cfg.Refused(ctx, refusal, &rec)
		}
		s.judged(ln, b, &refusal, verdict, err)
	})
}

// refusal names the first record of b, and fills in rec, which points into b.
func (s *Sink) refusal(ln *lane, b *batch, reason error, rec *sink.Record) sink.Refusal {
	c := b.entries()
	e, ok, err := c.next()
	if err == nil && ok {
		err = e.record(ln.topic.name, rec)
	}
	if err != nil || !ok {
		panic(fmt.Errorf("name the refused record: %w", errBrokenBatch))
	}
	if rec.Partition == sink.PartitionByKey {
		rec.Partition = ln.partition
	}
	return sink.Refusal{
		Topic: ln.topic.name, Partition: ln.partition, ID: string(rec.ID),
		LSN: rec.LSN, Seq: rec.Seq, Reason: reason, At: time.Now(),
	}
}

// judged hears the verdict about the head of ln.
func (s *Sink) judged(ln *lane, b *batch, r *sink.Refusal, verdict sink.Verdict, err error) {
	parked := err == nil && verdict == sink.Parked
	if parked {
		tell(b, nil)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying--
	switch {
	case parked:
		s.acked(ln, b, true)
	case b.dropped:
		if b.unsure {
			s.renew(ln) // what follows must not be taken for this batch
		}
		s.next(ln, b)
	case err != nil:
		// It could not be parked. The record is sent again, and refused again.
		ln.failing(fmt.Errorf("park a record that was refused (%w): %w", r.Reason, err), time.Now())
		s.warnFailing(ln, ln.lastErr, "park")
		s.pauseLane(ln, time.Now().Add(s.backoff(max(ln.attempts, 1))))
	default:
		ln.halted = r
		ln.state = laneHalted
		if s.cfg.Refused == nil { // who was asked has told it
			s.cfg.Log.Error("topic-partition is halted at a record that can never be written", zap.String("topic", r.Topic),
				partitionField(r.Partition), zap.String("id", r.ID), zap.Stringer("lsn", r.LSN), zap.Uint32("seq", r.Seq), zap.Error(r.Reason))
		}
		s.unhold(ln.topic)
	}
	s.notify()
}

// deny halts a lane to whose topic the privilege is missing, until a later
// attempt is allowed. s.mu is held.
func (s *Sink) deny(ln *lane, err error, now time.Time) {
	s.denied(ln, err, now)
	s.pauseLane(ln, now.Add(s.cfg.HealInterval))
	s.unhold(ln.topic)
}

// denied notes why a lane with records is halted.
func (s *Sink) denied(ln *lane, err error, now time.Time) {
	ln.failing(err, now)
	if ln.halted != nil {
		return
	}
	var rec sink.Record
	reason := &fault.Error{Class: fault.Stop, What: "this user may not write to the topic", Err: err,
		Fix: "grant WRITE and DESCRIBE on it; then it goes on by itself"}
	if errors.Is(err, kafka.ClusterAuthorizationFailed) {
		reason = &fault.Error{Class: fault.Stop, What: "this user may not write to any topic", Err: kafka.ClusterAuthorizationFailed,
			Fix: "grant WRITE and DESCRIBE on this one, and with brokers older than Kafka 2.8 also IDEMPOTENT_WRITE on the cluster; then it goes on by itself"}
	}
	r := s.refusal(ln, ln.queue[0], reason, &rec)
	ln.halted = &r
	ln.warned, ln.logged = true, true
	s.cfg.Log.Error("topic-partition is halted: the privilege to write is missing", zap.String("topic", r.Topic),
		partitionField(r.Partition), zap.Error(err))
}

// partitionField of a log line; none while the partition is not chosen.
func partitionField(p int32) zap.Field {
	if p == sink.PartitionByKey {
		return zap.Skip()
	}
	return zap.Int32("partition", p)
}

// tooLarge says how large a single record is that a broker refuses for its size, and
// which limit it is over.
func tooLarge(ln *lane, b *batch, err error) error {
	if !errors.Is(err, kafka.MessageSizeTooLarge) && !errors.Is(err, kafka.RecordListTooLarge) {
		return err
	}
	sent := len(b.wire())
	size := fmt.Sprintf("alone in its batch it has %d bytes", sent)
	if sent != b.size() {
		size = fmt.Sprintf("alone in its batch it has %d bytes compressed, %d before", sent, b.size())
	}
	limit := "and the topic's limit, which may not be read (DESCRIBE_CONFIGS), is lower"
	if m := ln.topic.maxBatch; m > 0 {
		limit = fmt.Sprintf("and max.message.bytes of the topic was %d when it was read last", m)
	}
	what, setting := "the brokers refuse it as too large: "+size+", "+limit, "max.message.bytes"
	if errors.Is(err, kafka.RecordListTooLarge) {
		what, setting = "the brokers refuse it as too large: "+size+", more than a segment of the topic holds", "segment.bytes"
	}
	return &fault.Error{Class: fault.Poison, What: what, Err: err,
		Fix: fmt.Sprintf("raise %s of topic %s to at least %d, and what consumers can fetch, and restart the relay", setting, ln.topic.name, sent)}
}

// errNoSuchPartition is why a record with an explicit partition is refused.
func errNoSuchPartition(topic string, partition int32, count int) error {
	return fmt.Errorf("topic %s has %d partitions: partition %d, which the record asks for, does not exist: %w",
		topic, count, partition, kafka.UnknownTopicOrPartition)
}
