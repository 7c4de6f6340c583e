package verify

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cdc-relay/cdc-relay/backfill"
	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/sink"
	"github.com/cdc-relay/cdc-relay/spill"
)

const (
	// repairBatch is how many rows are read by their ids at once, of repairBytes of ids
	// at most.
	repairBatch = 1000
	repairBytes = 1 << 20
	// maxFromHistory bounds the ids that a repair from the history keeps in memory.
	maxFromHistory = 100_000
)

// Repaired is what came of a repair.
type Repaired struct {
	Published int64 `json:"published"` // rows, or events, all of them acknowledged
	// Gone were missing, and are in the table no more: they can never be published.
	Gone       int64 `json:"gone"`
	Unroutable int64 `json:"unroutable"`
	// Missing are still in no topic.
	Missing int64 `json:"missing"`
}

// OK tells that nothing is missing any more.
func (r *Repaired) OK() bool { return r.Gone+r.Unroutable+r.Missing == 0 }

// repair is a repair under way.
type repair struct {
	*Verifier
	sorter *spill.Sorter // what was published, and then what is in the topics
	out    Repaired
}

// keep remembers what is missing, by table and then by time, in which order it is
// published.
func (v *Verifier) keep(topic, table int, at int64, id []byte) error {
	key := binary.AppendUvarint(nil, uint64(table))
	key = binary.BigEndian.AppendUint64(key, uint64(at)^1<<63) // sorts like the number
	v.lacking[topic] = true
	return v.missing.Add(append(key, id...), binary.AppendUvarint(nil, uint64(topic)))
}

func cutKept(key, value []byte) (topic, table int, id []byte, err error) {
	t, n := binary.Uvarint(key)
	at, m := binary.Uvarint(value)
	if n <= 0 || m <= 0 || len(key) < n+8 {
		return 0, 0, nil, errEntry
	}
	return int(at), int(t), key[n+8:], nil
}

// Repair publishes what Run found to be missing, and looks for it in the topics; the
// outcome is in the report of Run, whose OK is then that of after the repair. Some of
// it is published also when it ends with an error; repeating it does no harm.
func (v *Verifier) Repair(ctx context.Context) error {
	for i, t := range v.read {
		if t.Missing && v.lacking[i] {
			return fault.Stopped("create it (cdc-relay setup --create-topics), and verify again", "topic %s does not exist: nothing can be published to it", t.Name)
		}
	}
	r := &repair{Verifier: v, sorter: spill.New(v.o.TempDir, v.o.Memory)}
	defer func() { _ = r.sorter.Close() }()
	publish := r.rows
	if v.o.History != nil {
		publish = r.events
	}
	if err := publish(ctx); err != nil {
		return err
	}
	if err := r.look(ctx); err != nil {
		return fmt.Errorf("%d records were published again and acknowledged, but whether they are in the topics could not be looked up: %w", r.out.Published, err)
	}
	v.report.Repair = &r.out
	v.report.OK = r.out.OK() && v.report.Unroutable == 0
	return nil
}

// rows publishes rows that are missing, from the tables as they are now. Their
// position is below anything that is not published yet.
func (r *repair) rows(ctx context.Context) error {
	return r.session(ctx, func() error {
		s, ok, err := r.db.Slot(ctx, r.o.Slot)
		if err != nil {
			return err
		}
		if !ok || s.Confirmed == 0 {
			return fault.Stopped("see cdc-relay status", "slot %q is gone", r.o.Slot)
		}
		if err := r.checkRows(ctx); err != nil {
			return err
		}
		defer r.o.Rows.Close(context.WithoutCancel(ctx))
		if err := r.o.Rows.Import(ctx, ""); err != nil {
			return err
		}
		snapshot, err := r.db.WrittenLSN(ctx)
		if err != nil {
			return err
		}
		it, err := r.missing.Sort(ctx)
		if err != nil {
			return err
		}
		b := &batches{repair: r, it: it}
		err = r.o.Rows.PublishIDs(ctx, s.Confirmed, snapshot, r.missing.Len(), b.next)
		_, _, r.out.Published = r.o.Rows.Counts()
		if err != nil {
			return fmt.Errorf("after %d of %d rows: %w", r.out.Published, r.missing.Len(), err)
		}
		return nil
	})
}

// checkRows finds out whether the rows can be read and routed.
func (v *Verifier) checkRows(ctx context.Context) error {
	var tables []catalog.Table
	for _, t := range v.o.Tables {
		is, ok, err := v.db.Table(ctx, t.Schema, t.Name)
		if err != nil {
			return err
		}
		if ok {
			tables = append(tables, is)
		}
	}
	pub, _, err := v.db.Publication(ctx, v.o.Publication)
	if err != nil {
		return err
	}
	return v.o.Rows.Check(ctx, tables, pub)
}

// batches are what is missing, in portions of one table each.
type batches struct {
	*repair
	it    *spill.Iterator
	ahead bool // it has an entry that is not taken

	table    int
	ids      [][]byte
	found    map[string]bool // of each topic and id in hand, whether its row was
	poisoned map[string]bool // ids whose row cannot be routed
}

// next closes the batch in hand and gives the one behind it.
func (b *batches) next() (backfill.Batch, bool, error) {
	if err := b.tellGone(); err != nil {
		return backfill.Batch{}, false, err
	}
	b.ids, b.found, b.poisoned = b.ids[:0], map[string]bool{}, map[string]bool{}
	for size := 0; len(b.ids) < repairBatch && size < repairBytes && (b.ahead || b.it.Next()); size += len(b.it.Key()) {
		b.ahead = false
		topic, table, id, err := cutKept(b.it.Key(), b.it.Value())
		if err != nil {
			return backfill.Batch{}, false, err
		}
		if len(b.ids) > 0 && table != b.table {
			b.ahead = true
			break
		}
		b.table = table
		b.ids = append(b.ids, slices.Clone(id))
		b.found[string(appendKey(nil, topic, id))] = false
	}
	if err := b.it.Err(); err != nil || len(b.ids) == 0 {
		return backfill.Batch{}, false, err
	}
	return backfill.Batch{Table: b.table, IDs: b.ids, Wanted: b.wanted, Poison: b.poison}, true, nil
}

// wanted tells whether a row's record is one of those that are missing: rows of the
// same id may go to several topics.
func (b *batches) wanted(rec *sink.Record) (bool, error) {
	return b.take(b.found, rec, entry{origin: fromTable, time: rec.Timestamp, table: b.table})
}

func (b *batches) poison(id []byte, err error) error {
	b.poisoned[string(id)] = true
	b.out.Unroutable++
	return b.o.Found(Finding{Kind: Unroutable, Table: b.o.Tables[b.table].String(), ID: id, Rows: 1, Reason: err.Error()})
}

// tellGone tells of the rows of the batch that are not in the table any more.
func (b *batches) tellGone() error {
	for key, found := range b.found {
		topic, id, err := cutKey([]byte(key))
		if err != nil {
			return err
		}
		if found || b.poisoned[string(id)] {
			continue
		}
		b.out.Gone++
		f := Finding{Kind: Gone, Topic: b.topics[topic], Table: b.o.Tables[b.table].String(), ID: id, Reason: "deleted since, changed, or left out by the publication's row filter"}
		if err := b.o.Found(f); err != nil {
			return err
		}
	}
	return nil
}

// take tells whether a record is one of those that are missing, and remembers that
// it is published.
func (r *repair) take(wanted map[string]bool, rec *sink.Record, e entry) (bool, error) {
	topic, known := r.topicOf[rec.Topic]
	if !known {
		return false, nil
	}
	key := string(appendKey(nil, topic, rec.Headers[0].Value))
	if _, is := wanted[key]; !is {
		return false, nil
	}
	wanted[key] = true
	return true, r.sorter.Add([]byte(key), e.append(nil))
}

// events publishes events that are missing, from the history once more.
func (r *repair) events(ctx context.Context) error {
	n := r.missing.Len()
	if n > maxFromHistory {
		return fault.Stopped("publish the whole range again, of which consumers drop the copies: "+r.o.History.Command(r.span),
			"%d events are missing, and at most %d can be chosen from the history by their ids", n, maxFromHistory)
	}
	it, err := r.missing.Sort(ctx)
	if err != nil {
		return err
	}
	wanted := make(map[string]bool, n)
	for it.Next() {
		topic, _, id, err := cutKept(it.Key(), it.Value())
		if err != nil {
			return err
		}
		wanted[string(appendKey(nil, topic, id))] = false
	}
	if err := it.Err(); err != nil {
		return err
	}
	err = r.o.History.Publish(ctx, r.span, func(rec *sink.Record) (bool, error) {
		is, err := r.take(wanted, rec, entry{origin: fromWAL, time: rec.Timestamp, lsn: uint64(rec.LSN)})
		if is && err == nil {
			r.out.Published++
		}
		return is, err
	})
	if err != nil {
		return fmt.Errorf("%d of %d events were published again: %w", r.out.Published, n, err)
	}
	for _, found := range wanted {
		if !found {
			r.out.Missing++
		}
	}
	return nil
}

// look reads what came to the topics since they were read, and looks for what was
// published.
func (r *repair) look(ctx context.Context) error {
	topics, err := describe(ctx, r.o.Cluster, r.topics)
	if err != nil {
		return err
	}
	plain := make([]*Topic, len(topics)) // nothing of it can have expired
	for i, t := range topics {
		plain[i] = &Topic{Name: t.Name}
		if i < len(r.read) {
			t.after(r.read[i])
		}
	}
	err = r.readRecords(ctx, topics, func(rec record) error {
		if rec.id == nil {
			return nil
		}
		e := entry{origin: fromOutside, time: rec.time, partition: rec.partition, offset: rec.offset}
		return r.sorter.Add(appendKey(nil, int(rec.topic), rec.id), e.append(nil))
	})
	if err != nil {
		return err
	}
	var n Counts
	err = r.compareBy(ctx, r.comparer(plain, &n, func(f Finding) error {
		if f.Kind != Missing {
			return nil
		}
		f.Reason = "published again and acknowledged, and not found in the topic"
		return r.o.Found(f)
	}), r.sorter)
	r.out.Missing += n.Missing
	return err
}

// after lets the partitions begin where an earlier reading ended.
func (t *Topic) after(was *Topic) {
	for i := range t.Partitions {
		p := &t.Partitions[i]
		for _, q := range was.Partitions {
			if q.ID == p.ID {
				p.First = min(max(p.First, q.End), p.End)
			}
		}
	}
}
