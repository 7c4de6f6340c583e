package kafka

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/fault"
)

// kick moves an idle lane that has records on its way.
func (s *Sink) kick(ln *lane) {
	if ln.state == laneIdle && len(ln.queue) > 0 {
		s.schedule(ln)
	}
}

// schedule hands a lane that has records, and that nobody else moves on, to the
// sender of its leader, or to the resolver when that is not known. s.mu is held.
func (s *Sink) schedule(ln *lane) {
	node := int32(-1)
	if ln != ln.topic.hold {
		node = ln.topic.leader(ln.partition)
	}
	if node < 0 {
		ln.state = laneUnled
		if ln != ln.topic.hold || ln.topic.next == 0 {
			s.look(ln.topic)
		}
		return
	}
	if !s.named(ln) {
		ln.state = laneUnnamed
		return
	}
	ln.state, ln.node = laneReady, node
	s.sender(node).push(ln)
}

// look asks the resolver to look at t soon, no sooner than its pause allows.
func (s *Sink) look(t *topic) {
	if t.looks == 0 {
		t.nextLook = time.Time{}
	}
	nudge(s.lookNow)
}

func nudge(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// acked settles the head of a lane. Its ackers have been told. s.mu is held.
func (s *Sink) acked(ln *lane, b *batch, parked bool) {
	if !b.dropped {
		s.uncount(ln, b.records())
	}
	s.passed(ln, b, parked)
	s.count.acked(ln.topic, b, parked)
	ln.hint = b.size()
	if ln.logged {
		s.cfg.Log.Info("topic-partition goes on", zap.String("topic", ln.topic.name), partitionField(ln.partition),
			zap.Int("attempts", ln.attempts), zap.Duration("after", time.Since(ln.since)))
	}
	ln.ok()
	s.next(ln, b)
}

// next lets go of the head and moves the lane on to what is behind it.
func (s *Sink) next(ln *lane, b *batch) {
	ln.pop()
	s.pool.release(b)
	ln.state = laneIdle
	if len(ln.queue) == 0 {
		ln.idleSince = time.Now()
		ln.topic.usedAt = ln.idleSince
	}
	s.kick(ln)
	s.adopt(ln.topic)
	s.notify()
}

// failedAttempt settles a failed attempt of the head. s.mu is held. indexes are the
// records that the broker blames, when it said so.
func (s *Sink) failedAttempt(ln *lane, b *batch, err error, indexes []int32) {
	class, code := broker.Classify(err)
	s.count.failed(class, code)
	b.unsure = b.unsure || !provesUnwritten(err, class)
	lost := identityLost(err)
	if b.dropped {
		if lost || b.unsure {
			s.renew(ln) // what follows must not be taken for this batch
		}
		s.next(ln, b)
		return
	}
	now := time.Now()
	ln.attempts++
	switch {
	case lost:
		ln.failing(err, now)
		s.resetIdentity(ln, b, err, code)
		s.pauseLane(ln, now.Add(s.backoff(ln.attempts)))
	case notAllowed(err):
		s.deny(ln, err, now)
	case class == fault.Poison && b.records() > 1:
		ln.failing(err, now)
		ln.topic.configAt = time.Time{} // the limit that we know may be an old one
		s.narrow(ln, b, indexes)
		ln.state = laneIdle
		s.kick(ln)
	case class == fault.Poison:
		err = tooLarge(ln, b, err)
		ln.failing(err, now)
		s.refuse(ln, err)
	case class == fault.Stop:
		ln.failing(err, now)
		ln.state = laneIdle
		s.fail(err)
	default:
		ln.failing(err, now)
		ln.halted = nil // a missing privilege, if it was one, is there now
		if class == fault.Refresh {
			s.forgetLeader(ln)
		}
		s.warnFailing(ln, err, code)
		s.pauseLane(ln, now.Add(s.backoff(ln.attempts)))
	}
}

// forgetLeader has the leader of the lane looked up again before it is used.
func (s *Sink) forgetLeader(ln *lane) {
	t := ln.topic
	if p := ln.partition; p >= 0 && int(p) < len(t.leaders) {
		t.leaders[p] = -1
	}
	s.refresh = true
	s.look(t)
}

// backoff is the pause after the n-th failed attempt in a row: doubling from
// RetryMin to RetryMax, and jittered down by up to half.
func (s *Sink) backoff(n int) time.Duration {
	d := s.cfg.RetryMax
	if n < 16 {
		d = min(d, s.cfg.RetryMin<<(n-1))
	}
	return d - time.Duration(rand.Int64N(int64(d/2)+1))
}

// pauseLane has the lane wait until the time given.
func (s *Sink) pauseLane(ln *lane, until time.Time) {
	ln.state = laneWaiting
	ln.pause++
	heap.Push(&s.pauses, pause{until: until, lane: ln, number: ln.pause})
	if s.pauses[0].lane == ln {
		nudge(s.wakeNow)
	}
}

// pause is one lane's waiting; it is void when the lane has moved on otherwise.
type pause struct {
	until  time.Time
	lane   *lane
	number int64
}

// pauseHeap is ordered by the end of the pause.
type pauseHeap []pause

func (h pauseHeap) Len() int           { return len(h) }
func (h pauseHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h pauseHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *pauseHeap) Push(x any)        { *h = append(*h, x.(pause)) }
func (h *pauseHeap) Pop() any {
	old := *h
	p := old[len(old)-1]
	old[len(old)-1] = pause{}
	*h = old[:len(old)-1]
	return p
}

// wake moves lanes on when their pause has ended. It is the waker's goroutine.
func (s *Sink) wake() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(s.wakeDue(time.Now()))
		select {
		case <-s.ctx.Done():
			return
		case <-s.wakeNow:
		case <-timer.C:
		}
	}
}

// wakeDue moves on the lanes whose pause has ended, and returns how long the
// next pause lasts.
func (s *Sink) wakeDue(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.pauses) > 0 {
		p := s.pauses[0]
		if wait := p.until.Sub(now); wait > 0 {
			return wait
		}
		heap.Pop(&s.pauses)
		if ln := p.lane; ln.state == laneWaiting && ln.pause == p.number && s.usable() == nil {
			s.schedule(ln)
		}
	}
	return time.Hour
}

// warnLimit keeps a failing cluster from flooding the log.
type warnLimit struct {
	last       time.Time
	suppressed int
}

// warnFailing logs when a lane starts to fail.
func (s *Sink) warnFailing(ln *lane, err error, code string) {
	if ln.warned {
		return
	}
	ln.warned = true
	now := time.Now()
	if now.Sub(s.warn.last) < time.Second {
		s.warn.suppressed++
		return
	}
	s.cfg.Log.Warn("topic-partition cannot be written; trying on", zap.String("topic", ln.topic.name), partitionField(ln.partition),
		zap.String("code", code), zap.Error(err), zap.Int("more_suppressed", s.warn.suppressed))
	s.warn = warnLimit{last: now}
	ln.logged = true
}
