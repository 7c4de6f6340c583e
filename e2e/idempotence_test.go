package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// Codes of Kafka for a batch that comes late.
const (
	written            = 0  // the broker has it, and says so
	outOfOrderSequence = 45 // it is no longer known as a copy, and refused
)

// TestE2E_Idempotence drops answers of the broker after it has written the
// records, and gives it requests long after the relay gave them up: within one run
// of the relay, every record is written once, and in order.
func TestE2E_Idempotence(t *testing.T) {
	const records, rounds = 10_000, 16
	r := newRig(t, rigOptions{proxy: true})
	r.kafkaYAML = "  request_timeout: 2s\n"
	oracle := e2e.NewOracle(t, r.pg)
	relay := r.startReady(t)
	pid, n, delayed, drops := relay.Pid(), 0, 0, 0
	insert := func(to int) {
		for n < to { // transactions of one row and of many
			rows := min(1+n%97, to-n)
			r.pg.Exec(t, fmt.Sprintf(`INSERT INTO outbox (id, aggregateid, payload)
				SELECT 'e' || n, 'k' || n %% 50, repeat('x', 300) FROM generate_series(%d, %d) n`, n+1, n+rows))
			n += rows
		}
	}
	for i := range rounds {
		soon := i == 3 || i == 6
		switch {
		case soon: // a request past its time-out, which arrives after another attempt and before what follows
			r.proxy.DelayProduce(1, r.topic)
			delayed++
		case i == 9: // and some that arrive last of all
			r.proxy.DelayProduce(2, r.topic)
			delayed += 2
		default:
			r.proxy.DropAnswers(3, r.topic)
			drops += 3
		}
		insert(records * (i + 1) / rounds)
		r.waitCaughtUp(t, time.Minute)
		switch {
		case soon:
			expectLate(t, r.proxy.DeliverLate(t), written)
		case i == rounds-1:
			expectLate(t, r.proxy.DeliverLate(t), outOfOrderSequence)
		}
	}
	resets, retries := metric(t, relay, "cdc_relay_producer_id_resets_total"), metric(t, relay, "cdc_relay_produce_retries_total")
	same := relay.Alive() && relay.Pid() == pid && metric(t, relay, "cdc_relay_reconnects_total") == 0
	v := r.judgeAll(t, oracle, nil, nil)
	if code := relay.Terminate(t, 30*time.Second); code != 0 {
		t.Errorf("the relay ended with %d after a clean stop", code)
	}
	ok := v.ok() && v.committed == records && v.records == records && v.duplicate == 0 && resets == 0 && same &&
		r.proxy.Dropped() == drops && r.proxy.Delayed() == delayed
	e2e.Result(t, "idempotence", ok && !t.Failed(), "records", v.committed, "dropped_responses", r.proxy.Dropped(), "delayed_requests", r.proxy.Delayed(),
		"retries", int(retries), "duplicates", v.duplicate, "missing", v.missing, "out_of_order", v.overtaken, "resets", int(resets))
}

// expectLate checks how each batch of a late request was answered.
func expectLate(t *testing.T, codes map[string]int16, want int16) {
	t.Helper()
	if len(codes) == 0 {
		t.Error("no request was delivered late")
	}
	for at, code := range codes {
		if code != want {
			t.Errorf("%s: a late batch was answered with %d, want %d", at, code, want)
		}
	}
}

// TestE2E_BatchTooLarge lowers the topic's limit below the batches that the relay
// makes: they are split, and every record arrives once and in order. A single
// record above the limit halts its partition.
func TestE2E_BatchTooLarge(t *testing.T) {
	const records = 6000
	r := newRig(t, rigOptions{partitions: 2})
	oracle := e2e.NewOracle(t, r.pg)
	relay := r.startReady(t)
	put := func(id string, key string, size int) {
		r.pg.Exec(t, fmt.Sprintf(`INSERT INTO outbox (id, aggregateid, payload) VALUES ('%s', '%s', repeat('x', %d))`, id, key, size))
	}
	put("first", "k0", 10) // the relay reads the limit of a topic that it uses
	r.waitCaughtUp(t, 30*time.Second)
	r.setTopic(t, "max.message.bytes", "20000")
	r.pg.Exec(t, fmt.Sprintf(`INSERT INTO outbox (id, aggregateid, payload)
		SELECT 'e' || n, 'k' || n %% 50, repeat('x', 300) FROM generate_series(1, %d) n`, records-1))
	r.waitCaughtUp(t, time.Minute)
	refused := tooLargeErrors(t, relay)
	resets := metric(t, relay, "cdc_relay_producer_id_resets_total")
	v := r.judgeAll(t, oracle, nil, nil)

	put("large", "k0", 30_000)
	put("behind", "k0", 10)
	for i := range 20 { // some of these keys are on the other partition
		put(fmt.Sprintf("beside-%d", i), fmt.Sprintf("other%d", i), 10)
	}
	relay.WaitNotReady(t, 20*time.Second, "large")
	_, reason := relay.Ready()
	halted := strings.Contains(reason, r.topic) && strings.Contains(reason, "Message Size Too Large")
	beside, behind := false, false
	e2e.Eventually(t, 20*time.Second, "the other partition to go on", func() bool {
		for _, rec := range r.k.Consume(t, r.topic) {
			id, _ := rec.Header("id")
			beside, behind = beside || strings.HasPrefix(id, "beside"), behind || id == "behind"
		}
		return beside
	})
	if !halted || behind {
		t.Errorf("not ready because of %q; what is behind was written: %v", reason, behind)
	}
	ok := v.ok() && v.committed == records && v.records == records && refused > 0 && resets == 0 && halted && !behind
	e2e.Result(t, "batch_too_large", ok, "records", v.committed, "refused_batches", refused, "duplicates", v.duplicate, "missing", v.missing,
		"out_of_order", v.overtaken, "resets", int(resets), "single_halts", halted && !behind)
}

// tooLargeErrors is how many batches the brokers found too large.
func tooLargeErrors(t *testing.T, relay *e2e.Relay) (n int) {
	t.Helper()
	for line := range strings.Lines(relay.Metrics(t)) {
		if strings.HasPrefix(line, "cdc_relay_errors_total{") && strings.Contains(line, `code="MESSAGE_TOO_LARGE"`) {
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}
