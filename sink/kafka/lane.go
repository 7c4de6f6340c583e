package kafka

import (
	"time"

	"github.com/cdc-relay/cdc-relay/sink"
)

// laneState says where a lane is. Exactly one thing moves a lane on from each.
type laneState uint8

const (
	laneIdle     laneState = iota // no records, or put off; Publish or flush moves it on
	laneReady                     // queued at its leader's sender
	laneFlying                    // its head is in a request; a sender owns that batch
	laneWaiting                   // pausing before another attempt; the waker moves it on
	laneUnled                     // its partition or leader is unknown; the resolver moves it on
	laneUnnamed                   // there is no producer id for it yet; the identifier moves it on
	laneRefusing                  // Config.Refused is deciding about its head
	laneHalted                    // at a record that can never be written; only Abort moves it on
)

// lane is the queue of one topic-partition.
//
// Invariant: records leave in the order they came. Only queue[0] is ever in
// flight, and it leaves the queue when it is acked or parked.
type lane struct {
	topic     *topic
	partition int32
	state     laneState
	node      int32 // whose sender it is queued at, while ready
	putOff    bool  // it is among the sink's unsent

	queue []*batch
	open  *batch // the last of queue while records may be added; nil otherwise
	// who writes the lane's batches; its sequence is that of the next record to be
	// written, which is the first of the head. See identity.go.
	who producer

	records int   // in queue, but for a head that was dropped
	hint    int   // size of the last batch that left, to size the next one
	pause   int64 // counts pauses, so that an old timer is told from a new one

	attempts  int  // failed ones in a row of the head
	company   int  // after a slow request: with how many lanes it may travel; 0: any
	warned    bool // its failing was noted in the log, or left out there by the limit
	logged    bool // its failing was logged: so will be its recovery
	halted    *sink.Refusal
	lastErr   error
	since     time.Time // since when it fails or is halted
	idleSince time.Time
}

func newLane(t *topic, partition int32) *lane {
	return &lane{topic: t, partition: partition, who: noProducer}
}

// busy tells that the head is owned by another goroutine.
func (ln *lane) busy() bool { return ln.state == laneFlying || ln.state == laneRefusing }

// close ends the open batch: no record is added to it any more.
func (ln *lane) close() { ln.open = nil }

// push adds an open batch at the end.
func (ln *lane) push(b *batch) {
	ln.queue = append(ln.queue, b)
	ln.open = b
}

// head returns the first batch and closes it, so that its bytes stay.
func (ln *lane) head() *batch {
	b := ln.queue[0]
	if b == ln.open {
		ln.open = nil
	}
	return b
}

// pop removes the first batch.
func (ln *lane) pop() {
	n := copy(ln.queue, ln.queue[1:])
	ln.queue[n] = nil
	ln.queue = ln.queue[:n]
	if n == 0 && cap(ln.queue) > 16 {
		ln.queue = nil // an idle lane holds no memory to speak of
	}
}

// replaceHead puts parts, in order, where the first batch was.
func (ln *lane) replaceHead(parts []*batch) {
	q := make([]*batch, 0, len(ln.queue)+len(parts))
	q = append(q, parts...)
	ln.queue = append(q, ln.queue[1:]...)
}

// ok forgets that the lane was failing.
func (ln *lane) ok() {
	ln.attempts, ln.warned, ln.logged = 0, false, false
	ln.lastErr, ln.halted, ln.since = nil, nil, time.Time{}
}

// failing notes an error that holds the lane up.
func (ln *lane) failing(err error, now time.Time) {
	ln.lastErr = err
	if ln.since.IsZero() {
		ln.since = now
	}
}

// status describes the lane without payloads.
func (ln *lane) status() sink.LaneStatus {
	st := sink.LaneStatus{Topic: ln.topic.name, Partition: ln.partition, Queued: ln.records, Since: ln.since}
	for _, b := range ln.queue {
		st.Bytes += b.counted
	}
	if ln.halted != nil {
		r := *ln.halted
		st.Halted = &r
	}
	if ln.lastErr != nil {
		st.LastError = ln.lastErr.Error()
	}
	return st
}
