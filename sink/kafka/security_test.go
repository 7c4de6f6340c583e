package kafka

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/sink"
)

func plain(password string) broker.SASL {
	return broker.SASL{Mechanism: "plain", Username: "relay", Password: password}
}

// refuseLogins answers as Apache Kafka does to a wrong password; the fake
// cluster by itself only closes the connection.
func refuseLogins(kf *kfake.Cluster) {
	kf.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
		kf.KeepControl()
		res := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		res.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return res, nil, true
	})
}

func TestOpen_WrongPasswordStops(t *testing.T) {
	kf := startKafka(t, kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "relay", "right"))
	refuseLogins(kf)
	cluster, err := broker.Open(broker.Config{Brokers: kf.ListenAddrs(), SASL: plain("wrong")})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	start := time.Now()
	_, err = Open(testContext(t), Config{Cluster: cluster})
	if fault.ClassOf(err) != fault.Stop || time.Since(start) > 5*time.Second {
		t.Fatalf("after %s: %v", time.Since(start), err)
	}
}

func TestSink_WrongPasswordFoundLaterFailsTheSink(t *testing.T) {
	kf, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	addr := kf.ListenAddrs()[0]
	kf.Close()
	cluster, err := broker.Open(broker.Config{Brokers: []string{addr}, SASL: plain("wrong"), DialTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	s, err := Open(testContext(t), Config{Cluster: cluster, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	acks := newAckLog()
	publish(t, s, numbered("t", 0, 1), sink.Ack{To: acks, Tx: 1})
	refuseLogins(startKafka(t, kfake.Ports(portOf(t, addr)), kfake.EnableSASL(), kfake.Superuser("PLAIN", "relay", "right"), kfake.SeedTopics(1, "t")))
	select {
	case <-s.Failed():
	case <-testContext(t).Done():
		t.Fatalf("the sink has not failed; lanes %+v", s.Lanes())
	}
	if fault.ClassOf(s.Err()) != fault.Stop {
		t.Fatal(s.Err())
	}
	if err := s.Publish(testContext(t), numbered("t", 0, 2), sink.Ack{To: acks, Tx: 1}); !errors.Is(err, s.Err()) {
		t.Fatalf("publish: %v", err)
	}
	if err := s.Drain(testContext(t)); !errors.Is(err, s.Err()) {
		t.Fatalf("drain: %v", err)
	}
	if acks.sum() != 0 {
		t.Fatalf("%d acks", acks.sum())
	}
}

func TestOpen_UnknownCompressionStops(t *testing.T) {
	if _, err := Open(testContext(t), Config{Compression: "brotli"}); fault.ClassOf(err) != fault.Stop {
		t.Fatal(err)
	}
}
