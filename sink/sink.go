// Package sink is the contract between the relay and what it publishes to.
// Implementations live below it; sink/sinktest holds the suite that each must
// pass.
package sink

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/fault"
)

// PartitionByKey as Record.Partition leaves the choice to the sink: Java's
// murmur2 of the key, and sticky per batch for a null key.
const PartitionByKey int32 = -1

// Header is one record header. A nil Value is a null value.
type Header struct {
	Key   string
	Value []byte
}

// Record is one event on its way to a topic. Its byte slices point into the
// caller's buffers and are valid only until Publish returns.
type Record struct {
	Topic     string
	Partition int32  // PartitionByKey, or an explicit partition
	Key       []byte // nil is a null key; empty is an empty one
	Value     []byte // nil is a null value; empty is an empty one
	Headers   []Header
	Timestamp int64 // milliseconds since the Unix epoch

	// ID, LSN and Seq name the record to a person. LSN is the commit LSN of its
	// transaction, Seq its ordinal (from 0) among the transaction's inserts and
	// published messages.
	ID  []byte
	LSN pglogrepl.LSN
	Seq uint32
}

// Acker hears that records of a transaction are acked by the brokers, or
// durably parked. Done is called from any goroutine, and counts every record
// exactly once. The slice is the caller's again when Done returns.
type Acker interface {
	Done(acked []Acked)
}

// Acked is N records of one transaction.
type Acked struct {
	Tx uint64
	N  int
}

// Ack says whom to tell about a record. It is a value, so that publishing
// allocates nothing.
type Ack struct {
	To Acker
	Tx uint64 // the transaction's number, see checkpoint.Tracker.Begin
}

// Sink publishes records. One goroutine calls Publish and Flush; Drain, Abort and
// Close are called when neither is running; Lanes and Stats from any goroutine.
type Sink interface {
	// Publish takes a copy of rec before it returns. It blocks while the
	// in-flight budget is full, but never with nothing in flight: a record larger
	// than the budget is admitted alone. It returns ctx's error when ctx ends
	// first (the record is then not taken), and a fault.Error of class Stop when
	// the sink cannot go on at all. First copies on one topic-partition are
	// written in the order of Publish. A record may stay unsent until Flush, so that
	// a burst travels together.
	Publish(ctx context.Context, rec *Record, ack Ack) error

	// Flush sends what Publish has taken. Whoever publishes calls it before waiting
	// for anything else than Publish, Drain or Abort. It does not wait.
	Flush()

	// Drain waits until every record taken is acked or parked, ctx ends, or a
	// lane is halted and nothing else is in flight (then it returns ErrHalted).
	Drain(ctx context.Context) error

	// Abort drops every record that is queued and not yet sent, without an ack,
	// also those of halted lanes, and waits for the requests in flight (each has
	// a time-out) until ctx ends. The sink can be used again at once: a lane whose
	// old request is still in flight sends nothing before that one is settled.
	Abort(ctx context.Context) error

	// Failed is closed when the sink cannot go on; Err then tells why. Its class
	// is fault.Stop.
	Failed() <-chan struct{}
	Err() error

	// Lanes returns one entry per topic-partition in use, halted ones first.
	Lanes() []LaneStatus
	// Stats returns counters since the sink was opened, and gauges.
	Stats() Stats

	// Close aborts and releases every goroutine and connection. Closing twice is
	// safe.
	Close() error
}

// LaneStatus is the state of one topic-partition.
type LaneStatus struct {
	Topic     string
	Partition int32
	Queued    int   // records taken and not yet acked
	Bytes     int64 // of those records, as counted against the budget
	Halted    *Refusal
	LastError string    // of the last failed attempt; "" after a success
	Since     time.Time // since when the lane has been failing or halted; zero when it is not
}

// Place names a topic-partition for a person. Neither topic nor partition need be
// known yet.
func Place(topic string, partition int32) string {
	switch {
	case topic == "":
		return "topic not known"
	case partition == PartitionByKey:
		return fmt.Sprintf("topic %s, partition not chosen yet", topic)
	}
	return fmt.Sprintf("topic %s, partition %d", topic, partition)
}

// Stats are counters since the sink was opened, and gauges.
type Stats struct {
	Published     uint64 // records acked
	PublishedSize uint64 // bytes of those, encoded and before compression
	Requests      uint64 // produce requests sent
	Retries       uint64 // batches sent again
	// ProducerIDResets counts how often a topic-partition had to begin anew as
	// another producer and send records again which may be written already.
	ProducerIDResets uint64
	Errors           map[ErrorKey]uint64
	InFlightBytes    int64 // taken from the budget now
	BudgetBytes      int64
	Topics           map[string]uint64 // records acked per topic; at most 200, then "other"
}

// ErrorKey labels an error count: Code is the short, constant name of a Kafka
// error ("NOT_LEADER_OR_FOLLOWER") or of a kind of network error ("timeout").
type ErrorKey struct {
	Class fault.Class
	Code  string
}

// Refusal is a record that can never be written as it is. It holds no payload.
type Refusal struct {
	Topic     string
	Partition int32 // PartitionByKey when it was refused before one was chosen
	ID        string
	LSN       pglogrepl.LSN
	Seq       uint32
	Reason    error
	At        time.Time
}

// Verdict answers a refusal.
type Verdict uint8

const (
	// Halt holds the lane at this record; nothing of the lane passes it.
	Halt Verdict = iota
	// Parked says that the record is durably kept elsewhere: it counts as acked
	// and its lane goes on.
	Parked
)

// Refused decides what becomes of a refused record. rec is valid during the
// call. It is called from a lane's goroutine and may block until ctx ends.
type Refused func(ctx context.Context, r Refusal, rec *Record) (Verdict, error)
