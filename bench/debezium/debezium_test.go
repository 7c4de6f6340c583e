package debezium_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/bench/debezium"
	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

const (
	backlog = 20_000
	keys    = 97
)

// TestDebezium_PublishesTheBacklogAndThenLiveRows shows that the benchmark's opponent does the same work as the relay: what was
// committed before it started, all of it and in order, then what is committed while it runs. It runs with CDC_RELAY_BENCH, since
// it fetches Kafka Connect.
func TestDebezium_PublishesTheBacklogAndThenLiveRows(t *testing.T) {
	if testing.Short() || os.Getenv("CDC_RELAY_BENCH") == "" {
		t.Skip("a part of the benchmark: set CDC_RELAY_BENCH")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute) // the first time, Maven fetches the jars
	defer cancel()
	if _, err := debezium.Ensure(ctx); errors.Is(err, debezium.ErrNotAvailable) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	pg := e2e.Postgres(t, pgserver.Options{})
	if pg.Server == nil {
		t.Skip("needs a PostgreSQL server of its own, not in a container")
	}
	k := e2e.ExclusiveKafka(t, kafkaserver.Options{})
	k.RequireReal(t)
	topic := k.Topic(t, "outbox", 6)
	pg.Exec(t, `CREATE TABLE outbox (
		id text PRIMARY KEY, aggregatetype text NOT NULL DEFAULT 'order', aggregateid text,
		type text NOT NULL DEFAULT 'created', payload text)`,
		"CREATE PUBLICATION bench FOR TABLE outbox",
		"SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')",
		fmt.Sprintf(`INSERT INTO outbox (id, aggregateid, payload)
			SELECT n::text, 'k' || n %% %d, '{"é": ' || n || '}' FROM generate_series(0, %d) n`, keys, backlog-1))

	opts := debezium.Options{
		Host: pg.Server.Host(), Port: pg.Server.Port(), User: pgserver.Superuser, Password: pgserver.Password, Database: pg.Database,
		Slot: "debezium", Publication: "bench", Table: "public.outbox",
		Topic: topic, Bootstrap: k.Addr(), Dir: t.TempDir(),
	}
	w := start(ctx, t, opts)
	checkRecords(t, k.ConsumeUntil(t, 2*time.Minute, func(all []e2e.Record) bool { return len(all) == backlog }, topic))

	insert := fmt.Sprintf(`INSERT INTO outbox (id, aggregateid, payload) VALUES ('%[1]d', 'k' || %[1]d %% %[2]d, '{"é": %[1]d}')`,
		backlog, keys)
	pg.Exec(t, insert)
	all := k.ConsumeUntil(t, time.Minute, func(all []e2e.Record) bool { return len(all) == backlog+1 }, topic)
	checkRecords(t, all)

	if w.CPU() == 0 || w.RSS() == 0 || w.PeakRSS() < w.RSS() {
		t.Errorf("CPU %v, RSS %d, peak RSS %d of pid %d", w.CPU(), w.RSS(), w.PeakRSS(), w.PID())
	}
	stopCtx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	if err := w.Stop(stopCtx); err != nil {
		t.Fatal(err)
	}
	// The offset was stored, and a second run begins behind it.
	start(ctx, t, opts)
	pg.Exec(t, strings.ReplaceAll(insert, fmt.Sprint(backlog), fmt.Sprint(backlog+1)))
	checkRecords(t, k.ConsumeUntil(t, time.Minute, func(all []e2e.Record) bool { return len(all) == backlog+2 }, topic))
}

func start(ctx context.Context, t *testing.T, o debezium.Options) *debezium.Worker {
	t.Helper()
	began := time.Now()
	w, err := debezium.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("running after %v", time.Since(began).Round(time.Millisecond))
	t.Cleanup(func() {
		w.Close()
		if log, _ := os.ReadFile(w.LogPath()); t.Failed() {
			t.Logf("log of Debezium, the end:\n%s", log[max(0, len(log)-8000):])
		}
	})
	return w
}

// checkRecords holds the records against the rows 0 .. len(all)-1: each once, with its key, value and id, in order by key.
func checkRecords(t *testing.T, all []e2e.Record) {
	t.Helper()
	seen := make([]bool, len(all))
	last := map[string]int{}
	for _, r := range all {
		id, _ := r.Header("id")
		var n int
		if _, err := fmt.Sscan(id, &n); err != nil || n < 0 || n >= len(all) || seen[n] {
			t.Fatalf("record at %d@%d has id %q, which is of no row or came twice", r.Partition, r.Offset, id)
		}
		seen[n] = true
		if key, value := fmt.Sprintf("k%d", n%keys), fmt.Sprintf(`{"é": %d}`, n); string(r.Key) != key || string(r.Value) != value {
			t.Fatalf("record of row %d has key %q and value %q, not %q and %q", n, r.Key, r.Value, key, value)
		}
		if prev, ok := last[string(r.Key)]; ok && n < prev {
			t.Fatalf("row %d came behind row %d of the same key", n, prev)
		}
		last[string(r.Key)] = n
	}
}
