package kafkastore_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/checkpoint/checkpointtest"
	"github.com/cdc-relay/cdc-relay/checkpoint/kafkastore"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/fault"
)

func TestRealKafka_KeepsMarks(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Apache Kafka")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	k, err := kafkaserver.Start(ctx, kafkaserver.Options{Settings: map[string]string{"log.cleaner.backoff.ms": "100"}})
	if errors.Is(err, kafkaserver.ErrNoJars) {
		t.Skipf("NO REAL BROKER: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(k.LogPath())
			t.Logf("log of Kafka, the end:\n%s", log[max(0, len(log)-5000):])
		}
		_ = k.Close()
	})
	c := connect(t, k.Addr())

	t.Run("contract", func(t *testing.T) {
		n := 0
		checkpointtest.Run(t, func(t *testing.T) func() checkpoint.Store {
			n++
			cfg := kafkastore.Config{Topic: "marks-" + string(rune('a'+n))}
			if err := kafkastore.New(c, cfg).Ensure(within(t, 20*time.Second)); err != nil {
				t.Fatal(err)
			}
			return func() checkpoint.Store { return kafkastore.New(connect(t, k.Addr()), cfg) }
		})
	})
	t.Run("settings", func(t *testing.T) {
		if err := kafkastore.New(c, kafkastore.Config{Topic: "marks-settings"}).Ensure(within(t, 20*time.Second)); err != nil {
			t.Fatal(err)
		}
		got, err := c.TopicConfig(within(t, 20*time.Second), "marks-settings")
		if err != nil || got["cleanup.policy"] != "compact" || got["min.compaction.lag.ms"] != "600000" || got["segment.ms"] != "600000" {
			t.Fatalf("settings %v, %v", got, err)
		}
	})
	t.Run("missing topic", func(t *testing.T) {
		at := checkpointtest.At(1, 1)
		s := kafkastore.New(c, kafkastore.Config{Topic: "no-such"})
		if _, _, err := s.Load(within(t, 20*time.Second), at.SystemID, at.Slot); fault.ClassOf(err) != fault.Stop {
			t.Fatalf("load: %v; want a stop", err)
		}
		if err := s.Save(within(t, 20*time.Second), at); err == nil || fault.ClassOf(err) == fault.Stop {
			t.Fatalf("save: %v; want an error to try again", err)
		}
		if topics, err := c.Metadata(within(t, 20*time.Second), "no-such"); err != nil || !errors.Is(topics["no-such"].Err, kafka.UnknownTopicOrPartition) {
			t.Fatalf("%+v, %v; the topic was made by accident", topics, err)
		}
	})
	t.Run("compacted", func(t *testing.T) { compacted(t, c) })
	t.Run("killed", func(t *testing.T) { killed(t, c, k) })
}

// compacted saves until the broker has cleaned the log, and loads through the
// holes.
func compacted(t *testing.T, c *broker.Cluster) {
	const name = "marks-compacted"
	err := c.CreateTopic(within(t, 20*time.Second), broker.TopicSpec{Name: name, Partitions: 1, Replication: -1, Config: map[string]string{
		"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0",
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := kafkastore.New(c, kafkastore.Config{Topic: name})
	if err := s.Ensure(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	other := checkpointtest.At(7, 70)
	other.Slot = "other"
	if err := s.Save(within(t, 20*time.Second), other); err != nil {
		t.Fatal(err)
	}
	lsn := pglogrepl.LSN(0)
	deadline := time.Now().Add(25 * time.Second)
	for holes(t, c, name) < 5 {
		if time.Now().After(deadline) {
			t.Fatal("the log was not compacted")
		}
		lsn++
		if err := s.Save(within(t, 20*time.Second), checkpointtest.At(1, lsn)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(60 * time.Millisecond) // the broker rolls segments by its clock
	}
	fresh := kafkastore.New(c, kafkastore.Config{Topic: name})
	if m, ok := load(t, fresh); !ok || m.LSN != lsn {
		t.Fatalf("loaded %d, %v; want %d", m.LSN, ok, lsn)
	}
	if m, ok, err := fresh.Load(within(t, 20*time.Second), other.SystemID, other.Slot); err != nil || !ok || m.LSN != 70 {
		t.Fatalf("loaded %d, %v, %v; want 70", m.LSN, ok, err)
	}
	t.Logf("%d saves, %d holes", lsn+1, holes(t, c, name))
}

// holes counts the offsets below the last record that hold none.
func holes(t *testing.T, c *broker.Cluster, name string) int {
	t.Helper()
	records, next := 0, int64(0)
	for {
		res, err := c.Client().Fetch(within(t, 20*time.Second), &kafka.FetchRequest{Topic: name, Offset: next, MinBytes: 1, MaxBytes: 1 << 20, MaxWait: 10 * time.Millisecond})
		if err == nil {
			err = res.Error
		}
		if err != nil {
			t.Fatal(err)
		}
		before := next
		for {
			r, err := res.Records.ReadRecord()
			if err != nil {
				break
			}
			if r.Offset >= next {
				records++
				next = r.Offset + 1
			}
		}
		if next == before || next >= res.HighWatermark {
			return int(next) - records
		}
	}
}

// killed kills the broker -9 between a save and the next ones.
func killed(t *testing.T, c *broker.Cluster, k *kafkaserver.Broker) {
	s := kafkastore.New(c, kafkastore.Config{Topic: "marks-killed"})
	if err := s.Ensure(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(within(t, 20*time.Second), checkpointtest.At(1, 1)); err != nil {
		t.Fatal(err)
	}
	k.Kill9()
	if err := s.Save(within(t, 3*time.Second), checkpointtest.At(1, 2)); err == nil || fault.ClassOf(err) == fault.Stop {
		t.Fatalf("save without a broker: %v; want an error to try again", err)
	}
	if _, _, err := s.Load(within(t, 3*time.Second), checkpointtest.At(1, 1).SystemID, checkpointtest.At(1, 1).Slot); err == nil || fault.ClassOf(err) == fault.Stop {
		t.Fatalf("load without a broker: %v; want an error to try again", err)
	}
	if err := k.Start(within(t, 2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	retry(t, s, checkpointtest.At(1, 2))
	if m, ok := load(t, kafkastore.New(connect(t, k.Addr()), kafkastore.Config{Topic: "marks-killed"})); !ok || m.LSN != 2 {
		t.Fatalf("loaded %d, %v; want 2", m.LSN, ok)
	}
}
