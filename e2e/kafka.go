package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// KafkaControl is what a test can do to a broker of its own; a process, a container or kfake.
type KafkaControl interface {
	Addr() string
	Start(context.Context) error
	Stop(context.Context) error
	Kill9()
	Pause() error
	Resume() error
	Close() error
}

// Cluster is the Kafka that a test publishes to.
type Cluster struct {
	KafkaControl
	// Broker is the broker's process; nil when it is a container, an external one or kfake.
	Broker *kafkaserver.Broker
	// Real is false for kfake.
	Real bool
	own  bool // this test's alone
}

var shared struct {
	sync.Mutex
	kafka *Cluster
}

func closeShared() {
	shared.Lock()
	defer shared.Unlock()
	if shared.kafka != nil {
		shared.kafka.Close()
		shared.kafka = nil
	}
}

// Kafka is the broker that all tests of this binary share: give each test topics of its own by Topic, and do not stop it. It
// is the one that CDC_RELAY_TEST_KAFKA names, if any. Where the jars of Apache Kafka cannot be fetched it is kfake, and the
// run ends with a list of the tests that saw no real broker.
func Kafka(t testing.TB) *Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.kafka == nil {
		if addr := os.Getenv("CDC_RELAY_TEST_KAFKA"); addr != "" {
			shared.kafka = &Cluster{KafkaControl: externalBroker(addr), Real: true}
		} else {
			shared.kafka = startKafka(t, kafkaserver.Options{})
		}
	}
	if !shared.kafka.Real {
		noteFakeBroker(t.Name())
	}
	return shared.kafka
}

// ExclusiveKafka starts a broker for this test alone, which it may stop, kill and pause. Close comes with the test's end.
func ExclusiveKafka(t testing.TB, opts kafkaserver.Options) *Cluster {
	t.Helper()
	k := startKafka(t, opts)
	k.own = true
	if !k.Real {
		noteFakeBroker(t.Name())
	}
	t.Cleanup(func() {
		if t.Failed() && k.Broker != nil {
			t.Logf("log of Kafka, the end:\n%s", tailFile(k.Broker.LogPath(), 6000))
		}
		if c := k.Container(); t.Failed() && c != nil {
			t.Logf("log of Kafka, the end:\n%s", c.Log())
		}
		if err := k.Close(); err != nil {
			t.Errorf("stop Kafka: %v", err)
		}
	})
	return k
}

func startKafka(t testing.TB, opts kafkaserver.Options) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // the first time, Maven fetches the jars
	defer cancel()
	if Containers() {
		if len(opts.Listeners) > 0 {
			skip(t, "needs a broker that is no container: further listeners")
		}
		c, err := startKafkaContainer(ctx, opts)
		if err != nil {
			t.Fatalf("start Kafka in a container: %v", err)
		}
		return &Cluster{KafkaControl: c, Real: true}
	}
	b, err := kafkaserver.Start(ctx, opts)
	if errors.Is(err, kafkaserver.ErrNoJars) {
		if len(opts.Listeners) > 0 || opts.Advertised != "" {
			skip(t, "needs a real broker: "+err.Error())
		}
		t.Logf("NO REAL BROKER, using kfake: %v", err)
		f, ferr := startFake(opts)
		if ferr != nil {
			t.Fatal(ferr)
		}
		return &Cluster{KafkaControl: f}
	}
	if err != nil {
		t.Fatal(err)
	}
	return &Cluster{KafkaControl: b, Broker: b, Real: true}
}

// RequireReal skips the test on kfake.
func (k *Cluster) RequireReal(t testing.TB) {
	t.Helper()
	if !k.Real {
		skip(t, "needs a real broker")
	}
}

// StartAgain starts a stopped broker and fails the test when it does not come up.
func (k *Cluster) StartAgain(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*Timeout)
	defer cancel()
	if err := k.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// StopNow stops the broker cleanly and fails the test when it does not end.
func (k *Cluster) StopNow(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	if err := k.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

// Client makes a franz-go client, closed with the test.
func (k *Cluster) Client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(k.Addr()), kgo.ClientID("e2e")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

var (
	topicCount  atomic.Int64
	unsafeTopic = regexp.MustCompile(`[^A-Za-z0-9._-]+`)
)

// UniqueName makes a name that no other test of this or another run uses, for topics on a shared broker.
func UniqueName(t testing.TB, prefix string) string {
	name := unsafeTopic.ReplaceAllString(strings.TrimPrefix(t.Name(), "TestE2E_"), "-")
	return fmt.Sprintf("%s.%s.%d-%d", prefix, name, os.Getpid(), topicCount.Add(1))
}

// Topic creates a topic of a unique name and returns the name.
func (k *Cluster) Topic(t testing.TB, prefix string, partitions int, config ...map[string]string) string {
	t.Helper()
	name := UniqueName(t, prefix)
	k.CreateTopic(t, name, partitions, config...)
	return name
}

// CreateTopic creates a topic with one replica and returns when its partitions have leaders.
func (k *Cluster) CreateTopic(t testing.TB, name string, partitions int, config ...map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	cl := k.Client(t)
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 30_000
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, int32(partitions), 1
	for _, m := range config {
		for key, v := range m {
			c := kmsg.NewCreateTopicsRequestTopicConfig()
			c.Name, c.Value = key, kmsg.StringPtr(v)
			topic.Configs = append(topic.Configs, c)
		}
	}
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("create topic %s: %v", name, err)
	}
	for {
		parts, err := partitionsOf(ctx, cl, name)
		if err == nil && len(parts) == partitions {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("topic %s has no leaders: %v", name, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// partitionsOf lists the partitions of a topic; an error when one has no leader.
func partitionsOf(ctx context.Context, cl *kgo.Client, topic string) ([]int32, error) {
	req := kmsg.NewPtrMetadataRequest()
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = kmsg.StringPtr(topic)
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, fmt.Errorf("metadata of topic %s: %w", topic, err)
	}
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil {
		return nil, fmt.Errorf("metadata of topic %s: %w", topic, err)
	}
	var parts []int32
	for _, p := range resp.Topics[0].Partitions {
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			return nil, fmt.Errorf("metadata of topic %s: %w", topic, err)
		}
		parts = append(parts, p.Partition)
	}
	return parts, nil
}

// externalBroker is one that somebody else runs.
type externalBroker string

var errExternalBroker = errors.New("this broker was given by CDC_RELAY_TEST_KAFKA and is not ours to stop or start")

func (e externalBroker) Addr() string                { return string(e) }
func (e externalBroker) Start(context.Context) error { return errExternalBroker }
func (e externalBroker) Stop(context.Context) error  { return errExternalBroker }
func (e externalBroker) Kill9()                      { panic(errExternalBroker) }
func (e externalBroker) Pause() error                { return errExternalBroker }
func (e externalBroker) Resume() error               { return errExternalBroker }
func (e externalBroker) Close() error                { return nil }

// fakeBroker is kfake with a data directory, so that it can be stopped and started again.
type fakeBroker struct {
	dir  string
	port int
	opts kafkaserver.Options

	mu sync.Mutex
	c  *kfake.Cluster
}

func startFake(opts kafkaserver.Options) (*fakeBroker, error) {
	dir, err := proc.TempDir("kfake")
	if err != nil {
		return nil, err
	}
	port := opts.Port
	if port == 0 {
		if port, err = proc.FreePort(); err != nil {
			return nil, err
		}
	}
	f := &fakeBroker{dir: dir, port: port, opts: opts}
	return f, f.Start(context.Background())
}

func (f *fakeBroker) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(f.port)) }

func (f *fakeBroker) Start(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.c != nil {
		return nil
	}
	c, err := kfake.NewCluster(kfake.Ports(f.port), kfake.NumBrokers(1), kfake.DataDir(filepath.Join(f.dir, "data")),
		kfake.SyncWrites(), kfake.BrokerConfigs(f.opts.Settings))
	if err != nil {
		return fmt.Errorf("start kfake: %w", err)
	}
	f.c = c
	return nil
}

func (f *fakeBroker) Stop(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.c != nil {
		f.c.Close()
		f.c = nil
	}
	return nil
}

func (f *fakeBroker) Kill9()        { _ = f.Stop(context.Background()) }
func (f *fakeBroker) Pause() error  { return errors.New("kfake cannot be paused") }
func (f *fakeBroker) Resume() error { return nil }
func (f *fakeBroker) Close() error {
	f.Kill9()
	return os.RemoveAll(f.dir)
}
