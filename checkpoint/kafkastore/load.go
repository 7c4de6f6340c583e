package kafkastore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
)

const (
	// Small, because kafka-go takes a page of 64 KiB for each batch that it reads,
	// and each mark is a batch: an answer of this size costs some 20 MiB at most.
	fetchBytes = 64 << 10
	fetchWait  = 250 * time.Millisecond
	// emptyFetches in a row below the end offset mean that the rest was compacted
	// away, or holds no records.
	emptyFetches = 3
	// unknownPause comes after an answer that does not say what is there.
	unknownPause = 50 * time.Millisecond
	// patience is how often Load tries again by itself after leaders moved.
	patience = 5
)

// Load implements checkpoint.Store. It reads the topic up to its end offset. A
// topic that does not exist is fault.Stop; a Kafka that is away is not. Records
// that are no mark, and deleted marks, are passed over with a log line.
func (s *Store) Load(ctx context.Context, systemID, slot string) (checkpoint.Mark, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	marks, err := s.read(ctx, slot)
	if err != nil {
		return checkpoint.Mark{}, false, err
	}
	m, ok := marks[checkpoint.Key(systemID, slot)]
	if ok {
		s.high.Raise(m)
	}
	return m, ok, nil
}

// Others implements checkpoint.Store. It reads as Load does.
func (s *Store) Others(ctx context.Context, systemID, slot string) ([]checkpoint.Mark, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	marks, err := s.read(ctx, slot)
	if err != nil {
		return nil, err
	}
	return checkpoint.OtherClusters(marks, systemID, slot), nil
}

// read returns the highest mark of the slot on each cluster, by key.
func (s *Store) read(ctx context.Context, slot string) (map[string]checkpoint.Mark, error) {
	what := fmt.Sprintf("load the mark of slot %s from topic %s", slot, s.cfg.Topic)
	if err := s.exists(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	for try := 1; ; try++ {
		marks, err := s.scan(ctx, slot)
		if err == nil {
			return marks, nil
		}
		err = s.failed(ctx, what, err)
		if fault.ClassOf(err) != fault.Refresh || try == patience || ctx.Err() != nil {
			return nil, err
		}
		if err := pause(ctx, 100*time.Millisecond*time.Duration(try)); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
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

// scan reads everything and returns the highest mark of each key of the slot; among
// equals the last one written.
func (s *Store) scan(ctx context.Context, slot string) (map[string]checkpoint.Mark, error) {
	offset, end, err := s.bounds(ctx)
	if err != nil {
		return nil, err
	}
	best := map[string]checkpoint.Mark{}
	skipped := 0
	for empty := 0; offset < end; {
		res, err := s.cluster.Client().Fetch(ctx, &kafka.FetchRequest{
			Topic: s.cfg.Topic, Partition: partition, Offset: offset,
			MinBytes: 1, MaxBytes: fetchBytes, MaxWait: fetchWait,
		})
		if err == nil {
			err = res.Error
		}
		if err != nil {
			return nil, err
		}
		next, err := eachRecord(res.Records, offset, func(at int64, k, v []byte) {
			m, why := parse(k, v)
			if why != "" {
				skipped++
				s.log.Warn("record in the topic with the marks is passed over", zap.Int64("offset", at), zap.String("reason", why))
				return
			}
			if high, ok := best[m.Key()]; m.Slot == slot && (!ok || !m.Before(high)) {
				best[m.Key()] = m
			}
		})
		if err != nil {
			return nil, err
		}
		if next > offset {
			offset, empty = next, 0
			continue
		}
		// A throttled answer is empty too, and says nothing of what is there; and a
		// new leader shows only what it knows to be replicated.
		if res.Throttle > 0 || res.HighWatermark < end {
			if err := pause(ctx, unknownPause); err != nil {
				return nil, err
			}
			continue
		}
		if empty++; empty == emptyFetches {
			break
		}
	}
	s.log.Debug("marks read", zap.Int64("end_offset", end), zap.Int("passed_over", skipped), zap.Int("found", len(best)))
	return best, nil
}

// bounds returns the first offset and the one after the last.
func (s *Store) bounds(ctx context.Context) (first, end int64, err error) {
	res, err := s.cluster.Client().ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{s.cfg.Topic: {kafka.FirstOffsetOf(partition), kafka.LastOffsetOf(partition)}},
	})
	if err != nil {
		return 0, 0, err
	}
	for _, p := range res.Topics[s.cfg.Topic] {
		if p.Partition != partition {
			continue
		}
		if p.Error != nil {
			return 0, 0, p.Error
		}
		if p.FirstOffset < 0 || p.LastOffset < 0 {
			return 0, 0, kafka.OffsetNotAvailable
		}
		return p.FirstOffset, p.LastOffset, nil
	}
	return 0, 0, kafka.UnknownTopicOrPartition
}

// eachRecord calls f for each record from offset on and returns the offset after
// the last one. A batch may begin before the offset that was asked for.
func eachRecord(records kafka.RecordReader, offset int64, f func(at int64, k, v []byte)) (next int64, err error) {
	next = offset
	for {
		r, err := records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return next, nil
		}
		if err != nil {
			return next, err
		}
		k, err := readBytes(r.Key)
		if err != nil {
			return next, err
		}
		v, err := readBytes(r.Value)
		if err != nil {
			return next, err
		}
		if r.Offset < offset {
			continue
		}
		f(r.Offset, k, v)
		next = max(next, r.Offset+1)
	}
}

func readBytes(b kafka.Bytes) ([]byte, error) {
	if b == nil {
		return nil, nil
	}
	defer b.Close()
	return kafka.ReadAll(b)
}

// parse returns the mark in a record, or why it is none.
func parse(k, v []byte) (m checkpoint.Mark, why string) {
	if v == nil {
		return m, "it deletes a mark; delete the topic to begin anew"
	}
	if err := json.Unmarshal(v, &m); err != nil {
		return m, "it is not JSON of a mark"
	}
	if m.SystemID == "" || m.Slot == "" || m.Key() != string(k) {
		return m, "its key is not that of its mark"
	}
	return m, ""
}
