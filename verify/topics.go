package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/backfill"
	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/route"
)

const (
	// fetchBytes is small, because kafka-go takes a page of 64 KiB for each batch that
	// it reads, and a batch of a quiet system is one record: an answer of this size
	// costs some 26 MiB at most, in each of the readers.
	fetchBytes = 64 << 10
	fetchWait  = 250 * time.Millisecond
	readers    = 2
	// emptyFetches in a row below the end offset mean that nothing is left up to there.
	emptyFetches = 3
	// patience is how often in a row a request is tried again.
	patience   = 40
	firstPause = 100 * time.Millisecond
	longPause  = 2 * time.Second
)

// record is what matters of a record.
type record struct {
	topic, partition int32
	offset, time     int64
	id               []byte // nil: it has no header with one
	// lsn is the position that it carries; 0 when it carries none, or was read from
	// a table, and stands for no place in the WAL.
	lsn pglogrepl.LSN
}

// topicReader reads topics from their beginning to the end that they have when it
// begins.
type topicReader struct {
	cluster *broker.Cluster
	// idHeaders are, for each topic, the names of the header that carries an id.
	idHeaders []map[string]bool
	// took is called for each record, by one goroutine at a time; progress for each
	// stretch of offsets.
	took     func(record) error
	progress func(offsets int64)

	mu sync.Mutex // held while took is called
}

// describe asks what the topics are and hold.
func describe(ctx context.Context, cluster *broker.Cluster, names []string) ([]*Topic, error) {
	if len(names) == 0 {
		return nil, nil
	}
	metadata, err := cluster.Metadata(ctx, names...)
	if err != nil {
		return nil, err
	}
	topics := make([]*Topic, len(names))
	for i, name := range names {
		t := &Topic{Name: name, Retention: -1}
		topics[i] = t
		if err := metadata[name].Err; errors.Is(err, kafka.UnknownTopicOrPartition) {
			t.Missing = true
			continue
		} else if err != nil {
			return nil, denied(name, err)
		}
		for _, p := range metadata[name].Partitions {
			t.Partitions = append(t.Partitions, Partition{ID: p.ID, Earliest: unknownTime})
		}
		t.settings(ctx, cluster)
		err := retried(ctx, cluster, func() error { return t.bounds(ctx, cluster) })
		if err != nil {
			return nil, denied(name, err)
		}
	}
	return topics, nil
}

// denied explains an error of reading a topic.
func denied(topic string, err error) error {
	class, code := broker.Classify(err)
	if class == fault.Poison {
		class = fault.Stop
	}
	e := &fault.Error{Class: class, What: "read topic " + topic, Err: err}
	if code == "TOPIC_AUTHORIZATION_FAILED" {
		e.Fix = fmt.Sprintf("grant READ and DESCRIBE on topic %s to this user; to publish it needs only WRITE", topic)
	}
	return e
}

// settings notes by what records are removed.
func (t *Topic) settings(ctx context.Context, cluster *broker.Cluster) {
	cfg, err := cluster.TopicConfig(ctx, t.Name)
	if err != nil {
		t.SettingsErr = err
		return
	}
	policy := cfg["cleanup.policy"]
	t.Compacted = strings.Contains(policy, "compact")
	if ms, err := strconv.ParseInt(cfg["retention.ms"], 10, 64); err == nil && ms >= 0 && ms < int64(1<<62/time.Millisecond) {
		t.Retention = time.Duration(ms) * time.Millisecond
	}
	size, err := strconv.ParseInt(cfg["retention.bytes"], 10, 64)
	t.BySize = err != nil || size >= 0
}

// bounds notes where the partitions begin and end.
func (t *Topic) bounds(ctx context.Context, cluster *broker.Cluster) error {
	var ask []kafka.OffsetRequest
	for _, p := range t.Partitions {
		ask = append(ask, kafka.FirstOffsetOf(int(p.ID)), kafka.LastOffsetOf(int(p.ID)))
	}
	res, err := cluster.Client().ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{t.Name: ask}})
	if err != nil {
		return err
	}
	known := 0
	for _, p := range res.Topics[t.Name] {
		if p.Error != nil {
			return p.Error
		}
		if p.FirstOffset < 0 || p.LastOffset < 0 {
			return kafka.OffsetNotAvailable
		}
		for i := range t.Partitions {
			if int(t.Partitions[i].ID) == p.Partition {
				t.Partitions[i].First, t.Partitions[i].End = p.FirstOffset, p.LastOffset
				known++
			}
		}
	}
	if known < len(t.Partitions) {
		return kafka.OffsetNotAvailable
	}
	return nil
}

// retried tries again what may heal by itself.
func retried(ctx context.Context, cluster *broker.Cluster, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		if err == nil || ctx.Err() != nil || try == patience {
			return err
		}
		switch class, _ := broker.Classify(err); class {
		case fault.Stop, fault.Poison:
			return err
		case fault.Refresh:
			cluster.Refresh()
		}
		if err := pause(ctx, min(firstPause*time.Duration(try), longPause)); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// read reads every partition of every topic to its end.
func (r *topicReader) read(ctx context.Context, topics []*Topic) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i, t := range topics {
		for j := range t.Partitions {
			g.Go(func() error {
				if err := r.partition(ctx, int32(i), t, &t.Partitions[j]); err != nil {
					return denied(fmt.Sprintf("%s, partition %d", t.Name, t.Partitions[j].ID), err)
				}
				return nil
			})
		}
	}
	return g.Wait()
}

func (r *topicReader) partition(ctx context.Context, topic int32, t *Topic, p *Partition) error {
	empty := 0
	for offset := p.First; offset < p.End; {
		var next int64
		err := retried(ctx, r.cluster, func() (err error) {
			next, empty, err = r.fetch(ctx, topic, t, p, offset, empty)
			return err
		})
		if errors.Is(err, kafka.OffsetOutOfRange) {
			// The records at the beginning were removed while others were read.
			next, err = r.newBeginning(ctx, t, p, offset)
		}
		if err != nil {
			return err
		}
		if empty == emptyFetches {
			next, empty = p.End, 0
		}
		r.progress(next - offset)
		offset = next
	}
	return nil
}

// newBeginning moves on to where the partition begins now.
func (r *topicReader) newBeginning(ctx context.Context, t *Topic, p *Partition, offset int64) (int64, error) {
	now := Topic{Name: t.Name, Partitions: []Partition{{ID: p.ID}}}
	if err := retried(ctx, r.cluster, func() error { return now.bounds(ctx, r.cluster) }); err != nil {
		return 0, err
	}
	first := now.Partitions[0].First
	if first <= offset || now.Partitions[0].End < p.End {
		return 0, fault.Stopped("find out whether the topic was made anew, or lost records in an unclean election, and verify again",
			"topic %s, partition %d had the offsets %d to %d a moment ago, and has %d to %d now", t.Name, p.ID, p.First, p.End, first, now.Partitions[0].End)
	}
	p.First, p.Earliest = first, unknownTime
	return min(first, p.End), nil
}

// fetch reads what lies at an offset, and returns the next one. empty counts the
// answers in a row that brought nothing.
func (r *topicReader) fetch(ctx context.Context, topic int32, t *Topic, p *Partition, offset int64, empty int) (int64, int, error) {
	res, err := r.cluster.Client().Fetch(ctx, &kafka.FetchRequest{
		Topic: t.Name, Partition: int(p.ID), Offset: offset, MinBytes: 1, MaxBytes: fetchBytes, MaxWait: fetchWait,
	})
	if err == nil {
		err = res.Error
	}
	if errors.Is(err, kafka.OffsetOutOfRange) {
		return 0, empty, &fault.Error{Class: fault.Stop, Err: err} // no time heals it
	}
	if err != nil {
		return 0, empty, err
	}
	next, err := r.records(topic, p, offset, res.Records)
	if err != nil {
		return 0, empty, err
	}
	switch stream, ok := res.Records.(*protocol.RecordStream); {
	case next > offset:
		return next, 0, nil
	case ok && len(stream.Records) > 0:
		// A batch without records for us: control records, or all of them compacted away.
		// How far it reaches is not told, so it is passed one offset at a time.
		return offset + 1, 0, nil
	case res.Throttle > 0 || res.HighWatermark < p.End:
		// Says nothing of what is there; a new leader shows only what it knows to be
		// replicated.
		return 0, empty, kafka.OffsetNotAvailable
	}
	return offset, empty + 1, nil
}

// records hands on the records of an answer from offset on, up to the end, and
// returns the offset after the last of them. A batch may begin before it.
func (r *topicReader) records(topic int32, p *Partition, offset int64, records kafka.RecordReader) (next int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next = offset
	for {
		rec, err := records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return next, nil
		}
		if err != nil && next > offset {
			return next, nil // what was taken must not be taken again; it shows at the next one
		}
		if err != nil {
			return next, err
		}
		release(rec) // also of those that are passed over
		if rec.Offset >= p.End {
			next = p.End
			continue
		}
		if rec.Offset < offset {
			continue
		}
		out := record{topic: topic, partition: p.ID, offset: rec.Offset, time: unknownTime, id: idOf(rec.Headers, r.idHeaders[topic]), lsn: positionOf(rec.Headers)}
		if !rec.Time.IsZero() {
			out.time = rec.Time.UnixMilli()
		}
		if p.Earliest == unknownTime {
			p.Earliest = out.time
		}
		if err := r.took(out); err != nil {
			return next, &fault.Error{Class: fault.Stop, Err: err}
		}
		next = max(next, rec.Offset+1)
	}
}

// release gives the pages with key and value back, which nobody reads.
func release(rec *kafka.Record) {
	if rec.Key != nil {
		_ = rec.Key.Close()
	}
	if rec.Value != nil {
		_ = rec.Value.Close()
	}
}

// idOf returns the first header that carries an id: the relay writes it before
// all others.
func idOf(headers []kafka.Header, names map[string]bool) []byte {
	for _, h := range headers {
		if names[h.Key] && h.Value != nil {
			return h.Value
		}
	}
	return nil
}

// positionOf returns the position in the WAL of a record's transaction.
func positionOf(headers []kafka.Header) (lsn pglogrepl.LSN) {
	for _, h := range headers {
		switch h.Key {
		case backfill.Header:
			return 0
		case route.LSNHeader:
			n, err := strconv.ParseUint(string(h.Value), 16, 64)
			if err != nil {
				return 0
			}
			lsn = pglogrepl.LSN(n)
		}
	}
	return lsn
}
