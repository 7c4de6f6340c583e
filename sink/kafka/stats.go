package kafka

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/sink"
)

// maxTopicLabels bounds the topics that are counted by name.
const maxTopicLabels = 200

// otherTopics counts for all topics past that bound.
const otherTopics = "other"

// counters since the sink was opened. They are guarded by the sink's mutex.
type counters struct {
	published, size, requests, retries uint64
	resets                             uint64 // of a lane's identity, after which copies are possible
	errors                             map[sink.ErrorKey]uint64
	topics                             map[string]uint64
}

func newCounters() counters {
	return counters{errors: make(map[sink.ErrorKey]uint64), topics: make(map[string]uint64)}
}

func (c *counters) failed(class fault.Class, code string) {
	c.errors[sink.ErrorKey{Class: class, Code: code}]++
}

func (c *counters) acked(t *topic, b *batch, parked bool) {
	if parked {
		return
	}
	n := uint64(b.records())
	c.published += n
	c.size += uint64(b.size())
	name := t.name
	if _, known := c.topics[name]; !known && len(c.topics) >= maxTopicLabels {
		name = otherTopics
	}
	c.topics[name] += n
}

// Stats returns counters and gauges.
func (s *Sink) Stats() sink.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sink.Stats{
		Published: s.count.published, PublishedSize: s.count.size,
		Requests: s.count.requests, Retries: s.count.retries, ProducerIDResets: s.count.resets,
		Errors: maps.Clone(s.count.errors), Topics: maps.Clone(s.count.topics),
		InFlightBytes: s.pool.total(), BudgetBytes: s.cfg.BudgetBytes,
	}
}

// Lanes returns the topic-partitions in use: halted ones first, then those that
// fail.
func (s *Sink) Lanes() []sink.LaneStatus {
	var out []sink.LaneStatus
	s.mu.Lock()
	for _, t := range s.topics {
		t.each(func(ln *lane) {
			if ln != t.hold || len(ln.queue) > 0 {
				out = append(out, ln.status())
			}
		})
	}
	s.mu.Unlock()
	slices.SortFunc(out, func(a, b sink.LaneStatus) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return out
}

func rank(l sink.LaneStatus) int {
	switch {
	case l.Halted != nil:
		return 0
	case !l.Since.IsZero():
		return 1
	default:
		return 2
	}
}
