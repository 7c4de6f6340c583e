package e2e_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

// rig is what nearly every test needs: a server with the default outbox, a
// broker with a topic, and the configuration of a relay between them.
type rig struct {
	pg    *e2e.PG
	k     *e2e.Cluster
	proxy *e2e.KafkaProxy // before the broker; nil unless asked for
	topic string          // where every event goes, unless the table says otherwise
	marks string          // the topic of marks
	slot  string
	// dsn is how the relay reaches the server; a test may put a proxy in between.
	dsn string
	// extra is YAML for the sections relay and source, a line each, indented by two.
	relayYAML, sourceYAML string
	// outbox is the outbox section; the default maps every event to topic.
	outboxYAML string
	kafkaYAML  string
	// historyYAML is the history section; without it no history is kept.
	historyYAML string
	kafkaAddr   string // where the relay finds Kafka, if not where the rig says
}

type rigOptions struct {
	pg         pgserver.Options
	kafka      *kafkaserver.Options // a broker of this test's own
	proxy      bool                 // with a proxy before it
	partitions int                  // of the topic; 6 when zero
	topicConf  map[string]string
	noTable    bool // no outbox table, publication, slot or mark
	noSetup    bool // the table, and nothing else
}

const outboxTable = `CREATE TABLE outbox (
	id text PRIMARY KEY, aggregatetype text NOT NULL DEFAULT 'order', aggregateid text,
	type text NOT NULL DEFAULT 'created', payload text)`

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	r := &rig{pg: e2e.Postgres(t, o.pg)}
	switch {
	case o.proxy:
		var opts kafkaserver.Options
		if o.kafka != nil {
			opts = *o.kafka
		}
		r.proxy, r.k = e2e.KafkaBehindProxy(t, opts)
	case o.kafka != nil:
		r.k = e2e.ExclusiveKafka(t, *o.kafka)
	default:
		r.k = e2e.Kafka(t)
	}
	if o.partitions == 0 {
		o.partitions = 6
	}
	r.topic = r.k.Topic(t, "orders", o.partitions, o.topicConf)
	r.marks = e2e.UniqueName(t, "marks")
	r.slot = "cdc_relay"
	if os.Getenv("CDC_RELAY_TEST_POSTGRES") != "" {
		r.slot = r.pg.Database // slots are the server's, which has other users
	}
	r.dsn = r.pg.DSN()
	if o.noTable {
		return r
	}
	r.pg.Exec(t, outboxTable)
	if !o.noSetup {
		r.setup(t)
	}
	return r
}

// config is the text of the relay's configuration.
func (r *rig) config() string {
	outbox := r.outboxYAML
	if outbox == "" {
		outbox = "outbox:\n  - table: public.outbox\n    topic: " + r.topic + "\n"
	}
	return fmt.Sprintf(`source:
  url: %q
  slot: %s
  watch_interval: 1s
%s%skafka:
  brokers: [%q]
%scheckpoint:
  topic: %s
relay:
  stall_timeout: 2s
%s%s`, r.dsn, r.slot, r.sourceYAML, outbox, r.brokers(), r.kafkaYAML, r.marks, r.relayYAML, r.historyYAML)
}

// brokers is where the relay finds Kafka.
func (r *rig) brokers() string {
	switch {
	case r.kafkaAddr != "":
		return r.kafkaAddr
	case r.proxy != nil:
		return r.proxy.Addr()
	}
	return r.k.Addr()
}

// setup runs cdc-relay setup and fails the test when it does not succeed.
func (r *rig) setup(t testing.TB, args ...string) string {
	t.Helper()
	code, stdout, stderr := r.command(t, "setup", args...)
	if code != 0 {
		t.Fatalf("cdc-relay setup ended with %d:\n%s%s", code, stdout, stderr)
	}
	return stdout + stderr
}

// command runs a command of the relay to its end, within a minute.
func (r *rig) command(t testing.TB, command string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return e2e.RunRelay(t, time.Minute, e2e.RelayOptions{Config: r.config(), Command: command, Args: args})
}

// start starts cdc-relay run.
func (r *rig) start(t testing.TB) *e2e.Relay {
	t.Helper()
	return e2e.StartRelay(t, e2e.RelayOptions{Config: r.config()})
}

// startReady starts cdc-relay run and waits until it is ready.
func (r *rig) startReady(t testing.TB) *e2e.Relay {
	t.Helper()
	relay := r.start(t)
	relay.WaitReady(t, 30*time.Second)
	return relay
}

// confirmed is the slot's confirmed LSN, as text.
func (r *rig) confirmed(t testing.TB) string {
	t.Helper()
	return r.pg.Query(t, `SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1`, r.slot)
}

// waitCaughtUp waits until everything committed before the call is confirmed.
func (r *rig) waitCaughtUp(t testing.TB, timeout time.Duration) {
	t.Helper()
	now := r.pg.Query(t, `SELECT pg_current_wal_insert_lsn()`)
	e2e.Eventually(t, timeout, "the relay to confirm "+now, func() bool {
		got, err := r.pg.TryQuery(`SELECT confirmed_flush_lsn >= $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1`, r.slot, now)
		return err == nil && strings.HasPrefix(got, "t")
	})
}

// verdict is what the checker found. It knows nothing of the relay: what was
// committed, and in which order, comes from a slot with test_decoding, what was
// published from a consumer.
type verdict struct {
	committed, records                         int
	missing, uncommitted, overtaken, duplicate int
	early                                      int      // confirmed before they were in the topic
	details                                    []string // a few of the bad ones
}

func (v verdict) ok() bool {
	return v.missing == 0 && v.uncommitted == 0 && v.overtaken == 0 && v.early == 0
}

// judge compares the ids that were committed, in commit order, with the records.
func judge(committed []e2e.Insert, records []e2e.Record) verdict {
	v := verdict{committed: len(committed), records: len(records)}
	place := make(map[string]int, len(committed))
	for i, in := range committed {
		place[in.Value] = i
	}
	type lane struct {
		topic     string
		partition int32
	}
	seen := make(map[string]bool, len(committed))
	last := map[lane]int{}
	note := func(format string, args ...any) {
		if len(v.details) < 10 {
			v.details = append(v.details, fmt.Sprintf(format, args...))
		}
	}
	for _, rec := range records {
		id, _ := rec.Header("id")
		at, ok := place[id]
		switch {
		case !ok:
			v.uncommitted++
			note("record %s at %s/%d@%d was never committed", id, rec.Topic, rec.Partition, rec.Offset)
			continue
		case seen[id]:
			v.duplicate++
			continue
		}
		seen[id] = true
		l := lane{rec.Topic, rec.Partition}
		if prev, ok := last[l]; ok && at < prev {
			v.overtaken++
			note("record %s at %s/%d@%d comes after a later one", id, rec.Topic, rec.Partition, rec.Offset)
		}
		last[l] = max(last[l], at)
	}
	for id := range place {
		if !seen[id] {
			v.missing++
			note("event %s was committed and is not in the topic", id)
		}
	}
	slices.Sort(v.details)
	return v
}

// judgeAll takes what the oracle and the topic hold now, holds the writers' own
// log against the oracle and the audit's samples against the records, and logs
// what is wrong. w and a may be nil.
func (r *rig) judgeAll(t testing.TB, oracle *e2e.Oracle, w *workload, a *audit) verdict {
	t.Helper()
	inserts := oracle.Inserts(t, "public.outbox", "id")
	records := r.k.Consume(t, r.topic)
	v := judge(inserts, records)
	if w != nil {
		w.crossCheck(t, inserts)
		if a != nil {
			v.early = a.judge(t, records, w.ended)
		}
	}
	for _, d := range v.details {
		t.Log(d)
	}
	return v
}
