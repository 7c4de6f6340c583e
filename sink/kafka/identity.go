package kafka

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/fault"
)

// A lane writes as an idempotent producer: each batch carries a producer id, an
// epoch, and a sequence number for its first record. Per partition a broker
// remembers the last sequence of a producer, and its last five batches. It
// answers a batch that it has with success, without writing it again, and takes
// a new one only when its sequence follows.
//
// All lanes begin with one producer id, which the sink asks for once. From then
// on the identity is the lane's own: a broker keeps it per partition.
//
// Invariant: under one id and epoch a sequence number never stands for two
// different records, unless it is proven that the first was not written and will
// not be. Otherwise a broker would answer the second with success, for it has
// that number, and the record would be lost. So a head that may have been
// written, or is still on its way, and that is not sent again as it is (Abort
// drops it, it is split, it is parked) takes its identity with it: the lane goes
// on in the next epoch, at sequence 0. A broker that has seen that epoch refuses
// whatever comes late from an earlier one.

// producer identifies who writes a batch, and the sequence of its first record.
type producer struct {
	id       int64
	epoch    int16
	sequence int32
}

// noProducer is nobody: a batch in its name is written as often as it is sent.
var noProducer = producer{id: -1, epoch: -1, sequence: -1}

// known tells that p is somebody.
func (p producer) known() bool { return p.id >= 0 }

// after is p when n more records are written. After the largest sequence comes 0.
func (p producer) after(n int) producer {
	p.sequence = int32((int64(p.sequence) + int64(n)) & math.MaxInt32)
	return p
}

// maxRetired bounds the topics that were let go and whose identities are kept.
const maxRetired = 10000

// named gives a lane an identity; false while there is none. s.mu is held.
func (s *Sink) named(ln *lane) bool {
	if !ln.who.known() {
		ln.who = s.who
	}
	if ln.who.known() {
		return true
	}
	nudge(s.nameNow)
	return false
}

// passed moves the sequence of a lane past its head, which is settled. s.mu is
// held.
func (s *Sink) passed(ln *lane, b *batch, parked bool) {
	switch {
	case !parked:
		ln.who = ln.who.after(b.records())
	case b.unsure:
		s.renew(ln)
	}
}

// renew has a lane go on as nobody that the brokers know, at sequence 0: in the
// next epoch, which needs no broker, or with another id when there is none. s.mu
// is held, and nothing of the lane is in flight.
func (s *Sink) renew(ln *lane) {
	if !ln.who.known() {
		return
	}
	if ln.who.epoch == math.MaxInt16 {
		s.unname(ln)
		return
	}
	ln.who.epoch++
	ln.who.sequence = 0
}

// unname has a lane take another id. s.mu is held.
func (s *Sink) unname(ln *lane) {
	if ln.who.id == s.who.id {
		s.who = noProducer
		nudge(s.nameNow)
	}
	ln.who = noProducer
}

var errSplitUnsure = errors.New("a batch that may have been written is split")

// resetIdentity has a lane begin anew as another producer, and send its head
// again, which may have been written. s.mu is held.
//
// Order stays. Nothing of the lane is in flight, but a request that timed out
// may still wait at the broker. It holds the head, or a batch that was acked
// before it. The latter is in the log: a broker takes it for a copy, or refuses
// it for its old sequence. The head is written before the one that is sent now,
// which is then its copy, or after it, and is refused for its old epoch.
func (s *Sink) resetIdentity(ln *lane, b *batch, err error, code string) {
	if errors.Is(err, kafka.InvalidProducerEpoch) || errors.Is(err, errProducerFenced) {
		s.unname(ln) // somebody else uses this id
	} else {
		s.renew(ln)
	}
	b.unsure = false // in the new name it was never sent
	s.count.resets++
	s.cfg.Log.Warn("topic-partition goes on as another producer; records may be written twice", zap.String("topic", ln.topic.name),
		partitionField(ln.partition), zap.String("code", code), zap.Error(err))
}

// errProducerFenced is what newer brokers may say for INVALID_PRODUCER_EPOCH.
const errProducerFenced = kafka.Error(90)

// identityLost tells that a broker refused a batch because of its identity: it
// does not know the producer any more, or knows another sequence or epoch.
func identityLost(err error) bool {
	return errors.Is(err, kafka.OutOfOrderSequenceNumber) || errors.Is(err, kafka.UnknownProducerId) ||
		errors.Is(err, kafka.InvalidProducerEpoch) || errors.Is(err, errProducerFenced)
}

// notAllowed tells that the privilege to write is missing, as it may be for a
// while.
func notAllowed(err error) bool {
	return errors.Is(err, kafka.TopicAuthorizationFailed) || errors.Is(err, kafka.ClusterAuthorizationFailed)
}

// provesUnwritten tells that a broker answered for this batch, and did so before
// it wrote anything. All else proves nothing: not even NOT_LEADER_OR_FOLLOWER,
// which a leader also says that was deposed after it wrote.
func provesUnwritten(err error, class fault.Class) bool {
	var ke kafka.Error
	return errors.As(err, &ke) && (class == fault.Poison || identityLost(err) || notAllowed(err))
}

// retire keeps the identities of a topic that is let go: under the same id its
// sequences must go on where they ended. s.mu is held.
func (s *Sink) retire(t *topic) {
	if len(t.kept) == 0 {
		return
	}
	if len(s.retired) >= maxRetired {
		// Forgotten ones must not begin again with the same id.
		clear(s.retired)
		s.who = noProducer
		nudge(s.nameNow)
	}
	s.retired[t.name] = t.kept
}

// unretire gives a topic that is used again its identities. s.mu is held.
func (s *Sink) unretire(t *topic) {
	t.kept = s.retired[t.name]
	delete(s.retired, t.name)
}

// identify asks for a producer id whenever there is none. It is the identifier's
// goroutine.
func (s *Sink) identify() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.failed:
			return
		case <-timer.C:
		case <-s.nameNow:
			if failures > 0 {
				continue // the timer says when to ask again
			}
		}
		if !s.nameless() {
			continue
		}
		ctx, cancel := context.WithTimeout(s.ctx, lookTimeout)
		id, epoch, err := s.cfg.Cluster.InitProducerID(ctx)
		cancel()
		if err == nil {
			failures = 0
			s.identified(producer{id: id, epoch: epoch})
			continue
		}
		failures++
		timer.Reset(s.unidentified(err, failures))
	}
}

func (s *Sink) nameless() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.who.known()
}

// identified takes a producer id, and moves on the lanes that waited for one.
func (s *Sink) identified(who producer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.who = who
	s.cfg.Log.Debug("producer id", zap.Int64("id", who.id), zap.Int16("epoch", who.epoch))
	for _, t := range s.topics {
		t.each(func(ln *lane) {
			if ln.state == laneUnnamed {
				s.schedule(ln)
			}
		})
	}
}

// unidentified notes, in each lane that waits for an id, why there is none, and
// returns when to ask again.
func (s *Sink) unidentified(err error, failures int) (pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return time.Hour
	}
	class, code := broker.Classify(err)
	s.count.failed(class, code)
	denied, now := notAllowed(err), time.Now()
	if class == fault.Stop && !denied {
		s.fail(err)
		return time.Hour
	}
	for _, t := range s.topics {
		t.each(func(ln *lane) {
			if ln.state != laneUnnamed {
				return
			}
			if denied {
				s.denied(ln, err, now)
				return
			}
			ln.failing(err, now)
			s.warnFailing(ln, err, code)
		})
		if t.stuck() {
			s.unhold(t)
		}
	}
	s.notify()
	if denied {
		return s.cfg.HealInterval
	}
	return s.backoff(failures)
}
