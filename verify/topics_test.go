package verify

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/broker"
)

func fakeKafka(t *testing.T, opts ...kfake.Opt) (*kfake.Cluster, *broker.Cluster, *kgo.Client) {
	t.Helper()
	fake, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(3, "orders")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	cluster, err := broker.Open(broker.Config{Brokers: fake.ListenAddrs(), DialTimeout: 3 * time.Second, RequestTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Close() })
	cl, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return fake, cluster, cl
}

func event(partition int, id string) *kgo.Record {
	r := &kgo.Record{Topic: "orders", Partition: int32(partition), Value: []byte(strings.Repeat("v", 500)), Timestamp: time.UnixMilli(1000)}
	if id != "" {
		r.Headers = []kgo.RecordHeader{{Key: "id", Value: []byte(id)}, {Key: "eventType", Value: []byte("x")}}
	}
	return r
}

func produce(t *testing.T, cl *kgo.Client, records ...*kgo.Record) {
	t.Helper()
	if err := cl.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// readAll reads the topic orders and returns what it took, as partition@offset=id.
func readAll(t *testing.T, cluster *broker.Cluster) ([]*Topic, []string, error) {
	t.Helper()
	topics, err := describe(t.Context(), cluster, []string{"orders"})
	if err != nil {
		return nil, nil, err
	}
	var got []string
	r := topicReader{cluster: cluster, idHeaders: []map[string]bool{{"id": true}}, progress: func(int64) {}, took: func(rec record) error {
		got = append(got, fmt.Sprintf("%d@%d=%s", rec.partition, rec.offset, rec.id))
		return nil
	}}
	err = r.read(t.Context(), topics)
	slices.Sort(got)
	return topics, got, err
}

func TestTopics_ReadsEveryRecordOnce(t *testing.T) {
	_, cluster, cl := fakeKafka(t)
	var want []string
	var records []*kgo.Record
	for i := range 3000 {
		records = append(records, event(i%2, fmt.Sprint(i)))
		want = append(want, fmt.Sprintf("%d@%d=%d", i%2, i/2, i))
	}
	produce(t, cl, records...)
	for i := range 300 { // batches of one record
		produce(t, cl, event(0, ""))
		want = append(want, fmt.Sprintf("0@%d=", 1500+i))
	}
	slices.Sort(want)
	topics, got, err := readAll(t, cluster)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d records of %d, or others", len(got), len(want))
	}
	if p := topics[0].Partitions; p[0].Earliest != 1000 || p[2].Earliest != unknownTime || p[0].First != 0 || p[1].End != 1500 {
		t.Errorf("got %+v", p)
	}
}

func TestTopics_HealsFromWhatPasses(t *testing.T) {
	fake, cluster, cl := fakeKafka(t)
	var records []*kgo.Record
	for i := range 2000 {
		records = append(records, event(i%3, fmt.Sprint(i)))
	}
	produce(t, cl, records...)
	fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Err: kerr.NotLeaderForPartition, Count: 2})
	fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "orders", Err: kerr.OffsetNotAvailable, Count: 1})
	n := 0
	fake.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		if n++; n%5 == 0 {
			return nil, errors.New("close the connection"), true
		}
		return nil, nil, false
	})
	_, got, err := readAll(t, cluster)
	if err != nil || len(got) != 2000 || len(slices.Compact(got)) != 2000 {
		t.Errorf("%d records, %v", len(got), err)
	}
}

func TestTopics_KnowsWhereTheLogBegins(t *testing.T) {
	fake, cluster, cl := fakeKafka(t)
	for i := range 10 {
		produce(t, cl, event(0, fmt.Sprint(i)))
	}
	if err := fake.DeleteRecords("orders", 0, 7); err != nil {
		t.Fatal(err)
	}
	topics, got, err := readAll(t, cluster)
	if err != nil || len(got) != 3 || topics[0].Partitions[0].First != 7 {
		t.Errorf("%v, %v, %+v", got, err, topics[0].Partitions)
	}
}

// TestTopics_RecordsExpireWhileTheyAreRead: retention goes on meanwhile.
func TestTopics_RecordsExpireWhileTheyAreRead(t *testing.T) {
	fake, cluster, cl := fakeKafka(t)
	for i := range 10 {
		produce(t, cl, event(0, fmt.Sprint(i)))
	}
	topics, err := describe(t.Context(), cluster, []string{"orders"})
	if err != nil {
		t.Fatal(err)
	}
	if err := fake.DeleteRecords("orders", 0, 7); err != nil {
		t.Fatal(err)
	}
	n := 0
	r := topicReader{cluster: cluster, idHeaders: []map[string]bool{{"id": true}}, progress: func(int64) {}, took: func(record) error { n++; return nil }}
	if err := r.read(t.Context(), topics); err != nil || n != 3 || topics[0].Partitions[0].First != 7 {
		t.Errorf("%d records, %v, %+v", n, err, topics[0].Partitions)
	}
}

func TestTopics_FindsOneThatDoesNotExist(t *testing.T) {
	_, cluster, _ := fakeKafka(t)
	topics, err := describe(t.Context(), cluster, []string{"orders", "nowhere"})
	if err != nil || topics[0].Missing || !topics[1].Missing {
		t.Fatalf("%+v, %v", topics, err)
	}
}

func TestTopics_SaysWhichGrantIsMissing(t *testing.T) {
	fake, cluster, cl := fakeKafka(t)
	produce(t, cl, event(0, "a"))
	fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Err: kerr.TopicAuthorizationFailed})
	_, _, err := readAll(t, cluster)
	if err == nil || !strings.Contains(err.Error(), "grant READ and DESCRIBE on topic orders") {
		t.Errorf("got %v", err)
	}
}

func TestTopics_AnErrorOfTheTakerEndsIt(t *testing.T) {
	_, cluster, cl := fakeKafka(t)
	produce(t, cl, event(0, "a"), event(1, "b"))
	topics, err := describe(t.Context(), cluster, []string{"orders"})
	if err != nil {
		t.Fatal(err)
	}
	full := errors.New("disk full")
	r := topicReader{cluster: cluster, idHeaders: []map[string]bool{{"id": true}}, progress: func(int64) {}, took: func(record) error { return full }}
	if err := r.read(t.Context(), topics); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}
