package broker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/fault"
)

func TestInitProducerID_IsNewEachTimeAndAsksNoCoordinator(t *testing.T) {
	k := fakeKafka(t, kfake.NumBrokers(3))
	coordinators := k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.FindCoordinator}, Count: -1, Observe: true})
	c := open(t, Config{Brokers: k.ListenAddrs()})
	ctx := within(t, 5*time.Second)
	a, epoch, err := c.InitProducerID(ctx)
	if err != nil || a < 0 || epoch != 0 {
		t.Fatalf("id %d, epoch %d, %v", a, epoch, err)
	}
	b, _, err := c.InitProducerID(ctx)
	if err != nil || a == b {
		t.Fatalf("ids %d and %d, %v", a, b, err)
	}
	if n := coordinators.Hits(); n != 0 {
		t.Errorf("a coordinator was looked for %d times", n)
	}
}

func TestInitProducerID_TellsWhyNot(t *testing.T) {
	k := fakeKafka(t, kfake.NumBrokers(1))
	c := open(t, Config{Brokers: k.ListenAddrs()})
	for _, tt := range []struct {
		err   *kerr.Error
		want  error
		class fault.Class
		words string
	}{
		{kerr.ClusterAuthorizationFailed, kafka.ClusterAuthorizationFailed, fault.Stop, "IDEMPOTENT_WRITE"},
		{kerr.CoordinatorNotAvailable, kafka.GroupCoordinatorNotAvailable, fault.Retry, "producer id"},
	} {
		k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: tt.err, Count: 1})
		_, _, err := c.InitProducerID(within(t, 5*time.Second))
		if class, _ := Classify(err); !errors.Is(err, tt.want) || class != tt.class || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%v: %v", tt.err.Message, err)
		}
	}
	k.Close()
	_, _, err := c.InitProducerID(within(t, 5*time.Second))
	if class, _ := Classify(err); err == nil || class == fault.Stop {
		t.Errorf("a cluster that is away: %v", err)
	}
}
