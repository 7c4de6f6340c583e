package kafka

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/sink"
)

// A request that is in flight when Abort is called, and fails after it, is not
// sent again; what is published after Abort waits for it.
func TestAbort_InFlightIsSettledOnceAndBeforeWhatFollows(t *testing.T) {
	for name, fails := range map[string]bool{"Fails": true, "Succeeds": false} {
		t.Run(name, func(t *testing.T) {
			kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"), kfake.SleepOutOfOrder())
			s := openSink(t, kf.ListenAddrs(), func(c *Config) { c.RequestTimeout = 20 * time.Second })
			var requests atomic.Int32
			released := make(chan struct{})
			kf.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
				kf.KeepControl()
				requests.Add(1)
				kf.SleepControl(func() { <-released })
				return nil, nil, false
			})
			old, late := newAckLog(), newAckLog()
			publish(t, s, numbered("t", 0, 0), sink.Ack{To: old, Tx: 1})
			eventually(t, "the first request is in flight", func() bool { return requests.Load() == 1 })
			publish(t, s, numbered("t", 0, 1), sink.Ack{To: old, Tx: 1})
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			defer cancel()
			if err := s.Abort(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("abort: %v", err)
			}
			if fails {
				kf.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: 1})
			}
			publish(t, s, numbered("t", 0, 10), sink.Ack{To: late, Tx: 2})
			publish(t, s, numbered("t", 0, 11), sink.Ack{To: late, Tx: 2})
			time.Sleep(50 * time.Millisecond) // time for a request that must not come
			if n := requests.Load(); n != 1 {
				t.Fatalf("%d requests while the aborted one is in flight", n)
			}
			close(released)
			drain(t, s)
			want := map[int32][]int{0: {0, 10, 11}}
			if fails {
				want = map[int32][]int{0: {10, 11}}
			}
			if got := old.sum() + 2; got != len(want[0]) || late.sum() != 2 {
				t.Fatalf("%d acks of what was aborted, %d of what followed", old.sum(), late.sum())
			}
			inOrder(t, consume(t, kf.ListenAddrs(), "t", len(want[0])), want)
		})
	}
}

func TestAbort_EndsARefusalInProgress(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	asked := make(chan struct{})
	s := openSink(t, kf.ListenAddrs(), func(c *Config) {
		c.Refused = func(ctx context.Context, _ sink.Refusal, _ *sink.Record) (sink.Verdict, error) {
			close(asked)
			<-ctx.Done()
			return sink.Halt, ctx.Err()
		}
	})
	kf.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, Count: 1})
	acks := newAckLog()
	publish(t, s, numbered("t", 0, 0), sink.Ack{To: acks, Tx: 1})
	<-asked
	if err := s.Abort(testContext(t)); err != nil {
		t.Fatal(err)
	}
	publish(t, s, numbered("t", 0, 1), sink.Ack{To: acks, Tx: 2})
	drain(t, s)
	if acks.of(1) != 0 || acks.of(2) != 1 {
		t.Fatalf("acks %v", acks.n)
	}
}
