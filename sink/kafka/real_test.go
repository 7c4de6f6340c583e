package kafka

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/sink"
)

// startReal runs Apache Kafka for this test alone, with settings given as name,
// value; the test is skipped where its jars cannot be had, and with -short.
func startReal(t *testing.T, settings ...string) *kafkaserver.Broker {
	t.Helper()
	set := map[string]string{"message.max.bytes": "8388608"}
	for i := 0; i < len(settings); i += 2 {
		set[settings[i]] = settings[i+1]
	}
	if testing.Short() {
		t.Skip("starts Apache Kafka")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	b, err := kafkaserver.Start(ctx, kafkaserver.Options{Settings: set})
	if errors.Is(err, kafkaserver.ErrNoJars) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestReal_WritesWhatApacheKafkaTakes(t *testing.T) {
	addrs := []string{startReal(t).Addr()}
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		t.Run(codec, func(t *testing.T) {
			createTopic(t, addrs, codec, 1)
			s := openSink(t, addrs, func(c *Config) { c.Compression = codec })
			acks, want := newAckLog(), samples()
			for i := range want {
				want[i].Topic, want[i].Partition = codec, 0
				want[i].Timestamp = time.Now().UnixMilli() + int64(i%3)*1000
				publish(t, s, &want[i], sink.Ack{To: acks, Tx: 1})
			}
			drain(t, s)
			for i, r := range consume(t, addrs, codec, len(want))[0] {
				hs := make([]sink.Header, len(r.Headers))
				for j, h := range r.Headers {
					hs[j] = sink.Header{Key: h.Key, Value: h.Value}
				}
				compareRecord(t, i, &want[i], r.Timestamp.UnixMilli(), r.Key, r.Value, hs)
			}
		})
	}
	t.Run("RefusedRecords", func(t *testing.T) { realRefusals(t, addrs) })
}

// realRefusals has Apache Kafka refuse a record that is too large, and one whose
// time it does not take, each amid a batch.
func realRefusals(t *testing.T, addrs []string) {
	createTopic(t, addrs, "refusals", 2)
	var ids []string
	s := openSink(t, addrs, func(c *Config) {
		c.Refused = func(_ context.Context, r sink.Refusal, _ *sink.Record) (sink.Verdict, error) {
			t.Logf("refused: %v", r.Reason)
			ids = append(ids, r.ID)
			return sink.Parked, nil
		}
	})
	acks := newAckLog()
	for i := range 1000 {
		rec := numbered("refusals", 0, i)
		rec.Timestamp = time.Now().UnixMilli()
		switch i {
		case 400:
			rec.Value = make([]byte, 9<<20)
		case 700:
			rec.Timestamp += (100 * time.Hour).Milliseconds() // log.message.timestamp.after.max.ms is an hour
		}
		publish(t, s, rec, sink.Ack{To: acks, Tx: uint64(i)})
	}
	drain(t, s)
	if len(ids) != 2 || ids[0] != "400" || ids[1] != "700" {
		t.Fatalf("refused %v", ids)
	}
	for i := range uint64(1000) {
		if acks.of(i) != 1 {
			t.Fatalf("record %d has %d acks", i, acks.of(i))
		}
	}
	consume(t, addrs, "refusals", 998)
}

func TestReal_HealsWhenTheBrokerIsKilled(t *testing.T) {
	b := startReal(t)
	addrs := []string{b.Addr()}
	createTopic(t, addrs, "t", 3)
	s := openSink(t, addrs, func(c *Config) { c.RequestTimeout, c.RetryMax = 10*time.Second, time.Second })
	acks, want := newAckLog(), make(map[int32][]int)
	for round := range 2 {
		stream(t, s, acks, round*4000, round*4000+3000, 3, want)
		eventually(t, "records are acked", func() bool { return acks.sum() > round*4000+100 })
		b.Kill9()
		stream(t, s, acks, round*4000+3000, round*4000+4000, 3, want)
		if err := b.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		drain(t, s)
		t.Logf("all acked %s after the broker was back", time.Since(start))
	}
	copies := inOrder(t, consumeAll(t, addrs, "t", 8000), want)
	if st := s.Stats(); copies != 0 || st.ProducerIDResets != 0 || written(t, addrs, "t") != 8000 {
		t.Fatalf("%d copies, %d resets, %d written; errors %v", copies, st.ProducerIDResets, written(t, addrs, "t"), st.Errors)
	}
}
