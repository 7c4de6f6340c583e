package e2e_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

const recoverWriters = 4

// TestE2E_Recover takes the slot away in every way that happens, while writers go
// on and the relay publishes: run refuses and names the way, recover goes it, and
// every row that is in the database is in the topic in the end.
func TestE2E_Recover(t *testing.T) {
	for _, c := range []struct {
		name     string
		settings map[string]string
		breaks   func(*lostSlot)
	}{
		{"dropped", nil, (*lostSlot).drop},
		{"invalidated", map[string]string{"max_slot_wal_keep_size": "1MB"}, (*lostSlot).invalidate},
		{"unsynced_failover", nil, (*lostSlot).failOver},
		{"restored_backup", nil, (*lostSlot).restore},
		{"upgraded", nil, (*lostSlot).upgrade},
	} {
		t.Run(c.name, func(t *testing.T) {
			settings := map[string]string{"wal_keep_size": "512MB"}
			if c.settings != nil {
				settings = c.settings
			}
			x := &lostSlot{rig: newRig(t, rigOptions{noTable: true, pg: pgserver.Options{Settings: settings}}), t: t, how: "as_named"}
			if x.pg.Server == nil {
				t.Skip("needs the server's files")
			}
			x.run(c.name, c.breaks)
		})
	}
	t.Run("undecodable", recoverUndecodable)
}

// TestE2E_SyncedFailover promotes a standby that has the slot: the relay goes on by
// itself, and there is nothing to recover.
func TestE2E_SyncedFailover(t *testing.T) {
	if v, err := strconv.Atoi(e2e.PGVersion()); err != nil || v < 17 {
		t.Skip("failover slots came with 17")
	}
	x := &lostSlot{rig: newRig(t, rigOptions{noTable: true, pg: pgserver.Options{Settings: map[string]string{
		"wal_keep_size": "512MB", "synchronized_standby_slots": "standby"}}}), t: t, ok: true}
	if x.pg.Server == nil {
		t.Skip("needs the server's files")
	}
	x.sourceYAML = "  failover: true\n"
	x.pg.Exec(t, orderedTable, "SELECT pg_create_physical_replication_slot('standby', true)")
	x.setup(t)
	primary := x.pg.Server
	standby := x.copyOf(primary, "pg_replslot")
	standby.file("standby.signal", "")
	standby.settings["primary_conninfo"] = fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=app", primary.Port(), pgserver.Superuser)
	standby.settings["primary_slot_name"] = "standby"
	standby.settings["hot_standby_feedback"] = "on"
	standby.settings["sync_replication_slots"] = "on"
	standby.settings["synchronized_standby_slots"] = ""
	s := standby.start()
	relay := x.startReady(t)
	x.writers = startBusyWriters(t, x.pg, recoverWriters)
	after := &e2e.PG{PGControl: s, Server: s, Version: x.pg.Version, Database: x.pg.Database}
	e2e.Eventually(t, time.Minute, "the slot to be synchronised", func() bool {
		got, err := after.TryQuery("SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = $1", x.slot)
		return err == nil && strings.HasPrefix(got, "t")
	})
	time.Sleep(time.Second)
	x.writers.mayFail.Store(true)
	primary.Kill9()
	x.writers.Stop()
	relay.Kill()
	x.use(s)
	x.pg.Exec(t, "SELECT pg_promote()", "CHECKPOINT")
	relay = x.startReady(t)
	x.pg.Exec(t, "INSERT INTO outbox (id, aggregateid, payload) SELECT 'later-' || n, 'k', 'x' FROM generate_series(1, 100) n")
	x.waitCaughtUp(t, time.Minute)
	code, stdout, stderr := x.command(t, "recover")
	x.hold(code == 0 && strings.Contains(stdout, "nothing to recover"), "recover after a failover (%d):\n%s%s", code, stdout, stderr)
	x.hold(relay.Terminate(t, 30*time.Second) == 0, "the relay does not end cleanly")
	c := (&handoff{t: t, rig: x.rig}).count(x.rig)
	e2e.Result(t, "synced_failover", x.ok && c.missing == 0 && c.uncommitted == 0 && c.streamed > 100, "missing", c.missing, "rows", c.rows,
		"extra", c.uncommitted, "streamed", c.streamed, "pg", x.pg.Version)
}

// lostSlot is a case under way.
type lostSlot struct {
	*rig
	t       *testing.T
	how     string // the fault was made
	relay   *e2e.Relay
	writers *busyWriters
	ok      bool
}

func (x *lostSlot) hold(holds bool, format string, args ...any) {
	x.t.Helper()
	if !holds {
		x.ok = false
		x.t.Errorf(format, args...)
	}
}

func (x *lostSlot) run(name string, breaks func(*lostSlot)) {
	t := x.t
	x.ok = true
	x.pg.Exec(t, orderedTable, "INSERT INTO outbox (id, aggregateid, payload) SELECT 'before-' || n, 'k' || n % 20, 'x' FROM generate_series(1, 200) n")
	code, stdout, stderr := x.command(t, "backfill", "--all", "--order-by", "at")
	x.hold(code == 0, "backfill ended with %d:\n%s%s", code, stdout, stderr)
	x.relay = x.startReady(t)
	x.writers = startBusyWriters(t, x.pg, recoverWriters)
	time.Sleep(time.Second)
	breaks(x)

	before := x.pg.Query(t, "SELECT count(*) FROM outbox")
	run := x.start(t)
	x.hold(run.WaitExit(t, 30*time.Second) == 1, "run does not refuse")
	said := lastLine(run.Log())
	x.hold(strings.Contains(said, "cdc-relay recover"), "run does not name recover: %s", said)
	_, status, _ := x.command(t, "status")
	x.hold(strings.Contains(status, "cdc-relay recover"), "status does not name recover: %s", status)
	code, stdout, stderr = x.command(t, "recover", "--dry-run", "--order-by", "at")
	x.hold(code == 0 && strings.Contains(stdout, "may be missing:") && strings.Contains(stdout, "public.outbox retains"), "dry run (%d):\n%s%s", code, stdout, stderr)
	code, stdout, stderr = x.command(t, "recover", "--yes", "--order-by", "at")
	x.hold(code == 0 && strings.Contains(stdout, "marked slot"), "recover (%d):\n%s%s", code, stdout, stderr)
	t.Logf("%s\n%s", said, stdout)

	relay := x.startReady(t)
	x.pg.Exec(t, "INSERT INTO outbox (id, aggregateid, payload) SELECT 'later-' || n, 'k' || n % 20, 'x' FROM generate_series(1, 200) n")
	time.Sleep(500 * time.Millisecond)
	x.writers.Stop()
	x.waitCaughtUp(t, time.Minute)
	code, stdout, _ = x.command(t, "recover")
	x.hold(code == 0 && strings.Contains(stdout, "nothing to recover"), "recover beside a relay that runs (%d):\n%s", code, stdout)
	x.hold(relay.Terminate(t, 30*time.Second) == 0, "the relay does not end cleanly:\n%s", relay.Log())
	_, status, _ = x.command(t, "status")
	x.hold(strings.Contains(status, "open gaps") && strings.Contains(status, "none"), "gaps are open:\n%s", status)

	h := &handoff{t: t, rig: x.rig}
	c := h.count(x.rig)
	later := 0
	for _, rec := range x.k.Consume(t, x.topic) {
		id, _ := rec.Header("id")
		if _, backfilled := rec.Header("backfilled"); strings.HasPrefix(id, "later-") && !backfilled {
			later++
		}
	}
	e2e.Result(t, "recover", x.ok && c.missing == 0 && later == 200 && c.backfilled > 0, "case", name, "missing", c.missing,
		"rows", c.rows, "rows_at_the_fault", before, "extra", c.uncommitted, "backfilled", c.backfilled, "streamed_later", later, "how", x.how, "pg", x.pg.Version)
}

// drop: somebody drops the slot while the relay is stopped and writers go on.
func (x *lostSlot) drop() {
	x.relay.Terminate(x.t, 30*time.Second)
	time.Sleep(300 * time.Millisecond)
	x.pg.Exec(x.t, "SELECT pg_drop_replication_slot('"+x.slot+"')")
	time.Sleep(300 * time.Millisecond)
	x.how = "pg_drop_replication_slot"
}

// invalidate: more WAL is written than the server keeps for the slot.
func (x *lostSlot) invalidate() {
	x.relay.Terminate(x.t, 30*time.Second)
	x.pg.Exec(x.t, "CREATE TABLE filler (t text)")
	e2e.Eventually(x.t, 30*time.Second, "the server to lose the slot", func() bool {
		x.pg.Exec(x.t, "INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 20000)", "SELECT pg_switch_wal()", "CHECKPOINT")
		return x.pg.Query(x.t, "SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1", x.slot) == "lost"
	})
	x.how = "max_slot_wal_keep_size"
}

// failOver: the primary is killed, and a physical standby without the slot is
// promoted. What it had not received is published, and gone.
func (x *lostSlot) failOver() {
	primary := x.pg.Server
	standby := x.copyOf(primary, "pg_replslot")
	standby.file("standby.signal", "")
	standby.settings["primary_conninfo"] = fmt.Sprintf("host=127.0.0.1 port=%d user=%s", primary.Port(), pgserver.Superuser)
	s := standby.start()
	e2e.Eventually(x.t, 30*time.Second, "the standby to stream", func() bool {
		return x.pg.Query(x.t, "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'walreceiver' AND state = 'streaming'") == "1"
	})
	time.Sleep(time.Second)
	x.writers.mayFail.Store(true)
	primary.Kill9()
	x.writers.Stop()
	x.relay.Kill()
	x.use(s)
	x.pg.Exec(x.t, "SELECT pg_promote()", "CHECKPOINT") // the control file shows the new timeline
	x.writers = startBusyWriters(x.t, x.pg, 0)
	x.how = "kill9_and_promote"
}

// restore: the server is gone, and a base backup is restored up to a point that
// lies behind it, and before the end. The files of the slot are in the backup.
func (x *lostSlot) restore() {
	primary := x.pg.Server
	backup := x.copyOf(primary)
	time.Sleep(time.Second)
	target := x.pg.Query(x.t, "SELECT pg_current_wal_lsn()")
	time.Sleep(time.Second)
	x.writers.Stop()
	x.waitCaughtUp(x.t, time.Minute)
	x.relay.Terminate(x.t, 30*time.Second)
	x.pg.StopFastIn(x.t, 30*time.Second)
	backup.file("recovery.signal", "")
	backup.settings["restore_command"] = "cp " + filepath.Join(primary.DataDir(), "pg_wal") + "/%f %p"
	backup.settings["recovery_target_lsn"] = target
	backup.settings["recovery_target_action"] = "promote"
	x.use(backup.start())
	e2e.Eventually(x.t, 30*time.Second, "the restored server to take writes", func() bool {
		return x.pg.Query(x.t, "SELECT pg_is_in_recovery()") == "f" || x.pg.Query(x.t, "SELECT pg_is_in_recovery()") == "false"
	})
	x.pg.Exec(x.t, "CHECKPOINT", "INSERT INTO outbox (id, aggregateid, payload) SELECT 'restored-' || n, 'k', 'x' FROM generate_series(1, 100) n")
	x.how = "files_and_recovery_target"
}

// upgrade: the rows come into a new cluster, with another system identifier.
func (x *lostSlot) upgrade() {
	old := x.pg.Server
	x.writers.Stop()
	x.relay.Terminate(x.t, 30*time.Second) // rows of the last moments are published or not
	x.pg.Exec(x.t, "INSERT INTO outbox (id, aggregateid, payload) SELECT 'unread-' || n, 'k', 'x' FROM generate_series(1, 100) n")
	if bin := filepath.Join(old.BinDir(), "pg_upgrade"); exists(bin) {
		x.how = "pg_upgrade"
		x.pgUpgrade(bin)
	} else {
		x.how = "dump_and_restore" // these binaries have no pg_upgrade
		x.dumpAndRestore()
	}
	x.pg.Exec(x.t, "INSERT INTO outbox (id, aggregateid, payload) SELECT 'upgraded-' || n, 'k', 'x' FROM generate_series(1, 100) n")
}
