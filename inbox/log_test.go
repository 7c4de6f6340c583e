package inbox_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/inbox"
)

func TestRunner_MarkersOfKafkaTransactionsAreNoRecords(t *testing.T) {
	e := newKafkaEnv(t, 1)
	c, err := kgo.NewClient(kgo.SeedBrokers(e.addr), kgo.TransactionalID(e.db), kgo.DefaultProduceTopic(e.topic))
	e.must(err)
	defer c.Close()
	for _, id := range []string{"a", "b"} {
		e.must(c.BeginTransaction())
		e.must(c.ProduceSync(t.Context(), &kgo.Record{Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}}).FirstErr())
		e.must(c.EndTransaction(t.Context(), kgo.TryCommit))
	}
	// What only looks like a marker is a record.
	answer, err := e.client.Produce(t.Context(), &kafka.ProduceRequest{Topic: e.topic, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(
		kafka.Record{Key: kafka.NewBytes([]byte{0, 0, 0, 1}), Value: kafka.NewBytes([]byte{0, 0, 0, 0, 0, 0})})})
	e.must(errors.Join(err, answer.Error))
	e.run(bill)
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 5 })
	if e.end(e.dead) != 1 || e.invoices() != 2 {
		t.Errorf("%d dead letters, %d invoices", e.end(e.dead), e.invoices())
	}
}

// A topic that is made anew quickly keeps its number of partitions, so nothing ends the
// generation; the reader would wait for its offset and begin in the middle.
func TestRunner_TopicMadeAnewWhileItRunsIsTold(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a", "b", "c", "d", "e")
	r := e.run(bill)
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 5 })
	deleted, err := e.client.DeleteTopics(t.Context(), &kafka.DeleteTopicsRequest{Topics: []string{e.topic}})
	e.must(errors.Join(err, deleted.Errors[e.topic]))
	e.makeTopic(e.topic, 1)
	e.produce(0, "f", "g")
	waitFor(t, "it to tell, or to read from the beginning", func() bool { return r.count(inbox.OffsetsAhead) > 0 || e.invoices() == 7 })
	e.produce(0, "h", "i", "j", "k", "l")
	time.Sleep(3 * time.Second)
	if n := e.invoices(); n != 5 && n != 12 {
		t.Errorf("%d invoices: records were passed over", n)
	}
}

// The log has lost its end, and grows: what it got since is not passed over.
func TestRunner_OffsetAheadOfTheLogStaysSo(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a", "b")
	c, err := kgo.NewClient(kgo.SeedBrokers(e.addr))
	e.must(err)
	defer c.Close()
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: e.topic, Partition: 0, At: 4, LeaderEpoch: -1})
	waitFor(t, "the coordinator", func() bool {
		answer, err := kadm.NewClient(c).CommitOffsets(t.Context(), e.group, offsets)
		return err == nil && answer.Error() == nil
	})
	r := e.run(bill)
	waitFor(t, "it to tell", func() bool { return r.count(inbox.OffsetsAhead) > 0 })
	e.produce(0, "c", "d", "e", "f")
	told := r.count(inbox.OffsetsAhead)
	waitFor(t, "it to look again, or to go on", func() bool { return r.count(inbox.OffsetsAhead) > told+6 || e.invoices() > 0 })
	if e.invoices() != 0 {
		t.Errorf("%d invoices: it went on in the middle", e.invoices())
	}
}

func TestRunner_RecordWithoutOwnerInTheRetryTopicIsADeadLetter(t *testing.T) {
	e := newKafkaEnv(t, 1)
	answer, err := e.client.Produce(t.Context(), &kafka.ProduceRequest{Topic: e.retry, RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("v")), Headers: []kafka.Header{{Key: "id", Value: []byte("a")}}})})
	e.must(errors.Join(err, answer.Error))
	e.run(bill)
	waitFor(t, "the offset", func() bool { return e.offset(e.retry, 0) == 1 })
	if e.end(e.dead) != 1 {
		t.Errorf("%d dead letters", e.end(e.dead))
	}
}

// deleteBefore does what retention does.
func (e *kafkaEnv) deleteBefore(offset int64) {
	e.t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(e.addr))
	e.must(err)
	defer c.Close()
	before := kadm.Offsets{}
	before.Add(kadm.Offset{Topic: e.topic, Partition: 0, At: offset})
	_, err = kadm.NewClient(c).DeleteRecords(context.Background(), before)
	e.must(err)
}

func TestRunner_RetentionThatOvertakesTheGroupIsTold(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a", "b")
	one := e.run(bill)
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 2 })
	e.must(one.stop())
	e.produce(0, "c", "d", "e", "f")
	e.deleteBefore(5)
	two := e.run(bill)
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 6 })
	if two.count(inbox.OffsetsLost) != 3 || e.invoices() != 3 {
		t.Errorf("%d offsets lost, %d invoices", two.count(inbox.OffsetsLost), e.invoices())
	}
}

// Batch counts records, and a record has up to a megabyte.
func TestRunner_HoldsABoundedNumberOfBytes(t *testing.T) {
	e := newKafkaEnv(t, 1)
	large := ":k:" + strings.Repeat("x", 900<<10)
	for i := range 60 {
		e.produce(0, "event-"+strconv.Itoa(i)+large)
	}
	var most atomic.Int64
	e.run(func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		time.Sleep(20 * time.Millisecond) // or nothing is read beside it
		return bill(ctx, tx, r)
	}, func(c *inbox.Config) {
		c.Observe = func(ev inbox.Event) {
			if ev.Kind == inbox.Processed && ev.N > most.Load() {
				most.Store(ev.N)
			}
		}
	})
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 60 })
	if n := most.Load() * 900 << 10; n > 32<<20 || e.invoices() != 60 {
		t.Errorf("%d bytes in one transaction, %d invoices", n, e.invoices())
	}
}
