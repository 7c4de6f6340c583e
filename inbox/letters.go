package inbox

import (
	"context"
	"crypto/tls"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
)

// State of a dead letter.
type State string

// States. Open and Redriven ones are unresolved: with Park, their keys wait.
const (
	Open      State = "open"      // nobody has done anything yet
	Redriven  State = "redriven"  // it was sent to the retry topic
	Done      State = "done"      // it was sent there, and handled
	Discarded State = "discarded" // a person gave it up
	AnyState  State = "any"       // in a Filter: all of them
)

// Errors of DeadLetters.
var (
	ErrNoLetter = errors.New("there is no such dead letter")
	ErrState    = errors.New("the dead letter is not in a state for that")
	ErrGone     = errors.New("the dead-letter topic does not hold the record any more; read the order from its origin, and discard the letter")
	ErrNowhere  = errors.New("the consumer had no RetryTopic when the record failed: configure one, and name it in Redrive.Topic")
	ErrActor    = errors.New("say who does it, and why")
	// ErrTopic is for a topic that the owner does not retry from.
	ErrTopic = errors.New("the topic is no RetryTopic: the letter would say redriven, and its owner never see the record")
	// ErrTooLarge is about one letter: others may be sent.
	ErrTooLarge = errors.New("the retry topic takes no record of that size: raise its max.message.bytes to that of the dead-letter topic")
	// ErrEarlier and ErrLater are warnings; Redrive.Anyway passes over them.
	ErrEarlier = errors.New("earlier records of its key are unresolved dead letters: redrive or discard them first")
	ErrLater   = errors.New("later records of its key were handled already: see that the effect is still right after them")
)

// DeadLetter is a record that its consumer gave up.
type DeadLetter struct {
	ID              int64     `json:"id"`
	Owner           string    `json:"consumer"` // the consumer
	EventID         string    `json:"event_id"`
	Topic           string    `json:"kafka_topic"` // where it was first
	Partition       int       `json:"kafka_partition"`
	Offset          int64     `json:"kafka_offset"`
	LetterTopic     string    `json:"letter_topic"` // where it is
	LetterPartition int       `json:"letter_partition"`
	LetterOffset    int64     `json:"letter_offset"`
	RedriveTopic    string    `json:"redrive_topic"`
	Reason          string    `json:"reason"`
	Attempts        int       `json:"attempts"` // 0: it was not tried
	State           State     `json:"state"`
	FailedAt        time.Time `json:"failed_at"`
	ChangedAt       time.Time `json:"changed_at"`
	Later           int       `json:"later"`   // records of its key and partition behind it that were handled
	Earlier         int       `json:"earlier"` // unresolved dead letters of its key before it, 100 at most
}

// Action is what a person did.
type Action struct {
	Action string    `json:"action"` // redrive, discard
	Actor  string    `json:"actor"`
	Note   string    `json:"note"`
	At     time.Time `json:"at"`
}

// Filter of a list; the zero value is the 100 oldest open ones of all owners.
type Filter struct {
	Owner     string
	OlderThan time.Duration
	State     State
	Limit     int
}

// DeadLetters lists dead letters, and does what a person decides about them. Its
// methods may be called by several goroutines, and by several people at once.
type DeadLetters struct {
	begin   begin
	cluster *cluster
}

// DeadLettersForPGX returns the dead letters of a database and of Kafka. begin is as
// for ForPGX. Close it.
func DeadLettersForPGX(begin func(context.Context) (pgx.Tx, error), brokers []string, tls *tls.Config, mechanism sasl.Mechanism) *DeadLetters {
	return &DeadLetters{beginPGX(begin, nil), newCluster(brokers, tls, mechanism)}
}

// DeadLettersForSQL is DeadLettersForPGX for database/sql.
func DeadLettersForSQL(begin func(context.Context) (*sql.Tx, error), brokers []string, tls *tls.Config, mechanism sasl.Mechanism) *DeadLetters {
	return &DeadLetters{beginSQL(begin, nil), newCluster(brokers, tls, mechanism)}
}

// Close closes the connections to Kafka.
func (d *DeadLetters) Close() { d.cluster.close() }

// Markers know their topic, partition, offset and key. When they were processed is not asked: with Retry, and for a letter
// that failed again, that was long before it failed. A record of the key in another partition, from
// before its topic had more of them, is not found. Of earlier letters maxEarlier are counted: with Park a key may have many.
const (
	letterColumns = `d.id, consumer, event_id, kafka_topic, kafka_partition, kafka_offset,
	letter_topic, letter_partition, letter_offset, redrive_topic, reason, attempts, state, failed_at, changed_at,
	(SELECT count(*) FROM (SELECT FROM public.inbox_dead_letters e WHERE e.consumer = d.consumer AND e.state = 'open' AND e.key_hash = d.key_hash
		AND e.kafka_topic = d.kafka_topic AND (e.kafka_partition <> d.kafka_partition AND e.failed_at < d.failed_at OR e.kafka_partition = d.kafka_partition AND e.kafka_offset < d.kafka_offset)
		LIMIT ` + maxEarlier + `) e) AS earlier`
	laterOf = `i.consumer = d.consumer AND i.kafka_topic = d.kafka_topic AND i.kafka_partition = d.kafka_partition AND i.key_hash = d.key_hash AND i.kafka_offset > d.kafka_offset`
	// One pass over the inbox for all letters, not one for each.
	listLetters = `WITH d AS MATERIALIZED (SELECT * FROM public.inbox_dead_letters WHERE ($1 = '' OR consumer = $1) AND ($2 = 'any' OR state = $2) AND failed_at <= now() - $3::float8 * interval '1 second'
		ORDER BY failed_at, kafka_topic, kafka_partition, kafka_offset LIMIT $4::integer),
	l AS (SELECT d.id, count(*) AS later FROM d JOIN public.inbox i ON ` + laterOf + ` GROUP BY d.id)
	SELECT row_to_json(x)::text FROM (SELECT ` + letterColumns + `, coalesce(later, 0) AS later FROM d LEFT JOIN l ON l.id = d.id
	ORDER BY failed_at, kafka_topic, kafka_partition, kafka_offset) x`
	selectLetter  = `SELECT row_to_json(x)::text FROM (SELECT ` + letterColumns + `, (SELECT count(*) FROM public.inbox i WHERE ` + laterOf + `) AS later FROM public.inbox_dead_letters d WHERE d.id = $1::bigint`
	oneLetter     = selectLetter + `) x`
	lockLetter    = selectLetter + ` FOR UPDATE OF d) x`
	letterActions = `SELECT row_to_json(a)::text FROM (SELECT action, actor, note, at FROM public.inbox_dead_letter_actions WHERE dead_letter_id = $1::bigint ORDER BY at) a`
	setState      = `UPDATE public.inbox_dead_letters SET state = $2, changed_at = now() WHERE id = $1::bigint`
	insertAction  = `INSERT INTO public.inbox_dead_letter_actions (dead_letter_id, action, actor, note) VALUES ($1::bigint, $2, $3, $4)`
)

const maxEarlier = "100"

// List returns dead letters, the oldest first.
func (d *DeadLetters) List(ctx context.Context, f Filter) (letters []DeadLetter, err error) {
	or(&f.State, Open)
	or(&f.Limit, 100)
	err = d.begin.within(ctx, func(s session) error {
		letters, err = rows[DeadLetter](ctx, s, listLetters, f.Owner, string(f.State), f.OlderThan.Seconds(), f.Limit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return letters, nil
}

// Show returns a dead letter, what was done about it, and its record with payload. The record
// is the zero value, and the error ErrGone, when the topic has lost it.
func (d *DeadLetters) Show(ctx context.Context, id int64) (l DeadLetter, actions []Action, r Record, err error) {
	err = d.begin.within(ctx, func(s session) error {
		if l, err = letter(ctx, s, oneLetter, id); err != nil {
			return err
		}
		actions, err = rows[Action](ctx, s, letterActions, id)
		return err
	})
	if err != nil {
		return l, nil, r, fmt.Errorf("show dead letter %d: %w", id, err)
	}
	found, err := d.read(ctx, l)
	if err != nil {
		return l, actions, r, fmt.Errorf("show dead letter %d: %w", id, err)
	}
	return l, actions, found.Record, nil
}

// Redrive says who redrives a dead letter, and why.
type Redrive struct {
	Actor, Note string
	// Topic is the consumer's RetryTopic, where the letter does not name it. Never a topic
	// that others read: they may have forgotten the id.
	Topic  string
	Anyway bool // in spite of ErrLater, ErrEarlier, or that it was redriven before
}

// Redrive sends the record of a dead letter to its owner's retry topic, with the same
// event id, so that a record that was handled after all is skipped. The letter is
// done when the owner has handled it, and open again when that failed. A crash or an error can leave
// a record that was sent and a letter that says open; redriving it again is harmless.
func (d *DeadLetters) Redrive(ctx context.Context, id int64, o Redrive) error {
	err := d.act(ctx, id, "redrive", o.Actor, o.Note, Redriven, func(l DeadLetter) error {
		topic := l.RedriveTopic
		if o.Topic != "" {
			topic = o.Topic
		}
		switch {
		case topic == "":
			return ErrNowhere
		case topic != l.RedriveTopic && (topic == l.Topic || topic == l.LetterTopic):
			return fmt.Errorf("%w: %s is where the record %s", ErrTopic, topic, map[bool]string{true: "was first", false: "is"}[topic == l.Topic])
		case l.State != Open && (l.State != Redriven || !o.Anyway):
			return fmt.Errorf("%w: it is %s", ErrState, l.State)
		case l.Earlier > 0 && !o.Anyway:
			return fmt.Errorf("%w (%d)", ErrEarlier, l.Earlier)
		case l.Later > 0 && !o.Anyway:
			return fmt.Errorf("%w (%d)", ErrLater, l.Later)
		}
		r, err := d.read(ctx, l)
		if err != nil {
			return err
		}
		out := r.forwarded(l.Owner, "redriven", 0, kafka.Header{Key: HeaderRedriven, Value: []byte(strconv.FormatInt(id, 10))})
		_, _, err = d.cluster.produce(ctx, topic, r.Key, out)
		if errors.Is(err, kafka.MessageSizeTooLarge) {
			err = fmt.Errorf("%w: %w", ErrTooLarge, err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("redrive dead letter %d: %w", id, err)
	}
	return nil
}

// Discard gives up an unresolved dead letter: its effect will not happen. The record
// stays in the topic.
func (d *DeadLetters) Discard(ctx context.Context, id int64, actor, note string) error {
	err := d.act(ctx, id, "discard", actor, note, Discarded, func(l DeadLetter) error {
		if l.State != Open && l.State != Redriven {
			return fmt.Errorf("%w: it is %s", ErrState, l.State)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("discard dead letter %d: %w", id, err)
	}
	return nil
}

// act does something about a letter that nobody else touches meanwhile, and notes it.
func (d *DeadLetters) act(ctx context.Context, id int64, action, actor, note string, state State, do func(DeadLetter) error) error {
	if !isName(actor) || !isName(note) {
		return ErrActor
	}
	return d.begin.within(ctx, func(s session) error {
		l, err := letter(ctx, s, lockLetter, id)
		if err != nil {
			return err
		}
		if err := do(l); err != nil {
			return err
		}
		if _, err := s.exec(ctx, setState, id, string(state)); err != nil {
			return err
		}
		_, err = s.exec(ctx, insertAction, id, action, actor, note)
		return err
	})
}

// read finds the record of a letter in its topic.
func (d *DeadLetters) read(ctx context.Context, l DeadLetter) (record, error) {
	p, err := d.cluster.end(ctx, l.LetterTopic, l.LetterPartition)
	if err != nil {
		return record{}, err
	}
	if l.LetterOffset < p.FirstOffset || l.LetterOffset >= p.LastOffset {
		return record{}, ErrGone
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := d.cluster.client.Fetch(ctx, &kafka.FetchRequest{Topic: l.LetterTopic, Partition: l.LetterPartition, Offset: l.LetterOffset,
		MinBytes: 1, MaxBytes: fetchBytes, MaxWait: time.Second})
	if err == nil {
		err = answer.Error
	}
	if err != nil {
		return record{}, fmt.Errorf("read %s/%d/%d: %w", l.LetterTopic, l.LetterPartition, l.LetterOffset, err)
	}
	for {
		rec, err := answer.Records.ReadRecord()
		if errors.Is(err, io.EOF) || err == nil && rec.Offset > l.LetterOffset {
			return record{}, ErrGone
		}
		if err != nil {
			return record{}, fmt.Errorf("read %s/%d/%d: %w", l.LetterTopic, l.LetterPartition, l.LetterOffset, err)
		}
		if rec.Offset < l.LetterOffset { // a batch begins before it
			continue
		}
		m := kafka.Message{Topic: l.LetterTopic, Partition: l.LetterPartition, Offset: rec.Offset, Headers: rec.Headers, Time: rec.Time}
		if m.Key, err = kafka.ReadAll(rec.Key); err == nil {
			m.Value, err = kafka.ReadAll(rec.Value)
		}
		if err != nil {
			return record{}, fmt.Errorf("read %s/%d/%d: %w", l.LetterTopic, l.LetterPartition, l.LetterOffset, err)
		}
		r := reader{consumer: l.Owner, retryTopic: l.LetterTopic}.read(m)
		if r.poison != "" || r.foreign || r.ID != l.EventID { // the topic was made anew
			return record{}, ErrGone
		}
		return r, nil
	}
}

func letter(ctx context.Context, tx transaction, query string, id int64) (DeadLetter, error) {
	found, err := rows[DeadLetter](ctx, tx, query, id)
	if err == nil && len(found) == 0 {
		err = ErrNoLetter
	}
	if err != nil {
		return DeadLetter{}, err
	}
	return found[0], nil
}

// rows reads rows as JSON, which is the same with every driver.
func rows[T any](ctx context.Context, tx transaction, query string, args ...any) ([]T, error) {
	lines, err := tx.texts(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(lines))
	for i, line := range lines {
		if err := json.Unmarshal([]byte(line), &all[i]); err != nil {
			return nil, fmt.Errorf("read a row: %w", err)
		}
	}
	return all, nil
}
