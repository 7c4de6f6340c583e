package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/sink"
)

const (
	// requestsPerBroker is how many requests are in flight to one broker, so that
	// a slow partition does not hold up all others.
	requestsPerBroker = 2
	maxRequestBytes   = 8 << 20
	maxRequestLanes   = 1000
	// A request is slow when it takes this long, and several times as long as
	// usual.
	slowAtLeast = 250 * time.Millisecond
	slowFactor  = 4
)

// sender serves the lanes that one broker leads. It is guarded by the sink's
// mutex.
type sender struct {
	sink *Sink
	node int32
	cond *sync.Cond // on the sink's mutex: a lane is ready, or the sink ends

	ready    []*lane // in order of arrival; a lane that moved on otherwise is skipped
	suspects []*lane // ready too, but failed or slow: they have at most one request
	probing  bool    // a request of suspects is in flight
	usual    time.Duration
}

// sender returns the sender for a broker, starting it when needed. s.mu is held.
func (s *Sink) sender(node int32) *sender {
	w := s.senders[node]
	if w == nil {
		w = &sender{sink: s, node: node, cond: sync.NewCond(&s.mu)}
		s.senders[node] = w
		if !s.closed {
			for range requestsPerBroker {
				s.wg.Go(w.run)
			}
		}
	}
	return w
}

// push queues a ready lane.
func (w *sender) push(ln *lane) {
	if ln.attempts > 0 || ln.company > 0 {
		w.suspects = append(w.suspects, ln)
	} else {
		w.ready = append(w.ready, ln)
	}
	w.cond.Signal()
}

// flight is the head of a lane in a request.
type flight struct {
	lane  *lane
	batch *batch
	who   producer // in whose name it is sent
}

// run is one of the sender's goroutines: it takes what is ready, sends it and
// settles it.
func (w *sender) run() {
	pk := packer{codec: w.sink.codec}
	for {
		group, probe := w.take()
		if group == nil {
			return
		}
		w.send(group, &pk)
		if probe {
			w.sink.mu.Lock()
			w.probing = false
			w.cond.Signal()
			w.sink.mu.Unlock()
		}
	}
}

// take waits for lanes and returns their heads, nil when the sink ends. The
// heads belong to the caller then.
func (w *sender) take() (group []flight, probe bool) {
	s := w.sink
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.usable() == nil {
		if !w.probing {
			if group, w.suspects = w.gather(w.suspects); len(group) > 0 {
				w.probing, probe = true, true
			}
		}
		if len(group) == 0 {
			group, w.ready = w.gather(w.ready)
		}
		if len(group) > 0 {
			s.flying += len(group)
			return group, probe
		}
		w.cond.Wait()
	}
	return nil, false
}

// gather takes the heads of the first lanes of queue, as many as one request
// may hold.
func (w *sender) gather(queue []*lane) (group []flight, rest []*lane) {
	bytes, used, room := 0, 0, maxRequestLanes
	for _, ln := range queue {
		if ln.state != laneReady || ln.node != w.node || len(ln.queue) == 0 {
			used++ // it moved on otherwise
			continue
		}
		size := ln.queue[0].size()
		if ln.company > 0 {
			room = min(room, ln.company)
		}
		if len(group) > 0 && (bytes+size > maxRequestBytes || len(group) >= room) {
			break
		}
		used++
		bytes += size
		ln.state = laneFlying
		group = append(group, flight{lane: ln, batch: ln.head(), who: ln.who})
	}
	n := copy(queue, queue[used:])
	clear(queue[n:])
	return group, queue[:n]
}

// send writes one request and settles every batch in it.
func (w *sender) send(group []flight, pk *packer) {
	s := w.sink
	for _, f := range group {
		if err := s.seal(f.batch, f.who, pk); err != nil {
			w.settle(group, 0, nil, err, pk)
			return
		}
	}
	slices.SortFunc(group, func(a, b flight) int {
		if c := cmp.Compare(a.lane.topic.name, b.lane.topic.name); c != 0 {
			return c
		}
		return cmp.Compare(a.lane.partition, b.lane.partition)
	})
	parts := make([]part, len(group))
	for i, f := range group {
		parts[i] = part{topic: f.lane.topic.name, partition: f.lane.partition, batch: f.batch.wire()}
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.RequestTimeout)
	defer cancel()
	req := newRequest(ctx, w.node, s.cfg.ClientID, s.cfg.RequestTimeout/2, parts)
	req.scratch = pk.scratch
	start := time.Now()
	res, err := s.cfg.Cluster.Transport().RoundTrip(ctx, s.cfg.Cluster.Addr(), req)
	cancel()
	req.settle()
	pk.scratch = req.scratch
	answer, _ := res.(*produce.Response)
	if err == nil && answer == nil {
		err = protocol.Errorf("no response to a produce request")
	}
	if err != nil {
		err = fmt.Errorf("produce to broker %d: %w", w.node, err)
	}
	w.settle(group, time.Since(start), answer, err, pk)
}

// seal makes the bytes of a batch final: compressed, with header and checksum, in
// the name of who. A batch that is sent again has the same bytes, unless its lane
// took another identity. The caller owns the batch; s.mu is not held.
func (s *Sink) seal(b *batch, who producer, pk *packer) error {
	if b.sealed {
		if b.who != who {
			stamp(b.wire(), who)
			b.who = who
		}
		return nil
	}
	b.enc.seal(who)
	if s.factor > 1 {
		s.mu.Lock()
		dst := s.pool.take(cap(b.enc.buf))
		s.mu.Unlock()
		packed, err := pk.pack(&b.enc, dst, who)
		s.mu.Lock()
		defer s.mu.Unlock()
		if packed == nil {
			s.pool.give(dst)
		} else {
			b.packed = dst[:len(packed)] // the same bytes, with dst's whole capacity
		}
		s.pool.recount(b, s.factor)
		if err != nil {
			return err
		}
	}
	b.sealed, b.who = true, who
	return nil
}

// settle hears the outcome of a request: err for all of it, or a code for each
// partition in answer.
func (w *sender) settle(group []flight, took time.Duration, answer *produce.Response, err error, pk *packer) {
	results := outcomes(group, answer, err)
	good := 0
	for i, f := range group {
		if results[i].err == nil {
			good++
			pk.acked = tell(f.batch, pk.acked)
		}
	}
	s := w.sink
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count.requests++
	s.flying -= len(group)
	w.judge(group, took, good)
	for i, f := range group {
		if f.lane.attempts > 0 {
			s.count.retries++
		}
		if r := results[i]; r.err == nil {
			s.acked(f.lane, f.batch, false)
		} else {
			s.failedAttempt(f.lane, f.batch, r.err, r.indexes)
		}
	}
	s.notify()
}

// tell tells the ackers of a batch, by way of buf, which it returns, perhaps
// grown. The batch is the caller's; s.mu is not held.
func tell(b *batch, buf []sink.Acked) []sink.Acked {
	buf = buf[:0]
	for i, r := range b.runs {
		buf = append(buf, sink.Acked{Tx: r.tx, N: int(r.n)})
		if i+1 == len(b.runs) || b.runs[i+1].to != r.to {
			r.to.Done(buf)
			buf = buf[:0]
		}
	}
	return buf
}

// judge finds the lanes that make requests slow: after a slow request its lanes
// travel in groups of half the size, until they are quick. So a partition that is
// slow by itself is alone after a few rounds, and the others are free.
func (w *sender) judge(group []flight, took time.Duration, good int) {
	slow := took > max(slowAtLeast, slowFactor*w.usual)
	company := 0
	if slow {
		company = max(1, len(group)/2)
	}
	for _, f := range group {
		f.lane.company = company
	}
	if good > 0 {
		w.usual += (took - w.usual) / 8
	}
}

// outcome of one batch.
type outcome struct {
	err     error
	indexes []int32 // records that the broker blames
}

// outcomes finds the answer for each flight. A batch that the answer does not
// name was not acked.
func outcomes(group []flight, answer *produce.Response, err error) []outcome {
	out := make([]outcome, len(group))
	if err != nil {
		for i := range out {
			out[i].err = requestError(err)
		}
		return out
	}
	type place struct {
		topic     string
		partition int32
	}
	codes := make(map[place]*produce.ResponsePartition, len(group))
	for i := range answer.Topics {
		t := &answer.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			at := place{t.Topic, p.Partition}
			if old := codes[at]; old == nil || old.ErrorCode == 0 { // named twice: an error counts
				codes[at] = p
			}
		}
	}
	for i, f := range group {
		p := codes[place{f.lane.topic.name, f.lane.partition}]
		if p == nil {
			out[i].err = errNoAnswer
			continue
		}
		out[i] = outcomeOf(p)
	}
	return out
}

var errNoAnswer = errors.New("the broker's answer does not name this topic-partition")

func outcomeOf(p *produce.ResponsePartition) (o outcome) {
	// A duplicate of a batch that is in the log already is in the log.
	if p.ErrorCode == 0 || kafka.Error(p.ErrorCode) == kafka.DuplicateSequenceNumber {
		return o
	}
	o.err = kafka.Error(p.ErrorCode)
	if p.ErrorMessage != "" {
		o.err = fmt.Errorf("%w (%s)", o.err, short(p.ErrorMessage))
	}
	for _, r := range p.RecordErrors {
		o.indexes = append(o.indexes, r.BatchIndex)
		if r.BatchIndexErrorMessage != "" && len(o.indexes) == 1 {
			o.err = fmt.Errorf("%w: %s", o.err, short(r.BatchIndexErrorMessage))
		}
	}
	return o
}

// requestError keeps an error of a whole request from being held against a
// record.
func requestError(err error) error {
	if class, _ := broker.Classify(err); class == fault.Poison {
		return &fault.Error{Class: fault.Retry, Err: err}
	}
	return err
}

// short bounds what a broker says before it goes into status and logs.
func short(message string) string {
	if len(message) > 300 {
		return message[:300]
	}
	return message
}
