package broker

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/fault"
)

func TestMetadata_NamesLeadersAndMakesNoTopic(t *testing.T) {
	k := fakeKafka(t, kfake.NumBrokers(3), kfake.SeedTopics(6, "outbox"), kfake.AllowAutoTopicCreation())
	c := open(t, Config{Brokers: k.ListenAddrs()})
	topics, err := c.Metadata(within(t, 5*time.Second), "outbox", "missing")
	if err != nil {
		t.Fatal(err)
	}
	got := topics["outbox"]
	if got.Err != nil || len(got.Partitions) != 6 {
		t.Fatalf("outbox: %+v", got)
	}
	for i, p := range got.Partitions {
		if p.ID != int32(i) || p.Err != nil || p.Leader.ID != k.LeaderFor("outbox", p.ID) || p.Leader.Addr == "" {
			t.Errorf("partition %d: %+v", i, p)
		}
	}
	if !errors.Is(topics["missing"].Err, kafka.UnknownTopicOrPartition) {
		t.Errorf("missing: %+v", topics["missing"])
	}
	// The transport asks for its layout all the while.
	usable(t, c)
	if all, err := c.Metadata(within(t, 5*time.Second)); err != nil || len(all) != 1 {
		t.Errorf("all topics: %v, %v; want outbox alone", all, err)
	}
}

func TestMetadata_IsFreshAndHealsAfterARestart(t *testing.T) {
	dir := t.TempDir()
	k := fakeKafka(t, kfake.SeedTopics(1, "outbox"), kfake.DataDir(dir))
	c := open(t, Config{Brokers: k.ListenAddrs()})
	if _, err := c.Metadata(within(t, 5*time.Second), "outbox"); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(k.ListenAddrs()[0])
	n, _ := strconv.Atoi(port)
	k.Close()
	if _, err := c.Metadata(within(t, 5*time.Second), "outbox"); err == nil || fault.ClassOf(err) == fault.Stop {
		t.Fatalf("metadata without a broker: %v; want an error to try again", err)
	}
	fakeKafka(t, kfake.DataDir(dir), kfake.Ports(n))
	topics, err := c.Metadata(within(t, 5*time.Second), "outbox")
	if err != nil || topics["outbox"].Err != nil {
		t.Fatalf("metadata after the restart: %v, %v", topics, err)
	}
}

func TestMetadata_LeavesABrokerThatHangs(t *testing.T) {
	k := fakeKafka(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "outbox"))
	c := open(t, Config{Brokers: k.ListenAddrs(), DialTimeout: 300 * time.Millisecond})
	for range 3 {
		k.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) { return nil, nil, true })
		topics, err := c.Metadata(within(t, 5*time.Second), "outbox")
		if err != nil || topics["outbox"].Err != nil {
			t.Fatalf("%v, %v", topics, err)
		}
	}
}

func TestMetadata_ManyAskAtOnce(t *testing.T) {
	k := fakeKafka(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "outbox"))
	c := open(t, Config{Brokers: k.ListenAddrs()})
	var wg sync.WaitGroup
	for range 20 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 20 {
				// Some give up in the middle; the others must not get their answers.
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(2000))*time.Microsecond)
				_, _ = c.Metadata(ctx, "outbox")
				cancel()
				if topics, err := c.Metadata(within(t, 10*time.Second), "outbox"); err != nil || len(topics) != 1 || topics["outbox"].Err != nil {
					t.Errorf("%v, %v", topics, err)
					return
				}
			}
		}()
	}
	wg.Wait()
}

func TestMetadata_LostPrivilegeIsSeen(t *testing.T) {
	k := fakeKafka(t, kfake.SeedTopics(1, "outbox"))
	k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "outbox", Err: kerr.TopicAuthorizationFailed, Count: -1})
	c := open(t, Config{Brokers: k.ListenAddrs()})
	topics, err := c.Metadata(within(t, 5*time.Second), "outbox")
	if err != nil || !errors.Is(topics["outbox"].Err, kafka.TopicAuthorizationFailed) {
		t.Fatalf("metadata: %+v, %v; want TOPIC_AUTHORIZATION_FAILED", topics, err)
	}
}

func TestRefresh_FindsTheNewLeader(t *testing.T) {
	k := fakeKafka(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "outbox"))
	c := open(t, Config{Brokers: k.ListenAddrs(), MetadataTTL: time.Minute})
	produce := func() error {
		res, err := c.Client().Produce(within(t, 5*time.Second), &kafka.ProduceRequest{
			Topic: "outbox", RequiredAcks: kafka.RequireAll,
			Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("v"))}),
		})
		if err == nil {
			err = res.Error
		}
		return err
	}
	if err := produce(); err != nil {
		t.Fatal(err)
	}
	if err := k.MoveTopicPartition("outbox", 0, 1-k.LeaderFor("outbox", 0)); err != nil {
		t.Fatal(err)
	}
	err := produce()
	if class, code := Classify(err); class != fault.Refresh || code != "NOT_LEADER_OR_FOLLOWER" {
		t.Fatalf("produce to the old leader: %v is %v %s", err, class, code)
	}
	c.Refresh()
	if err := produce(); err != nil {
		t.Fatalf("produce after the refresh: %v", err)
	}
}

func TestCreateTopic_IsIdempotent(t *testing.T) {
	k := fakeKafka(t)
	c := open(t, Config{Brokers: k.ListenAddrs()})
	spec := TopicSpec{Name: "outbox", Partitions: 3, Replication: 1, Config: map[string]string{"retention.ms": "1234"}}
	for range 2 {
		if err := c.CreateTopic(within(t, 10*time.Second), spec); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := c.TopicConfig(within(t, 5*time.Second), "outbox")
	if err != nil || cfg["retention.ms"] != "1234" || cfg["max.message.bytes"] == "" {
		t.Fatalf("configuration %v, %v", cfg, err)
	}
	topics, err := c.Metadata(within(t, 5*time.Second), "outbox")
	if err != nil || len(topics["outbox"].Partitions) != 3 {
		t.Fatalf("topic %+v, %v; want 3 partitions", topics, err)
	}
}

func TestCreateTopic_RefusalsStop(t *testing.T) {
	k := fakeKafka(t)
	c := open(t, Config{Brokers: k.ListenAddrs()})
	for _, ke := range []*kerr.Error{kerr.InvalidTopicException, kerr.InvalidConfig, kerr.PolicyViolation, kerr.InvalidReplicationFactor} {
		k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Topic: "a", Err: ke, Count: 1})
		if err := c.CreateTopic(within(t, 10*time.Second), TopicSpec{Name: "a", Partitions: 1, Replication: 1}); fault.ClassOf(err) != fault.Stop {
			t.Errorf("%v: %v; want a stop", ke, err)
		}
	}
	if _, err := c.TopicConfig(within(t, 5*time.Second), "missing"); err == nil {
		t.Error("the configuration of a missing topic was read")
	}
	k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Topic: "b", Err: kerr.TopicAuthorizationFailed, Count: 1})
	err := c.CreateTopic(within(t, 10*time.Second), TopicSpec{Name: "b", Partitions: 1, Replication: 1})
	var e *fault.Error
	if !errors.As(err, &e) || e.Class != fault.Stop || e.Fix == "" {
		t.Errorf("without the privilege: %v; want a stop with its fix", err)
	}
}
