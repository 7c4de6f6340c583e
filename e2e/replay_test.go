package e2e_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/e2e"
)

var replayRate = flag.Float64("replay_rate", 5000, "events per second that TestE2E_Replay publishes again while live latency is measured; 0 for no limit")

// judgeTimes holds times and rates against their bars. Where CI runs, other things
// may run beside, and they are only printed.
var judgeTimes = flag.Bool("judge_times", os.Getenv("CI") == "", "hold the live latency beside a replay, and its rate, against their bars; off in CI")

const (
	maxLiveRatio  = 2.0
	replayTimeout = 5 * time.Minute
	replayedFrom  = "replayed-from"
)

// TestE2E_Replay publishes a range again while 8 writers go on: exactly the
// events that were committed in it, in commit order, marked, and without
// disturbing the live stream. A range that is not retained is refused; one that is
// interrupted or killed goes on where it was, and nothing is missing.
func TestE2E_Replay(t *testing.T) {
	r := newRig(t, rigOptions{noSetup: true})
	r.historyYAML = "history:\n  max_bytes: 4GiB\n"
	early := r.position(t)
	oracle := e2e.NewOracle(t, r.pg)
	r.setup(t)
	r.startReady(t)
	r.pg.Exec(t, "INSERT INTO outbox (id, aggregateid, payload) VALUES ('before', 'k', '0')")
	began := r.pg.Query(t, `SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`)
	from := r.position(t)
	r.writeHistory(t)
	to := r.position(t)
	r.waitCaughtUp(t, time.Minute)
	inserts := slices.DeleteFunc(oracle.Inserts(t, "public.outbox", "id"), func(in e2e.Insert) bool { return in.Value == "before" })
	t.Logf("%d events in the range %s to %s", len(inserts), from, to)

	refused := r.refusesEarly(t, early, to)
	byTime := r.countsByTime(t, began, to, len(inserts))
	live := startLive(t, r)
	live.measure(3 * time.Second) // until all is warm
	var base, during []time.Duration
	published, parts := 0, split(from, to, replayParts)
	for _, p := range parts { // in turns, so that both meet the same machine
		base = append(base, live.measure(5*time.Second)...)
		during = append(during, live.measureWhile(func() {
			published += r.replay(t, "--from", p[0].String(), "--to", p[1].String(), "--rate", strconv.FormatFloat(*replayRate, 'f', -1, 64))
		})...)
	}
	live.stop()
	r.waitCaughtUp(t, time.Minute)
	slices.Sort(base)
	slices.Sort(during)
	ratio := quantile(during, 0.99).Seconds() / quantile(base, 0.99).Seconds()
	t.Logf("live: p50 %v, p99 %v of %d; during the replay p50 %v, p99 %v of %d", quantile(base, 0.5), quantile(base, 0.99), len(base),
		quantile(during, 0.5), quantile(during, 0.99), len(during))
	v := r.judgeReplayed(t, inserts, parts)
	if len(v.details) > 0 {
		t.Log(v.details)
	}
	again := r.goesOnAfterInterrupts(t, inserts, from, to)
	stop := r.serverStops(t, from, to)
	order := "ok"
	if v.overtaken > 0 || again.overtaken > 0 {
		order = "wrong"
	}
	ok := v.ok() && v.duplicate == 0 && published == len(inserts) && (ratio <= maxLiveRatio || !*judgeTimes) && refused && byTime && again.ok() && len(during) > 500 && stop < maxStop
	e2e.Result(t, "replay", ok, "published", published, "expected", len(inserts), "order", order, "live_p99_ratio", ratio, "judged", *judgeTimes,
		"live_p99_ms", float64(quantile(during, 0.99).Microseconds())/1000, "rate", *replayRate, "missing", v.missing, "extra", v.uncommitted,
		"refused_early", refused, "by_time", byTime, "after_kill_missing", again.missing, "after_kill_duplicates", again.duplicate,
		"server_stop_s", stop.Seconds())
}

// maxStop is how long a fast stop of the server may take while a replay reads.
const maxStop = 10 * time.Second

// serverStops stops the server in the middle of a replay, which lets go of it, and
// says how to go on. It returns how long the stop took.
func (r *rig) serverStops(t testing.TB, from, to pglogrepl.LSN) time.Duration {
	t.Helper()
	if r.pg.Server == nil {
		return 0 // not ours to stop
	}
	p := e2e.StartRelay(t, e2e.RelayOptions{Config: r.config(), Command: "replay",
		Args: []string{"--from", from.String(), "--to", to.String(), "--topic", r.k.Topic(t, "stopped", 1), "--rate", "100", "--progress", "200ms"}})
	p.WaitLog(t, time.Minute, "acked up to")
	took := r.pg.StopFastIn(t, 4*maxStop)
	if code := p.WaitExit(t, 30*time.Second); code != 1 || !goOn.MatchString(p.Log()) {
		t.Errorf("a replay whose server was stopped ended with %d:\n%s", code, p.Log())
	}
	return took
}

// replayParts is how many replays publish the range, one after the other.
const replayParts = 4

// split cuts a range at places that are no transaction's.
func split(from, to pglogrepl.LSN, n int) (parts [][2]pglogrepl.LSN) {
	step := (to - from) / pglogrepl.LSN(n)
	for i := range n {
		end := from + pglogrepl.LSN(i+1)*step
		if i == n-1 {
			end = to
		}
		parts = append(parts, [2]pglogrepl.LSN{from + pglogrepl.LSN(i)*step, end})
	}
	return parts
}

// position is the end of the server's WAL.
func (r *rig) position(t testing.TB) pglogrepl.LSN {
	t.Helper()
	return mustLSN(t, r.pg.Query(t, "SELECT pg_current_wal_insert_lsn()"))
}

// writeHistory commits what is to be replayed: transactions of all kinds that
// interleave, and rows in large ones.
func (r *rig) writeHistory(t testing.TB) {
	t.Helper()
	w := startWorkload(t, r.pg, 8, 0)
	time.Sleep(4 * time.Second)
	w.Stop()
	conn := r.pg.Conn(t)
	for i := range 80 {
		_, err := conn.Exec(t.Context(), `INSERT INTO outbox (id, aggregateid, payload)
			SELECT 'bulk-' || $1::int || '-' || n, 'k' || n % 50, repeat('x', 200) FROM generate_series(1, 500) n`, i)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// replay runs a replay to its end and returns how many events it says that it
// published.
func (r *rig) replay(t testing.TB, args ...string) int {
	t.Helper()
	code, stdout, stderr := e2e.RunRelay(t, replayTimeout, e2e.RelayOptions{Config: r.config(), Command: "replay", Args: args})
	if code != 0 {
		t.Errorf("replay %v ended with %d:\n%s%s", args, code, stdout, stderr)
	}
	return replayCount(t, stdout)
}

var replaySummary = regexp.MustCompile(`(?m)^(\d+) events of (\d+) transactions`)

func replayCount(t testing.TB, stdout string) int {
	t.Helper()
	m := replaySummary.FindStringSubmatch(stdout)
	if m == nil {
		t.Errorf("no summary in:\n%s", stdout)
		return -1
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// refusesEarly asks for a range that begins before the history: it is refused with
// the range that is retained, and nothing is published.
func (r *rig) refusesEarly(t testing.TB, early, to pglogrepl.LSN) bool {
	t.Helper()
	before := total(r.k.EndOffsets(t, r.topic))
	code, stdout, stderr := r.command(t, "replay", "--from", early.String(), "--to", to.String())
	start := r.pg.Query(t, `SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1`, r.slot+"_history")
	ok := code == 1 && strings.Contains(stderr, "not retained as a whole") && strings.Contains(stderr, "from "+start+" up to") &&
		total(r.k.EndOffsets(t, r.topic)) == before
	if !ok {
		t.Errorf("a replay from %s, before the history at %s, ended with %d:\n%s%s", early, start, code, stdout, stderr)
	}
	return ok
}

// countsByTime counts, without publishing, from a time that lies between two
// transactions.
func (r *rig) countsByTime(t testing.TB, began string, to pglogrepl.LSN, want int) bool {
	t.Helper()
	before := total(r.k.EndOffsets(t, r.topic))
	code, stdout, stderr := r.command(t, "replay", "--from", began, "--to", to.String(), "--dry-run")
	ok := code == 0 && replayCount(t, stdout) == want && strings.Contains(stdout, "\nfirst ") && total(r.k.EndOffsets(t, r.topic)) == before
	if !ok {
		t.Errorf("a dry run from %s should count %d, and ended with %d:\n%s%s", began, want, code, stdout, stderr)
	}
	return ok
}

// judgeReplayed holds the marked records of the topic against what was committed.
func (r *rig) judgeReplayed(t testing.TB, inserts []e2e.Insert, parts [][2]pglogrepl.LSN) verdict {
	t.Helper()
	var marked []e2e.Record
	wrong := 0
	r.k.Each(t, func(rec *e2e.Record) {
		value, ok := rec.Header(replayedFrom)
		if !ok {
			return
		}
		marked = append(marked, *rec)
		at, _ := rec.Header("lsn") // of its transaction: it lies in the part that it is marked with
		if !slices.ContainsFunc(parts, func(p [2]pglogrepl.LSN) bool {
			return value == fmt.Sprintf("%016X", uint64(p[0])) && at >= value && at < fmt.Sprintf("%016X", uint64(p[1]))
		}) {
			wrong++
		}
	}, r.topic)
	if wrong > 0 {
		t.Errorf("%d records do not lie in the range that they are marked with", wrong)
	}
	return judge(inserts, marked)
}

var (
	goOn     = regexp.MustCompile(`(?m)^  cdc-relay replay (.*)$`)
	ackedTo  = regexp.MustCompile(`acked up to ([0-9A-F]+/[0-9A-F]+) of`)
	slowRate = []string{"--rate", "10000", "--progress", "200ms"}
	midRange = 2 * time.Second
)

// goesOnAfterInterrupts replays to another topic: it is stopped by SIGINT and goes
// on by the command that it printed, is killed and goes on from what its last line
// says is acked.
func (r *rig) goesOnAfterInterrupts(t testing.TB, inserts []e2e.Insert, from, to pglogrepl.LSN) verdict {
	t.Helper()
	topic := r.k.Topic(t, "again", 3)
	start := func(args ...string) *e2e.Relay {
		p := e2e.StartRelay(t, e2e.RelayOptions{Config: r.config(), Command: "replay", Args: append(args, slowRate...)})
		p.WaitLog(t, time.Minute, "acked up to")
		time.Sleep(midRange / 2)
		return p
	}
	p := start("--from", from.String(), "--to", to.String(), "--topic", topic)
	if err := p.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := p.WaitExit(t, 30*time.Second); code != 1 {
		t.Errorf("an interrupted replay ended with %d:\n%s", code, p.Log())
	}
	m := goOn.FindStringSubmatch(p.Log())
	if m == nil {
		t.Fatalf("an interrupted replay does not say how to go on:\n%s", p.Log())
	}
	t.Logf("goes on: %s", m[0])
	first := total(r.k.EndOffsets(t, topic))

	args := strings.Fields(m[1])
	args = args[2:] // its --config PATH; the next one gets its own
	p = start(args...)
	p.Kill()
	lines := ackedTo.FindAllStringSubmatch(p.Log(), -1)
	last := lines[len(lines)-1][1]
	t.Logf("killed, goes on from %s", last)
	second := total(r.k.EndOffsets(t, topic))
	r.replay(t, "--from", last, "--to", to.String(), "--topic", topic)
	v := judge(inserts, r.k.Consume(t, topic))
	t.Logf("%d of %d were published when it was interrupted, %d when it was killed; %d came twice", first, len(inserts), second, v.duplicate)
	if first == 0 || first >= int64(len(inserts)) || second <= first || second >= int64(len(inserts)) {
		t.Errorf("not stopped in the middle: %d, %d of %d", first, second, len(inserts))
	}
	for _, d := range v.details {
		t.Log(d)
	}
	return v
}
