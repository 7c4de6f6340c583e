package e2e_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

var effectsFor = flag.Duration("effects", time.Minute, "how long TestE2E_Effects kills; TestE2E_EffectsLetters half of it")

// TestE2E_Effects holds the whole path to its promise: one order, one invoice and one
// mail per order that a client meant, while everything on the way is killed at random
// moments. The roles are those of examples/orders, with its schema and configuration;
// only its provider is not killed, which stands for somebody else's service.
func TestE2E_Effects(t *testing.T) { effects(t, "effects", *effectsFor, nil) }

// TestE2E_EffectsLetters is the same with topics for dead letters and retries: a server
// that is away is nobody's fault, so no record becomes a dead letter, even where each
// has one attempt.
func TestE2E_EffectsLetters(t *testing.T) {
	effects(t, "effects_letters", *effectsFor/2, func(role string) []string {
		return []string{"DEAD_LETTER_TOPIC=" + role + ".dead", "RETRY_TOPIC=" + role + ".retry", "ATTEMPTS=1"}
	})
}

const eventTopic = "outbox.event.order" // of examples/orders

// effects is one run; letters are the settings of a worker for its dead letters.
func effects(t *testing.T, name string, long time.Duration, letters func(role string) []string) {
	binary, err := ordersBinary()
	if err != nil {
		t.Fatal(err)
	}
	p := newPath(t, binary)
	env := []string{"DATABASE_URL=" + p.pg.DSN(), "BROKERS=" + p.k.Addr(), "MAIL_URL=" + p.mails, "SESSION_TIMEOUT=6s"}
	p.startRelay(t)
	urls := []string{}
	for range 2 {
		address := freeAddress(t)
		urls = append(urls, "http://"+address)
		p.start(t, "serve", append(env, "LISTEN="+address))
	}
	for _, worker := range []string{"bill", "mail"} {
		env := env
		if letters != nil {
			for _, kind := range []string{".dead", ".retry"} {
				p.k.CreateTopic(t, worker+kind, 2, map[string]string{"retention.ms": "-1"})
			}
			env = append(env[:len(env):len(env)], letters(worker)...)
		}
		for range 2 { // so that partitions change hands
			p.start(t, worker, env)
		}
	}

	sampler := e2e.SampleConfirmed(t, p.pg, "cdc_relay")
	c := startClients(t, 4, urls...)
	e2e.Eventually(t, time.Minute, "the first mail is sent", func() bool { return p.sent(t).total > 0 })
	kills := startKiller(t, p.roles, map[string]server{"postgres": p.pg, "kafka": p.k})
	time.Sleep(long) // what the test is about
	kills.stop()
	c.stop()

	began := time.Now()
	waited := p.waitQuiet(t, 3*time.Minute)
	quiet := time.Since(began)
	v := p.judge(t, c)
	server := p.serverIsClean(t)
	stopping := time.Now()
	p.stop()
	ok := waited == "" && server == "" && len(c.wrong) == 0 && sampler.OK() && v.ok() &&
		// Otherwise nothing was tested.
		v.orders > 0 && c.replayed > 0 && v.copies > 0 && v.duplicates["bill"] > 0 && v.duplicates["mail"] > 0 && kills.total() > 0
	for _, problem := range append(c.wrong[:min(10, len(c.wrong))], waited, server) {
		if problem != "" {
			t.Error(problem)
		}
	}
	e2e.Result(t, name, ok && !t.Failed(), "orders", v.orders, "invoices", v.invoices, "mails", v.mails.total, "kills", kills.total(), "by_victim", kills.counts(),
		"missing", v.missing, "twice", v.twice, "dead_letters", v.letters, "requests", c.requests, "requests_replayed", c.replayed, "records_twice", v.copies,
		"dropped_by_inbox", fmt.Sprintf("bill:%d,mail:%d", v.duplicates["bill"], v.duplicates["mail"]), "dropped_by_provider", v.mails.repeats,
		"ended_by_themselves", p.endings(), "quiet_after_s", quiet.Seconds(), "stopped_after_s", time.Since(stopping).Seconds(), "minutes", long.Minutes(), "pg", p.pg.Version)
}

// path is the whole way of an order.
type path struct {
	pg     *e2e.PG
	k      *e2e.Cluster
	admin  *kadm.Client
	dir    string // of the logs
	mails  string // URL of the provider
	roles  []*role
	orders string // the binary
}

func newPath(t testing.TB, binary string) *path {
	t.Helper()
	p := &path{pg: e2e.Postgres(t), orders: binary, dir: t.TempDir()}
	p.pg.RequireControl(t)
	p.k = e2e.ExclusiveKafka(t, kafkaserver.Options{})
	p.k.RequireReal(t)
	p.admin = kadm.NewClient(p.k.Client(t))
	p.pg.Exec(t, example(t, "schema.sql"))
	code, stdout, stderr := e2e.RunRelay(t, time.Minute, e2e.RelayOptions{
		Config: example(t, "cdc-relay.yaml"), Command: "setup", Args: []string{"--create-topics"}, Env: p.relayEnv()})
	if code != 0 {
		t.Fatalf("cdc-relay setup ended with %d:\n%s%s", code, stdout, stderr)
	}
	address := freeAddress(t)
	p.mails = "http://" + address
	// Not among the roles, which are killed.
	startRole(t, "provider", proc.Spec{Path: p.orders, Args: []string{"provider"}, Env: plainEnv("LISTEN=" + address), LogFile: filepath.Join(p.dir, "provider.log")})
	return p
}

func example(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "examples", "orders", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func freeAddress(t testing.TB) string {
	t.Helper()
	port, err := proc.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

func (p *path) relayEnv() []string {
	return []string{"CDC_RELAY_SOURCE_URL=" + p.pg.DSN(), "CDC_RELAY_KAFKA_BROKERS=" + p.k.Addr()}
}

func (p *path) startRelay(t testing.TB) {
	t.Helper()
	config := filepath.Join(p.dir, "cdc-relay.yaml")
	if err := os.WriteFile(config, []byte(example(t, "cdc-relay.yaml")), 0o600); err != nil {
		t.Fatal(err)
	}
	env := plainEnv(append(p.relayEnv(), "CDC_RELAY_ADMIN_LISTEN="+freeAddress(t))...)
	p.roles = append(p.roles, startRole(t, "relay", proc.Spec{Path: e2e.RelayBinary(t), Args: []string{"run", "--config", config}, Env: env, LogFile: filepath.Join(p.dir, "relay.log")}))
}

func (p *path) start(t testing.TB, name string, env []string) {
	t.Helper()
	log := filepath.Join(p.dir, fmt.Sprintf("%s-%d.log", name, len(p.roles)))
	p.roles = append(p.roles, startRole(t, name, proc.Spec{Path: p.orders, Args: []string{name}, Env: plainEnv(env...), LogFile: log}))
}

// stop stops all roles at the same time.
func (p *path) stop() {
	for _, r := range p.roles {
		r.cancel()
	}
	for _, r := range p.roles {
		r.stop()
	}
}

func (p *path) endings() (n int64) {
	for _, r := range p.roles {
		n += r.endings.Load()
	}
	return n
}

// waitQuiet waits until what was committed is published, and the groups have no lag; it
// returns what did not come about.
func (p *path) waitQuiet(t testing.TB, timeout time.Duration) string {
	began := time.Now()
	for logged := began; ; time.Sleep(200 * time.Millisecond) {
		what := p.busy()
		if what == "" || time.Since(began) > timeout {
			return what
		}
		if time.Since(logged) > 10*time.Second {
			logged = time.Now()
			t.Logf("after %.0f s: %s", time.Since(began).Seconds(), what)
		}
	}
}

func (p *path) busy() string {
	// An idle server writes a little now and then.
	const confirmed = "SELECT pg_current_wal_insert_lsn() - confirmed_flush_lsn < 10000 FROM pg_replication_slots WHERE slot_name = 'cdc_relay'"
	if done, err := p.pg.TryQuery(confirmed); err != nil {
		return fmt.Sprintf("the slot is not known: %v", err)
	} else if done != "true" {
		return "the relay has not confirmed what was committed"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ends, err := p.admin.ListEndOffsets(ctx, eventTopic)
	if err != nil {
		return fmt.Sprintf("the ends of %s are not known: %v", eventTopic, err)
	}
	for _, group := range []string{"billing", "mail"} {
		offsets, err := p.admin.FetchOffsets(ctx, group)
		if err != nil {
			return fmt.Sprintf("the offsets of %s are not known: %v", group, err)
		}
		for partition, end := range ends[eventTopic] {
			if at := offsets[eventTopic][partition].At; at < end.Offset {
				return fmt.Sprintf("group %s is at %d of %d in partition %d", group, at, end.Offset, partition)
			}
		}
	}
	return ""
}

// sent are the mails that the provider sent.
type sent struct {
	total, repeats int
	byOrder        map[string]int
}

func (p *path) sent(t testing.TB) sent {
	t.Helper()
	s := sent{byOrder: map[string]int{}}
	resp, err := http.Get(p.mails + "/mails")
	if err != nil {
		return s // it is just starting
	}
	defer resp.Body.Close()
	var list struct {
		Mails   []struct{ Subject string }
		Repeats int
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	s.total, s.repeats = len(list.Mails), list.Repeats
	for _, m := range list.Mails {
		s.byOrder[m.Subject[strings.LastIndexByte(m.Subject, ' ')+1:]]++
	}
	return s
}
