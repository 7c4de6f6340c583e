package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// truthLimit is how soon a relay must end that cannot trust its slot.
const truthLimit = 10 * time.Second

// truthCase makes a slot, its mark, or what is published untrue. Unless it says
// otherwise, the outbox was set up, the row "first" was published, and the relay
// was stopped.
type truthCase struct {
	name    string
	running bool // the relay streams meanwhile
	since   int  // server's major version from which on this can happen
	// begin, where set, is done instead of table, setup and first row.
	begin  func(*truth)
	breaks func(*truth)
	says   []string // the sentence's own words, and its way out
	halts  bool     // the relay stays up, not ready
	doubt  doubt    // what it must say about the row in doubt
	mend   func(*truth)
	// adopt gives the position for cdc-relay adopt after mend; nil: the case needs
	// none, and the row in doubt is streamed afterwards.
	adopt func(*truth) string
}

// doubt is how a refusal bounds what may not have been published.
type doubt int

const (
	between doubt = iota // by two positions
	from                 // it is known where it begins
	before               // it is known where it ends
	certain              // nothing is in doubt
)

// truth is a case under way: a database and a slot of its own on the server that
// all cases share.
type truth struct {
	*rig
	t     *testing.T
	name  string
	relay *e2e.Relay
	// The commit of the row in doubt lies between these.
	low, high pglogrepl.LSN
}

// truthTally counts what the cases found.
type truthTally struct {
	mu                                         sync.Mutex
	cases, refused, named, untouched, out, gap int
	slowest                                    time.Duration
}

func (y *truthTally) add(n *int, ok bool) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if ok {
		*n++
	}
}

// TestE2E_SlotTruth breaks in every way what the relay must be able to trust: it
// refuses, or ends within seconds, says which positions are in doubt and what to
// do, publishes and confirms nothing, and that way leads out, with the gap on
// record.
func TestE2E_SlotTruth(t *testing.T) {
	shared := newRig(t, rigOptions{noTable: true, partitions: 1})
	shared.pg.RequireControl(t)
	var y truthTally
	version, _ := strconv.Atoi(shared.pg.Version)
	var alone []truthCase
	t.Run("cases", func(t *testing.T) {
		for _, c := range truthCases() {
			switch {
			case version < c.since:
			case strings.HasPrefix(c.name, "server_"):
				alone = append(alone, c)
			default:
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(t, shared, &y)
				})
			}
		}
	})
	for _, c := range alone { // they concern every slot of the server
		t.Run(c.name, func(t *testing.T) { c.run(t, shared, &y) })
	}
	ok := y.cases > 20 && y.refused == y.cases && y.named == y.cases && y.untouched == y.cases && y.out == y.cases && y.gap == y.cases
	e2e.Result(t, "slot_truth", ok, "cases", y.cases, "refused", y.refused, "named", y.named, "untouched", y.untouched,
		"led_out", y.out, "gaps_right", y.gap, "slowest_ms", y.slowest.Milliseconds())
}

func (c truthCase) run(t *testing.T, shared *rig, y *truthTally) {
	y.add(&y.cases, true)
	x := newTruth(t, shared, c.name)
	if c.begin != nil {
		c.begin(x)
	} else {
		x.begin(c.running)
	}
	if !c.running {
		x.relay = nil
	}
	c.breaks(x)
	was := x.position()
	began := time.Now()
	if x.relay == nil {
		x.relay = x.start(t)
	}
	refusal := ""
	if c.halts {
		x.relay.WaitNotReady(t, truthLimit, "To fix it: ")
		refusal = "cdc-relay: " + x.relay.Reason(t)
		_ = x.relay.Signal(syscall.SIGTERM)
	}
	code := x.relay.WaitExit(t, 3*truthLimit)
	took := time.Since(began)
	y.mu.Lock()
	y.slowest = max(y.slowest, took)
	y.mu.Unlock()
	said := lastLine(x.relay.Log())
	if c.halts {
		said = refusal
	}
	y.add(&y.refused, x.hold(code == 1 && took < truthLimit, "ended with %d after %v", code, took))
	y.add(&y.named, x.names(said, c))
	// While it runs, positions without events may be confirmed before the change is
	// seen; the gap must hold them.
	same := c.running || x.position() == was
	y.add(&y.untouched, x.hold(same, "the slot moved from %s to %s", was, x.position()) && x.hold(!x.published("doubt"), "the row in doubt was published"))

	if c.mend != nil {
		c.mend(x)
	}
	recorded := true
	if c.adopt != nil {
		x.adopt(c.adopt(x))
		recorded = x.hold(x.gapRecorded(), "no open gap holds the row in doubt, %s to %s", x.low, x.high)
	}
	y.add(&y.gap, recorded)
	y.add(&y.out, x.goesOn(c.adopt == nil))
}

func newTruth(t *testing.T, shared *rig, name string) *truth {
	t.Helper()
	r := shared.inDatabase(t, "truth_"+name)
	r.sourceYAML = "  publication: outbox_pub\n"
	r.relayYAML = "  reconnect_min: 1s\n" // time for a test to act before the relay is back
	t.Cleanup(func() {                    // the server has only so many slots
		_, _ = r.pg.TryQuery("SELECT pg_drop_replication_slot(slot_name)::text FROM pg_replication_slots WHERE NOT active AND slot_name = $1", r.slot)
	})
	return &truth{rig: r, t: t, name: name}
}

// begin sets up, publishes a row, and leaves the relay running or stops it.
func (x *truth) begin(running bool) {
	x.t.Helper()
	x.pg.Exec(x.t, outboxTable)
	x.beginWith(running)
}

// beginWith is begin with a table that is there.
func (x *truth) beginWith(running bool) {
	x.t.Helper()
	x.setup(x.t)
	if !running {
		return
	}
	x.relay = x.startReady(x.t)
	x.put("first")
	x.waitCaughtUp(x.t, 30*time.Second)
}

// put inserts a row; where its commit lies is remembered.
func (x *truth) put(id string) {
	x.t.Helper()
	x.low = mustLSN(x.t, x.now())
	x.pg.Exec(x.t, fmt.Sprintf("INSERT INTO outbox (id, aggregateid, payload) VALUES ('%s', 'k', 'payload-of-%s')", x.id(id), id))
	x.high = mustLSN(x.t, x.now())
}

func (x *truth) id(id string) string { return x.name + "/" + id }

func (x *truth) now() string { return x.pg.Query(x.t, "SELECT pg_current_wal_insert_lsn()") }

// position is what a refusal must leave as it is.
func (x *truth) position() string {
	x.t.Helper()
	return x.pg.Query(x.t, `SELECT max(confirmed_flush_lsn::text) FROM pg_replication_slots WHERE slot_name = $1`, x.slot)
}

func (x *truth) hold(ok bool, format string, args ...any) bool {
	x.t.Helper()
	if !ok {
		x.t.Errorf(format, args...)
	}
	return ok
}

// names tells whether the last words have the case's own, and bound the row in
// doubt.
func (x *truth) names(said string, c truthCase) bool {
	x.t.Helper()
	ok := x.hold(strings.HasPrefix(said, "cdc-relay: ") && strings.Contains(said, "To fix it: "), "no sentence with a way out: %s", said)
	for _, want := range c.says {
		ok = x.hold(strings.Contains(said, strings.ReplaceAll(want, "SLOT", x.slot)), "does not say %q: %s", want, said) && ok
	}
	what, _, _ := strings.Cut(said, "To fix it: ")
	below, above := false, false
	for _, s := range lsnInText.FindAllString(what, -1) {
		lsn := mustLSN(x.t, s)
		below, above = below || lsn <= x.high, above || lsn >= x.low
	}
	if c.doubt == between || c.doubt == from {
		ok = x.hold(below, "no position at or below the row in doubt (%s to %s): %s", x.low, x.high, said) && ok
	}
	if c.doubt == between || c.doubt == before {
		ok = x.hold(above, "no position at or above the row in doubt (%s to %s): %s", x.low, x.high, said) && ok
	}
	return x.hold(!strings.Contains(x.relay.Log(), "payload-of-"), "the log shows a payload") && ok
}

func (x *truth) published(id string) bool {
	x.t.Helper()
	for _, rec := range x.k.Consume(x.t, x.topic) {
		if got, _ := rec.Header("id"); got == x.id(id) {
			return true
		}
	}
	return false
}

func (x *truth) adopt(at string) {
	x.t.Helper()
	code, stdout, stderr := x.command(x.t, "adopt", "--lsn", at, "--yes")
	x.hold(code == 0, "cdc-relay adopt --lsn %s ended with %d:\n%s%s", at, code, stdout, stderr)
}

// gapRecorded asks cdc-relay status for a gap that holds the row in doubt.
func (x *truth) gapRecorded() bool {
	x.t.Helper()
	_, stdout, stderr := x.command(x.t, "status", "--json")
	var st struct {
		Gaps []struct{ From, To string }
	}
	if err := json.Unmarshal([]byte(stdout), &st); err != nil {
		x.t.Fatalf("cdc-relay status --json: %v\n%s%s", err, stdout, stderr)
	}
	for _, g := range st.Gaps {
		begins := pglogrepl.LSN(0)
		if g.From != "" {
			begins = mustLSN(x.t, g.From)
		}
		if begins <= x.high && mustLSN(x.t, g.To) >= x.low {
			return true
		}
	}
	x.t.Logf("gaps: %+v", st.Gaps)
	return false
}

// goesOn starts the relay, which publishes from now on, and the row in doubt too
// where nothing was given up.
func (x *truth) goesOn(all bool) bool {
	x.t.Helper()
	relay := x.startReady(x.t)
	low, high := x.low, x.high
	x.put("after")
	x.waitCaughtUp(x.t, 30*time.Second)
	x.low, x.high = low, high
	ok := x.hold(x.published("after"), "a row is not published after the way out")
	if all {
		ok = x.hold(x.published("doubt"), "the row in doubt is not published after the way out") && ok
	}
	code := relay.Terminate(x.t, 30*time.Second)
	return x.hold(code == 0, "the relay ended with %d after a clean stop", code) && ok
}

// atSlot is the slot's position, at which adopt skips nothing.
func (x *truth) atSlot() string { return x.confirmed(x.t) }

// anew drops the slot where it exists, and makes it as the sentences say.
func (x *truth) anew() {
	x.t.Helper()
	x.dropSlot()
	x.pg.Exec(x.t, "SELECT pg_create_logical_replication_slot('"+x.slot+"', 'pgoutput')")
}

// dropSlot drops the slot, from under a relay that streams it where it must.
func (x *truth) dropSlot() {
	x.t.Helper()
	x.seize("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '" + x.slot + "'")
}

// seize runs a statement for which the slot must be free, while the relay's
// connection is taken away.
func (x *truth) seize(statement string) {
	x.t.Helper()
	conn := x.pg.Conn(x.t)
	e2e.Eventually(x.t, 10*time.Second, "the slot to be free: "+statement, func() bool {
		_, err := conn.Exec(context.Background(), "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active AND slot_name = $1", x.slot)
		if err == nil {
			_, err = conn.Exec(context.Background(), statement)
		}
		return err == nil
	})
}

// restoreOlder puts the server's data directory back to where it was before f,
// as a restore from a backup does.
func (x *truth) restoreOlder(f func()) {
	x.t.Helper()
	dir, backup := x.pg.Server.DataDir(), filepath.Join(filepath.Dir(x.pg.Server.DataDir()), "backup")
	run := func(args ...string) {
		x.t.Helper()
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			x.t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	x.pg.StopFastIn(x.t, 30*time.Second)
	run("cp", "-a", dir, backup)
	x.pg.StartAgain(x.t)
	f()
	x.pg.StopFastIn(x.t, 30*time.Second)
	run("rm", "-rf", dir)
	run("mv", backup, dir)
	x.pg.StartAgain(x.t)
}

// lastLine is the relay's last word as a person reads it; of a JSON log it must be
// the error that ended it.
func lastLine(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	line := lines[len(lines)-1]
	var end struct{ Level, Message, Error, Fix string }
	if json.Unmarshal([]byte(line), &end) != nil || end.Level != "error" || end.Message != "stopped by an error" {
		return line
	}
	if end.Fix != "" {
		end.Error += ". To fix it: " + end.Fix
	}
	return "cdc-relay: " + end.Error
}
