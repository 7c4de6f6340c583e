package outbox

// Event is one event. What it cannot keep in the table as configured is an error, and
// never dropped, but for the trace.
type Event struct {
	// AggregateType is the kind of the thing that changed, "order". By default it makes
	// the topic: outbox.event.order.
	AggregateType string
	// AggregateID is the identity of the thing that changed, and the record's key by
	// default: events of one key stay in order.
	AggregateID string
	// Type is what happened, "OrderPlaced".
	Type string
	// Payload is the value of the record; nil is a null value, which deletes the key from
	// a compacted topic.
	Payload []byte

	// Topic is the topic itself, where the outbox has a place for it: Columns.Topic, or
	// Messages.Topic.
	Topic string
	// Key is a record key other than AggregateID, where the table has Columns.Key.
	Key string
	// Headers are further headers of the record, each with a column in Table.Headers, or
	// in a message.
	Headers map[string]string

	// ID is the identity of the event in every copy; empty for one that is made here. The
	// same id is never used for two events.
	ID string
	// IdempotencyKey makes a repetition of the event write nothing. It holds for the
	// whole table: "order.created:42". Not beside ID.
	IdempotencyKey string
}

// Ref is an event in the outbox.
type Ref struct {
	// ID is the header id of every copy of the record.
	ID string
	// Duplicate says that a row with the event's IdempotencyKey was there, committed or
	// written earlier in this transaction, and that nothing was written.
	Duplicate bool
}

// Limits bound an event, in bytes of what is given; zero is the default. A negative
// one refuses everything.
type Limits struct {
	// PayloadBytes is 1,000,000 by default, so that a record stays below Kafka's own
	// default of 1 MiB (max.message.bytes) with its key and headers.
	PayloadBytes int
	// Headers is how many an event may have: 32 by default, the trace not counted. The
	// relay takes at most 1000 of a message.
	Headers int
	// HeaderBytes is the sum of names and values: 16 KiB by default.
	HeaderBytes int
}

const (
	maxText          = 1000 // bytes of an id, a key or a type
	maxTopic         = 249  // Kafka's
	maxAggregateType = 200  // where a topic is made of it
)

func (l Limits) withDefaults() Limits {
	set := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	set(&l.PayloadBytes, 1_000_000)
	set(&l.Headers, 32)
	set(&l.HeaderBytes, 16<<10)
	return l
}
