package inbox

import (
	"context"
	"log/slog"
	"time"
)

// Kind of an Event.
type Kind string

// Kinds of events.
const (
	Processed     Kind = "processed"      // N records were handled, and committed
	Duplicates    Kind = "duplicates"     // N records were skipped: their ids were seen
	Retried       Kind = "retried"        // an attempt failed; the partition waits for the next one
	Waiting       Kind = "waiting"        // the database or Kafka is away; this is not an attempt
	SentToRetry   Kind = "sent_to_retry"  // a record went to the retry topic
	DeadLettered  Kind = "dead_lettered"  // a record went to the dead-letter topic
	Skipped       Kind = "skipped"        // N records of the retry topic belong to another consumer
	OffsetsLost   Kind = "offsets_lost"   // N offsets were deleted by retention before they were read: their events are lost to this consumer
	OffsetsAhead  Kind = "offsets_ahead"  // the group's offset is behind the end of the partition: nothing is read
	OffsetRefused Kind = "offset_refused" // the group did not take an offset; records come again, and are skipped
	GroupFailed   Kind = "group_failed"   // the group could not be joined; it is tried again
	Assigned      Kind = "assigned"       // a partition was assigned, from Offset on
	Revoked       Kind = "revoked"        // a partition was given back
	Lag           Kind = "lag"            // N records of a partition are not handled
	DeadLetterAge Kind = "dead_letters"   // N are open, the oldest for Age
	CleanedUp     Kind = "cleaned_up"     // N markers were deleted
	CleanupFailed Kind = "cleanup_failed"
)

// Event is what Config.Observe is told.
type Event struct {
	Kind      Kind
	Topic     string // that was read
	Partition int
	Offset    int64
	ID        string // of the event
	Attempt   int
	N         int64
	Age       time.Duration
	Err       error // may quote what the handler put into it
}

// logErrors is for those who observe nothing. The text of a handler's error is left
// out: it may hold a payload.
func logErrors(e Event) {
	level := slog.LevelWarn
	switch e.Kind {
	case Processed, Duplicates, Lag, Skipped, Assigned, Revoked, CleanedUp, DeadLetterAge:
		return
	case DeadLettered, OffsetsLost, OffsetsAhead:
		level = slog.LevelError
	}
	attrs := []any{"kind", string(e.Kind), "topic", e.Topic, "partition", e.Partition, "offset", e.Offset, "id", e.ID, "attempt", e.Attempt}
	switch e.Kind {
	case Retried, DeadLettered, SentToRetry:
		attrs = append(attrs, "reason", reasonOf(e.Err))
	default:
		attrs = append(attrs, "n", e.N, "error", e.Err)
	}
	slog.Log(context.Background(), level, "inbox", attrs...)
}
