package e2e_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }

// The environment itself: a server that decodes, a broker that keeps what it is given, and an oracle that sees commit order.
func TestE2E_Environment(t *testing.T) {
	began := time.Now()
	pg := e2e.Postgres(t)
	pgStart := time.Since(began)
	began = time.Now()
	k := e2e.Kafka(t)
	kafkaStart := time.Since(began)

	topic := k.Topic(t, "env", 3)
	cl := k.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i := range 30 {
		r := &kgo.Record{Topic: topic, Partition: int32(i % 3), Key: []byte("k"), Value: []byte(fmt.Sprint(i)),
			Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(fmt.Sprint(i))}}}
		if i == 0 {
			r.Key, r.Value = nil, []byte{}
		}
		if err := cl.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	records := k.Consume(t, topic)
	recordsOK := len(records) == 30
	last := map[int32]int{0: -3, 1: -2, 2: -1}
	for _, r := range records {
		id, _ := r.Header("id")
		want := last[r.Partition] + 3
		recordsOK = recordsOK && id == fmt.Sprint(want)
		if want == 0 {
			recordsOK = recordsOK && r.Key == nil && r.Value != nil && len(r.Value) == 0
		}
		last[r.Partition] = want
	}

	pg.Exec(t, `CREATE TABLE outbox (id text PRIMARY KEY, tags int[], note text)`)
	oracle := e2e.NewOracle(t, pg)
	first, second := pg.Conn(t), pg.Conn(t)
	ctx := context.Background()
	for _, step := range []struct {
		second bool
		sql    string
	}{
		{false, `BEGIN; INSERT INTO outbox VALUES ('b', '{1,2}', 'it''s [x]:''q'' ')`},
		{true, `INSERT INTO outbox VALUES ('a', NULL, 'id[text]:''no''')`},
		{false, `SAVEPOINT s; INSERT INTO outbox VALUES ('gone'); ROLLBACK TO s; INSERT INTO outbox VALUES ('c''s'); COMMIT`},
		{true, `BEGIN; INSERT INTO outbox VALUES ('also gone'); ROLLBACK`},
	} {
		c := first
		if step.second {
			c = second
		}
		if _, err := c.Exec(ctx, step.sql); err != nil {
			t.Fatalf("%s: %v", step.sql, err)
		}
	}
	var order []string
	for _, in := range oracle.Inserts(t, "public.outbox", "id") {
		order = append(order, fmt.Sprintf("%d.%d=%s", in.TxSeq, in.RowSeq, in.Value))
	}
	orderOK := slices.Equal(order, []string{"0.0=a", "1.0=b", "1.1=c's"})
	if !orderOK {
		t.Logf("commit order %q", order)
	}
	e2e.Result(t, "environment", recordsOK && orderOK, "pg", pg.Version, "real_kafka", k.Real,
		"pg_start_ms", pgStart.Milliseconds(), "kafka_start_ms", kafkaStart.Milliseconds(),
		"records", len(records), "order", orderOK)
}
