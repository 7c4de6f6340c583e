package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
)

// Partitions says how retention keeps outbox tables that are partitioned by time.
type Partitions struct {
	Interval time.Duration // covered by a partition that is made; zero: none is made
	Ahead    int           // how many are kept ready after that of now
	// Name of one that is made, with {table} and {from}.
	Name string
}

// PartitionStatus is what retention has done with partitions since the process
// started, and how they are.
type PartitionStatus struct {
	Dropped uint64 `json:"dropped"`
	Made    uint64 `json:"made"`
	// Detached are the tables that were detached and are not dropped yet.
	Detached []string `json:"detached,omitempty"`
	// Until is up to when there are partitions, of the table that has the fewest; nil
	// while it is not known, and when they have no end.
	Until *time.Time `json:"until,omitempty"`
}

// roundPartitions are dropped in one round at most: future ones are made between
// two rounds.
const roundPartitions = 10

// problems gathers what stands in the way, so that one thing hides no other.
type problems []string

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

// note adds an error that stands in the way, and returns any other one.
func (p *problems) note(err error) error {
	var blocked errBlocked
	if errors.As(err, &blocked) {
		p.add("%s", string(blocked))
		return nil
	}
	return err
}

func (p problems) err() error {
	if len(p) == 0 {
		return nil
	}
	return errBlocked(strings.Join(p, "; "))
}

// retainPartitions makes the partitions that are due, drops what was detached
// before, and then detaches and drops old partitions, one after the other. more
// tells that there may be more of them.
func (s *session) retainPartitions(ctx context.Context) (more bool, err error) {
	c, err := s.openRetention(ctx)
	if err != nil {
		return false, err
	}
	defer c.Close(ctx)
	var found problems
	// Whatever stands in the way of dropping: without a partition for them, rows of
	// the application are refused.
	tables, err := s.keepAhead(ctx, c, &found)
	if err != nil {
		return false, err
	}
	done, err := s.finishDetached(ctx, c, &found)
	if err != nil {
		return false, errors.Join(err, found.err())
	}
	if done {
		more, err = s.dropOldPartitions(ctx, c, tables, &found)
		if err != nil {
			return false, errors.Join(err, found.err())
		}
	}
	return more, found.err()
}

// keepAhead makes the partitions that are due.
func (s *session) keepAhead(ctx context.Context, c *catalog.Session, found *problems) ([]catalog.PartitionedTable, error) {
	tables, err := s.partitionedTables(ctx, c, found)
	if err != nil {
		return nil, err
	}
	for i := range tables {
		s.makePartitions(ctx, c, &tables[i], found)
	}
	s.r.notePartitionsUntil(tables)
	return tables, nil
}

func (s *session) partitionedTables(ctx context.Context, c *catalog.Session, found *problems) ([]catalog.PartitionedTable, error) {
	var tables []catalog.PartitionedTable
	for i, name := range tableNames(s.r.cfg.Tables) {
		t, err := c.PartitionedTable(ctx, name, s.r.cfg.Retention.Columns[i])
		var not *catalog.ErrNotByTime
		switch {
		case errors.As(err, &not):
			found.add("%s, so that nothing of it is dropped", not.Why)
		case err != nil:
			return nil, err
		case !t.MayOwn:
			found.add("the relay's role is not the owner of %s, and may not become it: GRANT %s TO it", t, catalog.Ident(t.Owner))
		default:
			tables = append(tables, t)
		}
	}
	return tables, nil
}

// makePartitions makes those that are missing up to the time that is asked for.
// Each is a transaction of its own, which locks out nobody who inserts.
func (s *session) makePartitions(ctx context.Context, c *catalog.Session, t *catalog.PartitionedTable, found *problems) {
	cfg := s.r.cfg.Retention
	if cfg.Partitions.Interval == 0 {
		return
	}
	if t.WholeDays() && cfg.Partitions.Interval%(24*time.Hour) != 0 {
		found.add("no partition of %s is made: its column %s is a date, and retention.partition_interval is %s", t, t.Column, cfg.Partitions.Interval)
		return
	}
	for _, p := range t.Partitions {
		if !p.Readable() {
			found.add("no partition of %s is made, since the bound of %s is not understood: %s", t, p, p.Bound)
			return
		}
	}
	for _, r := range t.Missing(cfg.Partitions.Interval, cfg.Partitions.Ahead) {
		made, err := c.MakePartition(ctx, *t, r, cfg.Partitions.name(t.TableName, r), cfg.LockTimeout)
		if err != nil {
			found.add("no partition of %s for %s and later could be made, so that rows will be refused from then on, or fill its default partition: %v", t, r.From.Format(time.RFC3339), err)
			return
		}
		t.Partitions = append(t.Partitions, catalog.RangePartition{TableName: made, From: r.From, To: r.To, Owner: t.Owner})
		s.log.Info("made a partition", zap.Stringer("partition", made), zap.Time("from", r.From), zap.Time("to", r.To))
		s.r.mu.Lock()
		s.r.partitions.Made++
		s.r.mu.Unlock()
	}
}

// name is that of the partition for a range, by days where it begins with one.
func (p Partitions) name(t catalog.TableName, r catalog.TimeRange) string {
	layout := "20060102_150405"
	if p.Interval%(24*time.Hour) == 0 && r.From.Equal(r.From.Truncate(24*time.Hour)) {
		layout = "20060102"
	}
	return strings.NewReplacer("{table}", t.Name, "{from}", r.From.Format(layout)).Replace(p.Name)
}

// finishDetached drops what was detached in an earlier round, or by a relay that
// died before it dropped it. done tells that nothing is left.
func (s *session) finishDetached(ctx context.Context, c *catalog.Session, found *problems) (done bool, err error) {
	left, err := c.Detached(ctx, s.plan.Mark.SystemID, s.r.cfg.Slot)
	if err != nil {
		return false, err
	}
	s.r.noteDetached(left)
	done = true
	for _, d := range left {
		why := s.keepDetached(d)
		if why != "" {
			found.add("partition %s was detached and is not dropped: %s", d.TableName, why)
			continue // a person must see to it; others go on
		}
		if err := found.note(s.dropDetached(ctx, c, d)); err != nil {
			return false, err
		}
	}
	left, err = c.Detached(ctx, s.plan.Mark.SystemID, s.r.cfg.Slot)
	if err != nil {
		return false, err
	}
	s.r.noteDetached(left)
	for _, d := range left {
		done = done && s.keepDetached(d) != ""
	}
	return done, nil
}

// keepDetached tells why a table that was detached is for a person to look at; ""
// when it may be dropped once it is published. The epoch changes with all that
// makes a gap: of what lies before, it is not known that it was published, and no
// backfill reads the table.
func (s *session) keepDetached(d catalog.Detached) string {
	switch {
	case d.Attached:
		return "somebody attached it again; drop its constraint when that is wanted"
	case !d.Refuses:
		return "its constraint was changed, so that rows may have been inserted that are not published"
	case d.Epoch != s.plan.Mark.Epoch:
		return fmt.Sprintf("it was detached in epoch %d of the mark, which is %d now (setup, adopt, another timeline, a new table), so that it is not known whether all its rows are published. Drop it if they are, or make it a partition again: %s",
			d.Epoch, s.plan.Mark.Epoch, d.WayBack())
	case !slices.Contains(tableNames(s.r.cfg.Tables), d.Parent):
		return fmt.Sprintf("table %s, whose partition it was, is not configured any more", d.Parent)
	}
	return ""
}

// dropDetached waits until everything that was inserted before the partition was
// detached is published and saved, and publication and tables were found in order
// later than that, and drops it.
func (s *session) dropDetached(ctx context.Context, c *catalog.Session, d catalog.Detached) error {
	if err := s.mayDelete(ctx, c); err != nil {
		return err
	}
	if err := s.awaitPublished(ctx, d.LSN); err != nil {
		return err
	}
	if err := c.Drop(ctx, d, s.r.cfg.Retention.LockTimeout, func(ctx context.Context) error { return s.mayDelete(ctx, c) }); err != nil {
		return s.notNow(err)
	}
	s.log.Info("dropped a partition whose rows are published", zap.Stringer("partition", d.TableName), zap.Stringer("lsn", d.LSN))
	s.r.noteDropped(d)
	return nil
}

// dropOldPartitions detaches and drops the partitions that are old enough as a
// whole, the oldest first. Before the first, all that is written by then is
// published, and before another the one before was dropped: so nothing is detached
// that would then wait for Kafka.
func (s *session) dropOldPartitions(ctx context.Context, c *catalog.Session, tables []catalog.PartitionedTable, found *problems) (more bool, err error) {
	n := 0
	for _, t := range tables {
		for _, p := range oldPartitions(t, s.r.cfg.Retention.After) {
			if why := s.keepPartition(t, p); why != "" {
				found.add("partition %s is old and not dropped: %s", p, why)
				continue
			}
			if n++; n > roundPartitions {
				return true, nil
			}
			if n == 1 {
				err = s.awaitAllPublished(ctx, c)
			}
			if err == nil {
				err = s.dropPartition(ctx, c, t, p)
			}
			if err != nil {
				return false, found.note(err)
			}
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case <-time.After(s.r.cfg.Retention.Pause):
			}
		}
	}
	return false, nil
}

// oldPartitions returns those whose rows are all older than age, the oldest first.
func oldPartitions(t catalog.PartitionedTable, age time.Duration) []catalog.RangePartition {
	var old []catalog.RangePartition
	for _, p := range t.Partitions {
		if !p.Default && (!p.Readable() || !p.To.IsZero() && !p.To.After(t.Now.Add(-age))) {
			old = append(old, p)
		}
	}
	slices.SortFunc(old, func(a, b catalog.RangePartition) int { return a.To.Compare(b.To) })
	return old
}

// keepPartition tells why an old partition is left alone; "" when it may be
// dropped.
func (s *session) keepPartition(t catalog.PartitionedTable, p catalog.RangePartition) string {
	switch {
	case !p.Readable():
		return "its bound is not understood: " + p.Bound
	case p.Attached:
		return "it was attached, and not made as a partition, so that it may hold rows that were never published"
	case p.Pending:
		return "a DETACH CONCURRENTLY of it has not ended: run ALTER TABLE ... DETACH PARTITION ... FINALIZE"
	case p.Kind == catalog.KindPartitioned:
		return "it is partitioned itself"
	case p.Kind != catalog.KindTable || p.Persistence != catalog.Permanent:
		return "it is not an ordinary logged table, and its rows are not published"
	case p.Owner != t.Owner:
		return fmt.Sprintf("its owner is %s, and that of the table %s", p.Owner, t.Owner)
	case slices.Contains(tableNames(s.r.cfg.Tables), p.TableName):
		return "it is configured as an outbox table by itself"
	}
	return ""
}

// awaitAllPublished waits until everything that is written by now is published.
func (s *session) awaitAllPublished(ctx context.Context, c *catalog.Session) error {
	if err := s.mayDelete(ctx, c); err != nil {
		return err
	}
	lsn, err := c.WrittenLSN(ctx)
	if err != nil {
		return err
	}
	return s.awaitPublished(ctx, lsn)
}

// dropPartition takes one partition from detaching to dropping.
func (s *session) dropPartition(ctx context.Context, c *catalog.Session, t catalog.PartitionedTable, p catalog.RangePartition) error {
	cfg := s.r.cfg.Retention
	if err := s.awaitUnlocked(ctx, c, t, p); err != nil {
		return err
	}
	note := catalog.Note{SystemID: s.plan.Mark.SystemID, Slot: s.r.cfg.Slot, Epoch: s.plan.Mark.Epoch}
	d, err := c.Detach(ctx, t, p, note, cfg.LockTimeout, func(ctx context.Context) error { return s.mayDelete(ctx, c) })
	if err != nil {
		return s.notNow(err)
	}
	s.r.noteOneDetached(d)
	s.log.Info("detached a partition; it is dropped when everything up to its position is published",
		zap.Stringer("partition", p), zap.Stringer("table", t), zap.Stringer("lsn", d.LSN))
	return s.dropDetached(ctx, c, d)
}

// awaitUnlocked refuses while a transaction holds locks on the table for long. To
// wait for it in the queue would keep all others from inserting for as long.
func (s *session) awaitUnlocked(ctx context.Context, c *catalog.Session, t catalog.PartitionedTable, p catalog.RangePartition) error {
	before, err := c.LockHolders(ctx, t.OID, p.OID)
	if err != nil || len(before) == 0 {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.r.cfg.Retention.LockTimeout):
	}
	now, err := c.LockHolders(ctx, t.OID, p.OID)
	if err != nil {
		return err
	}
	for _, h := range now {
		if slices.Contains(before, h) {
			return errBlocked(fmt.Sprintf("partition %s is not detached: a transaction of process %d (%s in pg_locks) has used %s for longer than retention.lock_timeout, %s, and to wait for it would hold up all that insert",
				p, h.PID, h.Transaction, t, s.r.cfg.Retention.LockTimeout))
		}
	}
	return nil
}

// notNow turns what will pass, or what only a person can change, into a reason.
func (s *session) notNow(err error) error {
	var blocked errBlocked
	switch state := catalog.SQLState(err); {
	case errors.As(err, &blocked):
		return blocked
	case errors.Is(err, catalog.ErrPartitionChanged), state == "55P03":
		return errBlocked(err.Error())
	case state == "42501" || state == "2BP01" || state == "23503" || state == "55000":
		return errBlocked(fmt.Sprintf("%v (it is tried again; drop or grant what the server names)", err))
	}
	return err
}

// noteDetached keeps which tables wait to be dropped.
func (r *Relay) noteDetached(left []catalog.Detached) {
	var names []string
	for _, d := range left {
		names = append(names, d.TableName.String())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.partitions.Detached = names
}

func (r *Relay) noteOneDetached(d catalog.Detached) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.partitions.Detached = append(slices.Clip(r.partitions.Detached), d.TableName.String())
}

func (r *Relay) noteDropped(d catalog.Detached) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.partitions.Dropped++
	r.partitions.Detached = slices.DeleteFunc(slices.Clone(r.partitions.Detached), func(name string) bool { return name == d.TableName.String() })
}

// notePartitionsUntil keeps up to when all tables have partitions.
func (r *Relay) notePartitionsUntil(tables []catalog.PartitionedTable) {
	var least *time.Time
	for _, t := range tables {
		if until := t.CoveredUntil(); !until.IsZero() && (least == nil || until.Before(*least)) {
			least = &until
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.partitions.Until = least
}
