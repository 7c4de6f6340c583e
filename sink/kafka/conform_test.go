package kafka

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/sink/sinktest"
)

func TestSink_Conforms(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Peer { return conformPeer(t, "none") })
}

func TestSink_ConformsCompressed(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Peer { return conformPeer(t, "lz4") })
}

func conformPeer(t *testing.T, codec string) sinktest.Peer {
	kf, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.SeedTopics(4, "t"), kfake.SleepOutOfOrder(),
		kfake.BrokerConfigs(map[string]string{"message.max.bytes": "16777216"}))
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := broker.Open(broker.Config{Brokers: kf.ListenAddrs(), MetadataTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(testContext(t), Config{Cluster: cluster, BudgetBytes: sinktest.Budget, MaxBatchBytes: 64 << 10,
		Compression: codec, RequestTimeout: 10 * time.Second, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	addrs := kf.ListenAddrs()
	return sinktest.Peer{
		Sink: s, Topic: "t", Partitions: 4,
		Hold: func() func() { return holdProduce(kf) },
		Read: func(t *testing.T, n int) map[int32][]string {
			out := make(map[int32][]string)
			for p, rs := range consume(t, addrs, "t", n) {
				for _, r := range rs {
					out[p] = append(out[p], strings.TrimRight(string(r.Value), "."))
				}
			}
			return out
		},
		Cleanup: func() {
			_ = cluster.Close()
			kf.Close()
		},
	}
}

// holdProduce keeps produce requests from being handled until release is called.
func holdProduce(kf *kfake.Cluster) (release func()) {
	released := make(chan struct{})
	kf.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		select {
		case <-released:
			kf.DropControl()
		default:
			kf.KeepControl()
			kf.SleepControl(func() { <-released })
		}
		return nil, nil, false
	})
	var once sync.Once
	return func() { once.Do(func() { close(released) }) }
}
