// Package outbox writes events into a transactional outbox, for the relay to
// publish. It works in a transaction that the caller has begun, and never begins,
// commits or rolls back one itself:
//
//	tx, err := pool.Begin(ctx)
//	// ... insert the order with tx ...
//	ref, err := outbox.Write(ctx, tx, outbox.Event{
//		AggregateType: "order", AggregateID: "42", Type: "OrderPlaced", Payload: body,
//	})
//	err = tx.Commit(ctx)
//
// [Write] is for pgx, [WriteSQL] for database/sql with any driver of PostgreSQL;
// both write into the table that `cdc-relay setup` makes, public.outbox ([Schema]).
// Another table, other columns, or no table at all are an [Outbox] of [New].
//
// # What happens to an event
//
// It is published after the transaction has committed, and never when it was
// rolled back. It reaches Kafka at least once: after a crash copies come, all with
// the header id, which is [Ref].ID. Events of one transaction are published in the
// order in which they were written; those of one AggregateID go to one partition
// and stay in order there.
//
// # What the caller still has to do
//
//   - Begin the transaction, and commit it. An error of Commit may leave open whether
//     it was committed; write the same event again with the same IdempotencyKey then.
//   - Roll back when an error came from the database: PostgreSQL refuses everything
//     else in that transaction. After an error that is [ErrRefused] the database was not
//     touched, and the transaction can go on.
//   - Tell the relay of every column that is not in the default shape: a column that it
//     does not map is not published.
//   - Delete published rows (the relay's retention does), or use [Ephemeral].
//   - In the consumer, drop copies by the id. A copy is no error.
//
// # Idempotency keys
//
// An event with an IdempotencyKey gets its id from it ([KeyID]), so that the unique
// index that the id has anyway keeps out a second one: a repetition writes nothing and
// returns the row that exists, with Ref.Duplicate. That is one statement. It waits for
// an open transaction that writes the same key: if that commits, this is the
// duplicate; if it rolls back, this is the event. No transaction is aborted under READ
// COMMITTED; under REPEATABLE READ and SERIALIZABLE a key that was committed after the
// snapshot is a serialization failure (SQLSTATE 40001), to be tried again by the
// caller, like any other.
//
// The row keeps repetitions out as long as it exists. Afterwards a repetition is
// written and published again, with the same id: consumers that remember it drop it.
// Two events of one key are taken for the same event; what they hold is not compared.
//
// # Limits
//
// What PostgreSQL, the relay or Kafka would refuse later is refused before anything is
// sent: see [Limits], and the errors. The sizes are those of what was given, in bytes;
// a jsonb column prints its content anew, and may make it longer. Its numbers count as it
// prints them, without exponents.
//
// All functions may be called by several goroutines, each with its own transaction.
package outbox
