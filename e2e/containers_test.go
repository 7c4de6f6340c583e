package e2e_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

// TestE2E_ContainerOutage takes the servers away under load as only containers
// allow: frozen whole, and taken from their network while they go on, so that the
// relay sees silence, or a reset and then refused connections. The same process
// heals, readiness turns and turns back, and nothing is missing or overtaken.
// -short leaves one freeze and one cut.
func TestE2E_ContainerOutage(t *testing.T) {
	if !e2e.Containers() {
		t.Skip("needs containers: make e2e-containers")
	}
	r := newRig(t, rigOptions{
		pg:    pgserver.Options{Settings: map[string]string{"wal_sender_timeout": "5s"}},
		kafka: &kafkaserver.Options{},
	})
	r.sourceYAML = "  wal_sender_timeout: 5s\n"
	oracle := e2e.NewOracle(t, r.pg)
	audit := r.startAudit(t)
	w := startWorkload(t, r.pg, 4, 10*time.Millisecond)
	relay := r.startReady(t)
	o := &containerOutage{rig: r, relay: relay, pid: relay.Pid()}

	pg, k := r.pg.Container(), r.k.Container()
	o.away(t, "Kafka paused", k.Pause, k.Resume)
	o.away(t, "PostgreSQL disconnected", pg.Disconnect, pg.Connect)
	if !testing.Short() {
		o.away(t, "PostgreSQL paused", pg.Pause, pg.Resume)
		o.away(t, "Kafka disconnected", k.Disconnect, k.Connect)
		o.away(t, "both disconnected", both(pg.Disconnect, k.Disconnect), both(pg.Connect, k.Connect))
		o.away(t, "Kafka killed", killing(k.Kill9), func() error { r.k.StartAgain(t); return nil })
		o.away(t, "PostgreSQL killed", killing(pg.Kill9), func() error { r.pg.StartAgain(t); return nil })
		o.away(t, "PostgreSQL stopped", func() error { r.pg.StopFastIn(t, 10*time.Second); return nil },
			func() error { r.pg.StartAgain(t); return nil })
	}

	same := relay.Alive() && relay.Pid() == o.pid
	w.Stop()
	r.waitCaughtUp(t, 2*time.Minute)
	if code := relay.Terminate(t, 30*time.Second); code != 0 {
		t.Errorf("the relay ended with %d after a clean stop", code)
	}
	v := r.judgeAll(t, oracle, w, audit)
	ok := v.ok() && v.committed > 0 && same && audit.OK() && !t.Failed()
	e2e.Result(t, "container_outage", ok, "outages", o.outages, "committed", v.committed, "missing", v.missing,
		"uncommitted", v.uncommitted, "overtaken", v.overtaken, "early", v.early, "duplicates", v.duplicate,
		"same_process", same, "slowest_recovery_s", o.slowest.Seconds(), "postgres", r.pg.Version)
}

type containerOutage struct {
	*rig
	relay   *e2e.Relay
	pid     int
	outages int
	slowest time.Duration // from the server's return to readiness
}

// away takes a server away for at least twice wal_sender_timeout and until the
// relay says that it is not ready, and waits until all is well again.
func (o *containerOutage) away(t *testing.T, what string, take, give func() error) {
	t.Helper()
	began := time.Now()
	if err := take(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	o.relay.WaitNotReady(t, time.Minute, "")
	_, body := o.relay.Ready()
	var why struct{ Reason string }
	_ = json.Unmarshal([]byte(body), &why)
	noticed := time.Since(began)
	time.Sleep(2*senderTimeout - noticed)
	if err := give(); err != nil {
		t.Fatalf("undo %s: %v", what, err)
	}
	back := time.Now()
	o.relay.WaitReady(t, 2*time.Minute)
	recovered := time.Since(back)
	o.waitCaughtUp(t, 2*time.Minute)
	o.outages++
	o.slowest = max(o.slowest, recovered)
	t.Logf("%s: not ready after %.1fs (%s), ready again %.1fs after its return", what, noticed.Seconds(), why.Reason, recovered.Seconds())
}

func both(f, g func() error) func() error {
	return func() error {
		if err := f(); err != nil {
			return err
		}
		return g()
	}
}

func killing(f func()) func() error {
	return func() error { f(); return nil }
}
