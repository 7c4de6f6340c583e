package inbox

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

const (
	// One statement for all ids of a transaction. They are in one order for everybody, so
	// that two workers with the same ids do not lock each other out.
	claimMany = "INSERT INTO public.inbox (consumer, event_id, kafka_topic, kafka_partition, kafka_offset, key_hash)" +
		" SELECT $1::text, u.* FROM unnest($2::text[], $3::text[], $4::integer[], $5::bigint[], $6::bytea[]) u" +
		" ON CONFLICT DO NOTHING RETURNING event_id"
	unresolvedOf = "SELECT encode(key_hash, 'hex') || ' ' || kafka_topic || ' ' || kafka_partition || ' ' || min(kafka_offset)" +
		" FROM public.inbox_dead_letters WHERE consumer = $1 AND state IN ('open', 'redriven') AND key_hash = ANY ($2::bytea[])" +
		" GROUP BY key_hash, kafka_topic, kafka_partition"
	resolve = "UPDATE public.inbox_dead_letters SET state = 'done', changed_at = now()" +
		" WHERE consumer = $1 AND event_id = ANY ($2::text[]) AND state IN ('open', 'redriven')"
)

// claim marks the events, and returns the ids that are new.
func claim(ctx context.Context, tx transaction, consumer string, records []record) (map[string]bool, error) {
	rows := make([]*record, 0, len(records))
	seen := make(map[string]bool, len(records))
	for i := range records {
		if r := &records[i]; !seen[r.ID] { // the first of several in one transaction
			seen[r.ID] = true
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *record) int { return strings.Compare(a.ID, b.ID) })
	n := len(rows)
	ids, err := tx.texts(ctx, claimMany, consumer,
		array(n, func(i int) (string, bool) { return rows[i].ID, true }),
		array(n, func(i int) (string, bool) { return rows[i].Topic, true }),
		array(n, func(i int) (int, bool) { return rows[i].Partition, true }),
		array(n, func(i int) (int64, bool) { return rows[i].Offset, true }),
		hashes(rows))
	if err != nil {
		return nil, fmt.Errorf("mark %d events as processed: %w", n, err)
	}
	fresh := make(map[string]bool, len(ids))
	for _, id := range ids {
		fresh[id] = true
	}
	return fresh, nil
}

func hashes(rows []*record) string {
	return array(len(rows), func(i int) (string, bool) { return `\x` + hex.EncodeToString(rows[i].hash), rows[i].hash != nil })
}

// parked returns the index of the first new record that stands behind an unresolved
// dead letter of its key; -1 for none. A dead letter of the same key in another partition, from before
// the topic had more of them, counts as one before it.
func parked(ctx context.Context, tx transaction, consumer string, records []record, fresh map[string]bool) (int, error) {
	keyed := make([]*record, 0, len(records))
	for i := range records {
		if r := &records[i]; r.hash != nil && fresh[r.ID] {
			keyed = append(keyed, r)
		}
	}
	if len(keyed) == 0 {
		return -1, nil
	}
	lines, err := tx.texts(ctx, unresolvedOf, consumer, hashes(keyed))
	if err != nil {
		return -1, fmt.Errorf("look for dead letters of %d keys: %w", len(keyed), err)
	}
	type letter struct {
		topic     string
		partition int
		offset    int64
	}
	letters := map[string][]letter{}
	for _, line := range lines {
		var key string
		var l letter
		if _, err := fmt.Sscan(line, &key, &l.topic, &l.partition, &l.offset); err != nil {
			return -1, fmt.Errorf("read a dead letter: %w", err)
		}
		letters[key] = append(letters[key], l)
	}
	for i, r := range records {
		if r.hash == nil || !fresh[r.ID] {
			continue
		}
		for _, l := range letters[hex.EncodeToString(r.hash)] {
			if l.topic == r.Topic && (l.partition != r.Partition || l.offset < r.Offset) {
				return i, nil
			}
		}
	}
	return -1, nil
}

// resolved marks dead letters of redriven records as done.
func resolved(ctx context.Context, tx transaction, consumer string, records []record) error {
	var ids []string
	for _, r := range records {
		if r.Redriven {
			ids = append(ids, r.letterID())
		}
	}
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.exec(ctx, resolve, consumer, array(len(ids), func(i int) (string, bool) { return ids[i], true })); err != nil {
		return fmt.Errorf("resolve %d dead letters: %w", len(ids), err)
	}
	return nil
}
