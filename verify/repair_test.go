package verify

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/backfill"
	"github.com/cdc-relay/cdc-relay/progress"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
	"github.com/cdc-relay/cdc-relay/spill"
)

func repairOf(t *testing.T, found func(Finding) error) *repair {
	t.Helper()
	v := New(Options{Repair: true, TempDir: t.TempDir(), Found: found,
		Tables: []route.Table{{Schema: "public", Name: "a", ID: "id"}, {Schema: "public", Name: "b", ID: "id"}}})
	t.Cleanup(v.Close)
	v.topic("orders", "id")
	v.topic("invoices", "id")
	r := &repair{Verifier: v, sorter: spill.New(t.TempDir(), 0)}
	t.Cleanup(func() { _ = r.sorter.Close() })
	return r
}

func record1(topic, id string) *sink.Record {
	return &sink.Record{Topic: topic, ID: []byte(id), Headers: []sink.Header{{Key: "id", Value: []byte(id)}}}
}

// TestRepair_ReadsWhatIsMissingInBatches: each of one table, in the order of time,
// and what no row is found for is told.
func TestRepair_ReadsWhatIsMissingInBatches(t *testing.T) {
	var gone []string
	r := repairOf(t, func(f Finding) error {
		gone = append(gone, fmt.Sprintf("%s %s %s %s", f.Kind, f.Topic, f.Table, f.ID))
		return nil
	})
	for i := range repairBatch + 5 {
		if err := r.keep(0, 0, int64(-i), fmt.Appendf(nil, "%d", i)); err != nil { // the later, the earlier
			t.Fatal(err)
		}
	}
	for _, id := range []string{"x", "y"} {
		if err := r.keep(1, 1, unknownTime, []byte(id)); err != nil {
			t.Fatal(err)
		}
	}
	it, err := r.missing.Sort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := &batches{repair: r, it: it}
	var sizes []string
	for {
		batch, ok, err := b.next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		sizes = append(sizes, fmt.Sprintf("%d: %d from %s", batch.Table, len(batch.IDs), batch.IDs[0]))
		for _, id := range batch.IDs {
			if string(id) == "y" || string(id) == "3" {
				continue // its row is gone
			}
			took(t, batch, record1(r.topics[batch.Table], string(id)), true)
			took(t, batch, record1(r.topics[1-batch.Table], string(id)), false) // a row of that id that is not missing
		}
	}
	if got, want := strings.Join(sizes, ", "), fmt.Sprintf("0: %d from %d, 0: 5 from 4, 1: 2 from x", repairBatch, repairBatch+4); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if want := []string{"gone orders public.a 3", "gone invoices public.b y"}; !slices.Equal(gone, want) || r.out.Gone != 2 {
		t.Errorf("got %q, %+v", gone, r.out)
	}
	if r.sorter.Len() != repairBatch+5+2-2 || r.out.OK() {
		t.Errorf("%d are remembered as published, %+v", r.sorter.Len(), r.out)
	}
}

func took(t *testing.T, b backfill.Batch, rec *sink.Record, want bool) {
	t.Helper()
	if got, err := b.Wanted(rec); err != nil || got != want {
		t.Fatalf("record of %s in %s: wanted %t, %v", rec.ID, rec.Topic, got, err)
	}
}

// TestRepair_LooksBehindWhatWasRead: only what came since counts, and only that.
func TestRepair_LooksBehindWhatWasRead(t *testing.T) {
	now := &Topic{Partitions: []Partition{{ID: 0, First: 0, End: 10}, {ID: 1, First: 7, End: 9}, {ID: 2, First: 3, End: 4}, {ID: 3, First: 0, End: 2}}}
	now.after(&Topic{Partitions: []Partition{{ID: 2, First: 0, End: 9}, {ID: 1, First: 0, End: 5}, {ID: 0, First: 0, End: 6}}})
	var first []int64
	for _, p := range now.Partitions {
		first = append(first, p.First)
	}
	if want := []int64{6, 7, 4, 0}; !slices.Equal(first, want) {
		t.Errorf("got %v, want %v", first, want)
	}
}

// TestRepair_FindsWhatWasPublishedOrSaysThatItIsMissing: an acknowledgement is not
// enough.
func TestRepair_FindsWhatWasPublishedOrSaysThatItIsMissing(t *testing.T) {
	_, cluster, cl := fakeKafka(t)
	produce(t, cl, event(0, "lost")) // a copy that was read before is not the one that was published
	var found []string
	r := repairOf(t, func(f Finding) error { found = append(found, fmt.Sprintf("%s %s", f.Kind, f.ID)); return nil })
	r.o.Cluster, r.o.Progress, r.topics = cluster, progress.New(io.Discard), []string{"orders"}
	var err error
	if r.read, err = describe(t.Context(), cluster, r.topics); err != nil {
		t.Fatal(err)
	}
	wanted := map[string]bool{}
	for _, id := range []string{"there", "lost"} {
		wanted[string(appendKey(nil, 0, []byte(id)))] = false
		if is, err := r.take(wanted, record1("orders", id), entry{origin: fromWAL, lsn: 9}); !is || err != nil {
			t.Fatal(is, err)
		}
	}
	produce(t, cl, event(1, "there"), event(2, "of somebody else"))
	if err := r.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.out.Missing != 1 || !slices.Equal(found, []string{"missing lost"}) {
		t.Errorf("%+v, %v", r.out, found)
	}
}

// past is a history that publishes what is wanted of a list.
type past struct{ ids []string }

func (p past) Read(context.Context, func(*sink.Record) error, func([]byte, error) error) (Range, error) {
	return Range{}, nil
}

func (p past) Publish(_ context.Context, _ Range, wanted func(*sink.Record) (bool, error)) error {
	for _, id := range p.ids {
		if _, err := wanted(record1("orders", id)); err != nil {
			return err
		}
	}
	return nil
}

func (p past) Command(r Range) string { return fmt.Sprintf("the command from %s to %s", r.From, r.To) }

func TestRepair_FromTheHistoryTakesWhatIsMissingAndNoMoreThanFitsInMemory(t *testing.T) {
	r := repairOf(t, nil)
	r.o.History, r.span = past{[]string{"a", "b", "c"}}, Range{0x10, 0x20}
	for _, id := range []string{"a", "c", "not in the range any more"} {
		if err := r.keep(0, 0, 5, []byte(id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.events(t.Context()); err != nil || r.out.Published != 2 || r.out.Missing != 1 {
		t.Errorf("%v, %+v", err, r.out)
	}
	r = repairOf(t, nil)
	r.o.History, r.span = past{[]string{"1"}}, Range{0x10, 0x20}
	for i := range maxFromHistory + 1 {
		if err := r.keep(0, 0, 5, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.events(t.Context()); err == nil || !strings.Contains(err.Error(), "the command from 0/10 to 0/20") || r.out.Published != 0 {
		t.Errorf("%v, %+v", err, r.out)
	}
}

func TestTopics_APositionIsThatOfTheWALAlone(t *testing.T) {
	header := func(name, value string) kafka.Header { return kafka.Header{Key: name, Value: []byte(value)} }
	for want, headers := range map[uint64][]kafka.Header{
		0x2F_B2C0_0148: {header("id", "x"), header("lsn", "0000002FB2C00148"), header("seq", "0"), header("replayed-from", "0000000000000001")},
	} {
		if got := positionOf(headers); uint64(got) != want {
			t.Errorf("%v: %s", headers, got)
		}
	}
	for _, headers := range [][]kafka.Header{nil, {header("lsn", "soon")}, {header("lsn", "")},
		{header("lsn", "0000002FB2C00148"), header("backfilled", "0000002FB2C00148")}} {
		if got := positionOf(headers); got != 0 {
			t.Errorf("%v: %s", headers, got)
		}
	}
}
