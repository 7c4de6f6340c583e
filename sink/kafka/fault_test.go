package kafka

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/sink"
)

var produceKey = int16(kmsg.Produce)

// stream publishes records first..last-1 of topic t to their partitions by key,
// and notes where each belongs.
func stream(t testing.TB, s *Sink, acks *ackLog, first, last int, parts int32, want map[int32][]int) {
	t.Helper()
	for i := first; i < last; i++ {
		rec := numbered("t", sink.PartitionByKey, i)
		p := partitionOf(rec.Key, parts)
		want[p] = append(want[p], i)
		publish(t, s, rec, sink.Ack{To: acks, Tx: uint64(i)})
	}
}

func TestLane_HealsFromErrorsInOrder(t *testing.T) {
	for _, c := range []struct {
		name string
		err  *kerr.Error
	}{
		{"NotLeader", kerr.NotLeaderForPartition},
		{"TimedOutAfterAppend", kerr.RequestTimedOut},
		{"NotEnoughReplicas", kerr.NotEnoughReplicas},
		{"NotEnoughReplicasAfterAppend", kerr.NotEnoughReplicasAfterAppend},
		{"UnknownServerError", kerr.UnknownServerError},
		{"InvalidRequest", kerr.InvalidRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			kf := startKafka(t, kfake.NumBrokers(2), kfake.SeedTopics(3, "t"))
			s := openSink(t, kf.ListenAddrs(), nil)
			acks, want := newAckLog(), make(map[int32][]int)
			stream(t, s, acks, 0, 500, 3, want)
			h := kf.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: c.err, Count: 8})
			stream(t, s, acks, 500, 3000, 3, want)
			drain(t, s)
			if h.Hits() < 8 {
				t.Fatalf("only %d faults were hit", h.Hits())
			}
			copies := inOrder(t, consumeAll(t, kf.ListenAddrs(), "t", 3000), want)
			if acks.sum() != 3000 {
				t.Fatalf("%d acks for 3000 records", acks.sum())
			}
			if n := s.Stats().ProducerIDResets; copies > 0 || n > 0 {
				t.Fatalf("%d copies, %d resets", copies, n)
			}
			for _, ln := range s.Lanes() {
				if ln.LastError != "" || !ln.Since.IsZero() {
					t.Fatalf("a lane that is well says %q", ln.LastError)
				}
			}
		})
	}
}

func TestLane_HealsFromABrokenConnection(t *testing.T) {
	for name, noAnswer := range map[string]bool{"EOF": false, "NoAnswer": true} {
		t.Run(name, func(t *testing.T) {
			kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(3, "t"), kfake.SleepOutOfOrder())
			s := openSink(t, kf.ListenAddrs(), func(c *Config) { c.RequestTimeout = 300 * time.Millisecond })
			acks, want := newAckLog(), make(map[int32][]int)
			stream(t, s, acks, 0, 300, 3, want)
			var hits atomic.Int32
			kf.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
				if hits.Add(1) > 5 {
					kf.DropControl()
					return nil, nil, false
				}
				kf.KeepControl()
				if noAnswer {
					return nil, nil, true
				}
				return nil, errors.New("gone"), true
			})
			stream(t, s, acks, 300, 2000, 3, want)
			drain(t, s)
			if hits.Load() < 5 {
				t.Fatalf("only %d requests were broken", hits.Load())
			}
			if copies := inOrder(t, consumeAll(t, kf.ListenAddrs(), "t", 2000), want); copies > 0 {
				t.Fatalf("%d copies", copies)
			}
		})
	}
}

func TestLane_FollowsItsLeaderWithinTwoSeconds(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(3), kfake.SeedTopics(1, "t"))
	s := openSink(t, kf.ListenAddrs(), func(c *Config) {
		c.RetryMin, c.RetryMax, c.LookInterval = 50*time.Millisecond, time.Second, time.Hour
	})
	acks, want := newAckLog(), make(map[int32][]int)
	stream(t, s, acks, 0, 10, 1, want)
	drain(t, s)
	var worst time.Duration
	for i := range 6 {
		to := (kf.LeaderFor("t", 0) + 1) % 3
		if i == 4 {
			to = 7 // a broker that nobody has heard of
			if _, _, err := kf.AddNode(to, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := kf.MoveTopicPartition("t", 0, to); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		stream(t, s, acks, 10+i, 11+i, 1, want)
		drain(t, s)
		worst = max(worst, time.Since(start))
	}
	t.Logf("slowest recovery %s", worst)
	if worst > 2*time.Second {
		t.Fatalf("producing again took %s after the leader moved", worst)
	}
	inOrder(t, consume(t, kf.ListenAddrs(), "t", 16), want)
}

func TestSender_OneSlowPartitionDoesNotHoldTheOthers(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(8, "t"), kfake.SleepOutOfOrder())
	s := openSink(t, kf.ListenAddrs(), func(c *Config) { c.RequestTimeout = 20 * time.Second })
	acks := newAckLog()
	for p := range int32(8) {
		publish(t, s, numbered("t", p, 0), sink.Ack{To: acks, Tx: 0})
	}
	drain(t, s)
	kf.ControlKey(produceKey, func(req kmsg.Request) (kmsg.Response, error, bool) {
		kf.KeepControl()
		if contains(req.(*kmsg.ProduceRequest), 3) {
			kf.SleepControl(func() { time.Sleep(700 * time.Millisecond) })
		}
		return nil, nil, false
	})
	stop := time.Now().Add(6 * time.Second)
	counts := make([]int, 8)
	for i := 1; time.Now().Before(stop); i++ {
		for p := range int32(8) {
			publish(t, s, numbered("t", p, i), sink.Ack{To: acks, Tx: uint64(p) + 1})
		}
		time.Sleep(time.Millisecond)
		if i%50 == 0 { // how far are the others behind?
			for p := range 8 {
				counts[p] = max(counts[p]/2, i-acks.of(uint64(p)+1))
			}
		}
	}
	t.Logf("waiting per partition at the end: %v", counts)
	for p, n := range counts {
		if p != 3 && n > 300 {
			t.Errorf("partition %d has %d records waiting behind the slow one", p, n)
		}
	}
	drain(t, s)
}

// contains tells that the request has records for partition p.
func contains(req *kmsg.ProduceRequest, p int32) bool {
	for _, rt := range req.Topics {
		for _, rp := range rt.Partitions {
			if rp.Partition == p {
				return true
			}
		}
	}
	return false
}

func TestLane_HaltsAtATooLargeRecordAndOthersGoOn(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(2, "t"), kfake.BrokerConfigs(map[string]string{"message.max.bytes": "20000"}))
	var refused atomic.Int32
	var verdict atomic.Int32
	var seen atomic.Value
	s := openSink(t, kf.ListenAddrs(), func(c *Config) {
		c.Refused = func(_ context.Context, r sink.Refusal, rec *sink.Record) (sink.Verdict, error) {
			refused.Add(1)
			seen.Store([2]string{r.ID, string(rec.Headers[0].Value)})
			if verdict.Load() == 2 {
				verdict.Store(1)
				return sink.Halt, errors.New("the dead-letter topic is away")
			}
			return sink.Verdict(verdict.Load()), nil
		}
	})
	run := func(acks *ackLog) {
		for i := range 200 {
			for p := range int32(2) {
				rec := numbered("t", p, i)
				if p == 0 && i == 50 {
					rec.Value = make([]byte, 30000)
				}
				publish(t, s, rec, sink.Ack{To: acks, Tx: uint64(p)})
			}
		}
	}
	acks := newAckLog()
	release := holdProduce(kf) // so that the large record is amid a batch
	run(acks)
	release()
	if err := s.Drain(testContext(t)); !errors.Is(err, sink.ErrHalted) {
		t.Fatalf("drain: %v", err)
	}
	if acks.of(0) != 50 || acks.of(1) != 200 {
		t.Fatalf("%d and %d acks, want 50 before the refused record, and 200 of the other partition", acks.of(0), acks.of(1))
	}
	ln := s.Lanes()[0]
	if ln.Halted == nil || ln.Halted.ID != "50" || ln.Halted.Seq != 50 || ln.Halted.LSN != 100 || ln.Halted.Reason == nil || ln.Queued != 150 {
		t.Fatalf("lane %+v, halted %+v", ln, ln.Halted)
	}
	if got := seen.Load().([2]string); got != [2]string{"50", "50"} || refused.Load() != 1 {
		t.Fatalf("refused %d times, %v", refused.Load(), got)
	}

	// After Abort the lane is free; parked records count as acked, after the
	// parking that fails has been tried again.
	if err := s.Abort(testContext(t)); err != nil {
		t.Fatal(err)
	}
	verdict.Store(2)
	again := newAckLog()
	run(again)
	drain(t, s)
	if again.of(0) != 200 || again.of(1) != 200 || refused.Load() != 3 {
		t.Fatalf("%d and %d acks, refused %d times", again.of(0), again.of(1), refused.Load())
	}
}

func TestLane_NarrowsAnInvalidRecord(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	var ids []string
	s := openSink(t, kf.ListenAddrs(), func(c *Config) {
		c.Refused = func(_ context.Context, r sink.Refusal, _ *sink.Record) (sink.Verdict, error) {
			ids = append(ids, r.ID)
			return sink.Parked, nil
		}
	})
	kf.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, Count: -1, When: func(req kmsg.Request) bool {
		var b kmsg.RecordBatch
		if err := b.ReadFrom(req.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records); err != nil {
			return false
		}
		for _, bad := range []string{"id\x0433", "id\x0477"} { // header "id" with a value of two bytes
			for i := 0; i+len(bad) <= len(b.Records); i++ {
				if string(b.Records[i:i+len(bad)]) == bad {
					return true
				}
			}
		}
		return false
	}})
	acks := newAckLog()
	release := holdProduce(kf)
	for i := range 100 {
		publish(t, s, numbered("t", 0, i), sink.Ack{To: acks, Tx: uint64(i)})
	}
	release()
	drain(t, s)
	if len(ids) != 2 || ids[0] != "33" || ids[1] != "77" {
		t.Fatalf("refused %v", ids)
	}
	for i := range uint64(100) {
		if acks.of(i) != 1 {
			t.Fatalf("record %d has %d acks", i, acks.of(i))
		}
	}
	last := -1
	for _, r := range consume(t, kf.ListenAddrs(), "t", 98)[0] {
		i, _ := strconv.Atoi(string(r.Value))
		if i <= last || i == 33 || i == 77 {
			t.Fatalf("record %d after %d", i, last)
		}
		last = i
	}
}

func TestTopic_CreatedLaterWhileOthersFlow(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(2, "t"))
	s := openSink(t, kf.ListenAddrs(), nil)
	acks := newAckLog()
	for i := range 50 {
		publish(t, s, numbered("later", sink.PartitionByKey, i), sink.Ack{To: acks, Tx: 1})
		publish(t, s, numbered("t", sink.PartitionByKey, i), sink.Ack{To: acks, Tx: 2})
	}
	eventually(t, "the topic that is there flows", func() bool { return acks.of(2) == 50 })
	eventually(t, "status says what is missing", func() bool {
		for _, ln := range s.Lanes() {
			if ln.Topic == "later" && ln.LastError != "" && ln.Queued == 50 && !ln.Since.IsZero() {
				return true
			}
		}
		return false
	})
	createTopic(t, kf.ListenAddrs(), "later", 3)
	drain(t, s)
	want := make(map[int32][]int)
	for i := range 50 {
		p := partitionOf([]byte("k"+strconv.Itoa(i%17)), 3)
		want[p] = append(want[p], i)
	}
	inOrder(t, consume(t, kf.ListenAddrs(), "later", 50), want)
}

func createTopic(t testing.TB, addrs []string, name string, parts int32) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	req := kmsg.NewPtrCreateTopicsRequest()
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, parts, 1
	req.Topics = append(req.Topics, rt)
	if _, err := req.RequestWith(testContext(t), cl); err != nil {
		t.Fatal(err)
	}
}

func TestTopic_GainsPartitionsWhenWhatIsInFlightIsSettled(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(2, "t"), kfake.SleepOutOfOrder())
	s := openSink(t, kf.ListenAddrs(), func(c *Config) { c.LookInterval = 20 * time.Millisecond })
	acks := newAckLog()
	publish(t, s, numbered("t", 0, -1), sink.Ack{To: acks, Tx: 0})
	drain(t, s) // the topic is known now
	release := holdProduce(kf)
	for i := range 500 {
		publish(t, s, numbered("t", sink.PartitionByKey, i), sink.Ack{To: acks, Tx: 1})
	}
	addPartitions(t, kf.ListenAddrs(), "t", 5)
	eventually(t, "the new number is seen", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.topics["t"].next == 5 && s.topics["t"].count == 2
	})
	for i := 500; i < 1000; i++ {
		publish(t, s, numbered("t", sink.PartitionByKey, i), sink.Ack{To: acks, Tx: 1})
	}
	release()
	drain(t, s)
	want := map[int32][]int{0: {-1}}
	for i := range 1000 {
		n := int32(2)
		if i >= 500 {
			n = 5
		}
		p := partitionOf([]byte("k"+strconv.Itoa(i%17)), n)
		want[p] = append(want[p], i)
	}
	inOrder(t, consumeAll(t, kf.ListenAddrs(), "t", 1001), want)
}

func addPartitions(t testing.TB, addrs []string, name string, parts int32) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	req := kmsg.NewPtrCreatePartitionsRequest()
	rt := kmsg.NewCreatePartitionsRequestTopic()
	rt.Topic, rt.Count = name, parts
	req.Topics = append(req.Topics, rt)
	res, err := req.RequestWith(testContext(t), cl)
	if err != nil || res.Topics[0].ErrorCode != 0 {
		t.Fatal(err, res.Topics)
	}
}

func TestLane_RefusesAPartitionThatDoesNotExist(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(2, "t"))
	s := openSink(t, kf.ListenAddrs(), nil)
	acks := newAckLog()
	publish(t, s, numbered("t", 9, 1), sink.Ack{To: acks, Tx: 1})
	publish(t, s, numbered("t", 1, 2), sink.Ack{To: acks, Tx: 2})
	publish(t, s, numbered("t", 9, 3), sink.Ack{To: acks, Tx: 1})
	if err := s.Drain(testContext(t)); !errors.Is(err, sink.ErrHalted) {
		t.Fatal(err)
	}
	ln := s.Lanes()[0]
	if ln.Partition != 9 || ln.Halted == nil || ln.Halted.ID != "1" || acks.of(2) != 1 || acks.of(1) != 0 {
		t.Fatalf("lane %+v; %d acks", ln, acks.sum())
	}
	t.Log(ln.Halted.Reason)
}

func TestTopic_MissingPrivilegeHaltsAndHeals(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(2, "t", "u"))
	s := openSink(t, kf.ListenAddrs(), nil)
	acks := newAckLog()
	h := kf.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t", Err: kerr.TopicAuthorizationFailed, Count: -1})
	for i := range 20 {
		publish(t, s, numbered("t", 0, i), sink.Ack{To: acks, Tx: 1})
		publish(t, s, numbered("u", 0, i), sink.Ack{To: acks, Tx: 2})
	}
	if err := s.Drain(testContext(t)); !errors.Is(err, sink.ErrHalted) {
		t.Fatal(err)
	}
	if ln := s.Lanes()[0]; ln.Topic != "t" || ln.Halted == nil || acks.of(2) != 20 || acks.of(1) != 0 {
		t.Fatalf("lane %+v", ln)
	}
	h.Remove()
	eventually(t, "the lane goes on", func() bool { return acks.of(1) == 20 })
	drain(t, s)
	if ln := s.Lanes()[0]; ln.Halted != nil {
		t.Fatalf("still halted: %+v", ln)
	}
}

// The cluster loses leaders, connections, answers and requests at random; every
// record still arrives once and in order.
func TestLane_OrderUnderRandomFaults(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	const parts, n = 5, 20000
	kf := startKafka(t, kfake.NumBrokers(3), kfake.SeedTopics(parts, "t"), kfake.SleepOutOfOrder())
	s := openSink(t, kf.ListenAddrs(), func(c *Config) {
		c.RequestTimeout, c.BudgetBytes, c.MaxBatchBytes = 200*time.Millisecond, 256<<10, 8<<10
	})
	var faults atomic.Int32
	var calm atomic.Bool
	kf.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
		if calm.Load() {
			return nil, nil, false
		}
		kf.KeepControl()
		switch rnd.IntN(20) { // on the cluster's goroutine only
		case 0:
			faults.Add(1)
			return nil, errors.New("gone"), true
		case 1:
			faults.Add(1)
			return nil, nil, true
		case 2: // executed after the client has given up
			faults.Add(1)
			kf.SleepControl(func() { time.Sleep(250 * time.Millisecond) })
		}
		return nil, nil, false
	})
	errs := []*kerr.Error{kerr.NotLeaderForPartition, kerr.RequestTimedOut, kerr.NotEnoughReplicas, kerr.KafkaStorageError, kerr.UnknownTopicOrPartition}
	acks, want := newAckLog(), make(map[int32][]int)
	for i := 0; i < n; i += 500 {
		kf.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: errs[(i/500)%len(errs)], Partitions: []int32{int32(i/500) % parts}, Count: 2})
		if err := kf.MoveTopicPartition("t", int32(i/500)%parts, int32(i/1000)%3); err != nil {
			t.Fatal(err)
		}
		stream(t, s, acks, i, i+500, parts, want)
	}
	calm.Store(true)
	drain(t, s)
	if acks.sum() != n {
		t.Fatalf("%d acks for %d records", acks.sum(), n)
	}
	time.Sleep(300 * time.Millisecond) // time for what the cluster executes late
	copies := inOrder(t, consumeAll(t, kf.ListenAddrs(), "t", n), want) + int(written(t, kf.ListenAddrs(), "t")) - n
	t.Logf("%d faults by control, %d copies, errors %v", faults.Load(), copies, s.Stats().Errors)
	if n := s.Stats().ProducerIDResets; copies > 0 || n > 0 {
		t.Fatalf("%d copies, %d resets", copies, n)
	}
}

// written is the number of records that were ever written to a topic.
func written(t testing.TB, addrs []string, topic string) (n int64) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(testContext(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n
}

// consumeAll reads until each of n different values has arrived.
func consumeAll(t testing.TB, addrs []string, topic string, n int) map[int32][]*kgo.Record {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(50*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	out, seen, ctx := make(map[int32][]*kgo.Record), make(map[string]bool), testContext(t)
	for len(seen) < n && ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			out[r.Partition] = append(out[r.Partition], r)
			seen[string(r.Value)] = true
		})
	}
	return out
}

func TestOpen_SucceedsWhileKafkaIsAway(t *testing.T) {
	kf, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	addrs := kf.ListenAddrs()
	kf.Close()
	s := openSink(t, addrs, nil)
	acks := newAckLog()
	publish(t, s, numbered("t", 0, 1), sink.Ack{To: acks, Tx: 1})
	eventually(t, "status tells why", func() bool {
		ls := s.Lanes()
		return len(ls) == 1 && ls[0].LastError != ""
	})
	t.Log(s.Lanes()[0].LastError)
	back := startKafka(t, kfake.Ports(portOf(t, addrs[0])), kfake.SeedTopics(1, "t"))
	_ = back
	drain(t, s)
}
