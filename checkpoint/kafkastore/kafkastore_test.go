package kafkastore_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/checkpoint/checkpointtest"
	"github.com/cdc-relay/cdc-relay/checkpoint/kafkastore"
	"github.com/cdc-relay/cdc-relay/fault"
)

const topic = "marks"

func fakeKafka(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func connect(t *testing.T, addrs ...string) *broker.Cluster {
	t.Helper()
	c, err := broker.Open(broker.Config{Brokers: addrs, DialTimeout: 3 * time.Second, RequestTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// ensured returns a store on a topic that exists.
func ensured(t *testing.T, c *kfake.Cluster) *kafkastore.Store {
	t.Helper()
	s := kafkastore.New(connect(t, c.ListenAddrs()...), kafkastore.Config{Topic: topic})
	if err := s.Ensure(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	return s
}

// put writes a record as a foreign program may.
func put(t *testing.T, c *broker.Cluster, key, value []byte) {
	t.Helper()
	r := kafka.Record{}
	if key != nil {
		r.Key = kafka.NewBytes(key)
	}
	if value != nil {
		r.Value = kafka.NewBytes(value)
	}
	res, err := c.Client().Produce(within(t, 5*time.Second), &kafka.ProduceRequest{Topic: topic, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(r)})
	if err != nil || res.Error != nil {
		t.Fatal(err, res)
	}
}

func load(t *testing.T, s checkpoint.Store) (checkpoint.Mark, bool) {
	t.Helper()
	at := checkpointtest.At(0, 0)
	m, ok, err := s.Load(within(t, 20*time.Second), at.SystemID, at.Slot)
	if err != nil {
		t.Fatal(err)
	}
	return m, ok
}

func TestKafkastore_KeepsTheContract(t *testing.T) {
	checkpointtest.Run(t, func(t *testing.T) func() checkpoint.Store {
		c := fakeKafka(t)
		ensured(t, c)
		return func() checkpoint.Store {
			return kafkastore.New(connect(t, c.ListenAddrs()...), kafkastore.Config{Topic: topic})
		}
	})
}

func TestKafkastore_ThousandsOfSavesAreLoaded(t *testing.T) {
	c := fakeKafka(t)
	s := ensured(t, c)
	ctx := within(t, time.Minute)
	const saves = 3000
	for i := range saves {
		if err := s.Save(ctx, checkpointtest.At(1, pglogrepl.LSN(i+1))); err != nil {
			t.Fatal(err)
		}
	}
	other := kafkastore.New(connect(t, c.ListenAddrs()...), kafkastore.Config{Topic: topic})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if m, ok := load(t, other); !ok || m.LSN != saves {
		t.Fatalf("loaded %d, %v; want %d", m.LSN, ok, saves)
	}
	runtime.ReadMemStats(&after)
	if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 100 {
		t.Errorf("loading %d marks allocated %d MiB", saves, mib)
	}
}

func TestKafkastore_StaleWritesOfAnotherInstanceAreHarmless(t *testing.T) {
	c := fakeKafka(t)
	old := ensured(t, c)
	if err := old.Save(within(t, 5*time.Second), checkpointtest.At(1, 100)); err != nil {
		t.Fatal(err)
	}
	taker := kafkastore.New(connect(t, c.ListenAddrs()...), kafkastore.Config{Topic: topic})
	load(t, taker)
	for _, m := range []checkpoint.Mark{checkpointtest.At(1, 200), checkpointtest.At(2, 150)} {
		if err := taker.Save(within(t, 5*time.Second), m); err != nil {
			t.Fatal(err)
		}
		// The instance that was taken over writes once more what it knew.
		if err := old.Save(within(t, 5*time.Second), checkpointtest.At(1, 110)); err != nil {
			t.Fatal(err)
		}
		if got, ok := load(t, kafkastore.New(connect(t, c.ListenAddrs()...), kafkastore.Config{Topic: topic})); !ok || got.LSN != m.LSN || got.Epoch != m.Epoch {
			t.Fatalf("loaded %d of epoch %d, want %d of epoch %d", got.LSN, got.Epoch, m.LSN, m.Epoch)
		}
	}
}

func TestKafkastore_ForeignRecordsArePassedOver(t *testing.T) {
	c := fakeKafka(t)
	s := ensured(t, c)
	raw := connect(t, c.ListenAddrs()...)
	want := checkpointtest.At(1, 100)
	put(t, raw, []byte("foreign"), []byte("not JSON"))
	if err := s.Save(within(t, 5*time.Second), want); err != nil {
		t.Fatal(err)
	}
	put(t, raw, []byte(want.Key()), []byte("{broken"))
	put(t, raw, []byte(want.Key()), nil)
	put(t, raw, []byte(want.Key()), []byte(`{"system_id":"9","slot":"x","epoch":99,"lsn":999}`))
	put(t, raw, []byte("k"), []byte(`{}`))
	for range 2 {
		if m, ok := load(t, kafkastore.New(raw, kafkastore.Config{Topic: topic})); !ok || m.LSN != 100 {
			t.Fatalf("loaded %+v, %v; want %d", m, ok, want.LSN)
		}
	}
}

func TestKafkastore_HolesAndDeletedRecordsEnd(t *testing.T) {
	c := fakeKafka(t)
	s := ensured(t, c)
	for i := range 10 {
		if err := s.Save(within(t, 5*time.Second), checkpointtest.At(1, pglogrepl.LSN(i+1))); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.DeleteRecords(topic, 0, 7); err != nil {
		t.Fatal(err)
	}
	if m, ok := load(t, s); !ok || m.LSN != 10 {
		t.Fatalf("loaded %d, %v; want 10", m.LSN, ok)
	}
	if err := c.DeleteRecords(topic, 0, 10); err != nil {
		t.Fatal(err)
	}
	if _, ok := load(t, kafkastore.New(connect(t, c.ListenAddrs()...), kafkastore.Config{Topic: topic})); ok {
		t.Fatal("a mark was found in an empty topic")
	}
}

// A fetch below the end offset that brings nothing is what a log looks like whose
// last records were compacted away, or are control records.
func TestKafkastore_EndWithoutRecordsIsReached(t *testing.T) {
	c := fakeKafka(t)
	s := ensured(t, c)
	if err := s.Save(within(t, 5*time.Second), checkpointtest.At(1, 5)); err != nil {
		t.Fatal(err)
	}
	c.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := req.(*kmsg.ListOffsetsRequest)
		res := r.ResponseKind().(*kmsg.ListOffsetsResponse)
		p := kmsg.NewListOffsetsResponseTopicPartition()
		p.Offset = 0
		if r.Topics[0].Partitions[0].Timestamp == -1 {
			p.Offset = 3 // one record at 0, two that are gone
		}
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic, rt.Partitions = topic, append(rt.Partitions, p)
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	c.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := req.(*kmsg.FetchRequest)
		if r.Topics[0].Partitions[0].FetchOffset == 0 {
			return nil, nil, false
		}
		return nothingFetched(r, 3), nil, true
	})
	if m, ok := load(t, s); !ok || m.LSN != 5 {
		t.Fatalf("loaded %d, %v; want 5", m.LSN, ok)
	}
}

func TestKafkastore_MissingTopicStopsAndAbsentKafkaDoesNot(t *testing.T) {
	c := fakeKafka(t)
	at := checkpointtest.At(1, 5)
	s := kafkastore.New(connect(t, c.ListenAddrs()...), kafkastore.Config{Topic: topic})
	_, _, err := s.Load(within(t, 20*time.Second), at.SystemID, at.Slot)
	if fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), "cdc-relay setup") {
		t.Fatalf("load without the topic: %v; want a stop that names setup", err)
	}
	if err := s.Save(within(t, 20*time.Second), at); err == nil || fault.ClassOf(err) == fault.Stop || !strings.Contains(err.Error(), "cdc-relay setup") {
		t.Fatalf("save without the topic: %v; want an error to try again that names setup", err)
	}
	addrs := c.ListenAddrs()
	c.Close()
	away := kafkastore.New(connect(t, addrs...), kafkastore.Config{Topic: topic})
	if _, _, err := away.Load(within(t, 20*time.Second), at.SystemID, at.Slot); err == nil || fault.ClassOf(err) == fault.Stop {
		t.Fatalf("load without Kafka: %v; want an error to try again", err)
	}
	if err := away.Ensure(within(t, 20*time.Second)); err == nil || fault.ClassOf(err) == fault.Stop {
		t.Fatalf("ensure without Kafka: %v; want an error to try again", err)
	}
}

func TestKafkastore_SaveHealsWhenTheBrokerIsBack(t *testing.T) {
	dir := t.TempDir()
	c := fakeKafka(t, kfake.DataDir(dir))
	s := ensured(t, c)
	if err := s.Save(within(t, 5*time.Second), checkpointtest.At(1, 1)); err != nil {
		t.Fatal(err)
	}
	port := portOf(t, c.ListenAddrs()[0])
	c.Close()
	if err := s.Save(within(t, 10*time.Second), checkpointtest.At(1, 2)); err == nil || fault.ClassOf(err) == fault.Stop {
		t.Fatalf("save without a broker: %v; want an error to try again", err)
	}
	c = fakeKafka(t, kfake.DataDir(dir), kfake.Ports(port))
	retry(t, s, checkpointtest.At(1, 2))
	if m, ok := load(t, kafkastore.New(connect(t, c.ListenAddrs()...), kafkastore.Config{Topic: topic})); !ok || m.LSN != 2 {
		t.Fatalf("loaded %d, %v; want 2", m.LSN, ok)
	}
}

// retry saves as the relay does, until it is done.
func retry(t *testing.T, s checkpoint.Store, m checkpoint.Mark) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := s.Save(within(t, 5*time.Second), m)
		if err == nil {
			return
		}
		if fault.ClassOf(err) == fault.Stop || time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestKafkastore_FailedSaveIsAnErrorWithItsClass(t *testing.T) {
	for _, tt := range []struct {
		err  *kerr.Error
		want fault.Class
	}{
		{kerr.NotLeaderForPartition, fault.Refresh},
		{kerr.NotEnoughReplicas, fault.Retry},
		{kerr.NotEnoughReplicasAfterAppend, fault.Retry},
		{kerr.RequestTimedOut, fault.Retry},
		{kerr.TopicAuthorizationFailed, fault.Stop},
		{kerr.MessageTooLarge, fault.Stop},
	} {
		t.Run(tt.err.Message, func(t *testing.T) {
			c := fakeKafka(t)
			s := ensured(t, c)
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: tt.err, Count: 1})
			err := s.Save(within(t, 10*time.Second), checkpointtest.At(1, 1))
			if err == nil || fault.ClassOf(err) != tt.want {
				t.Fatalf("save: %v, class %v; want %v", err, fault.ClassOf(err), tt.want)
			}
			retry(t, s, checkpointtest.At(1, 1))
			if m, ok := load(t, s); !ok || m.LSN != 1 {
				t.Fatalf("loaded %d, %v; want 1", m.LSN, ok)
			}
		})
	}
}

func TestKafkastore_LostAnswerAndLateWriteAreHarmless(t *testing.T) {
	c := fakeKafka(t)
	s := ensured(t, c)
	dropped := false
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		dropped = true
		return nil, errors.New("close the connection"), true
	})
	if err := s.Save(within(t, 5*time.Second), checkpointtest.At(1, 10)); err == nil || !dropped {
		t.Fatalf("save whose answer is lost: %v, %v; want an error", err, dropped)
	}
	retry(t, s, checkpointtest.At(1, 20))
	// The first attempt lands now, from a connection that nobody reads any more.
	late := kafkastore.New(connect(t, c.ListenAddrs()...), kafkastore.Config{Topic: topic})
	if err := late.Save(within(t, 5*time.Second), checkpointtest.At(1, 10)); err != nil {
		t.Fatal(err)
	}
	if m, ok := load(t, s); !ok || m.LSN != 20 {
		t.Fatalf("loaded %d, %v; want 20", m.LSN, ok)
	}
}

func TestKafkastore_SaveEndsWithItsContext(t *testing.T) {
	c := fakeKafka(t)
	s := ensured(t, c)
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		return nil, nil, true // never an answer
	})
	began := time.Now()
	err := s.Save(within(t, 300*time.Millisecond), checkpointtest.At(1, 1))
	if err == nil || time.Since(began) > 3*time.Second {
		t.Fatalf("save: %v after %s; want an error at its deadline", err, time.Since(began))
	}
	retry(t, s, checkpointtest.At(1, 1))
}

func TestKafkastore_EnsureRefusesATopicThatForgets(t *testing.T) {
	c := fakeKafka(t, kfake.SeedTopics(1, topic))
	s := kafkastore.New(connect(t, c.ListenAddrs()...), kafkastore.Config{Topic: topic})
	err := s.Ensure(within(t, 10*time.Second))
	if fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), "cleanup.policy=compact") {
		t.Fatalf("ensure on a topic with retention: %v; want a stop that names the setting", err)
	}
}

func TestKafkastore_EnsureIsIdempotent(t *testing.T) {
	c := fakeKafka(t)
	s := ensured(t, c)
	if err := s.Ensure(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	if info := c.TopicInfo(topic); info == nil || c.PartitionInfo(topic, 0) == nil || c.PartitionInfo(topic, 1) != nil {
		t.Fatalf("topic %+v; want one partition", info)
	}
}

// A broker that has just become the leader may not know yet how far its log is
// replicated, and shows nothing past what it knows.
func TestKafkastore_WaitsForANewLeaderToKnowItsLog(t *testing.T) {
	c := fakeKafka(t)
	s := ensured(t, c)
	if err := s.Save(within(t, 5*time.Second), checkpointtest.At(1, 100)); err != nil {
		t.Fatal(err)
	}
	empty := 5
	c.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		if empty == 0 {
			return nil, nil, false
		}
		empty--
		c.KeepControl()
		return nothingFetched(r.(*kmsg.FetchRequest), 0), nil, true
	})
	other := kafkastore.New(connect(t, c.ListenAddrs()...), kafkastore.Config{Topic: topic})
	if m, ok := load(t, other); !ok || m.LSN != 100 {
		t.Fatalf("loaded %s, %v: a mark that was saved is not seen", m.LSN, ok)
	}
}

// nothingFetched is an answer without records.
func nothingFetched(r *kmsg.FetchRequest, highWatermark int64) kmsg.Response {
	res := r.ResponseKind().(*kmsg.FetchResponse)
	p := kmsg.NewFetchResponseTopicPartition()
	p.HighWatermark = highWatermark
	rt := kmsg.NewFetchResponseTopic()
	rt.Topic, rt.Partitions = topic, append(rt.Partitions, p)
	res.Topics = append(res.Topics, rt)
	return res
}
