package inbox

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go/sasl"
)

// Policy says what becomes of the records behind one that fails.
type Policy int

const (
	// Block lets its partition wait while a record is tried again, and goes on when it was
	// handled or is in the dead-letter topic. Order holds but for dead letters: records
	// behind one, also of its key, are handled.
	Block Policy = iota
	// Park is Block, and sends every later record of the key of an unresolved dead letter
	// to the dead letters too, untried, until a person has redriven or discarded what is
	// before it. Order holds for each key, as long as its topic keeps its number of partitions. Records without a key are not
	// parked.
	Park
	// Retry sends a record that failed RetryInPlace times to the retry topic, and goes on.
	// The order is given up: what comes behind it is handled before it, also of its key.
	Retry
)

// Config says what a runner reads, and what it does with what fails.
type Config struct {
	Brokers []string
	TLS     *tls.Config
	SASL    sasl.Mechanism

	Group    string   // of Kafka
	Topics   []string // from their beginning, where the group has no offset
	Consumer string   // the name in the inbox: change it, and everything is new; "" : Group

	IDHeader string // "" : id
	// IDByPosition takes topic/partition/offset as the id of a record that has no id
	// header: copies that the producer wrote are then not recognized, and a topic that was made anew under
	// its old name needs another Consumer, or its records are taken for duplicates. By
	// default they are dead letters.
	IDByPosition bool

	Batch     int  // most records handled in one transaction, of one partition; 0: 500
	PerRecord bool // one transaction per record; the offset is still committed once per Batch

	Policy      Policy
	Attempts    int           // of a record, until it is a dead letter; 0: 10
	BackoffMin  time.Duration // between attempts, growing and with jitter; 0: 100 ms
	BackoffMax  time.Duration // 0: 30 s
	AttemptTime time.Duration // ends the context of a transaction's handlers; 0: no limit

	// DeadLetterTopic is where records go that failed. Without one, a record that fails
	// blocks its partition until its handler succeeds, and Attempts means nothing.
	DeadLetterTopic string
	// MinDeadLetterRetention is checked at the start: a shorter retention.ms of the
	// dead-letter topic is refused. 0: 30 days.
	MinDeadLetterRetention time.Duration

	// RetryTopic belongs to this consumer, and is read beside Topics: records of Retry,
	// and those that a person redrives. Without it nothing can be redriven but to a topic
	// that others read.
	RetryTopic   string
	RetryInPlace int           // attempts before a record goes there, with Retry; 0: 1
	RetryDelay   time.Duration // before it is tried again; 0: 30 s

	// Grace is how long handlers may go on when their partition is taken away or the
	// runner stops; then their context ends, and what they did is rolled back. 0: 10 s.
	Grace          time.Duration
	SessionTimeout time.Duration // of the group: after it a dead worker's partitions go to others; 0: 30 s
	// StartTimeout ends Run with an error when PostgreSQL or Kafka has not answered
	// by then. 0: it waits until ctx ends.
	StartTimeout time.Duration

	Cleanup Cleanup
	Observe func(Event) // called by several goroutines; must not block. nil: errors go to slog.Default
}

// Cleanup deletes old markers while the runner runs. The zero value deletes none.
type Cleanup struct {
	// Keep is how long a marker stays. It must be longer than any copy of its record can
	// come: at the start it is refused if below retention.ms + segment.ms of any topic,
	// and where retention is unlimited. Add the longest time that a producer may be down
	// and then send again.
	Keep  time.Duration
	Every time.Duration // 0: 10 min
	Batch int           // markers per transaction; 0: 1000
}

// Runner handles the records of a consumer group. It is made by ForPGX or ForSQL, and
// started by Run.
type Runner struct {
	cfg     Config
	begin   begin
	cluster *cluster
	reader  reader
	ahead   sync.Map // places where the group's offset was found ahead of the log
}

// ForPGX returns a runner for pgx, or every problem of its configuration. begin is
// (*pgxpool.Pool).Begin, or what begins a transaction with other options. There is one transaction at a time per partition
// that is assigned; a pool with fewer connections lets partitions wait for each other.
//
// handle gets each record in the order of its partition, with the transaction in which
// its marker is; Commit and Rollback of it are refused. An error rolls all of it back, with
// what other records did in the same transaction; these are then handled again, one by one. So what
// handle does outside of the database may happen several times. Wrap an error in
// [Permanent] when another attempt is of no use.
func ForPGX(begin func(context.Context) (pgx.Tx, error), handle func(ctx context.Context, tx pgx.Tx, r Record) error, c Config) (*Runner, error) {
	if begin == nil || handle == nil {
		return nil, errNil
	}
	return newRunner(beginPGX(begin, handle), c)
}

// ForSQL is ForPGX for database/sql. handle must not end the transaction.
func ForSQL(begin func(context.Context) (*sql.Tx, error), handle func(ctx context.Context, tx *sql.Tx, r Record) error, c Config) (*Runner, error) {
	if begin == nil || handle == nil {
		return nil, errNil
	}
	return newRunner(beginSQL(begin, handle), c)
}

var errNil = errors.New("inbox: give what begins a transaction, and a handler")

func newRunner(b begin, c Config) (*Runner, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Runner{cfg: c, begin: b, cluster: newCluster(c.Brokers, c.TLS, c.SASL),
		reader: reader{consumer: c.Consumer, idHeader: c.IDHeader, byPosition: c.IDByPosition, retryTopic: c.RetryTopic}}, nil
}

func (c Config) withDefaults() Config {
	or(&c.Consumer, c.Group)
	or(&c.IDHeader, "id")
	or(&c.Batch, 500)
	or(&c.Attempts, 10)
	or(&c.BackoffMin, 100*time.Millisecond)
	or(&c.BackoffMax, 30*time.Second)
	or(&c.MinDeadLetterRetention, 30*24*time.Hour)
	or(&c.RetryInPlace, 1)
	or(&c.RetryDelay, 30*time.Second)
	or(&c.Grace, 10*time.Second)
	or(&c.SessionTimeout, 30*time.Second)
	or(&c.Cleanup.Every, 10*time.Minute)
	or(&c.Cleanup.Batch, 1000)
	if c.Observe == nil {
		c.Observe = logErrors
	}
	return c
}

func or[T comparable](v *T, standard T) {
	if *v == *new(T) {
		*v = standard
	}
}

func (c Config) validate() error {
	var problems []error
	check := func(ok bool, problem string) {
		if !ok {
			problems = append(problems, errors.New("inbox: "+problem))
		}
	}
	check(len(c.Brokers) > 0, "Brokers is empty")
	check(c.Group != "", "Group is empty")
	check(isName(c.Consumer), "Consumer: "+ErrName.Error())
	check(len(c.Topics) > 0, "Topics is empty")
	topics := map[string]bool{}
	for _, t := range append([]string{c.RetryTopic, c.DeadLetterTopic}, c.Topics...) {
		check(t == "" || !topics[t], "the topic "+t+" is named twice; Topics, RetryTopic and DeadLetterTopic must differ")
		topics[t] = true
	}
	check(c.Batch > 0 && c.Attempts > 0 && c.RetryInPlace > 0 && c.Cleanup.Batch > 0, "Batch, Attempts, RetryInPlace or Cleanup.Batch is negative")
	check(c.BackoffMin > 0 && c.BackoffMax >= c.BackoffMin && c.RetryDelay > 0 && c.AttemptTime >= 0 && c.StartTimeout >= 0 && c.Grace > 0 && c.SessionTimeout > 0 &&
		c.MinDeadLetterRetention > 0 && c.Cleanup.Keep >= 0 && c.Cleanup.Every > 0, "a duration is negative, or BackoffMax below BackoffMin")
	switch c.Policy {
	case Block:
	case Park:
		check(c.DeadLetterTopic != "", "Policy Park needs DeadLetterTopic, where later records of a key are parked")
		check(c.RetryTopic != "", "Policy Park needs RetryTopic, through which they are redriven")
	case Retry:
		check(c.RetryTopic != "", "Policy Retry needs RetryTopic")
		check(c.DeadLetterTopic != "", "Policy Retry needs DeadLetterTopic, for records that failed there too")
	default:
		check(false, "Policy is unknown")
	}
	return errors.Join(problems...)
}
