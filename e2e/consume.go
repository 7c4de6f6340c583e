package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Record is a record as a consumer sees it. A nil Key or Value is null; an empty one is not nil.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Timestamp time.Time
	Key       []byte
	Value     []byte
	Headers   []kgo.RecordHeader
}

// Header is the value of the first header of that name.
func (r *Record) Header(name string) (string, bool) {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value), true
		}
	}
	return "", false
}

// Consume reads everything that the topics hold at the time of the call, each partition in order.
func (k *Cluster) Consume(t testing.TB, topics ...string) []Record {
	t.Helper()
	var all []Record
	k.Each(t, func(r *Record) { all = append(all, *r) }, topics...)
	return all
}

// Each is Consume without keeping the records.
func (k *Cluster) Each(t testing.TB, f func(*Record), topics ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*Timeout)
	defer cancel()
	if err := k.each(ctx, f, topics...); err != nil {
		t.Fatal(err)
	}
}

// ConsumeUntil reads from the beginning and on as records arrive, until done says so after one of them; it fails the test
// after timeout. It returns what was read.
func (k *Cluster) ConsumeUntil(t testing.TB, timeout time.Duration, done func(all []Record) bool, topics ...string) []Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Addr()), kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var all []Record
	for {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("waited %v for records of %v; %d came", timeout, topics, len(all))
		}
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			all = append(all, recordOf(r))
			if done(all) {
				return all
			}
		}
	}
}

// EndOffsets is the number of records ever appended to each partition of a topic.
func (k *Cluster) EndOffsets(t testing.TB, topic string) map[int32]int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	ends, err := endOffsets(ctx, k.Client(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	return ends
}

func (k *Cluster) each(ctx context.Context, f func(*Record), topics ...string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Addr()), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.FetchMaxPartitionBytes(8<<20))
	if err != nil {
		return err
	}
	defer cl.Close()
	type tp struct {
		topic string
		part  int32
	}
	left := map[tp]int64{} // the end offset of each partition that is not read to its end
	offsets := map[string]map[int32]kgo.Offset{}
	for _, topic := range topics {
		ends, err := endOffsets(ctx, cl, topic)
		if err != nil {
			return err
		}
		offsets[topic] = map[int32]kgo.Offset{}
		for p, end := range ends {
			if end > 0 {
				left[tp{topic, p}] = end
				offsets[topic][p] = kgo.NewOffset().AtStart()
			}
		}
	}
	cl.AddConsumePartitions(offsets)
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("read topics %v: %d partitions not read to the end: %w", topics, len(left), ctx.Err())
		}
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			key := tp{r.Topic, r.Partition}
			end, ok := left[key]
			if !ok || r.Offset >= end {
				continue
			}
			rec := recordOf(r)
			f(&rec)
			if r.Offset+1 >= end {
				delete(left, key)
			}
		}
	}
	return nil
}

func recordOf(r *kgo.Record) Record {
	return Record{r.Topic, r.Partition, r.Offset, r.Timestamp, r.Key, r.Value, r.Headers}
}

func endOffsets(ctx context.Context, cl *kgo.Client, topic string) (map[int32]int64, error) {
	parts, err := partitionsOf(ctx, cl, topic)
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	for _, p := range parts {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = p, -1
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	ends := map[int32]int64{}
	for _, shard := range cl.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, fmt.Errorf("end offsets of topic %s: %w", topic, shard.Err)
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, fmt.Errorf("end offset of %s-%d: %w", topic, p.Partition, err)
				}
				ends[p.Partition] = p.Offset
			}
		}
	}
	return ends, nil
}
