package e2e

import (
	"slices"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/netproxy"
)

// Proxy is a TCP proxy on loopback that can cut, freeze and delay what passes through it.
type Proxy = netproxy.Proxy

// NewProxy starts a proxy on a free port, which ends with the test; connections fail until SetTarget.
func NewProxy(t testing.TB) *Proxy {
	t.Helper()
	p, err := netproxy.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// KafkaProxy is a netproxy.KafkaProxy that ends with the test.
//
//	proxy, k := e2e.KafkaBehindProxy(t, kafkaserver.Options{})
//	proxy.WithholdAcks(topic)  // other topics, and all other requests, pass
//	...
//	proxy.Release()
type KafkaProxy struct{ *netproxy.KafkaProxy }

// NewKafkaProxy starts a proxy on a free port. The broker behind it must advertise the proxy's address.
func NewKafkaProxy(t testing.TB) *KafkaProxy {
	t.Helper()
	p, err := netproxy.NewKafka()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return &KafkaProxy{p}
}

// DeliverLate gives the broker the requests that were delayed, and returns the error code of each topic-partition in them.
func (p *KafkaProxy) DeliverLate(t testing.TB) map[string]int16 {
	t.Helper()
	codes, err := p.KafkaProxy.DeliverLate()
	if err != nil {
		t.Fatal(err)
	}
	return codes
}

// KafkaBehindProxy starts a broker of this test's own that tells its clients to connect to the proxy. The cluster's Addr is
// the proxy's too; the broker itself is reached by Direct.
func KafkaBehindProxy(t testing.TB, opts kafkaserver.Options) (*KafkaProxy, *Cluster) {
	t.Helper()
	p := NewKafkaProxy(t)
	// A second listener advertises the broker itself, so that the test's own consumer does not go through the proxy.
	opts.Advertised = p.Addr()
	opts.Listeners = append(slices.Clone(opts.Listeners), kafkaserver.Listener{Name: directListener, Protocol: "PLAINTEXT"})
	k := ExclusiveKafka(t, opts)
	k.RequireReal(t)
	p.SetTarget(k.KafkaControl.Addr())
	k.KafkaControl = &proxiedBroker{k.KafkaControl, k.Broker}
	return p, k
}

const directListener = "DIRECT"

// proxiedBroker answers with the direct listener's address: the relay is given the proxy's, all else goes direct.
type proxiedBroker struct {
	KafkaControl
	broker *kafkaserver.Broker
}

func (b *proxiedBroker) Addr() string { return b.broker.ListenerAddr(directListener) }
