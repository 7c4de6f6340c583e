package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/inbox"
)

var broker struct {
	once sync.Once
	k    *kafkaserver.Broker
	err  error
}

func stopKafka() {
	if broker.k != nil {
		_ = broker.k.Close()
	}
}

// kafkaAddr starts Apache Kafka once for the package; the test is skipped where its
// jars cannot be had, but fails for that in CI; it is skipped with -short.
func kafkaAddr(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts Apache Kafka")
	}
	broker.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		broker.k, broker.err = kafkaserver.Start(ctx, kafkaserver.Options{Settings: map[string]string{"group.min.session.timeout.ms": "1000"}})
	})
	if errors.Is(broker.err, kafkaserver.ErrNoJars) && os.Getenv("CI") == "" {
		t.Skipf("NO REAL BROKER: %v", broker.err)
	}
	if broker.err != nil {
		t.Fatal(broker.err)
	}
	return broker.k.Addr()
}

// kafkaEnv adds topics to an env: source, retry and dead letters.
type kafkaEnv struct {
	*env
	addr                      string
	client                    *kafka.Client
	topic, retry, dead, group string
}

func newKafkaEnv(t testing.TB, partitions int) *kafkaEnv {
	t.Helper()
	addr := kafkaAddr(t)
	e := &kafkaEnv{env: newEnv(t), addr: addr,
		client: &kafka.Client{Addr: kafka.TCP(addr), Timeout: 30 * time.Second, Transport: &kafka.Transport{MetadataTTL: time.Second}}}
	e.topic, e.retry, e.dead, e.group = e.db+".orders", e.db+".retry", e.db+".dead", e.db
	e.makeTopic(e.topic, partitions)
	e.makeTopic(e.retry, 1)
	e.makeTopic(e.dead, 1, "retention.ms", "-1")
	return e
}

func (e *kafkaEnv) makeTopic(name string, partitions int, settings ...string) {
	e.t.Helper()
	c := kafka.TopicConfig{Topic: name, NumPartitions: partitions, ReplicationFactor: 1}
	for i := 0; i < len(settings); i += 2 {
		c.ConfigEntries = append(c.ConfigEntries, kafka.ConfigEntry{ConfigName: settings[i], ConfigValue: settings[i+1]})
	}
	answer, err := e.client.CreateTopics(context.Background(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{c}})
	e.must(err)
	e.must(answer.Errors[name])
	waitFor(e.t, "topic "+name, func() bool {
		m, err := e.client.Metadata(context.Background(), &kafka.MetadataRequest{Topics: []string{name}})
		if err != nil || len(m.Topics) != 1 || m.Topics[0].Error != nil || len(m.Topics[0].Partitions) != partitions {
			return false
		}
		for _, p := range m.Topics[0].Partitions {
			if p.Leader.Host == "" {
				return false
			}
		}
		return true
	})
}

// msg is "id" or "id:key" or "id:key:value"; an id of "-" stands for none.
func (e *kafkaEnv) produce(partition int, msgs ...string) {
	e.t.Helper()
	var records []kafka.Record
	for _, m := range msgs {
		f := strings.SplitN(m+"::", ":", 4)
		r := kafka.Record{Time: time.Now()}
		if f[0] != "-" {
			r.Headers = []kafka.Header{{Key: "id", Value: []byte(f[0])}}
		}
		if f[1] != "" {
			r.Key = kafka.NewBytes([]byte(f[1]))
		}
		r.Value = kafka.NewBytes([]byte(f[2]))
		records = append(records, r)
	}
	var last error
	waitFor(e.t, "the topic to take records", func() bool {
		answer, err := e.client.Produce(context.Background(), &kafka.ProduceRequest{Topic: e.topic, Partition: partition,
			RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...)})
		if err == nil {
			err = answer.Error
		}
		last = err
		return err == nil
	})
	e.must(last)
}

// offset is what the group has committed; -1 for none.
func (e *kafkaEnv) offset(topic string, partition int) int64 {
	answer, err := e.client.OffsetFetch(context.Background(), &kafka.OffsetFetchRequest{GroupID: e.group, Topics: map[string][]int{topic: {partition}}})
	if err != nil || answer.Error != nil || len(answer.Topics[topic]) == 0 {
		return -1
	}
	return answer.Topics[topic][0].CommittedOffset
}

func (e *kafkaEnv) groupState() string {
	answer, err := e.client.DescribeGroups(context.Background(), &kafka.DescribeGroupsRequest{GroupIDs: []string{e.group}})
	if err != nil || len(answer.Groups) != 1 {
		return ""
	}
	return answer.Groups[0].GroupState
}

// end is the number of records that were written to a partition.
func (e *kafkaEnv) end(topic string) int64 {
	answer, err := e.client.ListOffsets(context.Background(), &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: {kafka.LastOffsetOf(0)}}})
	if err != nil || len(answer.Topics[topic]) == 0 {
		return -1
	}
	return answer.Topics[topic][0].LastOffset
}

// running is a runner, and what it observed.
type running struct {
	t      testing.TB
	cancel context.CancelFunc
	done   chan error
	mu     sync.Mutex
	seen   map[inbox.Kind]int64
}

func (r *running) count(k inbox.Kind) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[k]
}

func (r *running) stop() error {
	r.cancel()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(60 * time.Second):
		r.t.Error("the runner did not stop")
		return nil
	}
}

func (e *kafkaEnv) config(change ...func(*inbox.Config)) inbox.Config {
	c := inbox.Config{Brokers: []string{e.addr}, Group: e.group, Topics: []string{e.topic}, RetryTopic: e.retry, DeadLetterTopic: e.dead,
		Attempts: 3, BackoffMin: 10 * time.Millisecond, BackoffMax: 50 * time.Millisecond, RetryDelay: 50 * time.Millisecond,
		SessionTimeout: 3 * time.Second, Grace: 20 * time.Second}
	for _, f := range change {
		f(&c)
	}
	return c
}

type handler = func(ctx context.Context, tx pgx.Tx, r inbox.Record) error

// bill is the effect of every test: an invoice per event.
func bill(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
	_, err := tx.Exec(ctx, "INSERT INTO invoices (order_id) VALUES ($1)", r.ID)
	return err
}

func (e *kafkaEnv) run(h handler, change ...func(*inbox.Config)) *running {
	e.t.Helper()
	r := &running{t: e.t, done: make(chan error, 1), seen: map[inbox.Kind]int64{}}
	c := e.config(change...)
	observe := c.Observe
	c.Observe = func(ev inbox.Event) {
		r.mu.Lock()
		r.seen[ev.Kind] += max(1, ev.N)
		r.mu.Unlock()
		if observe != nil {
			observe(ev)
		}
	}
	runner, err := inbox.ForPGX(e.pool.Begin, h, c)
	e.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.done <- runner.Run(ctx) }() // ended by stop
	e.t.Cleanup(func() { _ = r.stop() })
	return r
}

// worker runs where the test binary is started again as a process that can be killed:
// it dies by SIGKILL when its first transaction is committed, before the offset is.
func worker() {
	dsn, addr, db := os.Getenv("INBOX_WORKER_DSN"), os.Getenv("INBOX_WORKER_KAFKA"), os.Getenv("INBOX_WORKER_DB")
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	var committed atomic.Bool
	r, err := inbox.ForPGX(conn.Begin, bill, inbox.Config{Brokers: []string{addr}, Group: db, Topics: []string{db + ".orders"}, SessionTimeout: 3 * time.Second,
		Observe: func(e inbox.Event) {
			if e.Kind == inbox.Processed && committed.CompareAndSwap(false, true) {
				p, _ := os.FindProcess(os.Getpid())
				_ = p.Kill()
				select {}
			}
		}})
	if err == nil {
		err = r.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, "not killed:", err)
	os.Exit(3)
}
