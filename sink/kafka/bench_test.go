package kafka

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/cdc-relay/cdc-relay/e2e/blackhole"
	"github.com/cdc-relay/cdc-relay/sink"
)

type ignoreAcks struct{}

func (ignoreAcks) Done([]sink.Acked) {}

// BenchmarkPublish sends records of 300 bytes to a fake broker in the same
// process, which discards them; its CPU and allocations are in the figures.
func BenchmarkPublish(b *testing.B) {
	for _, perTx := range []int{1, 1000} {
		b.Run(fmt.Sprintf("perTx=%d", perTx), func(b *testing.B) {
			kf := startKafka(b, kfake.NumBrokers(1), kfake.SeedTopics(6, "t"), kfake.BlackholeProduce())
			s := openSink(b, kf.ListenAddrs(), nil)
			rec := sample300()
			rec.Topic, rec.Partition, rec.ID = "t", sink.PartitionByKey, rec.Headers[0].Value
			keys := make([][]byte, 64)
			for i := range keys {
				keys[i] = fmt.Appendf(nil, "order-%d", i)
			}
			ctx := b.Context()
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				rec.Key = keys[i%64]
				if err := s.Publish(ctx, &rec, sink.Ack{To: ignoreAcks{}, Tx: uint64(i / perTx)}); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Drain(ctx); err != nil {
				b.Fatal(err)
			}
			st := s.Stats()
			b.ReportMetric(float64(st.Published)/float64(st.Requests), "records/request")
		})
	}
}

// BenchmarkLarge sends records of 1 MiB; the fake broker allocates the most of
// what it reports.
func BenchmarkLarge(b *testing.B) {
	kf := startKafka(b, kfake.NumBrokers(1), kfake.SeedTopics(6, "t"), kfake.BlackholeProduce(), kfake.BrokerConfigs(map[string]string{"message.max.bytes": "16777216"}))
	s := openSink(b, kf.ListenAddrs(), nil)
	value := bytes.Repeat([]byte("x"), 1<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := 0; b.Loop(); i++ {
		rec := numbered("t", sink.PartitionByKey, i)
		rec.Value = value
		if err := s.Publish(b.Context(), rec, sink.Ack{To: ignoreAcks{}, Tx: 1}); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Drain(b.Context()); err != nil {
		b.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N), "B-all/op")
}

// fillAndSeal publishes so many records while the broker holds its answers, so
// that batches are filled and closed; lets them go, and waits until all are
// acknowledged. It returns the allocations of the first part.
func fillAndSeal(tb testing.TB, b *blackhole.Broker, s *Sink, records int) (allocations uint64) {
	release := b.Hold()
	defer release()
	rec := sample300()
	rec.Topic, rec.Partition, rec.ID = "t", sink.PartitionByKey, rec.Headers[0].Value
	keys := make([][]byte, 64)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "order-%d", i)
	}
	ctx := tb.Context()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range records {
		rec.Key = keys[i%len(keys)]
		if err := s.Publish(ctx, &rec, sink.Ack{To: ignoreAcks{}, Tx: uint64(i)}); err != nil {
			tb.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	release()
	if err := s.Drain(ctx); err != nil {
		tb.Fatal(err)
	}
	return after.Mallocs - before.Mallocs
}

// TestPublish_AllocatesNothingUpToTheSealedBatch fills batches from buffers that
// are there. What grows beside a batch, and is not kept, is little.
func TestPublish_AllocatesNothingUpToTheSealedBatch(t *testing.T) {
	const records = 20_000
	for _, codec := range []string{"none", "lz4"} {
		t.Run(codec, func(t *testing.T) {
			b := blackhole.Start(t, 6)
			s := openSink(t, b.Addrs(), func(c *Config) { c.Compression, c.RequestTimeout = codec, time.Minute })
			for range 2 {
				fillAndSeal(t, b, s, records)
			}
			n := fillAndSeal(t, b, s, records)
			t.Logf("%d allocations for %d records", n, records)
			if n >= records/10 {
				t.Fatalf("%d allocations for %d records, want next to none", n, records)
			}
		})
	}
}

// BenchmarkLanes takes records from Publish through sealed batches, per codec, to
// the acks of a broker that drops them.
func BenchmarkLanes(b *testing.B) {
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		b.Run(codec, func(b *testing.B) {
			bh := blackhole.Start(b, 6)
			s := openSink(b, bh.Addrs(), func(c *Config) { c.Compression = codec })
			rec := sample300()
			rec.Topic, rec.Partition, rec.ID = "t", sink.PartitionByKey, rec.Headers[0].Value
			keys := make([][]byte, 64)
			for i := range keys {
				keys[i] = fmt.Appendf(nil, "order-%d", i)
			}
			b.SetBytes(int64(tailSize(&rec)))
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				rec.Key = keys[i%len(keys)]
				if err := s.Publish(b.Context(), &rec, sink.Ack{To: ignoreAcks{}, Tx: uint64(i)}); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Drain(b.Context()); err != nil {
				b.Fatal(err)
			}
			st := s.Stats()
			b.ReportMetric(float64(st.Published)/float64(st.Requests), "records/request")
		})
	}
}
