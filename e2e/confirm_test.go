package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// TestE2E_ConfirmRule withholds the brokers' answers: however much the server
// tells of later positions, nothing is confirmed past the first transaction that
// is not acked; and a crash then only repeats.
func TestE2E_ConfirmRule(t *testing.T) {
	const n = 50
	r := newRig(t, rigOptions{proxy: true})
	r.pg.Exec(t, `CREATE TABLE busy (t text)`)
	relay := r.startReady(t)
	r.pg.Exec(t, `INSERT INTO outbox (id, aggregateid, payload) VALUES ('before', 'k', 'x')`)
	r.waitCaughtUp(t, 30*time.Second)
	sampler := e2e.SampleConfirmed(t, r.pg, r.slot)

	r.proxy.WithholdAcks(r.topic)
	first := mustLSN(t, r.pg.Query(t, `SELECT pg_current_wal_insert_lsn()`))
	r.pg.Exec(t, `INSERT INTO outbox (id, aggregateid, payload) VALUES ('e0', 'k', 'x')`)
	// The first transaction's end lies at or below this.
	bound := mustLSN(t, r.pg.Query(t, `SELECT pg_current_wal_insert_lsn()`))
	for i := 1; i < n; i++ {
		r.pg.Exec(t, fmt.Sprintf(`INSERT INTO outbox (id, aggregateid, payload) VALUES ('e%d', 'k%d', 'x')`, i, i%7))
		r.pg.Exec(t, `INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 100)`)
	}
	held := r.proxy.Held()
	e2e.Eventually(t, 10*time.Second, "the broker to have records whose answers are withheld", func() bool { held = r.proxy.Held(); return held > 0 })
	// Several status intervals with keepalives of a busy server.
	passed := false
	for deadline := time.Now().Add(6 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		r.pg.Exec(t, `INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 20)`)
		passed = passed || mustLSN(t, r.confirmed(t)) >= bound
	}
	while := mustLSN(t, r.confirmed(t))
	relay.Kill()
	r.proxy.Release()
	again := r.startReady(t)
	r.waitCaughtUp(t, 30*time.Second)
	if code := again.Terminate(t, 30*time.Second); code != 0 {
		t.Errorf("a clean stop ended with %d", code)
	}
	ids := map[string]int{}
	for _, rec := range r.k.Consume(t, r.topic) {
		id, _ := rec.Header("id")
		ids[id]++
	}
	arrived := 0
	for i := range n {
		if ids[fmt.Sprintf("e%d", i)] > 0 {
			arrived++
		}
	}
	ok := !passed && while <= first && arrived == n && held > 0 && sampler.OK()
	e2e.Result(t, "confirm_rule", ok, "inserts", n, "arrived", arrived, "held_answers", held, "passed", passed,
		"confirmed", while, "first_unacked_after", first)
}

func mustLSN(t testing.TB, s string) pglogrepl.LSN {
	t.Helper()
	lsn, err := pglogrepl.ParseLSN(s)
	if err != nil {
		t.Fatal(err)
	}
	return lsn
}
