package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/preflight"
)

// Retention deletes published rows from the outbox tables, or drops partitions of
// them. The zero value keeps them.
type Retention struct {
	After       time.Duration // age of a row that may be deleted; zero: none is
	Interval    time.Duration // between two rounds, when little is left to do
	BatchRows   int           // of one DELETE
	Pause       time.Duration // after each DELETE, or partition
	LockTimeout time.Duration // of one DELETE, or change of partitions
	// Columns tell a row's age, one for each of Config.Tables.
	Columns []string
	// Partitions: whole partitions are dropped, and no row is deleted.
	Partitions *Partitions
}

const (
	// roundBatches are looked for at once: the wait until they are published is
	// shared.
	roundBatches = 20
	// publishTimeout is how long a round waits for what it has found to be published.
	publishTimeout = time.Minute
	publishPoll    = 50 * time.Millisecond
)

// RetentionStatus is what retention has done since the process started.
type RetentionStatus struct {
	Deleted uint64 `json:"deleted"` // rows
	// Partitions is nil where rows are deleted.
	Partitions *PartitionStatus `json:"partitions,omitempty"`
	// Blocked tells why nothing is deleted now, or what else is wrong; "" when
	// nothing stands in the way.
	Blocked string `json:"blocked,omitempty"`
}

// errBlocked says why nothing may be deleted now.
type errBlocked string

func (e errBlocked) Error() string { return string(e) }

// retain deletes old rows while the session lives. What keeps it from that is
// told, and ends neither the session nor the attempts.
func (s *session) retain(ctx context.Context) error {
	cfg := s.r.cfg.Retention
	if cfg.After == 0 {
		return nil
	}
	once := s.retainOnce
	if cfg.Partitions != nil {
		once = s.retainPartitions
	}
	s.log.Info(cfg.what(), zap.Duration("after", cfg.After))
	for {
		more, err := once(ctx)
		if ctx.Err() == nil {
			s.r.noteRetention(err)
		}
		wait := cfg.Interval
		if more {
			wait = cfg.Pause
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// retainOnce deletes up to one round of old rows from each table. more tells that
// there may be more of them.
func (s *session) retainOnce(ctx context.Context) (more bool, err error) {
	if err := s.mayDelete(ctx, nil); err != nil { // before it connects
		return false, err
	}
	c, err := s.openRetention(ctx)
	if err != nil {
		return false, err
	}
	defer c.Close(ctx)
	var failed error
	var attached []string
	for i, name := range tableNames(s.r.cfg.Tables) {
		t, err := c.AgedTable(ctx, name, s.r.cfg.Retention.Columns[i])
		if err != nil {
			return false, err
		}
		full, err := s.retainTable(ctx, c, t)
		if err != nil {
			failed = errors.Join(failed, err) // what is in the way of one table is not in that of another
			continue
		}
		more = more || full
		names, err := c.AttachedPartitions(ctx, t)
		if err != nil {
			return false, err
		}
		attached = append(attached, names...)
	}
	if failed != nil {
		return more, failed
	}
	if len(attached) > 0 {
		return more, errBlocked(fmt.Sprintf("of partitions that were attached and not made as partitions, or are unlogged or foreign, no row is deleted, since they may hold rows that were never published: %s", strings.Join(attached, ", ")))
	}
	return more, nil
}

// openRetention connects to the server of the stream.
func (s *session) openRetention(ctx context.Context) (*catalog.Session, error) {
	cfg, err := s.r.cfg.Connect()
	if err != nil {
		return nil, err
	}
	octx, cancel := context.WithTimeout(ctx, connectTimeout)
	c, err := catalog.Open(octx, cfg, s.r.cfg.ApplicationName+" (retention)")
	cancel()
	if err != nil {
		return nil, catalog.Explain(fmt.Errorf("connect to the database: %w", err))
	}
	server, err := c.Server(ctx)
	if err == nil {
		err = s.sameServer(server)
	}
	if err != nil {
		c.Close(ctx)
		return nil, err
	}
	return c, nil
}

// sameServer refuses another server than that of the stream, or another run of it:
// source.host may name several, and their positions cannot be compared.
func (s *session) sameServer(server catalog.Server) error {
	if !s.streamsFrom(server) {
		return errBlocked(fmt.Sprintf("the connection reached another server than the stream (in recovery: %t, started %s and %s), so that it is not known what of its rows is published, nor whose its slots are",
			server.InRecovery, server.StartedAt.UTC().Format(time.RFC3339), s.startedAt.UTC().Format(time.RFC3339)))
	}
	return nil
}

// streamsFrom tells that this is the server, and the run of it, that the stream is from.
func (s *session) streamsFrom(server catalog.Server) bool {
	return !server.InRecovery && server.StartedAt.Equal(s.startedAt)
}

// retainTable deletes old rows of one table, in this order: the rows are read, and
// with them exactly the versions that will be deleted; then the WAL's insert
// position, which no commit of theirs is above; then it waits until everything up
// to there is published, saved, and found in order by watch; then they are
// deleted. So whatever was not visible when the rows were read stays, also when
// its transaction began before.
func (s *session) retainTable(ctx context.Context, c *catalog.Session, t catalog.AgedTable) (full bool, err error) {
	cfg := s.r.cfg.Retention
	if err := s.mayDelete(ctx, c); err != nil {
		return false, err
	}
	limit := cfg.BatchRows * roundBatches
	rows, err := c.OldRows(ctx, t, cfg.After, limit)
	if err != nil || len(rows) == 0 {
		return false, denied(err, t)
	}
	lsn, err := c.WrittenLSN(ctx)
	if err != nil {
		return false, err
	}
	if err := s.awaitPublished(ctx, lsn); err != nil {
		return false, err
	}
	deleted := int64(0)
	for left := rows; len(left) > 0; {
		batch := left[:min(len(left), cfg.BatchRows)]
		left = left[len(batch):]
		if err := s.mayDelete(ctx, c); err != nil {
			return false, err
		}
		n, err := c.DeleteOld(ctx, t, cfg.After, batch, cfg.LockTimeout)
		if err != nil {
			return false, denied(err, t)
		}
		s.r.deleted.Add(uint64(n))
		deleted += n
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(cfg.Pause):
		}
	}
	return len(rows) == limit, noneDeleted(deleted, len(rows), t)
}

// noneDeleted tells of rows that were found and stay, however often they are deleted.
func noneDeleted(deleted int64, found int, t catalog.AgedTable) error {
	if deleted > 0 {
		return nil
	}
	return errBlocked(fmt.Sprintf("none of the %d rows of %s that were to be deleted was: a trigger or a policy of row-level security keeps them, or somebody else changed or deleted them in the meantime", found, t))
}

// denied names the privileges where the role lacks one.
func denied(err error, t catalog.AgedTable) error {
	if catalog.SQLState(err) != "42501" {
		return err
	}
	return errBlocked(fmt.Sprintf("the relay's role may not read and delete rows of %s: GRANT SELECT, DELETE ON %s to it", t, t.SQL()))
}

// mayDelete returns why nothing may be deleted. With a session it also asks
// whether publication and tables are those whose rows are published.
func (s *session) mayDelete(ctx context.Context, c *catalog.Session) error {
	switch gaps := checkpoint.OfRows(s.r.gaps()); {
	case len(gaps) > 0:
		return errBlocked(fmt.Sprintf("%d open gap(s): rows that may never have been published are not told from the others, so none is deleted", len(gaps)))
	case c == nil:
		return nil
	}
	p, ok, err := c.Publication(ctx, s.r.cfg.Publication)
	if err != nil {
		return err
	}
	if !ok {
		return errBlocked(fmt.Sprintf("publication %q does not exist", s.r.cfg.Publication))
	}
	for _, t := range tableNames(s.r.cfg.Tables) {
		if pt, ok := p.Table(t); !ok {
			return errBlocked(fmt.Sprintf("table %s is not in publication %q", t, p.Name))
		} else if pt.RowFilter != "" {
			return errBlocked(fmt.Sprintf("publication %q has a row filter on table %s: rows that it leaves out are never published, and would be deleted", p.Name, t))
		}
	}
	return s.unchanged(ctx, c)
}

// unchanged compares publication and tables with what watch found in order last.
func (s *session) unchanged(ctx context.Context, c *catalog.Session) error {
	now, err := c.Identities(ctx, s.r.cfg.Publication, tableNames(s.r.cfg.Tables))
	if err != nil {
		return err
	}
	was := s.checked.Load()
	gone, err := c.Gone(ctx, s.plan.Mark.SystemID, s.r.cfg.Slot, was.Relations, now.Relations)
	if err != nil {
		return err
	}
	if err := preflight.Changed(was.Publication, was.Relations, now, gone, was.lsn, was.lsn); err != nil {
		return errBlocked("publication or tables have changed: " + err.Error())
	}
	return nil
}

// awaitPublished waits until all transactions up to lsn are published and the mark
// that says so is saved, and until publication and tables were found in order at a
// later position.
func (s *session) awaitPublished(ctx context.Context, lsn pglogrepl.LSN) error {
	deadline := time.Now().Add(publishTimeout)
	poll := time.NewTicker(publishPoll)
	defer poll.Stop()
	for lsnOr0(&s.durable) < lsn || s.checked.Load().lsn < lsn {
		if time.Now().After(deadline) {
			return errBlocked(fmt.Sprintf("events up to %s are not all published and saved after %s; the mark is at %s", lsn, publishTimeout, lsnOr0(&s.durable)))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-poll.C:
		}
	}
	return nil
}

// noteRetention keeps, and logs when it changes, what keeps rows from being
// deleted.
func (r *Relay) noteRetention(err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	r.mu.Lock()
	was := r.retentionBlocked
	r.retentionBlocked = why
	r.mu.Unlock()
	var blocked errBlocked
	switch {
	case why == was:
	case err == nil:
		r.log.Info("nothing is in the way of retention any more: " + r.cfg.Retention.what())
	case errors.As(err, &blocked) && r.cfg.Retention.Partitions != nil:
		r.log.Warn("retention of partitions is held up: "+why, zap.Duration("next_attempt", r.cfg.Retention.Interval))
	case errors.As(err, &blocked):
		r.log.Warn("published rows are not deleted: "+why, zap.Duration("next_attempt", r.cfg.Retention.Interval))
	default:
		r.log.Warn("retention failed; trying again", zap.Error(err), zap.Duration("next_attempt", r.cfg.Retention.Interval))
	}
}

// what says what is done.
func (c Retention) what() string {
	if c.Partitions != nil {
		return "old partitions of the outbox tables are dropped when they are published"
	}
	return "published rows are deleted from the outbox tables"
}
