package e2e_test

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

// senderTimeout is wal_sender_timeout on the relay's connection, set low so that
// three times of it fit into a test.
const senderTimeout = 5 * time.Second

// TestE2E_Outage takes away Kafka, the server, the connection and the process,
// one after the other and under load. The same process heals by itself, unless
// it was the one that was killed, and readiness tells.
func TestE2E_Outage(t *testing.T) {
	r := newRig(t, rigOptions{
		pg:    pgserver.Options{Settings: map[string]string{"wal_sender_timeout": "5s"}},
		kafka: &kafkaserver.Options{},
	})
	r.pg.RequireControl(t)
	r.k.RequireReal(t)
	r.sourceYAML = "  wal_sender_timeout: 5s\n"
	r.relayYAML = "  max_in_flight_bytes: 8MiB\n"
	oracle := e2e.NewOracle(t, r.pg)
	audit := r.startAudit(t)
	w := startWorkload(t, r.pg, 4, 10*time.Millisecond)
	relay := r.startReady(t)

	o := &outage{rig: r, relay: relay, pid: relay.Pid()}
	o.kafkaAway(t)
	o.serverRestarts(t)
	o.backendTerminated(t)
	o.stopsInTime(t, "idle, Kafka up", w, false, false)
	o.stopsInTime(t, "under load, Kafka up", w, true, false)
	o.stopsInTime(t, "budget full, Kafka down", w, true, true)
	same := relay.Alive() && relay.Pid() == o.pid
	last := o.takeOver(t)

	w.Stop()
	r.waitCaughtUp(t, 2*time.Minute)
	if code := last.Terminate(t, 30*time.Second); code != 0 {
		t.Errorf("the last relay ended with %d after a clean stop", code)
	}
	v := r.judgeAll(t, oracle, w, audit)
	ok := v.ok() && same && audit.OK() && !t.Failed()
	e2e.Result(t, "outage", ok, "committed", v.committed, "missing", v.missing, "uncommitted", v.uncommitted,
		"overtaken", v.overtaken, "early", v.early, "duplicates", v.duplicate, "same_process", same,
		"slowest_server_stop_s", o.slowest.Seconds(), "takeover_s", o.takeover.Seconds())
}

type outage struct {
	*rig
	relay    *e2e.Relay
	pid      int
	slowest  time.Duration // of the server's stops
	takeover time.Duration
}

// kafkaAway stops Kafka for three times wal_sender_timeout.
func (o *outage) kafkaAway(t *testing.T) {
	o.k.StopNow(t)
	began := time.Now()
	o.relay.WaitNotReady(t, 15*time.Second, "")
	_, reason := o.relay.Ready()
	t.Logf("not ready: %s", reason)
	for time.Since(began) < 3*senderTimeout {
		time.Sleep(500 * time.Millisecond)
		if active := o.pg.Query(t, `SELECT active FROM pg_replication_slots WHERE slot_name = $1`, o.slot); active != "t" && active != "true" {
			t.Errorf("the connection was lost %s into the outage of Kafka", time.Since(began))
			break
		}
	}
	o.k.StartAgain(t)
	o.relay.WaitReady(t, 60*time.Second)
	o.waitCaughtUp(t, time.Minute)
}

func (o *outage) serverRestarts(t *testing.T) {
	for _, how := range []string{"fast", "kill"} {
		if how == "fast" {
			o.stopFast(t, how)
		} else {
			o.pg.Kill9()
		}
		o.relay.WaitNotReady(t, 10*time.Second, "")
		o.pg.StartAgain(t)
		o.relay.WaitReady(t, 60*time.Second)
		o.waitCaughtUp(t, time.Minute)
	}
}

// backendTerminated ends the walsender every 5 s for a minute.
func (o *outage) backendTerminated(t *testing.T) {
	for range 12 {
		o.pg.Query(t, `SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots WHERE slot_name = $1 AND active`, o.slot)
		time.Sleep(5 * time.Second)
	}
	o.relay.WaitReady(t, 30*time.Second)
	o.waitCaughtUp(t, time.Minute)
}

// stopsInTime stops the server as pg_ctl stop -m fast does and measures it. The
// writers go on where load is wanted; their connections end with the server.
func (o *outage) stopsInTime(t *testing.T, how string, w *workload, load, full bool) {
	if !load {
		w.Pause()
		o.waitCaughtUp(t, time.Minute)
	}
	if full {
		o.k.StopNow(t)
		o.pg.Exec(t, `INSERT INTO outbox (id, aggregateid, payload)
			SELECT 'full-' || n, 'k' || n % 50, repeat('x', 1000) FROM generate_series(1, 30000) n`)
		o.relay.WaitNotReady(t, 15*time.Second, "")
		time.Sleep(2 * time.Second) // until the budget is full
	}
	o.stopFast(t, how)
	o.pg.StartAgain(t)
	if full {
		o.k.StartAgain(t)
	}
	w.Resume()
	o.relay.WaitReady(t, 60*time.Second)
	o.waitCaughtUp(t, time.Minute)
}

func (o *outage) stopFast(t *testing.T, how string) {
	took := o.pg.StopFastIn(t, 10*time.Second)
	t.Logf("the server stopped in %s (%s)", took, how)
	o.slowest = max(o.slowest, took)
}

// takeOver starts a second instance, which stands by, and kills the first.
func (o *outage) takeOver(t *testing.T) *e2e.Relay {
	second := o.start(t)
	second.WaitReady(t, 30*time.Second)
	second.WaitLog(t, 10*time.Second, "standby")
	began := time.Now()
	o.relay.Kill()
	first := mustLSN(t, o.pg.Query(t, `SELECT pg_current_wal_insert_lsn()`))
	e2e.Eventually(t, 30*time.Second, "the second instance to take over", func() bool {
		got, err := o.pg.TryQuery(`SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1`, o.slot)
		return err == nil && mustLSN(t, got) > first
	})
	o.takeover = time.Since(began)
	return second
}
