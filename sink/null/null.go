// Package null counts records and discards them: for development and
// benchmarks. Every record is acked before Publish returns.
package null

import (
	"context"
	"sync"

	"github.com/cdc-relay/cdc-relay/sink"
)

const (
	maxTopicLabels = 200
	otherTopics    = "other"
)

// Sink discards what is published; see sink.Sink. It is never full, halted or
// failed.
type Sink struct {
	failed chan struct{} // never closed
	acked  [1]sink.Acked // of the Publish in hand

	mu     sync.Mutex
	closed bool
	stats  sink.Stats
	topics map[string]*uint64
	last   string // topic of the last record
	count  *uint64
}

var _ sink.Sink = (*Sink)(nil)

// Open returns an empty sink.
func Open() *Sink {
	return &Sink{failed: make(chan struct{}), topics: make(map[string]*uint64)}
}

// Publish counts rec and acks it at once.
func (s *Sink) Publish(ctx context.Context, rec *sink.Record, ack sink.Ack) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.take(rec); err != nil {
		return err
	}
	s.acked[0] = sink.Acked{Tx: ack.Tx, N: 1}
	ack.To.Done(s.acked[:])
	return nil
}

func (s *Sink) take(rec *sink.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return sink.ErrClosed
	}
	s.stats.Published++
	s.stats.PublishedSize += uint64(size(rec))
	if s.count == nil || rec.Topic != s.last {
		s.last, s.count = rec.Topic, s.counter(rec.Topic)
	}
	*s.count++
	return nil
}

// counter is the one that counts topic.
func (s *Sink) counter(topic string) *uint64 {
	if len(s.topics) >= maxTopicLabels && s.topics[topic] == nil {
		topic = otherTopics
	}
	if s.topics[topic] == nil {
		s.topics[topic] = new(uint64)
	}
	return s.topics[topic]
}

// size of the parts of a record, in bytes.
func size(rec *sink.Record) int {
	n := len(rec.Key) + len(rec.Value)
	for i := range rec.Headers {
		n += len(rec.Headers[i].Key) + len(rec.Headers[i].Value)
	}
	return n
}

// Flush does nothing: nothing is kept.
func (s *Sink) Flush() {}

// Drain returns at once: all is acked.
func (s *Sink) Drain(context.Context) error { return nil }

// Abort returns at once: nothing is queued.
func (s *Sink) Abort(context.Context) error { return nil }

// Failed is never closed.
func (s *Sink) Failed() <-chan struct{} { return s.failed }

// Err is always nil.
func (s *Sink) Err() error { return nil }

// Lanes is always empty: nothing waits.
func (s *Sink) Lanes() []sink.LaneStatus { return nil }

// Stats returns what was counted.
func (s *Sink) Stats() sink.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Topics = make(map[string]uint64, len(s.topics))
	for topic, n := range s.topics {
		st.Topics[topic] = *n
	}
	return st
}

// Close makes Publish fail from now on.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
