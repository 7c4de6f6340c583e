package kafka

import (
	"context"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/sink"
)

// Codes of Kafka.
const (
	outOfOrderSequence   = 45
	invalidProducerEpoch = 47
)

// TestReal_ProducersAsWeRelyOnThem sends Apache Kafka batches by hand and looks at
// what it answers, and at what it has.
func TestReal_ProducersAsWeRelyOnThem(t *testing.T) {
	addrs := []string{startReal(t, "producer.id.expiration.check.interval.ms", "200").Addr()}
	h := newByHand(t, addrs)

	t.Run("CopiesAndLateAttempts", func(t *testing.T) {
		h.topic(t, "late", 1)
		p := h.producer(t)
		h.send(t, 0, p, 3, 0)
		h.send(t, 0, p, 3, 0) // it has it
		for i := range 4 {
			h.send(t, 0, p.after(3+i), 1, 0)
		}
		h.send(t, 0, p, 3, 0)                                     // among the last five: it has it
		h.send(t, 0, p.after(7), 1, 0)                            // a sixth
		h.send(t, 0, p, 3, outOfOrderSequence)                    // no longer known as a copy, and refused
		h.send(t, 0, p.after(9), 1, outOfOrderSequence)           // a hole
		h.send(t, 0, producer{p.id, 1, 1}, 1, outOfOrderSequence) // an epoch begins at 0
		h.send(t, 0, producer{p.id, 1, 0}, 2, 0)
		h.send(t, 0, p.after(8), 1, invalidProducerEpoch) // late, of the epoch before
		if n := written(t, addrs, "late"); n != 10 {
			t.Fatalf("%d records, want 10", n)
		}
	})
	t.Run("EpochsArePerPartition", func(t *testing.T) {
		h.topic(t, "two", 2)
		p := h.producer(t)
		h.send(t, 0, p, 1, 0)
		h.send(t, 1, p, 1, 0)
		h.send(t, 0, producer{p.id, 1, 0}, 1, 0)
		h.send(t, 1, p.after(1), 1, 0)
		h.send(t, 0, producer{p.id, 1, 1}, 1, 0)
	})
	t.Run("NumbersThatStandForSomethingElse", func(t *testing.T) {
		// Why a number is never used again: these three are lost.
		h.topic(t, "lost", 1)
		p := h.producer(t)
		h.send(t, 0, p, 3, 0)
		h.value = "other"
		h.send(t, 0, p, 3, 0)
		h.value = "value"
		if n := written(t, addrs, "lost"); n != 3 {
			t.Fatalf("%d records, want 3", n)
		}
	})
	t.Run("ForgottenByTheTimeOfItsRecords", func(t *testing.T) {
		// The limit of the promise: a copy of old records may be taken for new.
		h.topic(t, "old", 1)
		p := h.producer(t)
		h.age = 48 * time.Hour
		h.send(t, 0, p, 3, 0)
		h.waitForgotten(t)
		h.send(t, 0, p, 3, 0)
		h.age = 0
		if n := written(t, addrs, "old"); n != 6 {
			t.Fatalf("%d records, want 6", n)
		}
	})
	t.Run("SequenceWraps", func(t *testing.T) { h.wraps(t) })
	t.Run("ForgottenProducer", func(t *testing.T) { h.forgotten(t) })
}

// byHand sends batches without a sink.
type byHand struct {
	addrs   []string
	cluster *broker.Cluster
	admin   *kadm.Client
	name    string
	value   string
	age     time.Duration // of the records
}

func newByHand(t *testing.T, addrs []string) *byHand {
	t.Helper()
	c, err := broker.Open(broker.Config{Brokers: addrs, MetadataTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		cl.Close()
	})
	return &byHand{addrs: addrs, cluster: c, admin: kadm.NewClient(cl), value: "value"}
}

func (h *byHand) topic(t *testing.T, name string, parts int32) {
	t.Helper()
	createTopic(t, h.addrs, name, parts)
	h.name = name
}

func (h *byHand) producer(t *testing.T) producer {
	t.Helper()
	p := noProducer
	eventually(t, "there is a producer id", func() bool { // a broker that was just started has none for a while
		id, epoch, err := h.cluster.InitProducerID(testContext(t))
		p = producer{id: id, epoch: epoch}
		return err == nil
	})
	return p
}

// send writes n records in one batch and expects the code, once the partition has
// a leader.
func (h *byHand) send(t *testing.T, partition int32, p producer, n int, want int16) {
	t.Helper()
	recs := make([]sink.Record, n)
	for i := range recs {
		recs[i] = sink.Record{Value: []byte(h.value), Timestamp: time.Now().Add(-h.age).UnixMilli()}
	}
	parts := []part{{topic: h.name, partition: partition, batch: encodeAll(t, recs, compress.None, p)}}
	eventually(t, "the batch is answered", func() bool {
		topics, err := h.cluster.Metadata(testContext(t), h.name)
		if err != nil || len(topics[h.name].Partitions) <= int(partition) || topics[h.name].Partitions[partition].Err != nil {
			return false
		}
		ctx, cancel := context.WithTimeout(testContext(t), 5*time.Second)
		defer cancel()
		req := newRequest(ctx, topics[h.name].Partitions[partition].Leader.ID, "by-hand", time.Second, parts)
		res, err := h.cluster.Transport().RoundTrip(ctx, h.cluster.Addr(), req)
		req.settle()
		if err != nil {
			return false
		}
		code := res.(*produce.Response).Topics[0].Partitions[0].ErrorCode
		if code == 3 || code == 6 { // UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER: a new topic
			return false
		}
		if code != want {
			t.Fatalf("%d records at sequence %d, epoch %d: answered with %d, want %d", n, p.sequence, p.epoch, code, want)
		}
		return true
	})
}

// wraps lets a sink pass the largest sequence.
func (h *byHand) wraps(t *testing.T) {
	h.topic(t, "wrap", 1)
	s := openSink(t, h.addrs, func(c *Config) { c.MaxBatchBytes = 4 << 10 })
	acks, want := newAckLog(), map[int32][]int{}
	eventually(t, "there is a producer id", func() bool { return !s.nameless() })
	s.mu.Lock()
	s.who.sequence = math.MaxInt32 - 500
	s.mu.Unlock()
	for i := range 1000 {
		publish(t, s, numbered("wrap", 0, i), sink.Ack{To: acks, Tx: 1})
		want[0] = append(want[0], i)
	}
	drain(t, s)
	if copies := inOrder(t, consume(t, h.addrs, "wrap", 1000), want); copies != 0 || s.Stats().ProducerIDResets != 0 {
		t.Fatalf("%d copies, %d resets", copies, s.Stats().ProducerIDResets)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if who := s.topics["wrap"].lanes[0].who; who.sequence != 499 || who.epoch != 0 {
		t.Fatalf("after the last: %+v", who)
	}
}

// forgotten has the broker forget a producer, as it does after a day without a
// record, and goes on: nothing is lost, or written twice.
func (h *byHand) forgotten(t *testing.T) {
	h.topic(t, "forgotten", 1)
	s := openSink(t, h.addrs, nil)
	acks, want := newAckLog(), map[int32][]int{}
	stream := func(first, last int) {
		for i := first; i < last; i++ {
			publish(t, s, numbered("forgotten", 0, i), sink.Ack{To: acks, Tx: 1})
			want[0] = append(want[0], i)
		}
		drain(t, s)
	}
	stream(0, 100)
	h.set(t, "producer.id.expiration.ms", 100)
	h.waitForgotten(t)
	h.set(t, "producer.id.expiration.ms", 86_400_000)
	stream(100, 200)
	t.Logf("%d resets; errors %v", s.Stats().ProducerIDResets, s.Stats().Errors)
	if copies := inOrder(t, consume(t, h.addrs, "forgotten", 200), want); copies != 0 || acks.sum() != 200 {
		t.Fatalf("%d copies, %d acks", copies, acks.sum())
	}
}

func (h *byHand) waitForgotten(t *testing.T) {
	t.Helper()
	eventually(t, "the broker has forgotten the producer", func() bool {
		d, err := h.admin.DescribeProducers(testContext(t), kadm.TopicsSet{h.name: {0: {}}})
		return err == nil && len(d.SortedProducers()) == 0
	})
}

func (h *byHand) set(t *testing.T, name string, value int) {
	t.Helper()
	v := strconv.Itoa(value)
	res, err := h.admin.AlterBrokerConfigs(testContext(t), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &v}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range res {
		if r.Err != nil {
			t.Fatal(r.Err, r.ErrMessage)
		}
	}
}
