package live

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/lab/stage"
)

const keepRecords = 1000 // over all topics

// watcher reads the topic of the events and those of dead letters with a client that shares nothing with the relay or the
// workers, and belongs to no group.
type watcher struct {
	client *kgo.Client
	admin  *kadm.Client

	mu      sync.Mutex
	records []*kgo.Record              // the last ones, as they came
	next    map[string]map[int32]int64 // offset behind the last record that was read
}

func newWatcher(addr string) (*watcher, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ClientID("live"), kgo.ConsumeTopics(stage.Topic, stage.BillLetters, stage.MailLetters),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(500*time.Millisecond), kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", addr, err)
	}
	return &watcher{client: client, admin: kadm.NewClient(client), next: map[string]map[int32]int64{}}, nil
}

func (w *watcher) close() { w.client.Close() }

// run reads until ctx ends. What it cannot read now, because the broker is down, it reads later.
func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := w.client.PollFetches(ctx)
		fetches.EachRecord(w.take)
	}
}

func (w *watcher) take(r *kgo.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.records) == keepRecords {
		w.records = slices.Delete(w.records, 0, keepRecords/4)
	}
	w.records = append(w.records, r)
	if w.next[r.Topic] == nil {
		w.next[r.Topic] = map[int32]int64{}
	}
	w.next[r.Topic][r.Partition] = r.Offset + 1
}

// find returns the records of a topic that match, the oldest first.
func (w *watcher) find(topic string, matches func(*kgo.Record) bool) []*kgo.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []*kgo.Record
	for _, r := range w.records {
		if r.Topic == topic && matches(r) {
			found = append(found, r)
		}
	}
	return found
}

// hasRead tells whether all before that offset was read.
func (w *watcher) hasRead(topic string, partition int32, end int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next[topic][partition] >= end
}

// again writes a record once more: same partition, key, value and headers.
func (w *watcher) again(ctx context.Context, r *kgo.Record) error {
	same := &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers}
	if err := w.client.ProduceSync(ctx, same).FirstErr(); err != nil {
		return fmt.Errorf("write the record at %s once more: %w", place(r), err)
	}
	return nil
}

func place(r *kgo.Record) string { return fmt.Sprintf("%d:%d", r.Partition, r.Offset) }

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
