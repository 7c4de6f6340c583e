// Package verify compares the ids in the outbox tables, or in a range of the WAL,
// with those in the topics, and names what is missing, doubled or without a row.
// What is missing it can publish again, from where it was found.
//
// The order of the steps is what makes the answer true. First the tables are read
// in one snapshot; then it waits until the slot is confirmed past the position at
// which that was taken, so that every row of it has been acknowledged by the
// brokers; only then the topics are read, up to the end that they have by then. A
// row without a record is thus missing, and not on its way. What was committed
// meanwhile is read from the tables once more, so that its records are not taken
// for ones without a row. A range of the WAL ends before what is confirmed when it
// begins to be read, so that nothing is waited for.
package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/confirmed"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/progress"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
	"github.com/cdc-relay/cdc-relay/spill"
)

// Verifier is one comparison, and the repair of what it found. It is used by one
// goroutine, in the order Run, Repair, Close.
type Verifier struct {
	o      Options
	db     *catalog.Session
	router *route.Router
	tables []*table

	topicOf map[string]int
	topics  []string
	headers []map[string]bool // for each topic, the headers that may carry the id
	read    []*Topic          // as far as they were read
	span    Range             // of the history

	sorter     *spill.Sorter
	missing    *spill.Sorter // what Repair publishes; nil when it is not to
	lacking    map[int]bool  // topics in which something is missing
	key, value []byte        // of the entry in hand
	report     *Report
}

// New returns a comparison that has not begun.
func New(o Options) *Verifier {
	// Records carry milliseconds: the same bounds must hold for rows and records.
	o.Since, o.Until = o.Since.Truncate(time.Millisecond), o.Until.Truncate(time.Millisecond)
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	v := &Verifier{o: o, topicOf: map[string]int{}, lacking: map[int]bool{}, sorter: spill.New(o.TempDir, o.Memory), report: newReport(o)}
	if o.Repair {
		v.missing = spill.New(o.TempDir, o.Memory/8)
	}
	return v
}

// Close gives memory and disk back. Closing twice is safe.
func (v *Verifier) Close() {
	_ = v.sorter.Close()
	if v.missing != nil {
		_ = v.missing.Close()
	}
}

// Run compares, and returns the outcome. It changes nothing.
func (v *Verifier) Run(ctx context.Context) (*Report, error) {
	run := v.run
	if v.o.History != nil {
		run = v.runHistory
	}
	if err := run(ctx); err != nil {
		return nil, err
	}
	return v.report, nil
}

func (v *Verifier) run(ctx context.Context) error {
	var before *catalog.Snapshot
	err := v.session(ctx, func() (err error) {
		if err := v.prepare(ctx); err != nil {
			return err
		}
		if before, err = v.readTables(ctx); err != nil {
			return err
		}
		w := confirmed.Waiter{Slot: v.o.Slot, Halted: v.o.Halted, Say: v.o.Progress.Say, Timeout: v.o.Wait, Again: "verify again",
			Find: func(ctx context.Context) (catalog.Slot, bool, error) { return v.db.Slot(ctx, v.o.Slot) }}
		return w.Until(ctx, before.LSN)
	})
	if err != nil {
		return err
	}
	if err := v.readTopics(ctx, v.timely); err != nil {
		return err
	}
	if err := v.session(ctx, func() error { return v.readLater(ctx, before) }); err != nil {
		return err
	}
	return v.compare(ctx)
}

// timely tells whether a record's row would have been read, by its time.
func (v *Verifier) timely(rec record) bool {
	at := rec.time
	return at == unknownTime || (v.o.Since.IsZero() || at >= v.o.Since.UnixMilli()) && (v.o.Until.IsZero() || at < v.o.Until.UnixMilli())
}

// session runs f with a connection to the database. None rests while the topics
// are read, which may take long enough for something on the way to cut it.
func (v *Verifier) session(ctx context.Context, f func() error) error {
	cfg, err := v.o.Connect()
	if err != nil {
		return err
	}
	if v.db, err = catalog.Open(ctx, cfg, v.o.ApplicationName+"-verify"); err != nil {
		return catalog.Explain(err)
	}
	defer v.db.Close(context.WithoutCancel(ctx))
	return catalog.Explain(f())
}

// prepare looks at the server and the tables.
func (v *Verifier) prepare(ctx context.Context) error {
	server, err := v.db.Server(ctx)
	if err != nil {
		return err
	}
	if server.InRecovery {
		return fault.Stopped("connect to the primary", "the server is a standby (in recovery), where no slot tells how far the relay is")
	}
	if v.router, err = route.Compile(v.o.Tables); err != nil {
		return err
	}
	for _, r := range v.o.Tables {
		t, err := bind(ctx, v.db, r, v.o, server.Role.Name)
		if err != nil {
			return err
		}
		v.tables = append(v.tables, t)
	}
	v.namedTopics()
	if v.o.Rows != nil { // that it cannot be repaired is told before the comparison
		if err := v.checkRows(ctx); err != nil {
			return err
		}
		v.o.Rows.Close(ctx)
	}
	return v.warn(ctx, server.SystemID)
}

// namedTopics notes those of which the name is known without a row.
func (v *Verifier) namedTopics() {
	for _, r := range v.o.Tables {
		if topic, ok := r.FixedTopic(); ok {
			v.topic(topic, r.IDHeaderName())
		}
	}
	for _, name := range v.o.Topics {
		v.topic(name)
		for _, r := range v.o.Tables {
			v.topic(name, r.IDHeaderName())
		}
	}
}

// warn notes what explains rows without a record.
func (v *Verifier) warn(ctx context.Context, systemID string) error {
	p, ok, err := v.db.Publication(ctx, v.o.Publication)
	if err != nil {
		return err
	}
	for _, t := range v.tables {
		if is, published := p.Table(t.name); ok && published && is.RowFilter != "" {
			v.report.note("publication %q has a row filter for table %s: rows that it leaves out are reported as missing", v.o.Publication, t.name)
		}
	}
	v.noteGaps(ctx, systemID)
	return nil
}

// noteGaps notes what explains that something is missing.
func (v *Verifier) noteGaps(ctx context.Context, systemID string) {
	if v.o.Gaps == nil {
		return
	}
	gaps, err := v.o.Gaps(ctx, systemID)
	if err != nil {
		v.report.note("whether gaps are open is not known, since the mark could not be read: %v", err)
	}
	for _, g := range gaps {
		table := g.Table
		if table == "" {
			table = "every outbox table"
		}
		v.report.note("a gap is open, %s up to %s: %s; what lies in it may be among the missing", table, g.To, g.Reason)
	}
}

// topic returns the number of a topic, and notes the headers that carry an id
// there.
func (v *Verifier) topic(name string, idHeaders ...string) int {
	i, ok := v.topicOf[name]
	if !ok {
		i = len(v.topics)
		v.topicOf[name] = i
		v.topics = append(v.topics, name)
		v.headers = append(v.headers, map[string]bool{})
	}
	for _, h := range idHeaders {
		v.headers[i][h] = true
	}
	return i
}

// topicOfRecord is topic for where a record goes.
func (v *Verifier) topicOfRecord(rec *sink.Record) int {
	header := rec.Headers[0].Key // the id's, before all others
	if i, ok := v.topicOf[rec.Topic]; ok && v.headers[i][header] {
		return i
	}
	return v.topic(rec.Topic, header)
}

func (v *Verifier) add(topic int, id []byte, e entry) error {
	v.key, v.value = appendKey(v.key[:0], topic, id), e.append(v.value[:0])
	return v.sorter.Add(v.key, v.value)
}

// readTables reads the rows in one snapshot.
func (v *Verifier) readTables(ctx context.Context) (*catalog.Snapshot, error) {
	view, err := v.db.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer view.End(ctx)
	v.report.SnapshotLSN, v.report.SnapshotAt = view.LSN.String(), &view.At
	poison := func(t *table) func([]byte, error) error {
		return func(id []byte, err error) error {
			v.report.Counts.Unroutable++
			return v.o.Found(Finding{Kind: Unroutable, Table: t.name.String(), ID: id, Rows: 1, Reason: err.Error()})
		}
	}
	for i, t := range v.tables {
		estimate, err := v.db.EstimatedRows(ctx, t.name)
		if err != nil || t.inRange != "" {
			estimate = -1
		}
		if err := v.readRows(ctx, view, i, t.inRange, fromTable, v.o.Progress.Stage("reading table "+t.name.String(), estimate, "rows"), poison(t)); err != nil {
			return nil, err
		}
	}
	return view, nil
}

// readLater reads the rows that may have been committed after the snapshot.
func (v *Verifier) readLater(ctx context.Context, before *catalog.Snapshot) error {
	view, err := v.db.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer view.End(ctx)
	for i, t := range v.tables {
		where := t.inRange
		if t.hasXmin { // else all of them, once more
			where = and(where, before.CommittedSince())
		}
		stage := v.o.Progress.Stage("reading newer rows of "+t.name.String(), -1, "rows")
		if err := v.readRows(ctx, view, i, where, fromLater, stage, func([]byte, error) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

func (v *Verifier) readRows(ctx context.Context, view *catalog.Snapshot, number int, where string, from origin,
	stage *progress.Stage, poison func([]byte, error) error,
) error {
	defer stage.End()
	t, n := v.tables[number], int64(0)
	err := t.read(ctx, view, where, v.router, func(rec *sink.Record) error {
		if n++; n%progressEvery == 0 {
			stage.Add(progressEvery)
		}
		return v.add(v.topicOfRecord(rec), rec.ID, entry{origin: from, time: rec.Timestamp, table: number})
	}, poison)
	if err != nil {
		return err
	}
	stage.Add(n % progressEvery)
	return nil
}

// readTopics reads the topics as they are now. A record of which judged says no is
// never called extra.
func (v *Verifier) readTopics(ctx context.Context, judged func(record) bool) (err error) {
	if v.read, err = describe(ctx, v.o.Cluster, v.topics); err != nil {
		return err
	}
	n := &v.report.Counts
	err = v.readRecords(ctx, v.read, func(rec record) error {
		n.Records++
		if rec.id == nil {
			n.WithoutID++
			return nil
		}
		from := fromTopic
		if !judged(rec) {
			from = fromOutside
		}
		return v.add(int(rec.topic), rec.id, entry{origin: from, time: rec.time, partition: rec.partition, offset: rec.offset})
	})
	if err != nil {
		return err
	}
	for _, t := range v.read {
		v.report.topic(t)
	}
	return nil
}

func (v *Verifier) readRecords(ctx context.Context, topics []*Topic, took func(record) error) error {
	var total int64
	for _, t := range topics {
		total += t.Records()
	}
	stage := v.o.Progress.Stage(fmt.Sprintf("reading %d topics", len(topics)), total, "records")
	defer stage.End()
	r := topicReader{cluster: v.o.Cluster, idHeaders: v.headers, progress: stage.Add, took: took}
	return r.read(ctx, topics)
}

func (v *Verifier) compare(ctx context.Context) error {
	c := v.comparer(v.read, &v.report.Counts, v.o.Found)
	if v.missing != nil {
		c.lost = v.keep
	}
	if err := v.compareBy(ctx, c, v.sorter); err != nil {
		return err
	}
	v.report.finish(v.sorter.Spilled())
	return v.sorter.Close()
}

func (v *Verifier) comparer(topics []*Topic, counts *Counts, found func(Finding) error) *comparer {
	// A row may have gone to a topic that none had gone to before: it was committed
	// after the snapshot, and its topic was not read.
	for _, name := range v.topics[len(topics):] {
		topics = append(topics, &Topic{Name: name})
	}
	c := &comparer{topics: topics, now: time.Now(), counts: counts, found: found}
	for _, t := range v.tables {
		c.tables = append(c.tables, t.name.String())
	}
	return c
}

func (v *Verifier) compareBy(ctx context.Context, c *comparer, sorter *spill.Sorter) error {
	stage := v.o.Progress.Stage("comparing", sorter.Len(), "rows and records")
	defer stage.End()
	it, err := sorter.Sort(ctx)
	if err != nil {
		return err
	}
	return c.compare(ctx, it, stage.Add)
}
