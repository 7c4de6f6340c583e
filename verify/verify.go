// Package verify compares the ids in the outbox tables with those in the topics,
// and names what is missing, doubled or without a row.
//
// The order of the steps is what makes the answer true. First the tables are read
// in one snapshot; then it waits until the slot is confirmed past the position at
// which that was taken, so that every row of it has been acknowledged by the
// brokers; only then the topics are read, up to the end that they have by then. A
// row without a record is thus missing, and not on its way. What was committed
// meanwhile is read from the tables once more, so that its records are not taken
// for ones without a row.
package verify

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/confirmed"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/progress"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
	"github.com/cdc-relay/cdc-relay/spill"
)

// DefaultMemory is what the entries may take before they are spilled.
const DefaultMemory = 32 << 20

// Options says what to compare.
type Options struct {
	Tables []route.Table
	// Topics are read as well, beside those that rows of the tables go to: only there
	// are records found of which every row is gone.
	Topics      []string
	Slot        string
	Publication string
	// Since and Until bound the time of the rows, by the mapped timestamp column; a
	// zero time is no limit. Since is included, Until is not.
	Since, Until time.Time
	// Wait is how long the relay may take to get past the snapshot.
	Wait            time.Duration
	TempDir         string // "" : the system's
	Memory          int    // 0: DefaultMemory
	ApplicationName string

	Connect func() (*pgx.ConnConfig, error)
	Cluster *broker.Cluster
	// Gaps returns the open gaps of the slot's mark. It may be nil.
	Gaps func(ctx context.Context, systemID string) ([]checkpoint.Gap, error)
	// Halted returns why the running relay will not go on; "" when nothing is known.
	Halted func(ctx context.Context) string
	// Found is told every finding: unroutable rows first, the others ordered by topic
	// and id. What is in it is valid until it returns.
	Found    func(Finding) error
	Progress *progress.Reporter
}

// Validate reports what cannot be meant.
func (o Options) Validate() error {
	if o.Since.IsZero() && o.Until.IsZero() {
		return nil
	}
	if !o.Since.IsZero() && !o.Until.IsZero() && !o.Since.Before(o.Until) {
		return fmt.Errorf("--until (%s) must be later than --since (%s)", o.Until.Format(time.RFC3339), o.Since.Format(time.RFC3339))
	}
	for _, t := range o.Tables {
		if t.Timestamp == "" {
			return fmt.Errorf("--since and --until need a timestamp of each row, and outbox table %s has no column mapped as outbox[].columns.timestamp; "+
				"without them the whole table is compared", t)
		}
	}
	return nil
}

// Run compares, and returns the outcome. It changes nothing.
func Run(ctx context.Context, o Options) (*Report, error) {
	// Records carry milliseconds: the same bounds must hold for rows and records.
	o.Since, o.Until = o.Since.Truncate(time.Millisecond), o.Until.Truncate(time.Millisecond)
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	v := &verifier{o: o, topicOf: map[string]int{}, sorter: spill.New(o.TempDir, o.Memory), report: newReport(o)}
	defer func() { _ = v.sorter.Close() }()
	if err := v.run(ctx); err != nil {
		return nil, err
	}
	return v.report, nil
}

// verifier is one comparison.
type verifier struct {
	o      Options
	db     *catalog.Session
	router *route.Router
	tables []*table

	topicOf map[string]int
	topics  []string
	headers []map[string]bool // for each topic, the headers that may carry the id

	sorter     *spill.Sorter
	key, value []byte // of the entry in hand
	report     *Report
}

func (v *verifier) run(ctx context.Context) error {
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
	topics, err := v.readTopics(ctx)
	if err != nil {
		return err
	}
	if err := v.session(ctx, func() error { return v.readLater(ctx, before) }); err != nil {
		return err
	}
	return v.compare(ctx, topics)
}

// session runs f with a connection to the database. None rests while the topics
// are read, which may take long enough for something on the way to cut it.
func (v *verifier) session(ctx context.Context, f func() error) error {
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
func (v *verifier) prepare(ctx context.Context) error {
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
		if topic, ok := r.FixedTopic(); ok {
			v.topic(topic, r)
		}
	}
	for _, name := range v.o.Topics {
		v.topic(name, v.o.Tables...)
	}
	return v.warn(ctx, server.SystemID)
}

// warn notes what explains rows without a record.
func (v *verifier) warn(ctx context.Context, systemID string) error {
	p, ok, err := v.db.Publication(ctx, v.o.Publication)
	if err != nil {
		return err
	}
	for _, t := range v.tables {
		if is, published := p.Table(t.name); ok && published && is.RowFilter != "" {
			v.report.note("publication %q has a row filter for table %s: rows that it leaves out are reported as missing", v.o.Publication, t.name)
		}
	}
	if v.o.Gaps == nil {
		return nil
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
		v.report.note("a gap is open, %s up to %s: %s; rows in it may be among the missing", table, g.To, g.Reason)
	}
	return nil
}

// topic returns the number of a topic, and notes that tables go there.
func (v *verifier) topic(name string, tables ...route.Table) int {
	i, ok := v.topicOf[name]
	if !ok {
		i = len(v.topics)
		v.topicOf[name] = i
		v.topics = append(v.topics, name)
		v.headers = append(v.headers, map[string]bool{})
	}
	for _, t := range tables {
		v.headers[i][t.IDHeaderName()] = true
	}
	return i
}

func (v *verifier) add(topic int, id []byte, e entry) error {
	v.key, v.value = appendKey(v.key[:0], topic, id), e.append(v.value[:0])
	return v.sorter.Add(v.key, v.value)
}

// readTables reads the rows in one snapshot.
func (v *verifier) readTables(ctx context.Context) (*catalog.Snapshot, error) {
	view, err := v.db.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer view.End(ctx)
	v.report.SnapshotLSN, v.report.SnapshotAt = view.LSN.String(), view.At
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
func (v *verifier) readLater(ctx context.Context, before *catalog.Snapshot) error {
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

func (v *verifier) readRows(ctx context.Context, view *catalog.Snapshot, number int, where string, from origin,
	stage *progress.Stage, poison func([]byte, error) error,
) error {
	defer stage.End()
	t, n := v.tables[number], int64(0)
	err := t.read(ctx, view, where, v.router, func(rec *sink.Record) error {
		if n++; n%progressEvery == 0 {
			stage.Add(progressEvery)
		}
		topic, ok := v.topicOf[rec.Topic]
		if !ok || !v.headers[topic][rec.Headers[0].Key] {
			topic = v.topic(rec.Topic, t.route)
		}
		return v.add(topic, rec.ID, entry{origin: from, time: rec.Timestamp, table: number})
	}, poison)
	if err != nil {
		return err
	}
	stage.Add(n % progressEvery)
	return nil
}

// readTopics reads the topics as they are now.
func (v *verifier) readTopics(ctx context.Context) ([]*Topic, error) {
	topics, err := describe(ctx, v.o.Cluster, v.topics)
	if err != nil {
		return nil, err
	}
	var total int64
	for _, t := range topics {
		total += t.Records()
	}
	stage := v.o.Progress.Stage(fmt.Sprintf("reading %d topics", len(topics)), total, "records")
	defer stage.End()
	n := &v.report.Counts
	r := topicReader{cluster: v.o.Cluster, idHeaders: v.headers, progress: stage.Add, took: func(rec record) error {
		n.Records++
		if rec.id == nil {
			n.WithoutID++
			return nil
		}
		return v.add(int(rec.topic), rec.id, entry{origin: fromTopic, time: rec.time, partition: rec.partition, offset: rec.offset})
	}}
	if err := r.read(ctx, topics); err != nil {
		return nil, err
	}
	for _, t := range topics {
		v.report.topic(t)
	}
	return topics, nil
}

func (v *verifier) compare(ctx context.Context, topics []*Topic) error {
	// A row may have gone to a topic that none had gone to before: it was committed
	// after the snapshot, and its topic was not read.
	for _, name := range v.topics[len(topics):] {
		topics = append(topics, &Topic{Name: name})
	}
	stage := v.o.Progress.Stage("comparing", v.sorter.Len(), "rows and records")
	defer stage.End()
	it, err := v.sorter.Sort(ctx)
	if err != nil {
		return err
	}
	c := comparer{topics: topics, since: math.MinInt64, until: math.MaxInt64, now: time.Now(), counts: &v.report.Counts, found: v.o.Found}
	for _, t := range v.tables {
		c.tables = append(c.tables, t.name.String())
	}
	if !v.o.Since.IsZero() {
		c.since = v.o.Since.UnixMilli()
	}
	if !v.o.Until.IsZero() {
		c.until = v.o.Until.UnixMilli()
	}
	if err := c.compare(ctx, it, stage.Add); err != nil {
		return err
	}
	v.report.finish(v.sorter.Spilled())
	return nil
}
