package outbox

import (
	"errors"
	"fmt"
)

// ErrRefused is every error that is found before the database is touched: the
// transaction is as it was, and can go on.
var ErrRefused = errors.New("the event was refused, and nothing was sent to the database")

// Why an event is refused; each is also ErrRefused.
var (
	ErrEmpty    = errors.New("it is required; set it")
	ErrTooLarge = errors.New("it is above the limit; publish a reference to what is stored elsewhere, or raise the limit, and with it max.message.bytes of the topic")
	ErrTopic    = errors.New("Kafka takes no topic with that name; use a-z, A-Z, 0-9, '.', '_' and '-'")
	ErrText     = errors.New("it cannot be stored as text; use UTF-8 without zero bytes, or for a payload a column of type bytea")
	ErrJSON     = errors.New("the payload column does not take it; give valid JSON, or configure Table.Payload as the column really is")
	ErrNoPlace  = errors.New("it would not be published; leave it out, or configure a column for it here and in the relay")
	ErrReserved = errors.New("the relay adds a header of that name itself; choose another")
	ErrID       = errors.New("the id column takes a UUID in its usual form; leave ID empty to have one made, or set Table.TextID")
	// ErrKeyWithoutRow is for an IdempotencyKey where no row stays that could keep a
	// second event out.
	ErrKeyWithoutRow = errors.New("this outbox keeps no row that would show the repetition; give ID: outbox.KeyID(key), with which consumers drop it")
)

// What the database says; roll back.
var (
	// ErrDuplicate is a unique constraint of the table: the id, in its default shape.
	ErrDuplicate = errors.New("the outbox has a row with this id already; roll back, and use an IdempotencyKey for events that may be written twice")
	// ErrNoUniqueID is for an IdempotencyKey and a table in which ids may repeat.
	ErrNoUniqueID = errors.New("idempotency keys need a unique index on the id column alone; roll back, and make one")
	// ErrNotWritten means that the table took fewer rows than it was given: a trigger, a
	// rule or a policy suppressed them, and the events would be lost. An event with an
	// IdempotencyKey that is suppressed cannot be told from a duplicate.
	ErrNotWritten = errors.New("the outbox table did not take the row; roll back, and look for a trigger, a rule or a row-level security policy on it")
)

// Refusal is the error of an event that was refused. errors.Is finds ErrRefused and
// the reason in it. It shows nothing that the event holds.
type Refusal struct {
	Event  int    // ordinal in the batch, from 0; 0 for a single event
	Field  string // of Event: "Payload"
	Detail string // the numbers behind Reason; may be empty
	Reason error
}

func (r *Refusal) Error() string {
	detail := ""
	if r.Detail != "" {
		detail = r.Detail + ": "
	}
	return fmt.Sprintf("refuse outbox event %d: %s: %s%v", r.Event, r.Field, detail, r.Reason)
}

// Unwrap returns the reason, and ErrRefused.
func (r *Refusal) Unwrap() []error { return []error{r.Reason, ErrRefused} }

// explain puts what is known of an error of the database before it.
func explain(err error) error {
	var e interface{ SQLState() string } // of every driver's own type
	if !errors.As(err, &e) {
		return err
	}
	switch e.SQLState() {
	case "23505":
		return fmt.Errorf("%w: %w", ErrDuplicate, err)
	case "42P10":
		return fmt.Errorf("%w: %w", ErrNoUniqueID, err)
	}
	return err
}
