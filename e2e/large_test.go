package e2e_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
)

const (
	mib = 1 << 20
	// budgetMB is relay.max_in_flight_bytes, by default and in these tests.
	budgetMB = 64
	// overheadMB is what the process may take beside the budget.
	overheadMB = 48
)

// largeCase is one transaction of many rows, or of large ones.
type largeCase struct {
	name     string // begins each id
	rows     int
	rowBytes int
}

// largeOutcome is what became of it.
type largeOutcome struct {
	heldMB                                       float64 // counted against the budget while Kafka was frozen
	peakMB                                       float64 // the relay's highest resident set
	missing, disordered, duplicate, wrong, alien int
}

// ok asks for no duplicate either: a frozen broker may have a batch that it did not
// answer, or answers with an error when it wakes, and must not take it twice.
func (o largeOutcome) ok() bool {
	return o.heldMB > budgetMB*3/4 && o.heldMB <= budgetMB && o.peakMB <= budgetMB+overheadMB &&
		o.missing == 0 && o.duplicate == 0 && o.disordered == 0 && o.wrong == 0 && o.alien == 0
}

// TestE2E_LargeTransaction publishes one transaction of a million rows, and one
// of 200 rows of a megabyte, and freezes Kafka on the way, so that the budget is
// full: the relay's memory stays within the budget and a constant, and every row
// arrives, in order, with its bytes.
func TestE2E_LargeTransaction(t *testing.T) {
	r := newRig(t, rigOptions{noSetup: true, kafka: &kafkaserver.Options{
		// Frozen for longer than that, the broker is fenced when it wakes: another test's matter.
		Settings: map[string]string{"broker.session.timeout.ms": "60000"},
	}})
	r.k.RequireReal(t)
	r.relayYAML = fmt.Sprintf("  max_in_flight_bytes: %dMiB\n", budgetMB)
	// Out of line and not compressed: the WAL is as large as the rows.
	r.pg.Exec(t, "ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL")
	r.setup(t)
	many := r.publishLarge(t, largeCase{name: "many", rows: 1_000_000, rowBytes: 300})
	big := r.publishLarge(t, largeCase{name: "big", rows: 200, rowBytes: 1_000_000})
	e2e.Result(t, "large_transaction", many.ok() && big.ok(),
		"rows", 1_000_000, "row_bytes", 300, "budget_mb", budgetMB, "held_mb", many.heldMB, "peak_rss_mb", many.peakMB,
		"limit_mb", budgetMB+overheadMB,
		"big_rows", 200, "big_row_bytes", 1_000_000, "big_held_mb", big.heldMB, "big_peak_rss_mb", big.peakMB,
		"in_order", many.disordered+big.disordered == 0, "missing", many.missing+big.missing,
		"duplicates", many.duplicate+big.duplicate, "wrong", many.wrong+big.wrong+many.alien+big.alien)
}

// publishLarge commits the transaction while a fresh relay streams to a fresh
// topic, and looks at what arrived and at how much memory that took.
func (r *rig) publishLarge(t *testing.T, c largeCase) (o largeOutcome) {
	t.Helper()
	r.topic = r.k.Topic(t, c.name, 6, map[string]string{"max.message.bytes": strconv.Itoa(8 * mib)})
	e2e.SampleConfirmed(t, r.pg, r.slot) // fails the test by itself
	relay := r.startReady(t)
	// A payload is its row's number, again and again.
	r.pg.Exec(t, fmt.Sprintf(`INSERT INTO outbox (id, aggregateid, payload)
		SELECT '%s-' || n, 'k' || n %% 50, repeat(lpad(n::text, 10, '0'), %d) FROM generate_series(0, %d) n`, c.name, c.rowBytes/10, c.rows-1))
	e2e.Eventually(t, 2*time.Minute, "the transaction to begin to arrive", func() bool {
		return total(r.k.EndOffsets(t, r.topic)) > 0
	})
	if err := r.k.Pause(); err != nil {
		t.Fatal(err)
	}
	o.heldMB = settledInFlight(t, relay)
	if err := r.k.Resume(); err != nil {
		t.Fatal(err)
	}
	r.waitCaughtUp(t, 5*time.Minute)
	o.peakMB = float64(relay.PeakRSS()) / mib
	if code := relay.Terminate(t, 30*time.Second); code != 0 {
		t.Errorf("the relay ended with %d after a clean stop", code)
	}
	o.judge(t, r, c)
	t.Logf("%d rows of %d bytes: %+v", c.rows, c.rowBytes, o)
	return o
}

// settledInFlight is the in-flight memory that the relay reports once it has
// been the same for two seconds, in MiB.
func settledInFlight(t *testing.T, relay *e2e.Relay) float64 {
	t.Helper()
	last, since := -1.0, time.Now()
	e2e.Eventually(t, time.Minute, "the in-flight budget to be full", func() bool {
		time.Sleep(200 * time.Millisecond)
		if now := metric(t, relay, "cdc_relay_in_flight_bytes"); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 2*time.Second
	})
	return last / mib
}

// metric is the value of a metric without labels.
func metric(t *testing.T, relay *e2e.Relay, name string) float64 {
	t.Helper()
	for line := range strings.Lines(relay.Metrics(t)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
	}
	t.Fatalf("the relay has no metric %s", name)
	return 0
}

// judge reads the topic record by record; it keeps a bit per row, and per
// partition the last row seen.
func (o *largeOutcome) judge(t *testing.T, r *rig, c largeCase) {
	t.Helper()
	seen := make([]bool, c.rows)
	last := map[int32]int{}
	r.k.Each(t, func(rec *e2e.Record) {
		id, _ := rec.Header("id")
		n, err := strconv.Atoi(strings.TrimPrefix(id, c.name+"-"))
		if err != nil || n < 0 || n >= c.rows {
			o.alien++
			return
		}
		if seen[n] {
			o.duplicate++
			return
		}
		seen[n] = true
		if prev, ok := last[rec.Partition]; ok && prev > n {
			o.disordered++
		}
		last[rec.Partition] = n
		if string(rec.Value) != strings.Repeat(fmt.Sprintf("%010d", n), c.rowBytes/10) || string(rec.Key) != "k"+strconv.Itoa(n%50) {
			o.wrong++
		}
	}, r.topic)
	for _, s := range seen {
		if !s {
			o.missing++
		}
	}
}
