package kafka

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/cdc-relay/cdc-relay/sink"
)

type ignoreAcks struct{}

func (ignoreAcks) Done(uint64, int) {}

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
