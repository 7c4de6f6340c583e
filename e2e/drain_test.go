package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

var (
	drainRows   = flag.Int("drain-rows", 1_000_000, "how many rows TestE2E_Drain drains")
	drainTxRows = flag.Int("tx-rows", 1000, "rows of each transaction in TestE2E_Drain")
	drainRounds = flag.Int("rounds", 5, "rounds of TestE2E_Drain")
)

// drainSettings: the server's own work is the same for both sides. Statistics and
// checkpoints in the middle of a round would not be.
var drainSettings = map[string]string{
	"autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "synchronous_commit": "off", "shared_buffers": "256MB",
}

// peakJVM lets the broker compile fully, as in production.
var peakJVM = []string{"-XX:+UseSerialGC", "-XX:+TieredCompilation"}

// drained is one round of one side.
type drained struct {
	took time.Duration
	cpu  time.Duration
	rss  int64 // bytes, peak
	// requests is how many produce requests the relay made.
	requests float64
}

// TestE2E_Drain measures how fast the relay publishes what was committed while
// it was away, against pg_recvlogical, which reads the same from an equal slot
// and drops it. Both take the same time in the same round; the medians count. It
// runs by make bench-quick.
func TestE2E_Drain(t *testing.T) {
	if os.Getenv("CDC_RELAY_BENCH") == "" {
		t.Skip("a benchmark: make bench-quick")
	}
	r := newRig(t, rigOptions{
		pg:    pgserver.Options{Settings: drainSettings},
		kafka: &kafkaserver.Options{JVMFlags: peakJVM, Heap: "1g"},
	})
	r.k.RequireReal(t)
	end := r.fillOutbox(t, *drainRows, *drainTxRows)
	var relay, recv []drained
	var ratios []float64
	for i := range *drainRounds {
		// By turns, so that neither side always comes first.
		if i%2 == 0 {
			recv = append(recv, r.drainByRecvlogical(t, i, end))
			relay = append(relay, r.drainByRelay(t, i, end))
		} else {
			relay = append(relay, r.drainByRelay(t, i, end))
			recv = append(recv, r.drainByRecvlogical(t, i, end))
		}
		a, b := relay[i], recv[i]
		ratios = append(ratios, b.took.Seconds()/a.took.Seconds())
		fmt.Printf("round %d of %d: relay %.1f s (%.1f CPU s, %d MiB, %.0f requests), pg_recvlogical %.1f s (%.1f CPU s), ratio %.2f\n",
			i+1, *drainRounds, a.took.Seconds(), a.cpu.Seconds(), a.rss/mib, a.requests, b.took.Seconds(), b.cpu.Seconds(), ratios[i])
	}
	rows := float64(*drainRows)
	rate := func(d drained) float64 { return rows / d.took.Seconds() }
	ratio := median(ratios, func(f float64) float64 { return f })
	e2e.Result(t, "drain", ratio >= 0.5, "rows", *drainRows, "tx_rows", *drainTxRows, "rounds", *drainRounds,
		"events_per_s", int(median(relay, rate)),
		"cpu_per_million", median(relay, func(d drained) float64 { return d.cpu.Seconds() / rows * 1e6 }),
		"records_per_request", median(relay, func(d drained) float64 { return rows / max(d.requests, 1) }),
		"rss_mb", median(relay, func(d drained) float64 { return float64(d.rss) / mib }),
		"pg_recvlogical_per_s", int(median(recv, rate)),
		"pg_recvlogical_cpu_per_million", median(recv, func(d drained) float64 { return d.cpu.Seconds() / rows * 1e6 }),
		"kafka_ratio", ratio)
}

func median[T any](all []T, of func(T) float64) float64 {
	var v []float64
	for _, x := range all {
		v = append(v, of(x))
	}
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// fillOutbox commits rows, txRows at a time, and returns the position behind
// them.
func (r *rig) fillOutbox(t *testing.T, rows, txRows int) string {
	t.Helper()
	r.pg.Exec(t, `CREATE PROCEDURE fill(total int, per int) LANGUAGE plpgsql AS $$
		BEGIN
			FOR i IN 0 .. (total + per - 1) / per - 1 LOOP
				INSERT INTO outbox (id, aggregateid, payload)
				SELECT n::text, 'k' || n % 997, repeat(lpad(n::text, 10, '0'), 30)
				FROM generate_series(i * per, least((i + 1) * per, total) - 1) n;
				COMMIT;
			END LOOP;
		END $$`,
		fmt.Sprintf("CALL fill(%d, %d)", rows, txRows), "CHECKPOINT")
	return r.pg.Query(t, "SELECT pg_current_wal_insert_lsn()")
}

// copySlot makes a slot that stands where setup's slot stands: nothing was read
// from that one.
func (r *rig) copySlot(t *testing.T, name string) {
	t.Helper()
	r.pg.Exec(t, fmt.Sprintf("SELECT pg_copy_logical_replication_slot('%s', '%s')", r.slot, name))
}

func (r *rig) dropSlot(t *testing.T, name string) {
	t.Helper()
	r.pg.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", name))
}

// drainByRelay runs the relay from its start until all is published, saved and
// confirmed.
func (r *rig) drainByRelay(t *testing.T, round int, end string) drained {
	t.Helper()
	own := *r
	own.slot = fmt.Sprintf("relay_%d", round)
	own.topic = r.k.Topic(t, "drain", 6)
	r.copySlot(t, own.slot)
	own.setup(t, "--existing-slot")
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, r.pg.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)

	began := time.Now()
	relay := own.start(t)
	e2e.Eventually(t, 10*time.Minute, "the relay to drain its slot", func() bool {
		var done bool
		if err := conn.QueryRow(ctx, "SELECT confirmed_flush_lsn >= $2::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $1", own.slot, end).Scan(&done); err != nil {
			t.Fatal(err)
		}
		return done
	})
	d := drained{took: time.Since(began), cpu: relay.CPU(), rss: relay.PeakRSS(),
		requests: metric(t, relay, "cdc_relay_produce_requests_total")}
	if code := relay.Terminate(t, 30*time.Second); code != 0 {
		t.Errorf("the relay ended with %d after a clean stop", code)
	}
	if n := total(r.k.EndOffsets(t, own.topic)); n != int64(*drainRows) {
		t.Errorf("%d records in the topic, of %d", n, *drainRows)
	}
	r.dropSlot(t, own.slot)
	if _, err := kadm.NewClient(r.k.Client(t)).DeleteTopic(ctx, own.topic); err != nil {
		t.Fatal(err)
	}
	return d
}

// drainByRecvlogical lets pg_recvlogical read an equal slot to the same position.
func (r *rig) drainByRecvlogical(t *testing.T, round int, end string) drained {
	t.Helper()
	path, err := pgserver.ClientBinary("pg_recvlogical")
	if err != nil {
		t.Fatal(err)
	}
	slot := fmt.Sprintf("recv_%d", round)
	r.copySlot(t, slot)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--dbname", r.pg.DSN(), "--slot", slot, "--start", "--endpos", end, "--no-loop",
		"--option", "proto_version=1", "--option", "publication_names=cdc_relay", "--file", os.DevNull)
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pg_recvlogical: %v:\n%s", err, out)
	}
	d := drained{took: time.Since(began), cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	if ru, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		d.rss = ru.Maxrss * 1024
	}
	r.dropSlot(t, slot)
	return d
}
