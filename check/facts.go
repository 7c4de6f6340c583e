// Package check looks at everything that the relay needs before it runs, and
// says of each what is wrong and how to mend it. Gather asks the database, the
// mark's store and the brokers; Evaluate judges what was found, and is pure.
package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/route"
)

// Want is what the configuration asks for.
type Want struct {
	Preflight preflight.Want
	Tables    []route.Table
	Messages  *route.Messages // nil: no logical message is published
	// Topics are looked at, beside those of tables and messages with a fixed topic.
	Topics []string
	// MarkTopic is the topic of the marks; "" when they are kept elsewhere.
	MarkTopic string
	// Brokers is false when nothing is published to Kafka and no mark kept there.
	Brokers bool
	// Publish is false with a sink that discards.
	Publish bool
	// Partitions and Replication are those of a topic that setup would make.
	Partitions, Replication int
	MarkReplication         int
	MaxBatchBytes           int64
	// HistorySlot is looked at also where no history is kept: one that was left
	// behind retains WAL.
	HistorySlot    string
	History        bool
	HistoryHardMax int64
	// AgeColumns tell a row's age, one for each of Tables; nil when rows are kept.
	AgeColumns []string
	// DropPartitions: whole partitions are dropped, and made for PartitionInterval
	// each, or none when that is zero.
	DropPartitions    bool
	PartitionInterval time.Duration
	// Marking is how published rows are marked, for each of Tables; nil when none is.
	Marking  []catalog.Marking
	Warnings []string // about the configuration itself
}

// topics returns the event topics whose names are known, once each.
func (w Want) topics() []string {
	if !w.Publish {
		return nil
	}
	names := slices.Clone(w.Topics)
	for _, t := range w.Tables {
		if name, ok := t.FixedTopic(); ok {
			names = append(names, name)
		}
	}
	if w.Messages != nil {
		if name, ok := w.Messages.FixedTopic(); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Cluster is what Gather asks of the brokers.
type Cluster interface {
	Ping(ctx context.Context) error
	Metadata(ctx context.Context, topics ...string) (map[string]broker.Topic, error)
	TopicConfig(ctx context.Context, topic string) (map[string]string, error)
	// MayCreate tells whether a topic could be made, without making it.
	MayCreate(ctx context.Context, spec broker.TopicSpec) error
}

// Sources is where Gather looks. A nil function means that there is none.
type Sources struct {
	Connect   func() (*pgx.ConnConfig, error)
	Cluster   func() (Cluster, error)
	OpenStore func(ctx context.Context) (checkpoint.Store, error)
	// Timeout bounds each of database, store and brokers.
	Timeout time.Duration
}

// Facts are what was found.
type Facts struct {
	// DatabaseErr is why the database could not be asked; the fields below it are
	// then not set, up to the store's.
	DatabaseErr    error
	Server         catalog.Server
	Slot           catalog.Slot
	HasSlot        bool
	HistorySlot    catalog.Slot
	HasHistory     bool
	Publication    catalog.Publication
	HasPublication bool
	// MayFollow: the publication may have been made after the slot.
	MayFollow  bool
	Tables     map[catalog.TableName]*catalog.Table // nil: it does not exist
	Identities catalog.Identities
	Gone       map[uint32]bool
	// Emitters may emit logical messages; not set where none are published.
	Emitters catalog.MessageEmitters
	// MissingPrivileges are those that deleting rows lacks.
	MissingPrivileges []string
	// Partitioned are the tables whose partitions are dropped, NotByTime why some
	// have none to drop.
	Partitioned []catalog.PartitionedTable
	NotByTime   []string
	// Detached are partitions that this slot's relay detached and did not drop yet.
	Detached []catalog.Detached
	// Marked are the tables whose rows can be marked; UnmarkedErr tells of the others
	// why not.
	Marked      map[catalog.TableName]catalog.MarkedTable
	UnmarkedErr map[catalog.TableName]error

	StoreErr error
	Mark     checkpoint.Mark
	HasMark  bool
	// Elsewhere are marks of slots of this name on other clusters; read where this one
	// has none.
	Elsewhere []checkpoint.Mark
	// Covered are gaps of the mark that a backfill has published since.
	Covered []checkpoint.Gap

	BrokersErr error // why the brokers could not be asked
	Topics     map[string]Topic
	Now        time.Time
}

// Topic is what the brokers say of a topic.
type Topic struct {
	Missing   bool
	Err       error // why nothing is known
	CreateErr error // of a missing one: why it cannot be made
	// Replicas is the smallest number of replicas of a partition.
	Replicas   int
	Partitions int
	Leaderless int // partitions without a leader
	Config     map[string]string
	ConfigErr  error
}

// Gather asks the sources. It takes no longer than three times their time-out,
// changes nothing, and returns what it found, with the error of each part that it
// could not ask.
func Gather(ctx context.Context, w Want, src Sources) Facts {
	f := Facts{Now: time.Now()}
	bounded := func(part func(context.Context)) {
		ctx, cancel := context.WithTimeout(ctx, src.Timeout)
		defer cancel()
		part(ctx)
	}
	bounded(func(ctx context.Context) { f.DatabaseErr = f.database(ctx, w, src) })
	if w.Brokers {
		bounded(func(ctx context.Context) { f.BrokersErr = f.brokers(ctx, w, src) })
	}
	if f.DatabaseErr == nil && f.mayHaveMark(w) {
		bounded(func(ctx context.Context) { f.StoreErr = f.store(ctx, w, src) })
	}
	return f
}

func (f *Facts) database(ctx context.Context, w Want, src Sources) error {
	cfg, err := src.Connect()
	if err != nil {
		return err
	}
	db, err := catalog.Open(ctx, cfg, w.Preflight.ApplicationName+"-check")
	if err != nil {
		return catalog.Explain(err)
	}
	defer db.Close(context.WithoutCancel(ctx))
	return catalog.Explain(f.catalog(ctx, w, db))
}

func (f *Facts) catalog(ctx context.Context, w Want, db *catalog.Session) (err error) {
	p := w.Preflight
	if f.Server, err = db.Server(ctx); err != nil {
		return err
	}
	if f.Slot, f.HasSlot, err = db.Slot(ctx, p.Slot); err != nil {
		return err
	}
	if w.HistorySlot != "" {
		if f.HistorySlot, f.HasHistory, err = db.Slot(ctx, w.HistorySlot); err != nil {
			return err
		}
	}
	if f.Publication, f.HasPublication, err = db.Publication(ctx, p.Publication); err != nil {
		return err
	}
	f.Tables = make(map[catalog.TableName]*catalog.Table)
	for _, name := range p.Tables {
		t, ok, err := db.Table(ctx, name.Schema, name.Name)
		if err != nil {
			return err
		}
		f.Tables[name] = nil
		if ok {
			f.Tables[name] = &t
		}
	}
	if f.Identities, err = db.Identities(ctx, p.Publication, p.Tables); err != nil {
		return err
	}
	if w.Messages != nil {
		if f.Emitters, err = db.MessageEmitters(ctx); err != nil {
			return err
		}
	}
	if err := f.retention(ctx, w, db); err != nil {
		return err
	}
	if err := f.marking(ctx, w, db); err != nil {
		return err
	}
	if f.HasSlot && f.HasPublication {
		f.MayFollow, err = db.MayFollowSlot(ctx, p.Publication, p.Slot)
	}
	return err
}

func (f *Facts) retention(ctx context.Context, w Want, db *catalog.Session) (err error) {
	if f.Detached, err = db.Detached(ctx, f.Server.SystemID, w.Preflight.Slot); err != nil {
		return err
	}
	switch {
	case w.AgeColumns == nil:
		return nil
	case !w.DropPartitions:
		f.MissingPrivileges, err = db.MissingPrivileges(ctx, existing(f.Tables))
		return err
	}
	for i, name := range w.Preflight.Tables {
		t, err := db.PartitionedTable(ctx, name, w.AgeColumns[i])
		var not *catalog.ErrNotByTime
		switch {
		case errors.As(err, &not):
			f.NotByTime = append(f.NotByTime, not.Why)
		case err != nil:
			return err
		default:
			f.Partitioned = append(f.Partitioned, t)
		}
	}
	return nil
}

// marking finds out whether rows can be marked, of those tables that exist.
func (f *Facts) marking(ctx context.Context, w Want, db *catalog.Session) error {
	f.Marked, f.UnmarkedErr = make(map[catalog.TableName]catalog.MarkedTable), make(map[catalog.TableName]error)
	for _, m := range w.Marking {
		if f.Tables[m.Table] == nil {
			continue
		}
		t, err := db.MarkedTable(ctx, m)
		switch {
		case err == nil:
			f.Marked[m.Table] = t
		case fault.ClassOf(err) == fault.Stop:
			f.UnmarkedErr[m.Table] = err
		default:
			return err
		}
	}
	return nil
}

func existing(tables map[catalog.TableName]*catalog.Table) []catalog.TableName {
	var names []catalog.TableName
	for name, t := range tables {
		if t != nil {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b catalog.TableName) int { return strings.Compare(a.String(), b.String()) })
	return names
}

// mayHaveMark is false when it is known that there is no mark, or that it cannot
// be read.
func (f *Facts) mayHaveMark(w Want) bool {
	return w.MarkTopic == "" || f.BrokersErr == nil && !f.Topics[w.MarkTopic].Missing
}

// store reads the mark, and then of the relations that it names those that are
// gone.
func (f *Facts) store(ctx context.Context, w Want, src Sources) error {
	st, err := src.OpenStore(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = st.Close() }()
	if f.Mark, f.HasMark, err = st.Load(ctx, f.Server.SystemID, w.Preflight.Slot); err != nil {
		return err
	}
	if len(f.Mark.Gaps) > 0 {
		covered, _, err := st.Load(ctx, f.Server.SystemID, checkpoint.CoverKey(w.Preflight.Slot))
		if err != nil {
			return err
		}
		f.Covered = covered.Gaps
	}
	if !f.HasMark || f.Mark.Withdrawn() {
		if f.Elsewhere, err = st.Others(ctx, f.Server.SystemID, w.Preflight.Slot); err != nil {
			return err
		}
	}
	return f.gone(ctx, w, src)
}

func (f *Facts) gone(ctx context.Context, w Want, src Sources) error {
	cfg, err := src.Connect()
	if err != nil {
		return err
	}
	db, err := catalog.Open(ctx, cfg, w.Preflight.ApplicationName+"-check")
	if err != nil {
		return catalog.Explain(err)
	}
	defer db.Close(context.WithoutCancel(ctx))
	f.Gone, err = db.Gone(ctx, f.Server.SystemID, w.Preflight.Slot, f.Mark.Relations, f.Identities.Relations)
	return catalog.Explain(err)
}

func (f *Facts) brokers(ctx context.Context, w Want, src Sources) error {
	c, err := src.Cluster()
	if err != nil {
		return err
	}
	if err := c.Ping(ctx); err != nil {
		return err
	}
	names := w.topics()
	if w.MarkTopic != "" {
		names = append(names, w.MarkTopic)
	}
	f.Topics = make(map[string]Topic)
	if len(names) == 0 {
		return nil
	}
	md, err := c.Metadata(ctx, names...)
	if err != nil {
		return err
	}
	for _, name := range names {
		f.Topics[name] = topic(ctx, c, w, name, md[name])
	}
	return nil
}

func topic(ctx context.Context, c Cluster, w Want, name string, md broker.Topic) Topic {
	if md.Err != nil {
		_, code := broker.Classify(md.Err)
		if code != "UNKNOWN_TOPIC_OR_PARTITION" {
			return Topic{Err: md.Err}
		}
		spec := broker.TopicSpec{Name: name, Partitions: w.Partitions, Replication: w.Replication}
		if name == w.MarkTopic {
			spec.Partitions, spec.Replication = 1, w.MarkReplication
		}
		return Topic{Missing: true, CreateErr: c.MayCreate(ctx, spec)}
	}
	t := Topic{Partitions: len(md.Partitions)}
	for i, p := range md.Partitions {
		if i == 0 || len(p.Replicas) < t.Replicas {
			t.Replicas = len(p.Replicas)
		}
		if p.Err != nil {
			t.Leaderless++
		}
	}
	if t.Partitions == 0 {
		return Topic{Err: errors.New("it has no partition")}
	}
	if t.Config, t.ConfigErr = c.TopicConfig(ctx, name); t.ConfigErr != nil {
		t.ConfigErr = fmt.Errorf("its configuration cannot be read: %w", t.ConfigErr)
	}
	return t
}
