package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

var (
	bloatRows = flag.Int("bloat_rows", 2000, "how many rows TestE2E_RetentionBloat writes in each mode")
	bloatRate = flag.Int("bloat_rate", 4000, "how many of them in a second")
)

const (
	bloatTx      = 10 // rows of a transaction
	bloatWriters = 4
)

// bloatMode is a way of emptying the outbox.
type bloatMode struct {
	name, relayYAML string
	table           []string
	deletes         bool // in the transaction that inserts
	empties         bool
}

const (
	bloatColumns = `id text, aggregatetype text NOT NULL DEFAULT 'order', aggregateid text NOT NULL DEFAULT 'k', type text NOT NULL DEFAULT 'created', payload text NOT NULL,
		created_at timestamptz NOT NULL DEFAULT clock_timestamp()`
	bloatRetention = "retention:\n  column: created_at\n  after: 2s\n  interval: 1s\n  mode: "
)

var bloatModes = []bloatMode{
	{name: "none", table: []string{"CREATE TABLE outbox (" + bloatColumns + ", PRIMARY KEY (id))"}},
	{name: "same_transaction", table: []string{"CREATE TABLE outbox (" + bloatColumns + ", PRIMARY KEY (id))"}, deletes: true, empties: true},
	{name: "delete", table: []string{"CREATE TABLE outbox (" + bloatColumns + ", PRIMARY KEY (id))", "CREATE INDEX ON outbox (created_at)"},
		relayYAML: bloatRetention + "delete\n", empties: true},
	{name: "drop_partitions", table: []string{"CREATE TABLE outbox (" + bloatColumns + ", PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)"},
		relayYAML: bloatRetention + "drop_partitions\n  partition_interval: 10s\n", empties: true},
}

// TestE2E_RetentionBloat measures what each way of emptying the outbox leaves
// behind, and what WAL it costs, with the server's own settings of autovacuum. The
// table in docs/retention.md is from -bloat_rows=200000.
func TestE2E_RetentionBloat(t *testing.T) {
	for _, mode := range bloatModes {
		t.Run(mode.name, func(t *testing.T) {
			r := newRig(t, rigOptions{noTable: true})
			r.pg.Exec(t, mode.table...)
			r.relayYAML = mode.relayYAML
			r.setup(t)
			r.startReady(t)
			if mode.name == "drop_partitions" {
				e2e.Eventually(t, 20*time.Second, "partitions", func() bool {
					n, err := r.pg.TryQuery("SELECT count(*) > 3 FROM pg_inherits WHERE inhparent = 'outbox'::regclass")
					return err == nil && n == "true"
				})
			}
			r.pg.Exec(t, "CHECKPOINT")
			from := r.position(t)
			size := r.sampleSize(t)
			r.writePaced(t, mode.deletes)
			want := "0"
			if !mode.empties {
				want = strconv.Itoa(*bloatRows)
			}
			e2e.Eventually(t, 2*time.Minute, "the rows to be published, and dealt with", func() bool {
				left, err := r.pg.TryQuery("SELECT count(*) FROM outbox")
				return err == nil && left == want && total(r.k.EndOffsets(t, r.topic)) >= int64(*bloatRows)
			})
			wal := float64(r.position(t)-from) / float64(*bloatRows)
			time.Sleep(1500 * time.Millisecond) // until the server's statistics are complete
			peak, peakDead := size.stop()
			mb, dead := r.sizeOfOutbox(t)
			published := total(r.k.EndOffsets(t, r.topic))
			e2e.Result(t, "retention_bloat", published == int64(*bloatRows) && wal > 0, "mode", mode.name, "rows", *bloatRows, "published", published,
				"table_mb", mb, "peak_mb", peak, "dead", dead, "peak_dead", peakDead, "wal_bytes_per_row", wal)
		})
	}
}

// sizeOfOutbox is its size on disk with indexes, and its dead rows, over all
// partitions, also those that are detached and not dropped yet.
func (r *rig) sizeOfOutbox(t testing.TB) (mb float64, dead int) {
	t.Helper()
	out := strings.Fields(r.pg.Query(t, `SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) || ' ' || coalesce(sum(pg_stat_get_dead_tuples(c.oid)), 0)
		FROM pg_class c WHERE c.relkind = 'r' AND c.relname LIKE 'outbox%'`))
	bytes, _ := strconv.ParseFloat(out[0], 64)
	dead, _ = strconv.Atoi(out[1])
	return bytes / 1e6, dead
}

type sizeSampler struct {
	stop func() (mb float64, dead int)
}

// sampleSize keeps the largest size, and the most dead rows.
func (r *rig) sampleSize(t testing.TB) sizeSampler {
	t.Helper()
	done := make(chan struct{})
	var wg sync.WaitGroup
	var mb float64
	var dead int
	wg.Go(func() {
		for {
			m, d := r.sizeOfOutbox(t)
			mb, dead = max(mb, m), max(dead, d)
			select {
			case <-done:
				return
			case <-time.After(250 * time.Millisecond):
			}
		}
	})
	var once sync.Once
	end := func() {
		once.Do(func() { close(done) })
		wg.Wait()
	}
	t.Cleanup(end)
	return sizeSampler{func() (float64, int) { end(); return mb, dead }}
}

// writePaced writes the rows at their rate, in small transactions.
func (r *rig) writePaced(t testing.TB, deletes bool) {
	t.Helper()
	began := time.Now()
	transactions := *bloatRows / bloatTx
	pause := time.Duration(bloatTx) * time.Second / time.Duration(*bloatRate)
	var wg sync.WaitGroup
	for w := range bloatWriters {
		conn := r.pg.Conn(t)
		wg.Go(func() {
			for i := w; i < transactions; i += bloatWriters {
				time.Sleep(time.Until(began.Add(time.Duration(i) * pause)))
				if err := writeBloat(conn.Exec, i, deletes); err != nil {
					t.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func writeBloat[T any](exec func(context.Context, string, ...any) (T, error), tx int, deletes bool) error {
	var values, ids []string
	for i := range bloatTx {
		id := fmt.Sprintf("'%08d-0000-4000-8000-%012d'", tx, i)
		ids = append(ids, id)
		values = append(values, "("+id+", repeat(md5("+id+"), 7))")
	}
	q := "INSERT INTO outbox (id, payload) VALUES " + strings.Join(values, ", ")
	if deletes {
		q = "BEGIN; " + q + "; DELETE FROM outbox WHERE id IN (" + strings.Join(ids, ", ") + "); COMMIT"
	}
	_, err := exec(context.Background(), q)
	return err
}
