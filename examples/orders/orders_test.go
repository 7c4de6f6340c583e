package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
	"github.com/cdc-relay/cdc-relay/idempotency"
	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }

// One order is placed twice with one key, another once. Each record comes twice, and the
// first answer to each mail is lost after the provider has sent it. The relay runs with
// the configuration of the example.
func TestOrders_EachEffectHappensOncePerOrder(t *testing.T) {
	pg, k := e2e.Postgres(t), e2e.Kafka(t)
	pg.RequireControl(t) // the slot of the example has one name
	pg.Exec(t, read(t, "schema.sql"))
	topic := e2e.UniqueName(t, "orders")
	relay := e2e.RelayOptions{Config: read(t, "cdc-relay.yaml"), Env: []string{
		"CDC_RELAY_SOURCE_URL=" + pg.DSN(), "CDC_RELAY_KAFKA_BROKERS=" + k.Addr(), "CDC_RELAY_CHECKPOINT_TOPIC=" + e2e.UniqueName(t, "marks"),
		"CDC_RELAY_OUTBOX_TOPIC=" + topic, "CDC_RELAY_KAFKA_TOPICS_NAMES=" + topic,
	}}
	setup := relay
	setup.Command, setup.Args = "setup", []string{"--create-topics"}
	if code, stdout, stderr := e2e.RunRelay(t, time.Minute, setup); code != 0 {
		t.Fatalf("cdc-relay setup ended with %d:\n%s%s", code, stdout, stderr)
	}
	e2e.StartRelay(t, relay)

	mails := httptest.NewServer(losesFirstAnswers(newProvider()))
	t.Cleanup(mails.Close)
	listen := freeAddress(t)
	env := map[string]string{"DATABASE_URL": pg.DSN(), "BROKERS": k.Addr(), "TOPIC": topic, "MAIL_URL": mails.URL, "LISTEN": listen}
	for _, role := range []string{"serve", "bill", "mail"} {
		start(t, role, env)
	}
	url := "http://" + listen
	e2e.Eventually(t, 30*time.Second, "the order service answers", func() bool {
		resp, err := http.Get(url + "/healthz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})

	first, again, other := place(t, url, "key-1"), place(t, url, "key-1"), place(t, url, "key-2")
	if first.status != http.StatusCreated || again != (answer{first.status, first.body, "true"}) || other.status != http.StatusCreated || other.body == first.body {
		t.Errorf("answers: %+v, again %+v, with another key %+v", first, again, other)
	}
	orders := pg.Query(t, "SELECT count(*) FROM orders")
	committed := number(t, orders)
	records := k.ConsumeUntil(t, time.Minute, func(all []e2e.Record) bool { return len(all) == committed }, topic)
	for delivery := range int64(2) {
		if delivery > 0 {
			deliverAgain(t, k, records)
		}
		for _, group := range []string{"billing", "mail"} {
			waitConsumed(t, k, group, topic, (delivery+1)*int64(len(records)))
		}
	}

	sent, repeats := mailsOf(t, mails.URL)
	invoices := pg.Query(t, "SELECT count(*) FROM invoices")
	distinct := pg.Query(t, "SELECT count(DISTINCT order_id) FROM invoices")
	markers := pg.Query(t, "SELECT count(*) FROM inbox")
	ok := orders == "2" && invoices == "2" && distinct == "2" && sent == 2 && repeats == 2 && markers == "4"
	e2e.Result(t, "orders", ok, "orders", orders, "invoices", invoices, "mails", sent, "requests", 3, "deliveries", 2*len(records),
		"mails_asked", sent+repeats, "markers", markers)
}

// schema.sql holds what the libraries need, as they give it.
func TestSchema_HasTheTablesOfTheLibraries(t *testing.T) {
	schema := read(t, "schema.sql")
	for name, part := range map[string]string{"outbox": outbox.Schema, "idempotency": idempotency.Schema, "inbox": inbox.Schema, "dead letters": inbox.DeadLetterSchema} {
		if !strings.Contains(schema, part) {
			t.Errorf("schema.sql has not the tables of %s as the library gives them", name)
		}
	}
}

func TestLoad_TellsEveryProblem(t *testing.T) {
	_, err := load("mail", func(name string) string {
		return map[string]string{"ATTEMPTS": "many", "INBOX_KEEP": "40 days", "SESSION_TIMEOUT": "6", "KAFKA_USER": "u", "KAFKA_TLS": "false"}[name]
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range []string{"DATABASE_URL", "BROKERS", "ATTEMPTS", "INBOX_KEEP", "SESSION_TIMEOUT", "KAFKA_TLS"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := proc.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// start runs a role until the end of the test, where it must stop cleanly.
func start(t *testing.T, role string, env map[string]string) {
	ctx, stop := context.WithCancel(context.Background())
	code := make(chan int, 1)
	go func() { code <- run(ctx, []string{role}, func(name string) string { return env[name] }) }()
	t.Cleanup(func() {
		stop()
		select {
		case c := <-code:
			if c != 0 {
				t.Errorf("orders %s ended with %d", role, c)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("orders %s did not stop", role)
		}
	})
}

type answer struct {
	status   int
	body     string
	replayed string
}

func place(t *testing.T, url, key string) answer {
	t.Helper()
	req, err := http.NewRequest("POST", url+"/orders", strings.NewReader(`{"item": "tea", "cents": 450, "email": "ann@example.com"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Customer", "ann")
	req.Header.Set(idempotency.Header, strconv.Quote(key))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, string(body), resp.Header.Get("Idempotency-Replayed")}
}

// losesFirstAnswers answers the first request of each event's mail by 502, after the
// provider has handled it.
func losesFirstAnswers(provider http.Handler) http.Handler {
	var mu sync.Mutex
	seen := map[string]bool{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		mu.Lock()
		lost := r.Method == http.MethodPost && !seen[string(body)]
		seen[string(body)] = true
		mu.Unlock()
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		if err != nil || !lost {
			provider.ServeHTTP(w, r)
			return
		}
		provider.ServeHTTP(httptest.NewRecorder(), r)
		w.WriteHeader(http.StatusBadGateway)
	})
}

// deliverAgain writes a copy of each record, as the relay does after a crash.
func deliverAgain(t *testing.T, k *e2e.Cluster, records []e2e.Record) {
	t.Helper()
	cl := k.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for _, r := range records {
		again := &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers}
		if err := cl.ProduceSync(t.Context(), again).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// waitConsumed waits until the group has committed the offsets behind n records.
func waitConsumed(t *testing.T, k *e2e.Cluster, group, topic string, n int64) {
	t.Helper()
	admin := kadm.NewClient(k.Client(t))
	e2e.Eventually(t, time.Minute, "the group "+group+" has read all records", func() bool {
		offsets, err := admin.FetchOffsets(t.Context(), group)
		var sum int64
		for _, o := range offsets[topic] {
			sum += max(0, o.At)
		}
		return err == nil && sum == n
	})
}

func mailsOf(t *testing.T, url string) (sent, repeats int) {
	t.Helper()
	resp, err := http.Get(url + "/mails")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list struct {
		Mails   []message
		Repeats int
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	return len(list.Mails), list.Repeats
}
