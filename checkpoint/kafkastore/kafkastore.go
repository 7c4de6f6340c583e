// Package kafkastore keeps marks in a compacted Kafka topic with one partition,
// beside the events and away from the source database.
//
// The key is the system id and the slot, the value the mark as JSON. Load reads
// the whole topic and takes the highest (epoch, LSN), so a write that lands late
// is harmless: that of an instance which was taken over, or one whose answer was
// lost and which a broker carried out after a newer one. Only compaction, which
// keeps the last record of a key and not the highest, could let such a write
// win. A running relay writes its mark again at least every 10 s, and the topic
// keeps every record for 10 minutes before it is compacted, so that this takes a
// relay that dies within those 10 s and stays away for longer than the 10
// minutes. Even then nothing is lost: the slot is ahead of its mark, and the
// relay refuses to start.
package kafkastore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
)

// partition is the only one that is written and read, also in a topic that
// someone made with more.
const partition = 0

// Config of a Store.
type Config struct {
	Topic       string
	Replication int         // of a topic that Ensure makes; -1 or 0 takes the broker's default
	Log         *zap.Logger // nil logs nothing
}

// Store implements checkpoint.Store. It does not own its cluster.
type Store struct {
	cluster *broker.Cluster
	cfg     Config
	log     *zap.Logger

	mu   sync.Mutex
	high checkpoint.Guard
}

// New returns a store on a topic of the cluster. It does nothing yet.
func New(cluster *broker.Cluster, cfg Config) *Store {
	if cfg.Replication == 0 {
		cfg.Replication = -1
	}
	log := cfg.Log
	if log == nil {
		log = zap.NewNop()
	}
	return &Store{cluster: cluster, cfg: cfg, log: log.With(zap.String("topic", cfg.Topic)), high: checkpoint.Guard{}}
}

// Close implements checkpoint.Store. The cluster stays open.
func (s *Store) Close() error { return nil }

// Save implements checkpoint.Store: it returns when the mark is on every replica
// in sync. It tries once; its error carries its class. After an error the mark
// may have been written all the same, which is harmless: it was true.
func (s *Store) Save(ctx context.Context, m checkpoint.Mark) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.high.Check(m); err != nil {
		return err
	}
	value, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode mark %s: %w", m.LSN, err)
	}
	what := fmt.Sprintf("save mark %s of slot %s to topic %s", m.LSN, m.Slot, s.cfg.Topic)
	res, err := s.cluster.Client().Produce(ctx, &kafka.ProduceRequest{
		Topic:        s.cfg.Topic,
		Partition:    partition,
		RequiredAcks: kafka.RequireAll,
		// A reader for this one attempt: one that was read already would send nothing
		// and report success.
		Records: kafka.NewRecordReader(kafka.Record{
			Key:   kafka.NewBytes([]byte(m.Key())),
			Value: kafka.NewBytes(value),
			// The brokers roll segments, and measure the compaction lag, by this.
			Time: time.Now(),
		}),
	})
	if err == nil {
		err = res.Error
	}
	if err != nil {
		return s.failed(ctx, what, err)
	}
	s.high.Raise(m)
	return nil
}

// failed classifies err, drops what the connection has cached where that may be
// the cause, and names the true cause where kafka-go reports another.
func (s *Store) failed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	class, code := broker.Classify(err)
	e := &fault.Error{Class: class, What: what, Err: err}
	switch {
	case code == "TOPIC_AUTHORIZATION_FAILED":
		e.Fix = fmt.Sprintf("grant READ, WRITE and DESCRIBE on topic %s to this user", s.cfg.Topic)
	case class == fault.Poison:
		// A mark is small and well formed: the topic's settings refuse it.
		e.Class = fault.Stop
		e.Fix = fmt.Sprintf("look at the settings of topic %s: they refuse a record of a few kilobytes", s.cfg.Topic)
	case class == fault.Refresh:
		s.cluster.Refresh()
		if cause := s.absent(ctx); cause != nil {
			return fmt.Errorf("%s: %w", what, cause)
		}
	}
	return e
}

// absent tells why the topic cannot be used, nil when it can. That it is missing
// is not Stop here: it may come back, and a relay that runs goes on trying.
func (s *Store) absent(ctx context.Context) error {
	topics, err := s.cluster.Metadata(ctx, s.cfg.Topic)
	if err != nil {
		return err
	}
	err = topics[s.cfg.Topic].Err
	if err == nil {
		return nil
	}
	class, code := broker.Classify(err)
	e := &fault.Error{Class: class, What: fmt.Sprintf("topic %s with the marks cannot be used", s.cfg.Topic), Err: err}
	switch code {
	case "UNKNOWN_TOPIC_OR_PARTITION":
		e.What = fmt.Sprintf("topic %s with the marks does not exist", s.cfg.Topic)
		e.Fix = "run cdc-relay setup, which makes it, or set checkpoint.topic to the one in use"
	case "TOPIC_AUTHORIZATION_FAILED":
		e.Fix = fmt.Sprintf("grant READ, WRITE and DESCRIBE on topic %s to this user", s.cfg.Topic)
	case "INVALID_TOPIC_EXCEPTION":
		e.Class = fault.Stop
		e.Fix = "set checkpoint.topic to a legal topic name"
	}
	return e
}

// exists is absent with a missing topic as Stop, after it was missing for a
// while: a broker that has just started may not know all topics yet.
func (s *Store) exists(ctx context.Context) error {
	const tries, pause = 3, 300 * time.Millisecond
	for i := 1; ; i++ {
		err := s.absent(ctx)
		if err == nil || !errors.Is(err, kafka.UnknownTopicOrPartition) {
			return err
		}
		if i == tries {
			var e *fault.Error
			if errors.As(err, &e) {
				e.Class = fault.Stop
			}
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
