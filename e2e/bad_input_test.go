package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// What must never be seen in anything that the relay says.
const (
	secretPassword = "hunter2-password"
	secretPayload  = "confidential-payload"
)

// badInput collects what the relay said, and what it got wrong.
type badInput struct {
	*rig
	t     *testing.T
	ca    *e2e.CA
	said  []string
	wrong int
}

// TestE2E_BadInput gives the relay what it cannot use: configurations, hosts,
// credentials, tables and rows. It says which and why, ends with the right code or
// halts, confirms nothing that was not published, and shows no secret and no
// payload.
func TestE2E_BadInput(t *testing.T) {
	ca := e2e.NewCA(t)
	sasl, settings := e2e.SecureListener(t, "SASL", nil, map[string]string{"app": secretPassword})
	tls, more := e2e.SecureListener(t, "TLS", ca, nil)
	maps.Copy(settings, more)
	b := &badInput{t: t, ca: ca}
	b.rig = newRig(t, rigOptions{noTable: true, partitions: 2, topicConf: map[string]string{"max.message.bytes": "100000"},
		pg:    pgserver.Options{Scram: true},
		kafka: &kafkaserver.Options{Listeners: []kafkaserver.Listener{sasl, tls}, Settings: settings}})
	b.k.RequireReal(t)
	b.pg.RequireControl(t)
	configs := b.configs()
	credentials := b.credentials()
	hosts := b.hosts()
	tables := b.tables()
	rows := b.rows()
	records := b.refusedRecord()
	large := b.tooLargeToRead()
	leaks := 0
	for _, s := range b.said {
		for _, secret := range []string{secretPassword, secretPayload, pgserver.Password} {
			if strings.Contains(s, secret) {
				leaks++
				t.Errorf("%s is shown:\n%s", secret, s)
			}
		}
	}
	e2e.Result(t, "bad_input", b.wrong == 0 && leaks == 0, "configs", configs, "credentials", credentials, "hosts", hosts,
		"tables", tables, "rows", rows, "refused_records", records, "large_rows", large, "wrong", b.wrong, "leaks", leaks)
}

func (b *badInput) hold(ok bool, format string, args ...any) {
	b.t.Helper()
	if !ok {
		b.wrong++
		b.t.Errorf(format, args...)
	}
}

// says looks for words, and remembers the text.
func (b *badInput) says(what, text string, words ...string) {
	b.t.Helper()
	b.said = append(b.said, text)
	for _, w := range words {
		b.hold(strings.Contains(text, w), "%s: does not say %q:\n%s", what, w, text)
	}
}

// configs are broken files: exit code 2, with the place, before anything
// connects.
func (b *badInput) configs() int {
	nowhere := "source:\n  url: postgres://u:" + secretPassword + "@127.0.0.1:1/db\n"
	cases := []struct {
		name, text string
		says       []string
	}{
		{"no YAML", nowhere + "kafka: [\n", []string{"cdc-relay.yaml:3"}},
		{"unknown key", nowhere + "  pasword: " + secretPassword + "\n", []string{"cdc-relay.yaml:3", "source.pasword"}},
		{"wrong type", nowhere + "relay:\n  max_in_flight_bytes: much\n", []string{"cdc-relay.yaml:4", "relay.max_in_flight_bytes"}},
		{"key twice", nowhere + "source:\n  slot: s\n", []string{"cdc-relay.yaml:3", "source"}},
		{"two problems", nowhere + "relay:\n  max_row_bytes: 0\n  save_interval: -1s\n", []string{"relay.max_row_bytes", "relay.save_interval"}},
		{"bad slot", nowhere + "  slot: No-Slot\n", []string{"source.slot", "No-Slot"}},
		{"bad topic", nowhere + "outbox:\n  - topic: 'no topic!'\n", []string{"outbox", "no topic!"}},
		{"topic twice", nowhere + "outbox:\n  - topic: x\n    columns: {topic: t, id: id, key: k}\n", []string{"outbox", "topic"}},
		{"no brokers", nowhere + "kafka:\n  brokers: []\n", []string{"kafka.brokers"}},
		{"bad mechanism", nowhere + "kafka:\n  sasl: {mechanism: md5, username: u, password: " + secretPassword + "}\n", []string{"kafka.sasl.mechanism", "md5"}},
		{"no such CA", nowhere + "kafka:\n  tls: {enabled: true, ca_file: /no/such/file}\n", []string{"/no/such/file"}},
		{"no such password file", nowhere + "  password_file: /no/such/password\n", []string{"/no/such/password"}},
		{"bad URL", "source:\n  url: 'postgres://u:" + secretPassword + "@host:port:port/db'\n", []string{"source.url"}},
	}
	for _, c := range cases {
		code, stdout, stderr := e2e.RunRelay(b.t, 20*time.Second, e2e.RelayOptions{Command: "run", Config: c.text + "admin:\n  listen: ''\n"})
		b.hold(code == 2, "%s: ended with %d", c.name, code)
		b.says(c.name, stdout+stderr, c.says...)
	}
	return len(cases)
}

// inDatabase is the rig with a new database, and a slot, of that name.
func (r *rig) inDatabase(t testing.TB, name string) *rig {
	t.Helper()
	x, pg := *r, *r.pg
	pg.Database = name
	x.pg, x.slot, x.dsn = &pg, name, pg.DSN()
	pg.ExecOn(t, "postgres", "CREATE DATABASE "+name)
	return &x
}

func (b *badInput) another(name string) *rig {
	b.t.Helper()
	return b.inDatabase(b.t, "bad_"+name)
}

// ends runs the relay, which must end by itself with exit code 1 within seconds.
func (b *badInput) ends(what string, r *rig, words ...string) *e2e.Relay {
	b.t.Helper()
	relay := r.start(b.t)
	began := time.Now()
	code := relay.WaitExit(b.t, 30*time.Second)
	b.hold(code == 1 && time.Since(began) < 10*time.Second, "%s: ended with %d after %v", what, code, time.Since(began))
	b.says(what, lastLine(relay.Log()), append(words, "cdc-relay: ", "To fix it: ")...)
	b.said = append(b.said, relay.Log())
	return relay
}

// credentials that are wrong end the relay with the true cause.
func (b *badInput) credentials() int {
	r := b.another("credentials")
	r.pg.Exec(b.t, outboxTable, "CREATE ROLE app LOGIN REPLICATION PASSWORD '"+secretPassword+"'",
		"CREATE ROLE weak LOGIN PASSWORD '"+secretPassword+"'")
	r.setup(b.t)
	wrong, weak, none := *r, *r, *r
	wrong.dsn = withUser(b.t, r.dsn, "app", "not-"+secretPassword)
	weak.dsn = withUser(b.t, r.dsn, "weak", secretPassword)
	none.dsn = withUser(b.t, r.dsn, "nobody_here", secretPassword)
	b.ends("wrong password", &wrong, "PostgreSQL rejects the password", "source.password")
	b.ends("no such role", &none, "PostgreSQL")
	b.ends("no REPLICATION", &weak, "REPLICATION")

	secured := func(listener, yaml string) *rig {
		x := *r
		x.kafkaAddr, x.kafkaYAML = b.k.Broker.ListenerAddr(listener), yaml
		return &x
	}
	sasl := func(mechanism, password string) string {
		return fmt.Sprintf("  sasl: {mechanism: %s, username: app, password: %s}\n", mechanism, password)
	}
	b.ends("wrong PLAIN password", secured("SASL", sasl("plain", "not-"+secretPassword)), "Kafka", "kafka.sasl")
	b.ends("wrong SCRAM password", secured("SASL", sasl("scram-sha-512", "not-"+secretPassword)), "Kafka", "kafka.sasl")
	b.waits("TLS to a broker without", secured("SASL", "  tls: {enabled: true}\n"), "kafka.tls.enabled") // it looks like a broker that goes away
	b.ends("a broker that wants TLS", secured("TLS", ""), "Kafka", "kafka.tls")
	b.ends("unknown authority", secured("TLS", "  tls: {enabled: true, ca_file: "+e2e.NewCA(b.t).CertFile+"}\n"), "TLS", "kafka.tls")
	b.ends("no client certificate", secured("TLS", "  tls: {enabled: true, ca_file: "+b.ca.CertFile+"}\n"), "kafka.tls")

	right := secured("SASL", sasl("plain", secretPassword))
	right.dsn = withUser(b.t, r.dsn, "app", secretPassword)
	b.works("right credentials", right)
	return 9
}

// works starts the relay, which gets ready and stops cleanly.
func (b *badInput) works(what string, r *rig) {
	b.t.Helper()
	relay := r.startReady(b.t)
	r.waitCaughtUp(b.t, 30*time.Second)
	code := relay.Terminate(b.t, 30*time.Second)
	b.hold(code == 0, "%s: ended with %d", what, code)
	b.said = append(b.said, relay.Log())
}

func withUser(t testing.TB, dsn, user, password string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// hosts that do not answer are waited for, in one process.
func (b *badInput) hosts() int {
	r := b.another("hosts")
	r.pg.Exec(b.t, outboxTable)
	r.setup(b.t)
	b.pg.StopFastIn(b.t, 30*time.Second)
	relay := r.start(b.t)
	relay.WaitNotReady(b.t, 20*time.Second, "PostgreSQL cannot be reached")
	b.pg.StartAgain(b.t)
	relay.WaitReady(b.t, 30*time.Second)
	code := relay.Terminate(b.t, 30*time.Second)
	b.hold(code == 0, "after a server that was away: ended with %d", code)
	b.said = append(b.said, relay.Log())

	port, err := proc.FreePort()
	if err != nil {
		b.t.Fatal(err)
	}
	away := *r
	away.kafkaAddr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	b.waits("brokers away", &away, away.kafkaAddr)
	unknown := *r
	unknown.dsn = strings.Replace(r.dsn, "127.0.0.1", "no-such-host.invalid", 1)
	b.waits("unknown host", &unknown, "no-such-host.invalid")
	return 3
}

// waits starts the relay, which must not get ready, say why, and stop when told.
func (b *badInput) waits(what string, r *rig, reason string) {
	b.t.Helper()
	relay := r.start(b.t)
	relay.WaitNotReady(b.t, 20*time.Second, reason)
	time.Sleep(time.Second)
	b.hold(relay.Alive(), "%s: ended", what)
	began := time.Now()
	code := relay.Terminate(b.t, 30*time.Second)
	b.hold(code == 0 && time.Since(began) < 5*time.Second, "%s: ended with %d, %v after SIGTERM", what, code, time.Since(began))
	b.said = append(b.said, relay.Log())
}

// tables without a mapped column, and of a wrong type, are named when their
// first row comes.
func (b *badInput) tables() int {
	r := b.another("tables")
	r.pg.Exec(b.t, "CREATE TABLE outbox (id text, k text, payload text, part text)")
	mapped := func(columns string) *rig {
		x := *r
		x.outboxYAML = fmt.Sprintf("outbox:\n  - table: outbox\n    topic: %s\n    columns: {id: id, key: k, %s}\n", r.topic, columns)
		return &x
	}
	missing, typed := mapped("payload: body"), mapped("payload: payload, partition: part")
	missing.setup(b.t)
	r.pg.Exec(b.t, "INSERT INTO outbox VALUES ('tables/1', 'k', '"+secretPayload+"', '0')")
	before := r.confirmed(b.t)
	b.ends("no such column", missing, "public.outbox", `"body"`)
	b.ends("wrong type", typed, "public.outbox", `"part"`)
	b.hold(r.confirmed(b.t) == before, "a row that cannot be mapped was passed: %s, %s", before, r.confirmed(b.t))
	b.works("a mapping that fits", mapped("payload: payload"))
	b.hold(b.count("tables/1") == 1, "the row came %d times", b.count("tables/1"))
	return 2
}

func (b *badInput) count(id string) int {
	b.t.Helper()
	n := 0
	for _, rec := range b.k.Consume(b.t, b.topic) {
		if got, _ := rec.Header("id"); got == id {
			n++
		}
	}
	return n
}

// setTopic changes a setting of the topic.
func (r *rig) setTopic(t testing.TB, name, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), e2e.Timeout)
	defer cancel()
	resp, err := kadm.NewClient(r.k.Client(t)).AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, r.topic)
	if err == nil {
		_, err = resp.On(r.topic, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}
