package inbox

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// A marker whose event is a dead letter, or was one until lately, stays: the event may
// come again.
const (
	deleteMarkers = "DELETE FROM public.inbox WHERE ctid = ANY (ARRAY(SELECT i.ctid FROM public.inbox i" +
		" WHERE i.consumer = $1 AND i.processed_at < now() - $2::float8 * interval '1 second'%s" +
		" ORDER BY i.processed_at LIMIT $3::integer FOR UPDATE OF i SKIP LOCKED))"
	notDead = " AND NOT EXISTS (SELECT FROM public.inbox_dead_letters d WHERE d.consumer = i.consumer AND d.event_id = i.event_id" +
		" AND (d.state = 'open' OR d.changed_at >= now() - $2::float8 * interval '1 second'))"
	openLetters = "SELECT count(*) || ' ' || coalesce(extract(epoch FROM now() - min(failed_at)), 0) FROM public.inbox_dead_letters WHERE consumer = $1 AND state = 'open'"
)

// cleanup deletes old markers until ctx ends.
func (r *Runner) cleanup(ctx context.Context) {
	if r.cfg.Cleanup.Keep == 0 {
		return
	}
	for {
		deleted, err := r.cleanOnce(ctx)
		if deleted > 0 {
			r.cfg.Observe(Event{Kind: CleanedUp, N: deleted})
		}
		if err != nil && ctx.Err() == nil {
			r.cfg.Observe(Event{Kind: CleanupFailed, Err: err})
		}
		if !sleep(ctx, r.cfg.Cleanup.Every) {
			return
		}
	}
}

// cleanOnce deletes all that is old enough, in transactions of a batch each. Every
// time it looks at the topics again: their retention may have been raised since.
func (r *Runner) cleanOnce(ctx context.Context) (deleted int64, err error) {
	if err := r.check(ctx); err != nil {
		return 0, err
	}
	only := ""
	if r.cfg.DeadLetterTopic != "" {
		only = notDead
	}
	for {
		var n int64
		err := r.begin.within(ctx, func(s session) (err error) {
			n, err = s.exec(ctx, fmt.Sprintf(deleteMarkers, only), r.cfg.Consumer, r.cfg.Cleanup.Keep.Seconds(), r.cfg.Cleanup.Batch)
			return err
		})
		if err != nil {
			return deleted, fmt.Errorf("delete markers of %s older than %v: %w", r.cfg.Consumer, r.cfg.Cleanup.Keep, err)
		}
		deleted += n
		if n < int64(r.cfg.Cleanup.Batch) {
			return deleted, nil
		}
	}
}

// observeLetters tells how many dead letters are open, and since when.
func (r *Runner) observeLetters(ctx context.Context) {
	if r.cfg.DeadLetterTopic == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, abortDeadline)
	defer cancel()
	var lines []string
	err := r.begin.within(ctx, func(s session) (err error) {
		lines, err = s.texts(ctx, openLetters, r.cfg.Consumer)
		return err
	})
	var n int64
	var age string
	if err != nil || len(lines) != 1 {
		return // the workers tell of a database that is away
	}
	if _, err := fmt.Sscan(lines[0], &n, &age); err != nil {
		return
	}
	seconds, err := strconv.ParseFloat(age, 64)
	if err != nil {
		return
	}
	r.cfg.Observe(Event{Kind: DeadLetterAge, N: n, Age: time.Duration(seconds * float64(time.Second))})
}
