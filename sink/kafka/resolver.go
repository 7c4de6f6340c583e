package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/sink"
)

// lookTimeout bounds one question to the cluster.
const lookTimeout = 10 * time.Second

// resolve finds partitions and leaders. It is the resolver's goroutine.
func (s *Sink) resolve() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		names, refresh, wait := s.dueLooks(time.Now())
		if len(names) > 0 {
			if refresh {
				s.cfg.Cluster.Refresh()
			}
			ctx, cancel := context.WithTimeout(s.ctx, lookTimeout)
			found, err := s.cfg.Cluster.Metadata(ctx, names...)
			cancel()
			s.looked(names, found, err)
			s.readConfigs(names)
			continue
		}
		timer.Reset(wait)
		select {
		case <-s.ctx.Done():
			return
		case <-s.failed:
			return
		case <-s.lookNow:
		case <-timer.C:
		}
	}
}

// dueLooks returns the topics to look at now, or how long there is none. It also
// lets go of what has been idle for long.
func (s *Sink) dueLooks(now time.Time) (names []string, refresh bool, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.usable() != nil {
		return nil, false, time.Hour
	}
	if s.records == 0 && s.flying == 0 {
		s.pool.trim(s.pool.kept, 0)
	}
	wait = s.cfg.LookInterval
	for name, t := range s.topics {
		if due := t.nextLook.Sub(now); due > 0 {
			wait = min(wait, due)
			continue
		}
		if s.evict(t, now) {
			s.retire(t)
			delete(s.topics, name)
			if s.last == t {
				s.last = nil
			}
			continue
		}
		t.nextLook = now.Add(s.cfg.LookInterval)
		names = append(names, name)
	}
	if len(names) > 0 {
		refresh, s.refresh = s.refresh, false
	}
	return names, refresh, wait
}

// evict forgets idle lanes of t, and tells that t itself is idle.
func (s *Sink) evict(t *topic, now time.Time) bool {
	idle := func(ln *lane) bool {
		return ln.state == laneIdle && len(ln.queue) == 0 && now.Sub(ln.idleSince) > s.cfg.IdleTimeout
	}
	left := 0
	for i, ln := range t.lanes {
		if ln != nil && idle(ln) {
			t.keep(ln)
			t.lanes[i] = nil
		} else if ln != nil {
			left++
		}
	}
	for p, ln := range t.strays {
		if idle(ln) {
			t.keep(ln)
			delete(t.strays, p)
		}
	}
	return left+len(t.strays)+len(t.hold.queue) == 0 && t.next == 0 && now.Sub(t.usedAt) > s.cfg.IdleTimeout
}

// looked takes over what the cluster said about topics.
func (s *Sink) looked(names []string, found map[string]broker.Topic, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	if class, code := broker.Classify(err); err != nil {
		s.count.failed(class, code)
		if class == fault.Stop {
			s.fail(err)
			return
		}
	}
	now := time.Now()
	for _, name := range names {
		t := s.topics[name]
		if t == nil {
			continue
		}
		if err != nil {
			s.notFound(t, err, now)
			continue
		}
		f := found[name]
		if f.Err != nil {
			class, code := broker.Classify(f.Err)
			s.count.failed(class, code)
			s.notFound(t, f.Err, now)
			continue
		}
		s.found(t, f.Partitions, now)
	}
	s.notify()
}

// notFound notes why nothing is known of t, in each lane that waits for it.
func (s *Sink) notFound(t *topic, err error, now time.Time) {
	t.err = err
	t.looks++
	t.nextLook = now.Add(s.backoff(t.looks))
	denied := errors.Is(err, kafka.TopicAuthorizationFailed)
	class, code := broker.Classify(err)
	switch {
	case denied:
		t.nextLook = now.Add(s.cfg.HealInterval)
	case errors.Is(err, kafka.UnknownTopicOrPartition):
		err = fmt.Errorf("topic %s does not exist yet; make it, and this goes on by itself (setup --create-topics makes those that the configuration names, but not during a backfill): %w", t.name, err)
	case class == fault.Poison:
		err = fmt.Errorf("topic %q cannot exist: %w", t.name, err)
	}
	t.each(func(ln *lane) {
		if ln.state != laneUnled || len(ln.queue) == 0 {
			return
		}
		switch {
		case denied:
			s.denied(ln, err, now)
		case class == fault.Poison:
			s.refuseHead(ln, err)
		default:
			ln.failing(err, now)
			ln.attempts++
			s.warnFailing(ln, err, code)
		}
	})
}

// found takes over the partitions of t, and moves on the lanes that waited.
func (s *Sink) found(t *topic, parts []broker.Partition, now time.Time) {
	if t.err != nil && t.count == 0 && t.hold.logged {
		s.cfg.Log.Info("topic found", zap.String("topic", t.name), zap.Int("partitions", len(parts)))
	}
	t.err = nil
	t.setLeaders(parts)
	s.recountPartitions(t, int32(len(parts)))
	unled := false
	t.each(func(ln *lane) {
		if ln == t.hold || len(ln.queue) == 0 {
			return
		}
		// A lane queued at a broker that no longer leads it need not wait for that
		// one's requests, which may hang.
		leader := t.leader(ln.partition)
		moved := ln.state == laneReady && leader >= 0 && leader != ln.node
		switch {
		case ln.state != laneUnled && !moved:
		case leader >= 0:
			s.schedule(ln)
		case s.outside(ln, len(parts)):
			s.refuseHead(ln, errNoSuchPartition(t.name, ln.partition, len(parts)))
		default:
			unled = true
			s.leaderless(ln, len(parts), now)
		}
	})
	if unled {
		t.looks++
		t.nextLook = now.Add(s.backoff(t.looks))
		return
	}
	t.looks = 0
}

// outside tells that the head of ln asks by itself for a partition that is not
// there.
func (s *Sink) outside(ln *lane, count int) bool {
	if ln.partition >= 0 && int(ln.partition) < count {
		return false
	}
	c := ln.queue[0].entries()
	e, ok, err := c.next()
	return ok && err == nil && e.note.partition != sink.PartitionByKey
}

func (s *Sink) leaderless(ln *lane, count int, now time.Time) {
	err := error(kafka.LeaderNotAvailable)
	if int(ln.partition) >= count {
		err = fmt.Errorf("topic %s has only %d partitions now; was it made again? %w", ln.topic.name, count, kafka.UnknownTopicOrPartition)
	}
	class, code := broker.Classify(err)
	s.count.failed(class, code)
	ln.attempts++
	ln.failing(err, now)
	s.warnFailing(ln, err, code)
}

// recountPartitions takes a number of partitions at once when nothing that was
// placed by another one is on its way, and otherwise when that is settled.
// Where a lane is halted that would be never: the old number is kept.
func (s *Sink) recountPartitions(t *topic, count int32) {
	switch {
	case count == 0 || count == t.count:
		t.next = 0
	case t.count == 0 || t.records == 0:
		t.count, t.next = count, 0
	case !t.stuck():
		t.next = count
		return
	default:
		return
	}
	s.unloadHold(t)
}

// unloadHold spreads what waits in hold, unless it is halted or being judged.
func (s *Sink) unloadHold(t *topic) {
	if t.count > 0 && t.hold.records > 0 && (t.hold.state == laneUnled || t.hold.state == laneIdle) {
		s.spread(t)
	}
}

// adopt takes the number of partitions that waited for what was on its way.
func (s *Sink) adopt(t *topic) {
	if t.next != 0 && t.records == 0 {
		s.cfg.Log.Info("topic has another number of partitions; keys may move", zap.String("topic", t.name),
			zap.Int32("from", t.count), zap.Int32("to", t.next))
		s.recountPartitions(t, t.next)
	}
}

// unhold gives up waiting for another number of partitions, because a lane of
// the topic is halted.
func (s *Sink) unhold(t *topic) {
	if t.next == 0 {
		return
	}
	t.next = 0
	s.unloadHold(t)
}

// readConfigs learns max.message.bytes of new topics. It is only an
// optimisation: without the privilege, a batch that is too large is split.
func (s *Sink) readConfigs(names []string) {
	for _, name := range names {
		s.mu.Lock()
		t := s.topics[name]
		due := t != nil && t.count > 0 && time.Now().After(t.configAt)
		if due {
			t.configAt = time.Now().Add(time.Hour)
		}
		s.mu.Unlock()
		if !due || s.ctx.Err() != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
		conf, err := s.cfg.Cluster.TopicConfig(ctx, name)
		cancel()
		if err != nil {
			s.cfg.Log.Debug("the topic's configuration cannot be read", zap.String("topic", name), zap.Error(err))
			return // ask for the others later, so that leaders are not kept waiting
		}
		if n, err := strconv.Atoi(conf["max.message.bytes"]); err == nil && n > 0 {
			s.mu.Lock()
			t.maxBatch = n
			s.mu.Unlock()
		}
	}
}
