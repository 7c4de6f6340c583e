// Package inbox makes the effect of an event happen once, however often the event is
// delivered: a unique key, consumer and event id, is written in the transaction of the
// effect. Kafka and the relay deliver at least once, and no part of this package changes that: what happens once is what
// the transaction holds.
//
// [Once] is the core: it works in a transaction that the caller has begun, and never
// begins, commits or rolls back one. [Runner] reads a consumer group of Kafka, with a
// transaction that it opens through the caller's function: gate, handlers, commit, and
// only then the offset. [DeadLetters] is for the person who decides about records that failed. [Schema]
// and [DeadLetterSchema] belong into the migrations of the service; the package runs no DDL.
//
// # What may happen
//
//   - A crash between commit and offset: the records come again, and are skipped.
//   - Two workers with the same record: the second waits for the transaction of the first, and is
//     a duplicate if that commits, or handles the record if it rolls back.
//   - A partition is taken away while a handler runs: the handler may end (Config.Grace) and commit; the
//     broker takes no offset from a generation that is over, and the new owner finds a duplicate.
//   - A handler fails: effect and marker are rolled back. Its partition waits, with pauses that grow, until it
//     succeeds, or the record is in the dead-letter topic, acknowledged by all replicas in sync.
//   - The database is away, takes no writes, or rolled back for another transaction's sake: the partition waits. That is no
//     attempt, and makes no dead letter.
//   - A handler passes over the error of a statement, or ends the transaction by a statement: nothing is
//     settled, and that is a failure of its record.
//   - Kafka is away: offsets and dead letters wait. Transactions that were committed are not done again.
//
// # What the caller still has to do
//
//   - Write the effect with the transaction that the handler is given. What happens outside of it, a mail or a
//     call, may happen again: give it the event's id, and let the other side drop copies.
//   - Roll back, and commit no marker, where Once returned an error. (It aborts the transaction, so a commit fails.)
//   - Give events ids that stay the same in every copy. The relay's header id is one.
//   - Keep markers as long as copies can come. See [Cleanup].
//   - Use READ COMMITTED. Under REPEATABLE READ and SERIALIZABLE a marker that was committed after the snapshot is a serialization
//     failure (SQLSTATE 40001): the runner tries again, a caller of Once has to.
//   - Set idle_in_transaction_session_timeout or TCP keepalives at the server: a host that vanishes keeps its transaction, and
//     whoever gets its records waits for it.
//   - Look at the dead letters; docs/inbox.md has the procedure.
//
// # Units
//
// Offsets and N of an [Event] count records. Ids and names have 1 to 1000 bytes. A worker holds up to two
// batches of records of its partition in memory, but at most 32 MiB, and one fetch of 16 MiB.
package inbox
