package e2e_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e"
)

var verifyRows = flag.Int("verify-rows", 1_000_000, "how many rows TestE2E_Verify compares")

// verifyLimitMB is what verify may take, however many rows it compares.
const verifyLimitMB = 256

// verified is the outcome of cdc-relay verify.
type verified struct {
	e2e.Measured
	OK     bool `json:"ok"`
	Counts struct {
		Expected, Seen, Missing, Unroutable, Expired, Compacted, Duplicate, Extra, Newer int
		WithoutID                                                                        int `json:"without_id"`
	} `json:"counts"`
	Spilled  int64               `json:"spilled_bytes"`
	Notes    []string            `json:"notes"`
	findings map[string][]string // ids, by kind, from the file with all of them
}

// only tells whether the ids are those of all findings of a kind.
func (v *verified) only(kind string, ids ...string) bool {
	got := slices.Sorted(slices.Values(v.findings[kind]))
	return slices.Equal(got, slices.Sorted(slices.Values(ids)))
}

// verify runs cdc-relay verify with the configuration, which may be that of a
// running relay. Its temporary directory must be empty at the end.
func (r *rig) verify(t *testing.T, config string, args ...string) *verified {
	t.Helper()
	return r.verifyDuring(t, nil, config, args...)
}

// verifyDuring is verify; during is asked all the time whether to interrupt it.
func (r *rig) verifyDuring(t *testing.T, during func(stderr string) bool, config string, args ...string) *verified {
	t.Helper()
	temp, out := t.TempDir(), filepath.Join(t.TempDir(), "findings")
	m := e2e.MeasureRelay(t, 30*time.Minute, e2e.RelayOptions{Config: config, Command: "verify",
		Args: append([]string{"--json", "--list", "2", "--temp-dir", temp, "--out", out}, args...)}, during)
	v := &verified{Measured: m, findings: map[string][]string{}}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("verify left %v in its temporary directory, %v", left, err)
	}
	if m.Stdout == "" {
		return v
	}
	if err := json.Unmarshal([]byte(m.Stdout), v); err != nil {
		t.Fatalf("verify printed no JSON: %v\n%s%s", err, m.Stdout, m.Stderr)
	}
	if info, err := os.Stat(out); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the findings: %v, %v", info, err)
	}
	b, _ := os.ReadFile(out)
	for line := range strings.Lines(string(b)) {
		var f struct{ Kind, ID string }
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		v.findings[f.Kind] = append(v.findings[f.Kind], f.ID)
	}
	return v
}

// configOf is the configuration of a running relay, by which its state can be
// asked.
func configOf(t *testing.T, relay *e2e.Relay) string {
	t.Helper()
	b, err := os.ReadFile(relay.Config)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// publish writes a record as another program may.
func (r *rig) publish(t *testing.T, id string, at time.Time) {
	t.Helper()
	rec := &kgo.Record{Topic: r.topic, Key: []byte("k"), Value: []byte("v"), Timestamp: at}
	if id != "" {
		rec.Headers = []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}
	}
	if err := r.k.Client(t).ProduceSync(t.Context(), rec).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

const timedOutbox = `CREATE TABLE outbox (
	id text PRIMARY KEY, aggregatetype text NOT NULL DEFAULT 'order', aggregateid text,
	type text NOT NULL DEFAULT 'created', payload text, created_at timestamptz DEFAULT clock_timestamp())`

// newVerifyRig is a rig with one row that was there before the slot, and is thus
// in no topic.
func newVerifyRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, rigOptions{noTable: true})
	r.outboxYAML = "outbox:\n  - table: public.outbox\n    topic: " + r.topic +
		"\n    columns: {id: id, key: aggregateid, type: type, payload: payload, timestamp: created_at}\n"
	r.pg.Exec(t, timedOutbox, `INSERT INTO outbox (id, aggregateid) VALUES ('before the slot', 'k')`)
	r.setup(t)
	return r
}

// loadForVerify writes rows with random ids, and waits until they are published. The
// index is made behind them: at random places, each page of it would go into the
// WAL as a whole after each checkpoint, and be read by the relay.
func (r *rig) loadForVerify(t *testing.T, rows int) {
	t.Helper()
	began := time.Now()
	const batch = 50_000
	r.pg.Exec(t, `ALTER TABLE outbox DROP CONSTRAINT outbox_pkey`)
	for from := 0; from < rows; from += batch {
		r.pg.Exec(t, fmt.Sprintf(`INSERT INTO outbox (id, aggregateid, payload)
			SELECT gen_random_uuid(), 'k' || n %% 1000, repeat('x', 100) FROM generate_series(%d, %d) n`, from, min(from+batch, rows)-1))
	}
	loaded := time.Now()
	r.waitCaughtUp(t, 20*time.Minute)
	published := time.Now()
	r.pg.Exec(t, `ALTER TABLE outbox ADD PRIMARY KEY (id)`)
	r.waitCaughtUp(t, 5*time.Minute)
	t.Logf("%d rows: loaded in %s, published %s later, indexed in %s", rows, loaded.Sub(began), published.Sub(loaded), time.Since(published))
}

// TestE2E_Verify compares a million rows while writers go on, and finds the one
// that was never published, a record that came twice, and those without a row; in
// bounded memory.
func TestE2E_Verify(t *testing.T) {
	r := newVerifyRig(t)
	relay := r.startReady(t)
	r.loadForVerify(t, *verifyRows)
	twice := r.pg.Query(t, `SELECT min(id) FROM outbox WHERE id <> 'before the slot'`)
	gone := r.pg.Query(t, `SELECT max(id) FROM outbox WHERE id <> 'before the slot'`)
	r.pg.Exec(t, `DELETE FROM outbox WHERE id = '`+gone+`'`)
	r.publish(t, twice, time.Now())
	r.publish(t, "never a row", time.Now())
	r.publish(t, "", time.Now())
	config := configOf(t, relay)
	w := startWorkload(t, r.pg, 8, 2*time.Millisecond)
	v := r.verify(t, config)
	w.Stop()
	missing := v.Counts.Missing == 1 && v.only("missing", "before the slot")
	duplicate := v.Counts.Duplicate == 1 && v.only("duplicate", twice)
	extra := v.Counts.Extra == 2 && v.only("extra", "never a row", gone)
	rss := float64(v.PeakRSS) / mib
	agree := v.Counts.Expected == v.Counts.Seen+v.Counts.Missing && v.Counts.Expected >= *verifyRows && v.Counts.WithoutID == 1
	gap := strings.Contains(strings.Join(v.Notes, "\n"), "a gap is open")
	ok := v.Code == 1 && missing && duplicate && extra && agree && gap && v.Counts.Newer > 0 && v.Spilled > 0 && rss <= verifyLimitMB
	if !ok {
		t.Logf("exit code %d\n%s\n%s", v.Code, v.Stdout, v.Stderr)
	}
	e2e.Result(t, "verify", ok, "rows", *verifyRows, "rss_mb", rss, "seconds", v.Took.Seconds(), "missing_found", missing,
		"duplicate_found", duplicate, "extra_found", extra, "expected", v.Counts.Expected, "newer", v.Counts.Newer, "spilled_mb", v.Spilled/mib)
}

// TestE2E_VerifyCases: what else verify must tell apart, and what it must not
// guess.
func TestE2E_VerifyCases(t *testing.T) {
	r := newVerifyRig(t)
	r.k.RequireReal(t)
	relay := r.startReady(t)
	config := configOf(t, relay)
	r.pg.Exec(t, `INSERT INTO outbox (id, aggregateid, created_at) SELECT 'day ' || d, 'k' || d, now() - d * interval '1 day' FROM generate_series(0, 9) d`,
		"CREATE TABLE heir () INHERITS (outbox)", "INSERT INTO heir (id) VALUES ('of another table')")
	r.waitCaughtUp(t, time.Minute)
	results := []any{}
	all := true
	check := func(name string, ok bool, v *verified) {
		t.Helper()
		results = append(results, name, ok)
		if all = all && ok; !ok {
			t.Logf("%s: exit code %d, %v\n%s\n%s", name, v.Code, v.findings, v.Stdout, v.Stderr)
		}
	}
	v := r.verify(t, config)
	check("whole", v.Code == 1 && v.Counts.Expected == 11 && v.only("missing", "before the slot") && len(v.findings) == 1, v)
	// Rows of five to two days ago; the record of another time is not extra then.
	r.publish(t, "young and alien", time.Now())
	r.publish(t, "old and alien", time.Now().Add(-3*24*time.Hour))
	v = r.verify(t, config, "--since", "132h", "--until", "36h")
	check("range", v.Code == 0 && v.Counts.Expected == 4 && v.Counts.Seen == 4 && v.only("extra", "old and alien") && len(v.findings) == 1, v)
	v = r.verify(t, config, "--since", "1h")
	check("since", v.Code == 1 && v.Counts.Expected == 2 && v.only("missing", "before the slot") && v.only("extra", "young and alien"), v)
	// What is in the table and on its way is waited for.
	relay.Pause(t)
	r.pg.Exec(t, `INSERT INTO outbox (id, aggregateid, created_at) VALUES ('on its way', 'k', now() - interval '30 hours')`)
	v = r.verifyDuring(t, func(stderr string) bool {
		if strings.Contains(stderr, "waiting until the relay") {
			relay.Resume(t)
		}
		return false
	}, config, "--since", "132h", "--until", "27h")
	check("waits", v.Code == 0 && v.Counts.Seen == 5, v)
	r.pg.Exec(t, `DELETE FROM outbox WHERE id = 'on its way'`)
	r.verifyAsLimited(t, config, check)
	r.verifyExpired(t, config, check)
	// A row that cannot be routed halts reading: it will never get there.
	r.pg.Exec(t, `INSERT INTO outbox (id, aggregateid, created_at) VALUES ('at no time', 'k', 'infinity')`)
	relay.WaitNotReady(t, 30*time.Second, "infinite")
	v = r.verify(t, config)
	check("halted", v.Code == 1 && strings.Contains(v.Stderr, "the relay is halted") && strings.Contains(v.Stderr, "infinite") && v.Took < 20*time.Second, v)
	relay.Kill()
	v = r.verify(t, config, "--wait", "2s")
	check("no_relay", v.Code == 1 && strings.Contains(v.Stderr, "no relay reads slot") && strings.Contains(v.Stderr, "start cdc-relay run"), v)
	check("interrupt", r.interruptVerify(t, config), &verified{})
	check("repair", verifyRepair(t), &verified{})
	check("history", verifyHistory(t), &verified{})
	e2e.Result(t, "verify_cases", all, results...)
}

// verifyAsLimited verifies by a role that may only log in, then with what the
// message tells to grant.
func (r *rig) verifyAsLimited(t *testing.T, config string, check func(string, bool, *verified)) {
	t.Helper()
	if r.pg.Server == nil {
		return
	}
	r.pg.Exec(t, `CREATE ROLE limited LOGIN`)
	config = strings.Replace(config, r.dsn, r.pg.Server.DSNAs("limited", "", r.pg.Database), 1)
	v := r.verify(t, config)
	const grant = `GRANT SELECT ("id", "created_at", xmin) ON "public"."outbox" TO "limited"`
	check("denied", v.Code == 1 && strings.Contains(v.Stderr, grant), v)
	r.pg.Exec(t, grant)
	v = r.verify(t, config)
	check("granted", v.Code == 1 && v.only("missing", "before the slot") && v.only("extra", "young and alien", "old and alien", "on its way"), v)
	r.pg.Exec(t, `REVOKE SELECT (xmin) ON outbox FROM limited`)
	v = r.verify(t, config)
	check("without_xmin", v.Code == 1 && v.only("missing", "before the slot") && v.only("extra", "young and alien", "old and alien", "on its way"), v)
}

// verifyExpired removes records from the topic's beginning: older rows cannot be
// judged then, younger ones still are.
func (r *rig) verifyExpired(t *testing.T, config string, check func(string, bool, *verified)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), e2e.Timeout)
	defer cancel()
	admin := kadm.NewClient(r.k.Client(t))
	ends, err := admin.ListEndOffsets(ctx, r.topic)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.DeleteRecords(ctx, ends.Offsets()); err != nil {
		t.Fatal(err)
	}
	// The topic keeps records for 7 days, so that the younger ones were not to be removed.
	v := r.verify(t, config)
	check("expired", v.Code == 1 && v.Counts.Expired == 3 && v.only("expired", "day 7", "day 8", "day 9") && v.Counts.Missing == 8, v)
	config = strings.Replace(config, ", timestamp: created_at", "", 1)
	v = r.verify(t, config)
	check("time_unknown", v.Code == 0 && v.Counts.Expired == 11 && v.Counts.Missing == 0, v)
	compacted := r.k.Topic(t, "compacted", 1, map[string]string{"cleanup.policy": "compact"})
	v = r.verify(t, strings.Replace(config, r.topic, compacted, 1))
	check("compacted", v.Code == 0 && v.Counts.Compacted == 11 && v.Counts.Missing == 0, v)
	v = r.verify(t, strings.Replace(config, r.topic, "no.such.topic", 1))
	check("no_topic", v.Code == 1 && v.Counts.Missing == 11, v)
}

// interruptVerify sends SIGINT while verify waits for a relay.
func (r *rig) interruptVerify(t *testing.T, config string) bool {
	t.Helper()
	temp := t.TempDir()
	m := e2e.MeasureRelay(t, time.Minute, e2e.RelayOptions{Config: config, Command: "verify", Args: []string{"--temp-dir", temp}},
		func(stderr string) bool { return strings.Contains(stderr, "waiting until the relay") })
	left, err := os.ReadDir(temp)
	ok := m.Code == 1 && strings.Contains(m.Stderr, "interrupted") && m.Took < 10*time.Second && err == nil && len(left) == 0
	if !ok {
		t.Logf("interrupted: exit code %d after %s, %v left\n%s", m.Code, m.Took, left, m.Stderr)
	}
	return ok
}
