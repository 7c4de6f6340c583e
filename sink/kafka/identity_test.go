package kafka

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/sink"
)

// sent is a batch as a broker got it.
type sent struct {
	producer
	records int32
	raw     []byte
}

func (s sent) String() string {
	return fmt.Sprintf("epoch %d, sequence %d, %d records", s.epoch, s.sequence, s.records)
}

// wiretap keeps every batch that reaches the cluster for a partition of topic t.
type wiretap struct {
	mu   sync.Mutex
	list []sent
}

func tap(kf *kfake.Cluster, partition int32) *wiretap {
	w := &wiretap{}
	kf.ControlKey(produceKey, func(req kmsg.Request) (kmsg.Response, error, bool) {
		kf.KeepControl()
		for _, rt := range req.(*kmsg.ProduceRequest).Topics {
			for _, rp := range rt.Partitions {
				var b kmsg.RecordBatch
				if rp.Partition == partition && b.ReadFrom(rp.Records) == nil {
					w.mu.Lock()
					w.list = append(w.list, sent{producer{b.ProducerID, b.ProducerEpoch, b.FirstSequence}, b.NumRecords, bytes.Clone(rp.Records)})
					w.mu.Unlock()
				}
			}
		}
		return nil, nil, false
	})
	return w
}

func (w *wiretap) all() []sent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.list
}

// onProduce has the next produce requests answered with errors, one each.
func onProduce(kf *kfake.Cluster, errs ...*kerr.Error) {
	for _, err := range errs {
		kf.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: err, Count: 1})
	}
}

// oneByOne publishes records first..last-1 to partition 0 of t, each in a batch of
// its own.
func oneByOne(t *testing.T, s *Sink, first, last int) *ackLog {
	t.Helper()
	acks := newAckLog()
	for i := first; i < last; i++ {
		publish(t, s, numbered("t", 0, i), sink.Ack{To: acks, Tx: uint64(i)})
		drain(t, s)
	}
	return acks
}

// holds checks that partition 0 of t has these records and no others.
func holds(t *testing.T, kf *kfake.Cluster, want ...int) {
	t.Helper()
	var got []int
	for _, r := range consume(t, kf.ListenAddrs(), "t", len(want))[0] {
		var i int
		fmt.Sscan(string(r.Value), &i)
		got = append(got, i)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("the partition has %v, want %v", got, want)
	}
}

func TestProducer_SequenceWraps(t *testing.T) {
	for _, c := range []struct {
		from int32
		n    int
		want int32
	}{
		{0, 1, 1}, {math.MaxInt32, 1, 0}, {math.MaxInt32 - 5, 5, math.MaxInt32}, {math.MaxInt32 - 5, 6, 0}, {math.MaxInt32 - 5, 10, 4},
	} {
		if got := (producer{7, 1, c.from}).after(c.n); got != (producer{7, 1, c.want}) {
			t.Errorf("%d records after sequence %d: %+v, want %d", c.n, c.from, got, c.want)
		}
	}
}

func TestIdentity_SequencesFollowAndRetriesAreTheSameBytes(t *testing.T) {
	for _, codec := range []string{"none", "zstd"} {
		t.Run(codec, func(t *testing.T) {
			kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
			s := openSink(t, kf.ListenAddrs(), func(c *Config) { c.Compression = codec })
			oneByOne(t, s, 0, 3)
			w := tap(kf, 0)
			onProduce(kf, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut)
			rec := numbered("t", 0, 3)
			rec.Value = bytes.Repeat([]byte("3"), 1000)
			publish(t, s, rec, sink.Ack{To: newAckLog(), Tx: 1})
			drain(t, s)
			list := w.all()
			if len(list) != 4 || list[0].id < 0 || list[0].epoch != 0 || list[0].sequence != 3 {
				t.Fatalf("sent %v", list)
			}
			for _, b := range list[1:] {
				if !bytes.Equal(b.raw, list[0].raw) {
					t.Fatalf("sent again with other bytes: %v, then %v", list[0], b)
				}
			}
			oneByOne(t, s, 4, 5)
			if last := w.all()[4]; last.sequence != 4 || last.id != list[0].id {
				t.Fatalf("next: %v", last)
			}
			if n := len(consume(t, kf.ListenAddrs(), "t", 5)[0]); n != 5 {
				t.Fatalf("%d records", n)
			}
			if st := s.Stats(); st.ProducerIDResets != 0 || st.Retries != 3 {
				t.Fatalf("%d resets, %d retries", st.ProducerIDResets, st.Retries)
			}
		})
	}
}

// A broker that knows nothing of the producer, or something else, is sent the same
// records in another name.
func TestIdentity_BeginsAnewWhenTheBrokerLostIt(t *testing.T) {
	for name, c := range map[string]struct {
		err   *kerr.Error
		newID bool
	}{
		"OutOfOrderSequence":   {kerr.OutOfOrderSequenceNumber, false},
		"UnknownProducerID":    {kerr.UnknownProducerID, false},
		"InvalidProducerEpoch": {kerr.InvalidProducerEpoch, true},
		"ProducerFenced":       {kerr.ProducerFenced, true},
	} {
		t.Run(name, func(t *testing.T) {
			kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
			s := openSink(t, kf.ListenAddrs(), nil)
			w := tap(kf, 0)
			oneByOne(t, s, 0, 2)
			onProduce(kf, c.err)
			acks := oneByOne(t, s, 2, 4)
			if acks.sum() != 2 {
				t.Fatalf("%d acks", acks.sum())
			}
			holds(t, kf, 0, 1, 2, 3)
			list := w.all()
			if len(list) != 5 {
				t.Fatalf("sent %v", list)
			}
			refused, again, next := list[2], list[3], list[4]
			if newID := again.id != refused.id; newID != c.newID || !newID && again.epoch != refused.epoch+1 {
				t.Errorf("refused: %v, then %v", refused, again)
			}
			if again.sequence != 0 || next.producer != again.after(1) {
				t.Errorf("then %v, %v", again, next)
			}
			if n := s.Stats().ProducerIDResets; n != 1 {
				t.Errorf("%d resets", n)
			}
		})
	}
}

func TestIdentity_DuplicateIsAnAck(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	s := openSink(t, kf.ListenAddrs(), nil)
	w := tap(kf, 0)
	onProduce(kf, kerr.DuplicateSequenceNumber)
	if acks := oneByOne(t, s, 0, 1); acks.sum() != 1 || len(w.all()) != 1 {
		t.Fatalf("%d acks, sent %v", acks.sum(), w.all())
	}
}

func TestIdentity_TakesAnotherIDAfterTheLastEpoch(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	s := openSink(t, kf.ListenAddrs(), nil)
	eventually(t, "there is a producer id", func() bool { return !s.nameless() })
	s.mu.Lock()
	s.who.epoch = math.MaxInt16
	s.mu.Unlock()
	w := tap(kf, 0)
	oneByOne(t, s, 0, 1)
	onProduce(kf, kerr.OutOfOrderSequenceNumber)
	oneByOne(t, s, 1, 2)
	holds(t, kf, 0, 1)
	if list := w.all(); list[2].id == list[0].id || list[2].epoch != 0 || list[2].sequence != 0 {
		t.Fatalf("sent %v", list)
	}
}

// What was written without an answer, and is then dropped, parked or split, leaves
// its sequence numbers to nothing else: a broker would take that for a copy, and
// it would be lost.
func TestIdentity_NumbersOfADroppedBatchStandForNothingElse(t *testing.T) {
	t.Run("AbortedBetweenAttempts", func(t *testing.T) {
		kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
		s := openSink(t, kf.ListenAddrs(), func(c *Config) { c.RetryMin, c.RetryMax = time.Hour, time.Hour })
		onProduce(kf, kerr.RequestTimedOut) // written all the same
		publish(t, s, numbered("t", 0, 0), sink.Ack{To: newAckLog(), Tx: 1})
		eventually(t, "the attempt has failed", func() bool { return s.Stats().Requests == 1 })
		if err := s.Abort(testContext(t)); err != nil {
			t.Fatal(err)
		}
		oneByOne(t, s, 10, 12)
		holds(t, kf, 0, 10, 11)
		if n := s.Stats().ProducerIDResets; n != 0 {
			t.Errorf("%d resets: the sink sent nothing twice", n)
		}
	})
	t.Run("AbortedInFlight", func(t *testing.T) {
		kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
		s := openSink(t, kf.ListenAddrs(), nil)
		onProduce(kf, kerr.RequestTimedOut)
		release := holdProduce(kf)
		old := newAckLog()
		publish(t, s, numbered("t", 0, 0), sink.Ack{To: old, Tx: 1})
		eventually(t, "the request is in flight", func() bool { return flying(s) })
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_ = s.Abort(ctx)
		publish(t, s, numbered("t", 0, 10), sink.Ack{To: newAckLog(), Tx: 2})
		release()
		drain(t, s)
		holds(t, kf, 0, 10)
		if old.sum() != 0 {
			t.Errorf("%d acks of what was aborted", old.sum())
		}
	})
	t.Run("Parked", func(t *testing.T) {
		kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
		s := openSink(t, kf.ListenAddrs(), func(c *Config) { c.Refused = park(nil) })
		onProduce(kf, kerr.RequestTimedOut, kerr.InvalidRecord)
		if acks := oneByOne(t, s, 0, 3); acks.sum() != 3 {
			t.Fatalf("%d acks", acks.sum())
		}
		holds(t, kf, 0, 1, 2) // 0 is parked as well
	})
	t.Run("Split", func(t *testing.T) {
		kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
		s := openSink(t, kf.ListenAddrs(), nil)
		for _, err := range []*kerr.Error{kerr.RequestTimedOut, kerr.MessageTooLarge} {
			kf.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: err, Count: 1, When: longerThan(1)})
		}
		if acks := together(t, kf, s, 5); acks.sum() != 5 {
			t.Fatalf("%d acks", acks.sum())
		}
		holds(t, kf, 0, 1, 2, 3, 4, 1, 2, 3, 4)
		// Not by the broker's refusal of the parts.
		if st := s.Stats(); st.ProducerIDResets != 1 || st.Errors[sink.ErrorKey{Class: fault.Retry, Code: "OUT_OF_ORDER_SEQUENCE_NUMBER"}] != 0 {
			t.Errorf("%d resets, errors %v", st.ProducerIDResets, st.Errors)
		}
	})
}

// Parts of a batch that is split, and what follows a record that is taken out,
// carry the numbers that follow what was written.
func TestIdentity_SequencesHaveNoHoles(t *testing.T) {
	t.Run("Split", func(t *testing.T) {
		kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
		s := openSink(t, kf.ListenAddrs(), nil)
		w := tap(kf, 0)
		kf.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.MessageTooLarge, Count: -1, When: longerThan(3)})
		together(t, kf, s, 12)
		w.follow(t, s, 3)
		holds(t, kf, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	})
	t.Run("Parked", func(t *testing.T) {
		kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
		var ids []string
		s := openSink(t, kf.ListenAddrs(), func(c *Config) { c.Refused = park(&ids) })
		w := tap(kf, 0)
		kf.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, Count: -1, When: func(req kmsg.Request) bool {
			return bytes.Contains(req.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records, []byte("id\x027"))
		}})
		together(t, kf, s, 10)
		w.follow(t, s, 10)
		holds(t, kf, 0, 1, 2, 3, 4, 5, 6, 8, 9)
		if fmt.Sprint(ids) != "[7]" {
			t.Errorf("parked %v", ids)
		}
	})
}

// follow checks that no identity was given up, and that the batches of at most
// size records which were not sent again, or in parts, follow each other.
func (w *wiretap) follow(t *testing.T, s *Sink, size int32) {
	t.Helper()
	if n := s.Stats().ProducerIDResets; n != 0 {
		t.Errorf("%d resets; sent %v", n, w.all())
	}
	list, next := w.all(), int32(0)
	for i, b := range list {
		if b.id != list[0].id || b.epoch != 0 {
			t.Fatalf("another identity: %v", list)
		}
		refused := i+1 < len(list) && list[i+1].sequence == b.sequence
		if b.sequence != next {
			t.Fatalf("batch %d should have sequence %d: %v", i, next, list)
		}
		if !refused {
			next = b.sequence + b.records
			if b.records > size {
				t.Fatalf("batch %d is too long: %v", i, list)
			}
		}
	}
}

// longerThan chooses requests whose first batch has more than n records.
func longerThan(n int32) func(kmsg.Request) bool {
	return func(req kmsg.Request) bool {
		var b kmsg.RecordBatch
		return b.ReadFrom(req.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records) == nil && b.NumRecords > n
	}
}

// together publishes n records to partition 0 of t: the first alone, the others in
// one batch.
func together(t *testing.T, kf *kfake.Cluster, s *Sink, n int) *ackLog {
	t.Helper()
	acks, release := newAckLog(), holdProduce(kf)
	for i := range n {
		publish(t, s, numbered("t", 0, i), sink.Ack{To: acks, Tx: uint64(i)})
		if i == 0 {
			eventually(t, "the first is in flight", func() bool { return flying(s) })
		}
	}
	release()
	drain(t, s)
	return acks
}

func TestIdentity_IdleLanesGoOnWhereTheyWere(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(2, "t"))
	s := openSink(t, kf.ListenAddrs(), func(c *Config) { c.LookInterval, c.IdleTimeout = 10*time.Millisecond, 30*time.Millisecond })
	w := tap(kf, 0)
	oneByOne(t, s, 0, 2)
	// Another partition keeps the topic, but not the lane.
	eventually(t, "the lane is let go", func() bool {
		publish(t, s, numbered("t", 1, 1000), sink.Ack{To: newAckLog(), Tx: 1})
		drain(t, s)
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.topics["t"].lanes[0] == nil
	})
	oneByOne(t, s, 2, 4)
	eventually(t, "the topic is let go", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.topics) == 0
	})
	oneByOne(t, s, 4, 6)
	w.follow(t, s, 1)
	if n := len(w.all()); n != 6 {
		t.Fatalf("sent %d batches", n)
	}
	got := consume(t, kf.ListenAddrs(), "t", 7)[0]
	if len(got) != 6 {
		t.Fatalf("%d records", len(got))
	}
}

// Only so many topics are remembered; those that were forgotten begin as another
// producer.
func TestIdentity_ForgottenTopicsBeginAsAnotherProducer(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	s := openSink(t, kf.ListenAddrs(), func(c *Config) { c.LookInterval, c.IdleTimeout = 10*time.Millisecond, 30*time.Millisecond })
	w := tap(kf, 0)
	oneByOne(t, s, 0, 2)
	s.mu.Lock()
	for i := range maxRetired {
		s.retired[fmt.Sprint("other-", i)] = map[int32]producer{}
	}
	s.mu.Unlock()
	eventually(t, "the topic is let go, and the others are forgotten", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.topics) == 0 && len(s.retired) == 1
	})
	s.mu.Lock()
	clear(s.retired)
	s.mu.Unlock()
	oneByOne(t, s, 2, 4)
	holds(t, kf, 0, 1, 2, 3)
	if list := w.all(); list[2].id == list[0].id || list[2].sequence != 0 {
		t.Fatalf("sent %v", list)
	}
}

func TestIdentity_IsWaitedFor(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	h := kf.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: kerr.CoordinatorLoadInProgress, Count: -1})
	s := openSink(t, kf.ListenAddrs(), nil)
	w := tap(kf, 0)
	acks := newAckLog()
	publish(t, s, numbered("t", 0, 0), sink.Ack{To: acks, Tx: 1})
	eventually(t, "status says why", func() bool {
		ls := s.Lanes()
		return len(ls) == 1 && strings.Contains(ls[0].LastError, "producer id") && !ls[0].Since.IsZero()
	})
	if len(w.all()) != 0 || h.Hits() < 1 {
		t.Fatalf("sent %v; asked %d times", w.all(), h.Hits())
	}
	h.Remove()
	drain(t, s)
	if acks.sum() != 1 || !w.all()[0].known() {
		t.Fatalf("%d acks; sent %v", acks.sum(), w.all())
	}
}

// Without the privilege the records wait, with the reason in status, and go on by
// themselves.
func TestIdentity_MissingPrivilegeHaltsAndHeals(t *testing.T) {
	for name, key := range map[string]kmsg.Key{"InitProducerID": kmsg.InitProducerID, "Produce": kmsg.Produce} {
		t.Run(name, func(t *testing.T) {
			kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
			h := kf.Fault(kfake.Fault{Keys: []kmsg.Key{key}, TopLevel: key == kmsg.InitProducerID, Err: kerr.ClusterAuthorizationFailed, Count: -1})
			s := openSink(t, kf.ListenAddrs(), nil)
			acks := newAckLog()
			publish(t, s, numbered("t", 0, 0), sink.Ack{To: acks, Tx: 1})
			eventually(t, "the lane is halted", func() bool { return s.Lanes()[0].Halted != nil })
			if reason := s.Lanes()[0].Halted.Reason.Error(); !strings.Contains(reason, "IDEMPOTENT_WRITE") {
				t.Errorf("reason: %s", reason)
			}
			if err := s.Err(); err != nil {
				t.Fatal(err)
			}
			h.Remove()
			eventually(t, "the lane goes on", func() bool { return acks.sum() == 1 })
			drain(t, s)
			if ln := s.Lanes()[0]; ln.Halted != nil {
				t.Fatalf("still halted: %v", ln.Halted.Reason)
			}
		})
	}
}

func flying(s *Sink) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flying > 0
}

// park parks every record that is refused, and notes its id.
func park(ids *[]string) sink.Refused {
	return func(_ context.Context, r sink.Refusal, _ *sink.Record) (sink.Verdict, error) {
		if ids != nil {
			*ids = append(*ids, r.ID)
		}
		return sink.Parked, nil
	}
}
