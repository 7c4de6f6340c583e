package kafka

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/sink"
)

// Publish takes a copy of rec; see sink.Sink.
func (s *Sink) Publish(ctx context.Context, rec *sink.Record, ack sink.Ack) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	in := incoming{
		timestamp: rec.Timestamp, tail: tailSize(rec), note: noteOf(rec),
		run: run{to: ack.To, tx: ack.Tx, lsn: rec.LSN},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if err := s.usable(); err != nil {
			return err
		}
		ln := s.laneOf(rec)
		if s.makeRoom(ln, &in, false) {
			b := ln.open
			b.enc.append(rec, in.tail)
			s.took(ln, b, &in)
			s.putOff(ln)
			return nil
		}
		s.flush()
		if err := s.await(ctx); err != nil {
			return err
		}
	}
}

// putOff has an idle lane leave with the next flush; at once when it has a batch
// that is full.
func (s *Sink) putOff(ln *lane) {
	switch {
	case ln.state != laneIdle:
	case len(ln.queue) > 1:
		s.kick(ln)
	case !ln.putOff:
		ln.putOff = true
		s.unsent = append(s.unsent, ln)
	}
}

// Flush sends what Publish has taken; see sink.Sink.
func (s *Sink) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flush()
}

// flush moves on the lanes that were put off, all at once: those of one broker
// share a request. s.mu is held.
func (s *Sink) flush() {
	for i, ln := range s.unsent {
		ln.putOff = false
		s.kick(ln)
		s.unsent[i] = nil
	}
	s.unsent = s.unsent[:0]
}

// incoming is what must be known of a record to make room for it.
type incoming struct {
	timestamp int64
	tail      int
	note      note
	run       run
}

// laneOf returns the lane that takes rec now.
func (s *Sink) laneOf(rec *sink.Record) *lane {
	t := s.topicOf(rec.Topic)
	if t.holding() {
		return t.hold
	}
	return t.place(rec.Partition, rec.Key)
}

func (s *Sink) topicOf(name string) *topic {
	if s.last != nil && s.last.name == name {
		return s.last
	}
	t := s.topics[name]
	if t == nil {
		t = newTopic(name)
		t.usedAt = time.Now()
		s.unretire(t)
		s.topics[t.name] = t
		s.look(t)
	}
	s.last = t
	return t
}

// took notes the record that was just encoded into b, the open batch of ln.
func (s *Sink) took(ln *lane, b *batch, in *incoming) {
	b.notes = in.note.append(b.notes)
	b.addRun(in.run)
	s.add(ln, 1)
}

// add counts records that a lane has taken.
func (s *Sink) add(ln *lane, n int) {
	if ln.records == 0 && n > 0 {
		s.active++
	}
	ln.records += n
	s.records += n
	if ln != ln.topic.hold {
		ln.topic.records += n
	}
}

// uncount takes records off a lane.
func (s *Sink) uncount(ln *lane, n int) {
	if n == 0 {
		return
	}
	ln.records -= n
	s.records -= n
	if ln.records == 0 {
		s.active--
	}
	if ln != ln.topic.hold {
		ln.topic.records -= n
	}
}

// growth is what an open batch must grow by for one more record, in new
// capacities; zero where it need not.
type growth struct {
	class, notes, runs int
}

// makeRoom makes ln.open a batch with room for the record. It returns false, and
// has not grown anything, when the budget is full; with force it never does.
func (s *Sink) makeRoom(ln *lane, in *incoming, force bool) bool {
	limit := s.limit(ln)
	b := ln.open
	size := 0
	if b != nil {
		size = b.enc.recordSize(in.timestamp, in.tail)
		if len(b.enc.buf)+size > limit {
			ln.close()
			b = nil
		}
	}
	if b == nil {
		var first encoder
		size = first.recordSize(in.timestamp, in.tail)
		b = s.pool.batch()
	}
	g := s.plan(ln, b, in, size, limit)
	if g != (growth{}) {
		if extra := s.extra(b, g, s.factorOf(ln)); !force && !s.fits(extra, g.class) {
			if ln.open == nil {
				s.pool.release(b)
			}
			return false
		}
		s.grow(b, g, s.factorOf(ln))
	}
	if ln.open == nil {
		ln.push(b)
	}
	return true
}

// factorOf is by how much the buffers of the lane's batches count: room for the
// compressed copy, and in hold for the copy that spread makes.
func (s *Sink) factorOf(ln *lane) int64 {
	if ln == ln.topic.hold {
		return s.factor + 1
	}
	return s.factor
}

// limit is the size at which a batch of the lane is sealed.
func (s *Sink) limit(ln *lane) int {
	if m := ln.topic.maxBatch; m > 0 && m < s.cfg.MaxBatchBytes {
		return m
	}
	return s.cfg.MaxBatchBytes
}

func (s *Sink) plan(ln *lane, b *batch, in *incoming, size, limit int) (g growth) {
	have, need := cap(b.enc.buf), len(b.enc.buf)+size
	if have == 0 {
		need += headerSize
		need = max(need, min(ln.hint, limit, s.share()))
		g.class = classOf(need)
	} else if need > have {
		g.class = classOf(max(need, min(2*have, limit)))
	}
	if n := len(b.notes) + in.note.size(); n > cap(b.notes) {
		g.notes = max(n, 2*cap(b.notes), 128)
	}
	if k := len(b.runs); k == cap(b.runs) && (k == 0 || !b.runs[k-1].same(in.run)) {
		g.runs = max(2*k, 4)
	}
	return g
}

// share is how large a batch may begin, so that many lanes find room.
func (s *Sink) share() int { return int(s.cfg.BudgetBytes / int64(4*(s.active+1))) }

// extra is by how much g raises what is counted.
func (s *Sink) extra(b *batch, g growth, factor int64) int64 {
	n := int64(0)
	if b.counted == 0 { // a new batch: also what it brings from its last use
		n = b.cost(factor)
	}
	if g.class > 0 {
		if !s.pool.has(g.class) {
			n += int64(g.class)
		}
		n += (factor - 1) * int64(g.class-cap(b.enc.buf))
	}
	if g.notes > 0 {
		n += int64(g.notes - cap(b.notes))
	}
	if g.runs > 0 {
		n += int64((g.runs - cap(b.runs)) * runSize)
	}
	return n
}

// fits tells that the budget has room for extra bytes; empty buffers are let go
// for that, but one of the class that is wanted. With nothing taken everything
// fits: a record larger than the budget is admitted alone.
func (s *Sink) fits(extra int64, class int) bool {
	over := s.pool.total() + extra - s.cfg.BudgetBytes
	if over > 0 {
		s.pool.trim(over, class)
		over = s.pool.total() + extra - s.cfg.BudgetBytes
	}
	return over <= 0 || s.records == 0
}

func (s *Sink) grow(b *batch, g growth, factor int64) {
	if g.class > 0 {
		buf := s.pool.take(g.class)
		if b.enc.buf == nil {
			b.enc.reset(buf)
		} else {
			s.pool.give(b.enc.move(buf))
		}
	}
	if g.notes > 0 {
		b.notes = append(make([]byte, 0, g.notes), b.notes...)
	}
	if g.runs > 0 {
		b.runs = append(make([]run, 0, g.runs), b.runs...)
	}
	s.pool.recount(b, factor)
}

// spread moves the records of hold to the lanes that they belong to, in order.
// The number of partitions is known. Room for the
// copies was kept: see factorOf.
func (s *Sink) spread(t *topic) {
	hold := t.hold
	hold.close()
	for len(hold.queue) > 0 {
		b := hold.queue[0]
		s.mustWalk(b, func(e *entry) {
			key, err := e.raw.key()
			if err != nil {
				panic(err)
			}
			s.moveTo(t.place(e.note.partition, key), e)
		})
		s.uncount(hold, b.records())
		hold.pop()
		s.pool.release(b)
		s.pool.trim(s.pool.total()-s.cfg.BudgetBytes, 0)
	}
	hold.state = laneIdle
	hold.ok()
	t.each(s.kick)
}

// moveTo appends a copy of a record that another batch holds.
func (s *Sink) moveTo(ln *lane, e *entry) {
	in := incoming{timestamp: e.raw.timestamp, tail: len(e.raw.tail), note: e.note, run: e.run}
	s.makeRoom(ln, &in, true)
	ln.open.enc.appendTail(e.raw.timestamp, e.raw.tail)
	s.took(ln, ln.open, &in)
}

// mustWalk calls f for each record of b. A batch that we encoded ourselves and
// cannot read is a programmer's error: going on would lose records.
func (s *Sink) mustWalk(b *batch, f func(*entry)) {
	c := b.entries()
	for {
		e, ok, err := c.next()
		if err != nil {
			panic(err)
		}
		if !ok {
			return
		}
		f(&e)
	}
}
