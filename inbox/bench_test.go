package inbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// BenchmarkRunner handles b.N records of two partitions, from the topic to the
// committed offset; run it with -benchtime=40000x. "effect" inserts a row per record, "gate"
// nothing but the marker. The test server does without fsync unless INBOX_BENCH_FSYNC is set.
func BenchmarkRunner(b *testing.B) {
	gate := func(context.Context, pgx.Tx, inbox.Record) error { return nil }
	for _, c := range []struct {
		name      string
		handle    handler
		perRecord bool
	}{{"batch/gate", gate, false}, {"batch/effect", bill, false}, {"record/gate", gate, true}, {"record/effect", bill, true}} {
		b.Run(c.name, func(b *testing.B) {
			e := newKafkaEnv(b, 2)
			value := kafka.NewBytes
			for p := range 2 {
				for at := p; at < b.N; {
					var records []kafka.Record
					for ; at < b.N && len(records) < 2000; at += 2 {
						records = append(records, kafka.Record{Time: time.Now(), Key: kafka.NewBytes([]byte(fmt.Sprint(at % 1000))), Value: value(make([]byte, 200)),
							Headers: []kafka.Header{{Key: "id", Value: fmt.Appendf(nil, "5f1c9d1e-0000-4000-8000-%012d", at)}}})
					}
					if len(records) > 0 {
						answer, err := e.client.Produce(b.Context(), &kafka.ProduceRequest{Topic: e.topic, Partition: p, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...)})
						e.must(err)
						e.must(answer.Error)
					}
				}
			}
			var began time.Time
			b.ResetTimer()
			r := e.run(c.handle, func(k *inbox.Config) {
				k.PerRecord = c.perRecord
				k.Observe = func(ev inbox.Event) {
					if ev.Kind == inbox.Assigned && began.IsZero() {
						began = time.Now()
					}
				}
			})
			for r.count(inbox.Processed) < int64(b.N) {
				time.Sleep(5 * time.Millisecond)
			}
			took := time.Since(began)
			b.StopTimer()
			e.must(r.stop())
			b.ReportMetric(float64(b.N)/took.Seconds(), "records/s")
		})
	}
}
