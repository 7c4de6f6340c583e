package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/segmentio/kafka-go"
)

const (
	lagEvery     = 10 * time.Second
	lettersEvery = 30 * time.Second
	joinPause    = time.Second
)

// Run handles records until ctx ends, and returns nil when handlers have ended, within
// Config.Grace, and offsets are committed. While PostgreSQL or Kafka is away at the
// start it waits, observed as Waiting, for Config.StartTimeout at most. It returns an error
// at the start for what only a person can mend: a missing table, topic, database or
// privilege, a wrong password or certificate, a dead-letter topic that forgets, a cleanup that
// would delete markers too soon. Afterwards it goes on, whatever happens to Kafka and
// PostgreSQL. It may be called once.
func (r *Runner) Run(ctx context.Context) error {
	defer r.cluster.close()
	ready, err := r.awaitStart(ctx)
	if err != nil {
		return fmt.Errorf("start the inbox of %s: %w", r.cfg.Consumer, err)
	}
	if !ready {
		return nil
	}
	topics := r.cfg.Topics
	if r.cfg.RetryTopic != "" {
		topics = append(topics[:len(topics):len(topics)], r.cfg.RetryTopic)
	}
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: r.cfg.Group, Brokers: r.cfg.Brokers, Dialer: r.cluster.dialer, Topics: topics,
		// From the beginning: what was written before the first join, or to a partition before
		// it was noticed, would be lost.
		StartOffset:           kafka.FirstOffset,
		WatchPartitionChanges: true,
		SessionTimeout:        r.cfg.SessionTimeout,
		HeartbeatInterval:     r.cfg.SessionTimeout / 10,
		// A member that still drains is not put out of the group.
		RebalanceTimeout: r.cfg.Grace + r.cfg.SessionTimeout,
		JoinGroupBackoff: joinPause,
	})
	if err != nil {
		return fmt.Errorf("start the inbox of %s: %w", r.cfg.Consumer, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { r.cleanup(ctx) })
	defer wg.Wait()
	defer func() { _ = group.Close() }() // waits for the workers, and leaves the group; its error is always nil
	for {
		gen, err := group.Next(ctx)
		switch {
		case err == nil:
			r.generation(ctx, gen)
		case ctx.Err() != nil:
			return nil
		default:
			r.cfg.Observe(Event{Kind: GroupFailed, Err: err})
		}
	}
}

// generation starts a worker per assigned partition. They belong to the generation,
// which ends after all of them have.
func (r *Runner) generation(ctx context.Context, gen *kafka.Generation) {
	var workers []*worker
	for topic, assigned := range gen.Assignments {
		for _, a := range assigned {
			workers = append(workers, &worker{r: r, gen: gen, topic: topic, partition: a.ID, begin: a.Offset})
		}
	}
	for _, w := range workers {
		gen.Start(func(stop context.Context) {
			// Handlers may go on for a while after stop.
			var end context.CancelFunc
			w.stop = stop
			w.work, end = context.WithCancel(context.WithoutCancel(ctx))
			defer end()
			defer context.AfterFunc(stop, func() {
				select {
				case <-time.After(r.cfg.Grace):
					end()
				case <-w.work.Done():
				}
			})()
			w.run()
		})
	}
	gen.Start(func(stop context.Context) { r.signals(stop, workers) })
}

// signals observes how far the workers are behind, and the dead letters.
func (r *Runner) signals(stop context.Context, workers []*worker) {
	lag, letters := time.NewTicker(lagEvery), time.NewTicker(lettersEvery)
	defer lag.Stop()
	defer letters.Stop()
	ctx, cancel := context.WithCancel(stop)
	defer cancel()
	r.observeLetters(ctx)
	for {
		select {
		case <-stop.Done():
			return
		case <-lag.C:
			if !r.observeLag(ctx, workers) {
				return // ends the generation, and start tells why
			}
		case <-letters.C:
			r.observeLetters(ctx)
		}
	}
}

// observeLag returns false when a partition ends before what was read of it: it was
// made anew, or has lost its end. Its reader would wait, and begin in the middle.
func (r *Runner) observeLag(ctx context.Context, workers []*worker) (ok bool) {
	topics, read := map[string][]int{}, map[*worker]int64{}
	for _, w := range workers {
		topics[w.topic] = append(topics[w.topic], w.partition)
		read[w] = w.next.Load() // before the ends, which grow
	}
	if len(topics) == 0 {
		return true
	}
	ends, err := r.cluster.ends(ctx, topics)
	if err != nil {
		return true // the next look will tell
	}
	ok = true
	for _, w := range workers {
		if p, found := ends[w.topic][w.partition]; found && w.started.Load() {
			if read[w] > p.LastOffset {
				r.ahead.Store(w.place(), true)
				ok = false
			}
			r.cfg.Observe(Event{Kind: Lag, Topic: w.topic, Partition: w.partition, Offset: w.next.Load(), N: max(0, p.LastOffset-w.next.Load())})
		}
	}
	return ok
}

// databaseAnswers tells a handler that fails from a database that is away.
func (r *Runner) databaseAnswers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, abortDeadline)
	defer cancel()
	return r.begin.within(ctx, func(s session) error {
		_, err := s.exec(ctx, "SELECT 1")
		return err
	})
}

// pauses are those between attempts.
func (r *Runner) pauses() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = r.cfg.BackoffMin, r.cfg.BackoffMax
	b.Reset()
	return b
}

// sleep returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func isParked(err error) bool { return errors.Is(err, errParked) }
