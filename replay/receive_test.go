package replay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
	"github.com/cdc-relay/cdc-relay/sink/null"
)

func lsn(n uint64) pglogrepl.LSN { return pglogrepl.LSN(n) }

var orders = route.Table{Schema: "public", Name: "outbox", ID: "id", Key: "aggregateid", Payload: "payload", Topic: "outbox.event.{aggregatetype}", Position: true}

var relation = &decoder.Relation{OID: 1, Namespace: "public", Name: "outbox", Columns: []decoder.Column{
	{Name: "id", TypeOID: 25}, {Name: "aggregatetype", TypeOID: 25}, {Name: "aggregateid", TypeOID: 25}, {Name: "payload", TypeOID: 25}}}

// capture acks at once, unless it holds the acks back, and keeps what was published
// as text.
type capture struct {
	*null.Sink
	got  []string
	hold bool
	held []sink.Ack
}

func (c *capture) Publish(ctx context.Context, rec *sink.Record, ack sink.Ack) error {
	h := rec.Headers[len(rec.Headers)-1]
	c.got = append(c.got, strings.Join([]string{rec.Topic, string(rec.ID), h.Key + "=" + string(h.Value)}, " "))
	if c.hold {
		c.held = append(c.held, ack)
		return nil
	}
	return c.Sink.Publish(ctx, rec, ack)
}

// ack acks the n-th record that was held.
func (c *capture) ack(n int) { c.held[n].To.Done([]sink.Acked{{Tx: c.held[n].Tx, N: 1}}) }

type script struct {
	t    *testing.T
	r    *Replay
	out  *capture
	done bool
}

func newScript(t *testing.T, o Options, p plan) *script {
	t.Helper()
	o.Tables = []route.Table{orders}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, r: r, out: &capture{Sink: null.Open()}}
	r.plan, r.sink = p, s.out
	r.to.Store(uint64(p.to))
	if o.From.LSN != 0 {
		r.begin(p.start)
	}
	return s
}

// tx is one transaction with an event of each id, in one second of its own.
func (s *script) tx(commit uint64, second int, ids ...string) error {
	s.t.Helper()
	at := noon.Add(time.Duration(second) * time.Second).UnixMicro()
	events := []decoder.Event{{Kind: decoder.KindBegin, Begin: decoder.Begin{CommitLSN: lsn(commit), CommitTime: at}},
		{Kind: decoder.KindRelation, Relation: relation}}
	for _, id := range ids {
		aggregate, _, _ := strings.Cut(id, "-")
		v := func(text string) decoder.Value { return decoder.Value{Kind: decoder.Text, Data: []byte(text)} }
		events = append(events, decoder.Event{Kind: decoder.KindInsert, Row: decoder.Row{Relation: relation,
			Values: []decoder.Value{v(id), v(aggregate), v("key-" + id), v("{}")}}})
	}
	events = append(events, decoder.Event{Kind: decoder.KindCommit, Commit: decoder.Commit{CommitLSN: lsn(commit), EndLSN: lsn(commit + 5)}})
	for _, ev := range events {
		s.r.ev = ev
		done, err := s.r.event(context.Background())
		if err != nil {
			return err
		}
		if s.done = done; done {
			return nil
		}
	}
	return nil
}

func (s *script) must(commit uint64, second int, ids ...string) {
	s.t.Helper()
	if err := s.tx(commit, second, ids...); err != nil {
		s.t.Fatal(err)
	}
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func (s *script) published(next Bound, done bool, want ...string) {
	s.t.Helper()
	if got := strings.Join(s.out.got, "\n"); got != strings.Join(want, "\n") {
		s.t.Errorf("published:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
	rep := s.r.report()
	if rep.Next.String() != next.String() || s.done != done || rep.Acked != uint64(len(want)) {
		s.t.Errorf("next %s, want %s; done %t; %+v", rep.Next, next, s.done, rep)
	}
}

func TestReplay_RangeIsHalfOpenByCommit(t *testing.T) {
	s := newScript(t, Options{From: Bound{LSN: 100}, To: Bound{LSN: 300}}, plan{100, 300})
	s.must(100, 1, "order-1", "user-2")
	s.must(200, 2, "order-3")
	s.published(Bound{LSN: 205}, false, "outbox.event.order order-1 replayed-from=0000000000000064",
		"outbox.event.user user-2 replayed-from=0000000000000064", "outbox.event.order order-3 replayed-from=0000000000000064")
	s.must(300, 3, "order-4")
	if !s.done || len(s.out.got) != 3 {
		t.Errorf("done %t, %v", s.done, s.out.got)
	}
}

// TestReplay_GoesOnAtTheFirstTransactionThatIsNotAcked, whatever was read or acked
// behind it.
func TestReplay_GoesOnAtTheFirstTransactionThatIsNotAcked(t *testing.T) {
	s := newScript(t, Options{From: Bound{LSN: 100}}, plan{100, 900})
	s.out.hold = true
	s.must(200, 1, "a-0", "a-1")
	s.must(300, 2, "a-2")
	s.must(400, 3, "a-3")
	for _, step := range []struct {
		ack  int
		next uint64
	}{{2, 100}, {0, 100}, {1, 305}, {3, 405}} {
		s.out.ack(step.ack)
		if got := s.r.report().Next.LSN; got != lsn(step.next) {
			t.Errorf("after the ack of record %d: goes on at %s, want %s", step.ack, got, lsn(step.next))
		}
	}
}

// TestReplay_TimeIsTheFirstInWALOrder: commit times are not in WAL order, and only
// the first one counts.
func TestReplay_TimeIsTheFirstInWALOrder(t *testing.T) {
	s := newScript(t, Options{From: Bound{Time: noon.Add(10 * time.Second)}, To: Bound{Time: noon.Add(20 * time.Second)}}, plan{100, 900})
	s.must(100, 8, "a-1")
	s.published(Bound{Time: noon.Add(10 * time.Second)}, false)
	s.must(200, 10, "a-2")
	s.must(300, 9, "a-3") // committed before, and behind it in the WAL
	s.must(400, 19, "a-4")
	s.must(500, 20, "a-5")
	s.published(Bound{LSN: 405}, true, "outbox.event.a a-2 replayed-from=00000000000000C8",
		"outbox.event.a a-3 replayed-from=00000000000000C8", "outbox.event.a a-4 replayed-from=00000000000000C8")
}

func TestReplay_TimeBeforeWhatIsRetainedIsRefused(t *testing.T) {
	o := Options{From: Bound{Time: noon}}
	s := newScript(t, o, plan{100, 900})
	err := s.tx(150, 5, "a-1")
	if err == nil || !strings.Contains(err.Error(), "not known to be retained") || !strings.Contains(err.Error(), "--from 0/64") {
		t.Errorf("%v", err)
	}
	s.published(o.From, false)

	o.KnownSince = noon.Add(time.Second) // the relay does not know the second before
	if s = newScript(t, o, plan{100, 900}); s.tx(150, 5, "a-1") == nil {
		t.Error("a time from before the relay knows of is taken")
	}
	o.KnownSince = noon
	s = newScript(t, o, plan{100, 900})
	s.must(150, 5, "a-1")
	s.published(Bound{LSN: 155}, false, "outbox.event.a a-1 replayed-from=0000000000000096")
}

func TestReplay_FiltersAndTopic(t *testing.T) {
	for _, c := range []struct {
		f    Filter
		want string
	}{
		{Filter{}, "a-1 a-2 b-3"},
		{Filter{AggregateTypes: []string{"b"}}, "b-3"},
		{Filter{AggregateTypes: []string{"b", "a"}, IDs: []string{"a-2", "b-3"}}, "a-2 b-3"},
		{Filter{Keys: []string{"key-a-1", "key-b-3"}}, "a-1 b-3"},
		{Filter{IDs: []string{"a-1"}, Keys: []string{"key-b-3"}}, ""},
	} {
		s := newScript(t, Options{From: Bound{LSN: 100}, Filter: c.f, Topic: "again-{aggregateid}"}, plan{100, 900})
		s.must(200, 1, "a-1", "a-2", "b-3")
		var ids []string
		for _, got := range s.out.got {
			topic, id, _ := strings.Cut(got, " ")
			id, _, _ = strings.Cut(id, " ")
			if topic != "again-key-"+id {
				t.Errorf("%s was published to %s", id, topic)
			}
			ids = append(ids, id)
		}
		if strings.Join(ids, " ") != c.want {
			t.Errorf("%+v let pass %v", c.f, ids)
		}
		if rep := s.r.report(); rep.Filtered != uint64(3-len(ids)) || rep.Next.LSN != 205 {
			t.Errorf("%+v", rep)
		}
	}
}

// TestReplay_PublishesMessagesAmongRows: what the relay published, rows and logical
// messages, with the ordinals that they had.
func TestReplay_PublishesMessagesAmongRows(t *testing.T) {
	for aggregate, want := range map[string]string{"": "order-1/0 user-m/1 order-2/2", "user": "user-m/1", "order": "order-1/0 order-2/2"} {
		o := Options{From: Bound{LSN: 100}, Messages: &route.Messages{Prefix: "outbox", Topic: "outbox.event.{aggregatetype}", IDHeader: "id", TypeHeader: "type"}}
		if aggregate != "" {
			o.Filter.AggregateTypes = []string{aggregate}
		}
		s := newScript(t, o, plan{100, 900})
		var got []string
		s.r.sink = seqs{s.out, &got}
		row := func(id string) decoder.Event {
			v := func(text string) decoder.Value { return decoder.Value{Kind: decoder.Text, Data: []byte(text)} }
			return decoder.Event{Kind: decoder.KindInsert, Row: decoder.Row{Relation: relation, Values: []decoder.Value{v(id), v("order"), v("k"), v("{}")}}}
		}
		message := func(prefix string, transactional bool, id string) decoder.Event {
			return decoder.Event{Kind: decoder.KindMessage, Message: decoder.LogicalMessage{Prefix: []byte(prefix), Transactional: transactional,
				Content: []byte(`{"id": "` + id + `", "aggregatetype": "user", "payload": 1}`)}}
		}
		for _, ev := range []decoder.Event{
			{Kind: decoder.KindBegin, Begin: decoder.Begin{CommitLSN: 200}}, {Kind: decoder.KindRelation, Relation: relation},
			row("order-1"), message("other", true, "x"), message("outbox", false, "y"), message("outbox", true, "user-m"), row("order-2"),
			{Kind: decoder.KindCommit, Commit: decoder.Commit{CommitLSN: 200, EndLSN: 205}},
		} {
			s.r.ev = ev
			if _, err := s.r.event(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("with aggregate type %q: %v, want %s", aggregate, got, want)
		}
	}
}

// seqs keeps ids with their ordinals.
type seqs struct {
	*capture
	got *[]string
}

func (q seqs) Publish(ctx context.Context, rec *sink.Record, ack sink.Ack) error {
	*q.got = append(*q.got, fmt.Sprintf("%s/%d", rec.ID, rec.Seq))
	return q.capture.Publish(ctx, rec, ack)
}

func TestAggregateColumn_IsTheTopicsOrTheUsual(t *testing.T) {
	for topic, want := range map[string]string{"outbox.event.{aggregatetype}": "aggregatetype", "{kind}": "kind", "orders": "aggregatetype", "{a}.{b}": "aggregatetype"} {
		table := orders
		table.Topic = topic
		if got := aggregateColumn(table); got != want {
			t.Errorf("%s: %s", topic, got)
		}
	}
	table := orders
	table.Topic, table.TopicCol = "", "topic"
	if got := aggregateColumn(table); got != "aggregatetype" {
		t.Errorf("with a column that holds the topic: %s", got)
	}
}

// flushes counts how often the sink is told to send.
type flushes struct {
	*capture
	n int
}

func (f *flushes) Flush() { f.n++ }

// TestReplay_RateIsTakenInPieces: a limited rate is kept, and what it lets pass in
// 20 ms is sent together.
func TestReplay_RateIsTakenInPieces(t *testing.T) {
	for _, c := range []struct {
		rate    float64
		events  int
		flushes int
	}{{5000, 1001, 10}, {50, 5, 4}, {10, 3, 2}, {0, 500, 0}} {
		synctest.Test(t, func(t *testing.T) {
			s := newScript(t, Options{From: Bound{LSN: 100}, Rate: c.rate}, plan{100, 900})
			out := &flushes{capture: s.out}
			s.r.sink = out
			began := time.Now()
			s.must(200, 1, slices.Repeat([]string{"a-1"}, c.events)...)
			took, want := time.Since(began), time.Duration(0)
			if c.rate > 0 {
				want = time.Duration(float64(c.events-1) / c.rate * float64(time.Second))
			}
			if len(out.got) != c.events || out.n != c.flushes || took < want-pacePiece || took > want+time.Millisecond {
				t.Errorf("at %g events/s: %d of %d events in %v, want %v; sent %d times, want %d", c.rate, len(out.got), c.events, took, want, out.n, c.flushes)
			}
		})
	}
}

// TestReplay_ATopicOfAnUnknownColumnIsTheFlags, and not the configuration's.
func TestReplay_ATopicOfAnUnknownColumnIsTheFlags(t *testing.T) {
	s := newScript(t, Options{From: Bound{LSN: 100}, Topic: "again.{nope}"}, plan{100, 900})
	err := s.tx(200, 1, "a-1")
	if err == nil || !strings.Contains(err.Error(), `--topic again.{nope} names the column "nope"`) || !strings.Contains(err.Error(), "correct --topic") ||
		strings.Contains(err.Error(), "outbox.columns") {
		t.Errorf("got %v", err)
	}
	_, err = New(Options{Tables: []route.Table{orders}, Topic: "again.{", From: Bound{LSN: 100}})
	if err == nil || !strings.Contains(err.Error(), "--topic again.{ cannot be used") || strings.Contains(err.Error(), "correct the outbox section") {
		t.Errorf("got %v", err)
	}
	broken := orders
	broken.ID = ""
	if _, err = New(Options{Tables: []route.Table{broken}, Topic: "again", From: Bound{LSN: 100}}); err == nil || strings.Contains(err.Error(), "--topic") {
		t.Errorf("got %v", err)
	}
}

// TestReplay_AllThatIsRetained: without a beginning it begins where the history
// does, and a time that ends it tells the position.
func TestReplay_AllThatIsRetained(t *testing.T) {
	s := newScript(t, Options{To: Bound{Time: noon.Add(20 * time.Second)}}, plan{100, 900})
	s.r.begin(s.r.plan.start)
	s.must(200, 10, "a-1")
	s.must(300, 20, "a-2")
	if rep := s.r.report(); !s.done || rep.From != 100 || rep.To != 300 || rep.Events != 1 {
		t.Errorf("done %t, %+v", s.done, rep)
	}
}

// TestReplay_GoesOnBehindPoisonWhereItIsTold, and ends there where nobody hears.
func TestReplay_GoesOnBehindPoisonWhereItIsTold(t *testing.T) {
	var told []string
	for _, hears := range []bool{false, true} {
		o := Options{From: Bound{LSN: 100}}
		if hears {
			o.Poison = func(id []byte, err error) error { told = append(told, string(id)+": "+err.Error()); return nil }
		}
		s := newScript(t, o, plan{100, 900})
		err := s.tx(200, 1, "a-1", "a b-2", "a-3") // the topic of the second is illegal
		if hears != (err == nil) || hears && (len(s.out.got) != 2 || len(told) != 1 || !strings.Contains(told[0], "a b-2: ")) {
			t.Errorf("heard %t: %v, told %v, published %v", hears, err, told, s.out.got)
		}
	}
}

// TestReplay_ChoosesAndReads: Wanted beside the filter, and Read in place of the
// sink.
func TestReplay_ChoosesAndReads(t *testing.T) {
	var read []string
	o := Options{From: Bound{LSN: 100}, DryRun: true,
		Wanted: func(rec *sink.Record) (bool, error) { return string(rec.ID) != "a-2", nil },
		Read:   func(rec *sink.Record) error { read = append(read, string(rec.ID)); return nil }}
	s := newScript(t, o, plan{100, 900})
	s.r.sink = nil
	s.must(200, 1, "a-1", "a-2", "a-3")
	if strings.Join(read, " ") != "a-1 a-3" || s.r.report().Filtered != 1 {
		t.Errorf("read %v, %+v", read, s.r.report())
	}
}
