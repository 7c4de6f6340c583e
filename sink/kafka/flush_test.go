package kafka

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/sink"
)

// forgotten names a lane that has records and that neither a flush nor any
// goroutine moves on; flushed tells that Flush has just been called. s.mu is held.
func (s *Sink) forgotten(flushed bool) (name string) {
	for _, t := range s.topics {
		t.each(func(ln *lane) {
			lost := ln.state == laneIdle && len(ln.queue) > 0 && (flushed || !ln.putOff)
			if ln.putOff != slices.Contains(s.unsent, ln) || lost {
				name = t.name + "/" + strconv.Itoa(int(ln.partition))
			}
		})
	}
	if flushed && len(s.unsent) > 0 {
		name = "a lane that is put off after a flush"
	}
	return name
}

// patient publishes as the relay does: in bursts, each flushed, and again from the
// first record that is not acked after an Abort.
type patient struct {
	t     *testing.T
	s     *Sink
	rnd   *rand.Rand
	n     int // records
	acked []atomic.Bool
}

// ackOf acks one record of a patient.
type ackOf struct{ acked *atomic.Bool }

func (a ackOf) Done([]sink.Acked) { a.acked.Store(true) }

func (p *patient) record(i int) *sink.Record {
	topic, part := "t", sink.PartitionByKey
	switch i % 11 {
	case 3:
		topic = "u"
	case 5:
		topic = "later"
	case 7:
		part = int32(i % 5)
	}
	return numbered(topic, part, i)
}

func (p *patient) firstUnacked() int {
	for i := range p.acked {
		if !p.acked[i].Load() {
			return i
		}
	}
	return -1
}

// places are the records of each partition of a topic.
func (p *patient) places(topic string, parts int32) (want map[int32][]int, n int) {
	want = make(map[int32][]int)
	for i := range p.n {
		rec := p.record(i)
		if rec.Topic != topic {
			continue
		}
		at := rec.Partition
		if at == sink.PartitionByKey {
			at = partitionOf(rec.Key, parts)
		}
		want[at] = append(want[at], i)
		n++
	}
	return want, n
}

// run publishes everything, with aborts on the way.
func (p *patient) run(aborts int) {
	for i := 0; i < p.n; {
		for range 1 + p.rnd.IntN(60) {
			if i == p.n {
				break
			}
			ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
			if p.rnd.IntN(50) == 0 {
				ctx, cancel = context.WithTimeout(context.Background(), time.Duration(p.rnd.IntN(3))*time.Millisecond)
			}
			err := p.s.Publish(ctx, p.record(i), sink.Ack{To: ackOf{&p.acked[i]}, Tx: uint64(i)})
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				break
			}
			if err != nil {
				p.t.Fatal(err)
			}
			i++
		}
		if aborts > 0 && p.rnd.IntN(p.n/20) < 20 {
			aborts--
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(p.rnd.IntN(50))*time.Millisecond)
			_ = p.s.Abort(ctx)
			cancel()
			if first := p.firstUnacked(); first >= 0 {
				i = min(i, first)
			}
			continue
		}
		p.s.Flush()
		p.s.mu.Lock()
		name := p.s.forgotten(true)
		p.s.mu.Unlock()
		if name != "" {
			p.t.Fatalf("after a flush nobody moves on %s", name)
		}
		if p.rnd.IntN(8) == 0 {
			time.Sleep(time.Duration(p.rnd.IntN(40)) * time.Millisecond) // long enough for idle lanes to be let go
		}
	}
}

// Whatever goes wrong, each lane with records is moved on by somebody, and what is
// published in bursts, and again after Abort, arrives in order.
func TestFlush_NoLaneIsForgotten(t *testing.T) {
	for _, c := range []struct {
		name   string
		aborts int
		grows  bool
	}{{"Aborts", 12, false}, {"Grows", 0, true}} {
		t.Run(c.name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			kf := startKafka(t, kfake.NumBrokers(3), kfake.SeedTopics(5, "t"), kfake.SeedTopics(2, "u"), kfake.SleepOutOfOrder())
			s := openSink(t, kf.ListenAddrs(), func(c *Config) {
				c.RequestTimeout, c.BudgetBytes, c.MaxBatchBytes = 200*time.Millisecond, 128<<10, 8<<10
				c.LookInterval, c.IdleTimeout = 10*time.Millisecond, 20*time.Millisecond
			})
			p := &patient{t: t, s: s, rnd: rand.New(rand.NewPCG(seed, 1)), n: 3000}
			p.acked = make([]atomic.Bool, p.n)
			calm := trouble(kf, seed)
			end := watchLanes(t, s)
			created := make(chan struct{})
			go func() {
				defer close(created)
				time.Sleep(300 * time.Millisecond)
				createTopic(t, kf.ListenAddrs(), "later", 3)
				if c.grows {
					time.Sleep(200 * time.Millisecond)
					addPartitions(t, kf.ListenAddrs(), "u", 7)
				}
			}()
			p.run(c.aborts)
			<-created
			calm()
			drain(t, s)
			end()
			if i := p.firstUnacked(); i >= 0 {
				t.Fatalf("record %d is not acked", i)
			}
			if c.grows {
				return // who can say which record was placed by which number
			}
			for topic, parts := range map[string]int32{"t": 5, "u": 2, "later": 3} {
				want, n := p.places(topic, parts)
				copies := inOrder(t, consumeAll(t, kf.ListenAddrs(), topic, n), want)
				t.Logf("%s: %d copies, %d resets", topic, copies, s.Stats().ProducerIDResets)
			}
		})
	}
}

// trouble has the cluster lose leaders, connections, answers and requests, until
// the function that it returns is called.
func trouble(kf *kfake.Cluster, seed uint64) (calm func()) {
	rnd := rand.New(rand.NewPCG(seed, 2))
	var still atomic.Bool
	kf.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
		if still.Load() {
			return nil, nil, false
		}
		kf.KeepControl()
		switch rnd.IntN(60) {
		case 0:
			return nil, errors.New("gone"), true
		case 1:
			return nil, nil, true
		case 2:
			kf.SleepControl(func() { time.Sleep(250 * time.Millisecond) })
		}
		return nil, nil, false
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		errs := []*kerr.Error{kerr.NotLeaderForPartition, kerr.RequestTimedOut, kerr.NotEnoughReplicas, kerr.KafkaStorageError, kerr.OutOfOrderSequenceNumber}
		for i := 0; !still.Load(); i++ {
			kf.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: errs[i%len(errs)], Partitions: []int32{int32(i % 5)}, Count: 1})
			_ = kf.MoveTopicPartition("t", int32(i%5), int32(i/2%3))
			time.Sleep(60 * time.Millisecond)
		}
	})
	return func() {
		still.Store(true)
		wg.Wait()
	}
}

// watchLanes looks for forgotten lanes all the time, until end is called.
func watchLanes(t *testing.T, s *Sink) (end func()) {
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Microsecond):
			}
			s.mu.Lock()
			name := s.forgotten(false)
			s.mu.Unlock()
			if name != "" {
				t.Errorf("nobody moves on %s", name)
				return
			}
		}
	})
	return func() {
		close(stop)
		wg.Wait()
	}
}
