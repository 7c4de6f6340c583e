package kafka

import (
	"math/rand/v2"
	"time"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/sink"
)

// topic is what is known of a topic in use. It is guarded by the sink's mutex.
type topic struct {
	name string
	// count is the number of partitions among which keys are placed; 0 while the
	// topic has not been found. It stays what it was while records placed by it
	// are on their way.
	count int32
	// next is a changed number of partitions that is taken when what is on its way
	// has been settled; 0 when there is none. New records wait in hold meanwhile.
	next    int32
	leaders []int32 // node by partition, -1 when unknown; may be longer than count
	lanes   []*lane // by partition, as long as leaders; nil when not in use
	strays  map[int32]*lane
	hold    *lane // records whose partition cannot be chosen yet
	// kept holds the identities of lanes that were let go, by partition; nil
	// before the first.
	kept map[int32]producer

	records  int   // in lanes, without hold
	sticky   int32 // partition of records with a null key; -1 before the first
	maxBatch int   // the topic's max.message.bytes; 0 when unknown

	err      error     // of the last look; nil when the topic was found
	looks    int       // failed looks since the last good one
	nextLook time.Time // when to ask for leaders again
	configAt time.Time // when to ask for its configuration again
	usedAt   time.Time // when it last had a record
}

func newTopic(name string) *topic {
	t := &topic{name: name, sticky: -1}
	t.hold = newLane(t, sink.PartitionByKey)
	return t
}

// lane returns the lane of partition p, making it when needed.
func (t *topic) lane(p int32) *lane {
	if p >= 0 && int(p) < len(t.lanes) {
		if t.lanes[p] == nil {
			t.lanes[p] = t.makeLane(p)
		}
		return t.lanes[p]
	}
	ln := t.strays[p]
	if ln == nil {
		if t.strays == nil {
			t.strays = make(map[int32]*lane)
		}
		ln = t.makeLane(p)
		t.strays[p] = ln
	}
	return ln
}

// makeLane makes a lane, which goes on with the identity of the one before it.
func (t *topic) makeLane(p int32) *lane {
	ln := newLane(t, p)
	if who, ok := t.kept[p]; ok {
		ln.who = who
		delete(t.kept, p)
	}
	return ln
}

// keep notes the identity of a lane that is let go. Its queue is empty.
func (t *topic) keep(ln *lane) {
	if !ln.who.known() {
		return
	}
	if t.kept == nil {
		t.kept = make(map[int32]producer)
	}
	t.kept[ln.partition] = ln.who
}

// leader returns the node that leads p, or -1.
func (t *topic) leader(p int32) int32 {
	if p < 0 || int(p) >= len(t.leaders) {
		return -1
	}
	return t.leaders[p]
}

// holding tells that new records must wait in hold.
func (t *topic) holding() bool { return t.count == 0 || t.next != 0 || t.hold.records > 0 }

// place chooses the lane of a record; the topic is not holding.
func (t *topic) place(partition int32, key []byte) *lane {
	switch {
	case partition != sink.PartitionByKey:
		return t.lane(partition)
	case key != nil:
		return t.lane(partitionOf(key, t.count))
	default:
		return t.stickyLane()
	}
}

// stickyLane returns the lane for a record with a null key: the same one until
// its batch leaves, then another, which should not be failing.
func (t *topic) stickyLane() *lane {
	if t.sticky >= 0 && t.sticky < t.count {
		if ln := t.lane(t.sticky); ln.open != nil && ln.since.IsZero() {
			return ln
		}
	}
	for range 8 {
		t.sticky = rand.Int32N(t.count)
		if ln := t.lanes[t.sticky]; ln == nil || ln.since.IsZero() {
			break
		}
	}
	return t.lane(t.sticky)
}

// each calls f for every lane in use.
func (t *topic) each(f func(*lane)) {
	f(t.hold)
	for _, ln := range t.lanes {
		if ln != nil {
			f(ln)
		}
	}
	for _, ln := range t.strays {
		f(ln)
	}
}

// setLeaders takes over what a broker said.
func (t *topic) setLeaders(parts []broker.Partition) {
	n := len(parts)
	if len(t.leaders) < n {
		t.leaders = append(t.leaders, make([]int32, n-len(t.leaders))...)
		t.lanes = append(t.lanes, make([]*lane, n-len(t.lanes))...)
		for p, ln := range t.strays {
			if p >= 0 && int(p) < n {
				t.lanes[p] = ln
				delete(t.strays, p)
			}
		}
	}
	for i := range t.leaders {
		t.leaders[i] = -1 // also those of partitions that are gone
	}
	for _, p := range parts {
		if p.Err == nil {
			t.leaders[p.ID] = p.Leader.ID
		}
	}
}

// stuck tells that a lane of the topic is halted.
func (t *topic) stuck() (yes bool) {
	t.each(func(ln *lane) { yes = yes || ln.halted != nil })
	return yes
}
