package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/e2e"
)

const partitionsYAML = `retention:
  mode: drop_partitions
  column: created_at
  after: 1s
  interval: 100ms
  batch_pause: 0s
  lock_timeout: 300ms
  partition_interval: 3s
  partition_ahead: 15
`

// partitionedOutbox has old partitions. Which rows came into which partition is
// noted by the transactions that insert them.
var partitionedOutbox = []string{
	`CREATE TABLE outbox (id text, aggregatetype text NOT NULL DEFAULT 'order', aggregateid text, type text NOT NULL DEFAULT 'created', payload text,
		created_at timestamptz NOT NULL, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)`,
	`DO $$ BEGIN FOR i IN 1..3 LOOP
		EXECUTE format('CREATE TABLE seed_%s PARTITION OF outbox FOR VALUES FROM (%L) TO (%L)', i, date_trunc('hour', now()) - i * interval '1 hour', date_trunc('hour', now()) - (i - 1) * interval '1 hour');
	END LOOP; END $$`,
	"CREATE TABLE inserted (id text, relation oid)",
	`CREATE FUNCTION log_insert() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.inserted VALUES (NEW.id, TG_RELID); RETURN NULL; END $$`,
	"CREATE TRIGGER log_insert AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION log_insert()",
	"CREATE TABLE elsewhere (x int)",
}

const detachedCount = "SELECT count(*) FROM pg_constraint WHERE conname = 'cdc_relay_detached'"

// TestE2E_RetentionPartitions drops partitions while writers fill old ones to the
// last moment, a transaction is open for the whole run, Kafka freezes, and the
// relay is killed, also between detaching and dropping. Whenever it is killed,
// each row of a partition that was dropped must be in the topic already.
func TestE2E_RetentionPartitions(t *testing.T) {
	r := newRig(t, rigOptions{proxy: true, noTable: true})
	r.pg.Exec(t, partitionedOutbox...)
	r.relayYAML = partitionsYAML
	r.setup(t)
	c := &partitionChaos{rig: r, t: t, relay: r.startReady(t)}

	open := r.pg.Conn(t) // for the whole run: with a snapshot and a transaction id
	mustExec(t, open, "BEGIN ISOLATION LEVEL REPEATABLE READ", "INSERT INTO elsewhere SELECT count(*) FROM inserted")
	w := startPartitionWriters(t, r.pg, 5)
	for round := range 4 {
		c.round(round)
	}
	const droppedCount = "SELECT count(DISTINCT relation) FROM inserted WHERE relation NOT IN (SELECT oid FROM pg_class)"
	e2e.Eventually(t, time.Minute, "enough partitions to be dropped beside the writers", func() bool {
		n, err := r.pg.TryQuery(droppedCount + " HAVING count(DISTINCT relation) > 5")
		return err == nil && n != ""
	})
	heldUp := c.isHeldUpByATransaction()
	mustExec(t, open, "INSERT INTO outbox (id, created_at) VALUES ('from-the-beginning', clock_timestamp())", "COMMIT")
	w.stop()
	e2e.Eventually(t, 2*time.Minute, "all rows to be dropped", func() bool {
		left, err := r.pg.TryQuery("SELECT (SELECT count(*) FROM outbox) + (" + detachedCount + ")")
		return err == nil && left == "0"
	})
	c.kill()
	rows, _ := strconv.Atoi(r.pg.Query(t, "SELECT count(*) FROM inserted"))
	dropped, _ := strconv.Atoi(r.pg.Query(t, droppedCount))
	left := c.isLeftAloneInAnotherEpoch()
	published := len(firstCopies(ids(r.k.Consume(t, r.topic))))
	ok := c.unpublished == 0 && rows == int(w.committed.Load())+2 && published == rows && dropped > 5 && c.between >= 3 && c.made > 0 && heldUp && left
	e2e.Result(t, "retention_partitions", ok, "dropped", dropped, "rows", rows, "published", published, "unpublished_dropped", c.unpublished,
		"kills", c.kills, "between", c.between, "stalls", c.stalls, "made", c.made, "refused_rows", w.refused.Load(), "slowest_insert_ms", w.slowest.Load(),
		"held_up", heldUp, "left_alone_in_another_epoch", left)
}

// partitionChaos is a relay that is killed and started again.
type partitionChaos struct {
	*rig
	t                                         *testing.T
	relay                                     *e2e.Relay
	unpublished, kills, between, stalls, made int
}

// round kills the relay: with a partition detached and not dropped, with that and
// Kafka frozen since, or with Kafka frozen before.
func (c *partitionChaos) round(n int) {
	c.t.Helper()
	freeze := func() {
		c.proxy.WithholdProduce(c.topic)
		c.stalls++
		time.Sleep(1500 * time.Millisecond)
	}
	switch n % 3 {
	case 0:
		c.waitDetached()
	case 1: // what was detached may be dropped only if all its rows are published
		c.waitDetached()
		freeze()
	default:
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
		freeze()
	}
	c.kill()
	c.proxy.Release()
	c.relay = c.startReady(c.t)
}

func (c *partitionChaos) waitDetached() {
	c.t.Helper()
	conn := c.pg.Conn(c.t)
	e2e.Eventually(c.t, 30*time.Second, "a partition to be detached", func() bool {
		for range 20 {
			var n int
			if err := conn.QueryRow(context.Background(), detachedCount).Scan(&n); err != nil || n > 0 {
				return err == nil
			}
			time.Sleep(2 * time.Millisecond)
		}
		return false
	})
}

// kill counts, while no relay runs, the rows of dropped partitions that are not
// in the topic.
func (c *partitionChaos) kill() {
	c.t.Helper()
	c.relay.Kill()
	c.kills++
	c.made += strings.Count(c.relay.Log(), "made a partition")
	if c.pg.Query(c.t, detachedCount) != "0" {
		c.between++
	}
	published := map[string]bool{}
	for _, id := range ids(c.k.Consume(c.t, c.topic)) {
		published[id] = true
	}
	for _, id := range strings.Fields(c.pg.Query(c.t, "SELECT coalesce(string_agg(id, ' '), '') FROM inserted WHERE relation NOT IN (SELECT oid FROM pg_class)")) {
		if !published[id] {
			c.t.Logf("row %s was in a partition that is dropped, and is not in the topic", id)
			c.unpublished++
		}
	}
}

// isHeldUpByATransaction: one that has a row in the outbox keeps partitions from
// being detached, and nobody else from inserting. Future ones are made.
func (c *partitionChaos) isHeldUpByATransaction() bool {
	c.t.Helper()
	blocker := c.pg.Conn(c.t)
	mustExec(c.t, blocker, "BEGIN", "INSERT INTO outbox (id, created_at) VALUES ('blocker', clock_timestamp())")
	c.relay.WaitLog(c.t, 20*time.Second, "retention of partitions is held up")
	const attached, newest = "SELECT string_agg(inhrelid::text, ' ' ORDER BY inhrelid) FROM pg_inherits WHERE inhparent = 'outbox'::regclass AND inhrelid <= ", "SELECT max(inhrelid) FROM pg_inherits WHERE inhparent = 'outbox'::regclass"
	last := c.pg.Query(c.t, newest)
	before := c.pg.Query(c.t, attached+last)
	time.Sleep(4 * time.Second)
	same := c.pg.Query(c.t, attached+last) == before
	made := c.pg.Query(c.t, newest) != last
	mustExec(c.t, blocker, "COMMIT")
	if !same || !made {
		c.t.Logf("beside a transaction in the outbox: partitions kept %t, made %t", same, made)
	}
	return same && made
}

// isLeftAloneInAnotherEpoch: what was detached before adopt passed over something
// may hold rows that were never published.
func (c *partitionChaos) isLeftAloneInAnotherEpoch() bool {
	c.t.Helper()
	c.relay = c.startReady(c.t)
	c.waitDetached()
	c.kill()
	if code, stdout, stderr := c.command(c.t, "adopt", "--lsn", c.pg.Query(c.t, "SELECT pg_current_wal_lsn()"), "--yes"); code != 0 {
		c.t.Fatalf("adopt ended with %d:\n%s%s", code, stdout, stderr)
	}
	c.relay = c.startReady(c.t)
	c.relay.WaitLog(c.t, 20*time.Second, "it was detached in epoch")
	time.Sleep(1500 * time.Millisecond)
	c.kill()
	_, check, _ := c.command(c.t, "check")
	return c.pg.Query(c.t, detachedCount) == "1" && strings.Contains(check, "ATTACH PARTITION")
}

// partitionWriters insert rows of the last seconds, also into partitions that are
// due to be dropped.
type partitionWriters struct {
	stop                        func()
	committed, refused, slowest atomic.Int64
}

func startPartitionWriters(t testing.TB, pg *e2e.PG, n int) *partitionWriters {
	t.Helper()
	w := &partitionWriters{}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		conn := pg.Conn(t)
		wg.Go(func() {
			for tx := 0; ; tx++ {
				select {
				case <-done:
					return
				default:
				}
				if err := w.write(conn, fmt.Sprintf("w%d-%d", i, tx)); err != nil {
					t.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	var once sync.Once
	w.stop = func() {
		once.Do(func() { close(done) })
		wg.Wait()
	}
	t.Cleanup(w.stop)
	return w
}

// write is one transaction. A row whose partition is gone is refused, and with it
// the transaction.
func (w *partitionWriters) write(conn *pgx.Conn, name string) error {
	ctx := context.Background()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	n := 1 + rand.IntN(4)
	for i := range n {
		began := time.Now()
		_, err := tx.Exec(ctx, "INSERT INTO outbox (id, aggregateid, created_at) VALUES ($1, $2, clock_timestamp() - random() * interval '5 s')", fmt.Sprintf("%s-%d", name, i), name)
		var pgErr *pgconn.PgError
		switch {
		case errors.As(err, &pgErr) && pgErr.Code == "23514":
			w.refused.Add(1)
			return nil
		case err != nil:
			return err
		}
		if ms := time.Since(began).Milliseconds(); ms > w.slowest.Load() {
			w.slowest.Store(ms)
		}
		time.Sleep(time.Duration(rand.IntN(15)) * time.Millisecond)
	}
	if rand.IntN(8) == 0 {
		return nil
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	w.committed.Add(int64(n))
	return nil
}

func mustExec(t testing.TB, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, q := range statements {
		if _, err := conn.Exec(context.Background(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}
