package kafka

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/cdc-relay/cdc-relay/sink"
)

func TestSink_PublishesInOrderPerPartition(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(3), kfake.SeedTopics(6, "t"))
	s := openSink(t, kf.ListenAddrs(), nil)
	acks := newAckLog()
	const n = 20000
	want := make(map[int32][]int)
	for i := range n {
		rec := numbered("t", sink.PartitionByKey, i)
		p := partitionOf(rec.Key, 6)
		want[p] = append(want[p], i)
		publish(t, s, rec, sink.Ack{To: acks, Tx: uint64(i / 10)})
	}
	drain(t, s)
	for tx := range uint64(n / 10) {
		if acks.of(tx) != 10 {
			t.Fatalf("transaction %d: %d acks, want 10", tx, acks.of(tx))
		}
	}
	if copies := inOrder(t, consume(t, kf.ListenAddrs(), "t", n), want); copies != 0 {
		t.Fatalf("%d copies", copies)
	}
	st := s.Stats()
	if st.Published != n || st.Topics["t"] != n {
		t.Fatalf("stats %+v", st)
	}
	t.Logf("%d requests for %d records", st.Requests, n)
}

// A burst leaves with one request to each broker, and does not wait for another one
// to come back.
func TestSink_BurstTravelsTogether(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(2), kfake.SeedTopics(12, "t"))
	s := openSink(t, kf.ListenAddrs(), nil)
	acks := newAckLog()
	publish(t, s, numbered("t", 0, 0), sink.Ack{To: acks, Tx: 0}) // looks up the topic
	drain(t, s)
	before := s.Stats().Requests
	for i := range 100 {
		if err := s.Publish(testContext(t), numbered("t", int32(i%12), i), sink.Ack{To: acks, Tx: 1}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // long enough for a sender that was woken
	}
	s.Flush()
	drain(t, s)
	if n := s.Stats().Requests - before; n != 2 {
		t.Fatalf("%d requests for a burst on 2 brokers", n)
	}
}

func TestSink_EveryCodecIsReadByAnotherClient(t *testing.T) {
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		t.Run(codec, func(t *testing.T) {
			kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"), kfake.BrokerConfigs(map[string]string{"message.max.bytes": "16777216"}))
			s := openSink(t, kf.ListenAddrs(), func(c *Config) { c.Compression = codec })
			acks := newAckLog()
			want := samples()
			for i := range want {
				want[i].Topic, want[i].Partition = "t", 0
				if want[i].Timestamp < 0 {
					want[i].Timestamp = 7
				}
				publish(t, s, &want[i], sink.Ack{To: acks, Tx: 1})
			}
			drain(t, s)
			got := consume(t, kf.ListenAddrs(), "t", len(want))[0]
			for i, r := range got {
				hs := make([]sink.Header, len(r.Headers))
				for j, h := range r.Headers {
					hs[j] = sink.Header{Key: h.Key, Value: h.Value}
				}
				compareRecord(t, i, &want[i], r.Timestamp.UnixMilli(), r.Key, r.Value, hs)
			}
		})
	}
}

func TestSink_OneEntryForManyRecordsOfATransaction(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	s := openSink(t, kf.ListenAddrs(), nil)
	acks := newAckLog()
	for i := range 5000 {
		publish(t, s, numbered("t", 0, i), sink.Ack{To: acks, Tx: 7})
	}
	drain(t, s)
	if acks.of(7) != 5000 || uint64(acks.calls) > s.Stats().Requests {
		t.Fatalf("%d acks in %d calls for %d requests", acks.of(7), acks.calls, s.Stats().Requests)
	}
}

func TestSink_NullKeysStayTogetherPerBatch(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(8, "t"))
	s := openSink(t, kf.ListenAddrs(), nil)
	acks := newAckLog()
	const n = 20000
	for i := range n {
		rec := numbered("t", sink.PartitionByKey, i)
		rec.Key = nil
		publish(t, s, rec, sink.Ack{To: acks, Tx: 1})
	}
	drain(t, s)
	got := consume(t, kf.ListenAddrs(), "t", n)
	if len(got) < 2 {
		t.Fatalf("all on %d partition", len(got))
	}
	changes, last := 0, int32(-1)
	at := make([]int32, n)
	for p, rs := range got {
		for _, r := range rs {
			var i int
			fmt.Sscan(string(r.Value), &i)
			at[i] = p
		}
	}
	for _, p := range at {
		if p != last {
			changes++
			last = p
		}
	}
	if changes > n/4 {
		t.Fatalf("the partition changed %d times in %d records", changes, n)
	}
}

func TestSink_MemoryIsCounted(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(4, "t"), kfake.BrokerConfigs(map[string]string{"message.max.bytes": "16777216"}))
	for _, codec := range []string{"none", "zstd"} {
		t.Run(codec, func(t *testing.T) {
			const budget = 2 << 20
			s := openSink(t, kf.ListenAddrs(), func(c *Config) { c.BudgetBytes, c.Compression = budget, codec })
			acks := newAckLog()
			value := bytes.Repeat([]byte("x"), 300)
			peak := int64(0)
			for i := range 50000 {
				rec := numbered("t", sink.PartitionByKey, i)
				rec.Value = value
				publish(t, s, rec, sink.Ack{To: acks, Tx: uint64(i)})
				peak = max(peak, s.Stats().InFlightBytes)
			}
			drain(t, s)
			if peak > budget {
				t.Fatalf("%d bytes in flight, the budget is %d", peak, budget)
			}
			s.mu.Lock()
			used := s.pool.used
			s.pool.trim(s.pool.kept, 0)
			kept := s.pool.kept
			s.mu.Unlock()
			if used != 0 || kept != 0 {
				t.Fatalf("%d bytes used and %d kept after all was acked", used, kept)
			}
			// A record larger than the budget is admitted alone.
			big := numbered("t", 1, 1)
			big.Value = make([]byte, 4<<20)
			publish(t, s, big, sink.Ack{To: acks, Tx: 99})
			publish(t, s, numbered("t", 1, 2), sink.Ack{To: acks, Tx: 99})
			drain(t, s)
		})
	}
}

func TestSink_MemoryIsCountedWhileATopicIsMissing(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SleepOutOfOrder())
	const budget = 2 << 20
	s := openSink(t, kf.ListenAddrs(), func(c *Config) { c.BudgetBytes, c.MaxBatchBytes = budget, 64<<10 })
	acks, taken := newAckLog(), 0
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		rec := numbered("later", sink.PartitionByKey, taken)
		rec.Value = bytes.Repeat([]byte("x"), 300)
		err := s.Publish(ctx, rec, sink.Ack{To: acks, Tx: 1})
		cancel()
		if err != nil {
			break
		}
		taken++
	}
	release := holdProduce(kf)
	createTopic(t, kf.ListenAddrs(), "later", 4)
	eventually(t, "the records are spread", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.topics["later"].records == taken
	})
	if n := s.Stats().InFlightBytes; n > budget {
		t.Errorf("%d bytes in flight, the budget is %d", n, budget)
	}
	release()
	drain(t, s)
	if acks.sum() != taken || taken < 1000 {
		t.Fatalf("%d acks for %d records", acks.sum(), taken)
	}
}
