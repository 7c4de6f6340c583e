package kafka

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/sink"
)

// testTimeout bounds each wait of a test; none is expected to come near it.
const testTimeout = 30 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// startKafka runs a fake cluster for the test.
func startKafka(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// openSink opens a sink on addrs with short pauses. At the test's end it is
// closed, and no goroutine of it may be left.
func openSink(t testing.TB, addrs []string, change func(*Config)) *Sink {
	t.Helper()
	before := goleak.IgnoreCurrent()
	cluster, err := broker.Open(broker.Config{Brokers: addrs, DialTimeout: 2 * time.Second, RequestTimeout: 3 * time.Second, MetadataTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Cluster: cluster, RequestTimeout: 2 * time.Second, RetryMin: 5 * time.Millisecond, RetryMax: 100 * time.Millisecond,
		LookInterval: 200 * time.Millisecond, HealInterval: 200 * time.Millisecond, Log: testLog(t),
	}
	if change != nil {
		change(&cfg)
	}
	s, err := Open(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			return
		}
		noLeak(t, before)
	})
	return s
}

// noLeak waits until no goroutine of the sink is left. The server lives on, and
// its goroutines follow the connections.
func noLeak(t testing.TB, before goleak.Option) {
	t.Helper()
	const fake = "github.com/twmb/franz-go/pkg/kfake."
	opts := []goleak.Option{before}
	for _, f := range []string{fake + "(*broker).listen", fake + "(*clientConn).read", fake + "(*clientConn).read.func1",
		fake + "(*clientConn).write", fake + "(*Cluster).run", "os/exec.(*Cmd).Wait"} {
		opts = append(opts, goleak.IgnoreAnyFunction(f))
	}
	deadline := time.Now().Add(testTimeout)
	for {
		err := goleak.Find(opts...)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func testLog(t testing.TB) *zap.Logger {
	if !testing.Verbose() {
		return zap.NewNop()
	}
	return zaptest.NewLogger(t)
}

// ackLog counts the acks of each transaction.
type ackLog struct {
	mu    sync.Mutex
	calls int
	n     map[uint64]int
	total int
}

func newAckLog() *ackLog { return &ackLog{n: make(map[uint64]int)} }

func (a *ackLog) Done(acked []sink.Acked) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	for _, d := range acked {
		a.n[d.Tx] += d.N
		a.total += d.N
	}
}

func (a *ackLog) of(tx uint64) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n[tx]
}

func (a *ackLog) sum() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total
}

// began is the time of records. A broker forgets a producer by the time of its
// records: one of old records is forgotten at once when the broker restarts.
var began = time.Now().UnixMilli()

// numbered is record i of a topic; its id and value are i.
func numbered(topic string, partition int32, i int) *sink.Record {
	id := []byte(strconv.Itoa(i))
	return &sink.Record{Topic: topic, Partition: partition, Key: []byte("k" + strconv.Itoa(i%17)), Value: id, ID: id,
		Headers: []sink.Header{{Key: "id", Value: id}}, Timestamp: began + int64(i), LSN: 100, Seq: uint32(i)}
}

// publish sends a record by itself.
func publish(t testing.TB, s *Sink, rec *sink.Record, ack sink.Ack) {
	t.Helper()
	if err := s.Publish(testContext(t), rec, ack); err != nil {
		t.Fatal(err)
	}
	s.Flush()
}

func drain(t testing.TB, s *Sink) {
	t.Helper()
	if err := s.Drain(testContext(t)); err != nil {
		t.Fatalf("%v; lanes %+v; stats %+v", err, s.Lanes(), s.Stats())
	}
}

// consume reads n records of a topic from the start, by partition.
func consume(t testing.TB, addrs []string, topic string, n int) map[int32][]*kgo.Record {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(50*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	out := make(map[int32][]*kgo.Record)
	ctx := testContext(t)
	for got := 0; got < n; {
		fs := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("topic %s: %d records of %d arrived", topic, got, n)
		}
		fs.EachRecord(func(r *kgo.Record) {
			out[r.Partition] = append(out[r.Partition], r)
			got++
		})
	}
	return out
}

// eventually polls until ok, for what a server does in its own time.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// inOrder checks that first copies of the numbered records of each partition
// arrived in order without a gap: every record whose number belongs to the
// partition, each first seen after all smaller ones. It returns the number of
// copies.
func inOrder(t testing.TB, got map[int32][]*kgo.Record, want map[int32][]int) (copies int) {
	t.Helper()
	for p, nums := range want {
		seen := make(map[int]bool)
		next := 0
		for _, r := range got[p] {
			i, err := strconv.Atoi(string(r.Value))
			if err != nil {
				t.Fatal(err)
			}
			if seen[i] {
				copies++
				continue
			}
			if next >= len(nums) || nums[next] != i {
				t.Fatalf("partition %d: first copy of %d at offset %d, expected %s", p, i, r.Offset, expected(nums, next))
			}
			seen[i] = true
			next++
		}
		if next != len(nums) {
			t.Fatalf("partition %d: %d records of %d arrived", p, next, len(nums))
		}
	}
	return copies
}

func expected(nums []int, next int) string {
	if next >= len(nums) {
		return "nothing more"
	}
	return fmt.Sprint(nums[next])
}

func portOf(t testing.TB, addr string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
