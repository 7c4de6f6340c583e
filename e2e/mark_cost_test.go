package e2e_test

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

var markedRows = flag.Int("marked-rows", 20_000, "how many rows TestE2E_MarkCost drains, with and without marking them")

// markCell is a way to have rows marked, or not.
type markCell struct {
	name  string
	table string // statements behind that of the table
	on    bool
}

var markCells = []markCell{
	{"off", "CREATE INDEX ON outbox (created_at) WHERE status = 'pending'", false},
	{"index", "CREATE INDEX ON outbox (created_at) WHERE status = 'pending'", true},
	{"hot", "ALTER TABLE outbox SET (fillfactor = 50)", true},
}

// markCost is what draining a backlog cost the server, for each row.
type markCost struct {
	rate      float64 // rows/s, until all is confirmed
	wal       float64 // bytes per row, of what is written while it drains
	dead, hot int64   // rows
	disk      float64 // bytes per row that the table and its indexes grow by
}

// TestE2E_MarkCost drains the same backlog without marking rows, marking them where
// the column is in an index, as a relay that polls needs it, and where it is in none
// and pages have room.
func TestE2E_MarkCost(t *testing.T) {
	r := newRig(t, rigOptions{noTable: true, pg: pgserver.Options{Settings: map[string]string{"autovacuum": "off", "max_wal_size": "4GB"}}})
	r.pg.RequireControl(t)
	const rounds = 2
	costs := map[string]markCost{}
	for round := range rounds {
		for _, cell := range markCells {
			c := measureMarking(t, r, cell, fmt.Sprintf("mark_%s_%d", cell.name, round))
			if best := costs[cell.name]; c.rate > best.rate { // of the round that was disturbed least
				costs[cell.name] = c
			}
		}
	}
	off, index, hot := costs["off"], costs["index"], costs["hot"]
	ok := off.dead == 0 && index.dead == int64(*markedRows) && index.hot == 0 && hot.hot > hot.dead*9/10
	e2e.Result(t, "mark_cost", ok, "rows", *markedRows,
		"rate_off", int(off.rate), "rate_index", int(index.rate), "rate_hot", int(hot.rate),
		"ratio_index", fmt.Sprintf("%.2f", index.rate/off.rate), "ratio_hot", fmt.Sprintf("%.2f", hot.rate/off.rate),
		"wal_off", int(off.wal), "wal_index", int(index.wal), "wal_hot", int(hot.wal),
		"dead_index", index.dead, "dead_hot", hot.dead, "hot_updates", hot.hot,
		"disk_index", int(index.disk), "disk_hot", int(hot.disk), "pg", r.pg.Version)
}

func measureMarking(t testing.TB, base *rig, cell markCell, name string) (c markCost) {
	t.Helper()
	r := base.inDatabase(t, name)
	r.topic = r.k.Topic(t, name, 6, nil)
	r.relayYAML = "  save_interval: 100ms\n"
	if cell.on {
		r.relayYAML += "mark:\n  column: status\n  value: completed\n"
	}
	r.pg.Exec(t, strings.Split(polledTable, ";")[0], cell.table)
	r.setup(t)
	const atOnce = 100 // rows of a transaction
	r.pg.Exec(t, fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
		INSERT INTO outbox (id, aggregateid, payload) SELECT gen_random_uuid()::text, 'k' || n, repeat('x', 200) FROM generate_series(1, %d) n; COMMIT;
		END LOOP; END $$`, *markedRows/atOnce, atOnce))
	end, before := r.pg.Query(t, "SELECT pg_current_wal_insert_lsn()"), r.tableBytes(t)
	relay := r.start(t)
	e2e.Eventually(t, 30*time.Second, "the relay to read", func() bool {
		ready, _ := relay.Ready()
		return ready && !strings.Contains(relay.Metrics(t), "\ncdc_relay_decoded_rows_total 0\n")
	})
	began := time.Now()
	e2e.Eventually(t, 2*time.Minute, "all to be confirmed", func() bool {
		got, err := r.pg.TryQuery("SELECT confirmed_flush_lsn >= $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1", r.slot, end)
		return err == nil && strings.HasPrefix(got, "t")
	})
	c.rate = float64(*markedRows) / time.Since(began).Seconds()
	c.wal = float64(r.integer(t, "SELECT (pg_current_wal_insert_lsn() - '"+end+"'::pg_lsn)::bigint")) / float64(*markedRows)
	c.disk = float64(r.tableBytes(t)-before) / float64(*markedRows)
	if cell.on != (r.integer(t, "SELECT count(*) FROM outbox WHERE status = 'completed'") == int64(*markedRows)) {
		t.Errorf("%s: not as many rows are marked as were to be", cell.name)
	}
	relay.Terminate(t, 30*time.Second)
	time.Sleep(1500 * time.Millisecond) // statistics of a backend come with its end, at the latest
	c.dead = r.integer(t, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'outbox'")
	c.hot = r.integer(t, "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'outbox'")
	return c
}

func (r *rig) integer(t testing.TB, sql string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(r.pg.Query(t, sql), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (r *rig) tableBytes(t testing.TB) int64 {
	t.Helper()
	return r.integer(t, "SELECT pg_total_relation_size('outbox')")
}
