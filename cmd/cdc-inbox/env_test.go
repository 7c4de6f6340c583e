package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/inbox"
)

// The test binary is the command, too: so it can be killed, and found by a shell.
func TestMain(m *testing.M) {
	if os.Getenv("CDC_INBOX_IS_THE_COMMAND") != "" {
		main()
	}
	os.Exit(m.Run())
}

const owner = "billing"

// world is a consumer, its database and its topics.
type world struct {
	t     *testing.T
	pg    *pgserver.Server
	pool  *pgxpool.Pool
	k     *kafkaserver.Broker
	kafka *kafka.Client
	env   []string
	join  inbox.Config // how the consumer connects

	mu    sync.Mutex
	fails map[string]bool
	order []string

	early, duplicates atomic.Int64 // letters behind their offset; records that were skipped
}

func newWorld(t *testing.T, o kafkaserver.Options) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("starts PostgreSQL and Apache Kafka")
	}
	w := &world{t: t, fails: map[string]bool{}}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var err error
	w.k, err = kafkaserver.Start(ctx, o)
	if errors.Is(err, kafkaserver.ErrNoJars) && os.Getenv("CI") == "" {
		t.Skipf("NO REAL BROKER: %v", err)
	}
	w.must(err)
	t.Cleanup(func() { _ = w.k.Close() })
	w.pg, err = pgserver.Start(ctx, pgserver.Options{Version: os.Getenv("CDC_RELAY_TEST_PG_VERSION")})
	w.must(err)
	t.Cleanup(func() { _ = w.pg.Close() })
	w.must(w.pg.CreateDatabase(ctx, "shop", ""))
	w.must(w.pg.Exec(ctx, "shop", inbox.Schema, inbox.DeadLetterSchema, "CREATE TABLE invoices (id bigint GENERATED ALWAYS AS IDENTITY, order_id text NOT NULL)"))
	w.pool, err = pgxpool.New(ctx, w.pg.DSN("shop"))
	w.must(err)
	t.Cleanup(w.pool.Close)
	w.kafka = &kafka.Client{Addr: kafka.TCP(w.k.Addr()), Timeout: 30 * time.Second, Transport: &kafka.Transport{MetadataTTL: 200 * time.Millisecond}}
	w.join.Brokers = []string{w.k.Addr()}
	w.topic("orders", "billing.retry", "billing.dead")

	bin := t.TempDir()
	self, err := os.Executable()
	w.must(err)
	w.must(os.Symlink(self, filepath.Join(bin, "cdc-inbox")))
	w.env = append(os.Environ(), "CDC_INBOX_IS_THE_COMMAND=1", "PATH="+bin+":"+os.Getenv("PATH"), "DATABASE_URL="+w.pg.DSN("shop"), "BROKERS="+w.k.Addr())
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) waitFor(what string, holds func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (w *world) topic(names ...string) {
	w.t.Helper()
	for _, name := range names {
		c := kafka.TopicConfig{Topic: name, NumPartitions: 1, ReplicationFactor: 1, ConfigEntries: []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "-1"}}}
		w.waitFor("topic "+name, func() bool {
			_, _ = w.kafka.CreateTopics(context.Background(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{c}})
			return w.end(name) >= 0
		})
	}
}

// end is the offset behind the last record of a topic; -1 when there is none.
func (w *world) end(topic string) int64 {
	a, err := w.kafka.ListOffsets(context.Background(), &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: {kafka.LastOffsetOf(0)}}})
	if err != nil || len(a.Topics[topic]) != 1 || a.Topics[topic][0].Error != nil {
		return -1
	}
	return a.Topics[topic][0].LastOffset
}

func (w *world) offset(topic string) int64 {
	a, err := w.kafka.OffsetFetch(context.Background(), &kafka.OffsetFetchRequest{GroupID: owner, Topics: map[string][]int{topic: {0}}})
	if err != nil || a.Error != nil || len(a.Topics[topic]) == 0 {
		return -1
	}
	return a.Topics[topic][0].CommittedOffset
}

// produce writes an order; the id is the event's, and what follows it in the payload.
func (w *world) produce(id, key string) {
	w.t.Helper()
	r := kafka.Record{Key: kafka.NewBytes([]byte(key)), Value: kafka.NewBytes([]byte("secret of " + id)), Headers: []kafka.Header{{Key: "id", Value: []byte(id)}}}
	a, err := w.kafka.Produce(context.Background(), &kafka.ProduceRequest{Topic: "orders", RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(r)})
	w.must(err)
	w.must(a.Error)
}

func (w *world) set(fails bool, ids ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		w.fails[id] = fails
	}
}

func (w *world) count(query string, args ...any) (n int) {
	w.t.Helper()
	w.must(w.pool.QueryRow(context.Background(), query, args...).Scan(&n))
	return n
}

func (w *world) in(state string) int {
	w.t.Helper()
	return w.count("SELECT count(*) FROM inbox_dead_letters WHERE state = $1", state)
}

// consume runs the consumer; the function stops it.
func (w *world) consume() (stop func()) {
	w.t.Helper()
	r := w.runner()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }() // ended by stop
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

func (w *world) runner() *inbox.Runner {
	w.t.Helper()
	r, err := inbox.ForPGX(w.pool.Begin, func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.fails[r.ID] {
			return errors.New("no such order")
		}
		w.order = append(w.order, r.ID)
		_, err := tx.Exec(ctx, "INSERT INTO invoices (order_id) VALUES ($1)", r.ID)
		return err
	}, inbox.Config{Brokers: w.join.Brokers, TLS: w.join.TLS, SASL: w.join.SASL, Group: owner, Topics: []string{"orders"}, RetryTopic: "billing.retry", DeadLetterTopic: "billing.dead",
		Attempts: 2, BackoffMin: 5 * time.Millisecond, BackoffMax: 10 * time.Millisecond, RetryDelay: time.Millisecond, SessionTimeout: 6 * time.Second,
		Observe: func(e inbox.Event) {
			switch e.Kind {
			case inbox.DeadLettered:
				if e.Topic == "orders" && w.offset("orders") > e.Offset {
					w.early.Add(1)
				}
			case inbox.Duplicates:
				w.duplicates.Add(e.N)
			}
		}})
	w.must(err)
	return r
}

// shell runs a line as a person would, and returns what it printed and its exit code.
func (w *world) shell(line string) (out string, code int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Env = w.env
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	w.t.Logf("$ %s\n%s", line, b.String())
	return b.String(), cmd.ProcessState.ExitCode()
}

func (w *world) result(ok bool, format string, args ...any) {
	w.t.Helper()
	fmt.Printf("RESULT dead_letters %s ok=%v\n", fmt.Sprintf(format, args...), ok)
	if !ok {
		w.t.Fail()
	}
}
