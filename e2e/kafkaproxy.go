package e2e

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
)

// maxFrame bounds what a proxied frame may claim to be, against a stream that is not Kafka's.
const maxFrame = 256 << 20

// KafkaProxy is a Proxy that knows produce requests: it can withhold their answers, so that the broker has the records and the
// client does not know, or withhold the requests themselves.
//
//	proxy, k := e2e.KafkaBehindProxy(t, kafkaserver.Options{})
//	proxy.WithholdAcks(topic)  // other topics, and all other requests, pass
//	...
//	proxy.Release()
type KafkaProxy struct {
	*Proxy

	kmu      sync.Mutex
	acks     *filter
	requests *filter
	held     int // answers that wait, in all connections
	produced int // produce requests that were passed to the broker
	change   chan struct{}
	late     late
}

// filter chooses produce requests by topic.
type filter struct{ topics []string }

func (f *filter) matches(topics []string) bool {
	if f == nil {
		return false
	}
	return len(f.topics) == 0 || slices.ContainsFunc(topics, func(t string) bool { return slices.Contains(f.topics, t) })
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

// NewKafkaProxy starts a proxy on a free port. The broker behind it must advertise the proxy's address.
func NewKafkaProxy(t testing.TB) *KafkaProxy {
	t.Helper()
	p := &KafkaProxy{Proxy: &Proxy{}, change: make(chan struct{})}
	p.pipe = p.pipeKafka
	p.listen(t)
	t.Cleanup(p.notify) // before Close, which waits for the connections
	return p
}

// WithholdAcks keeps the answers to produce requests that name one of the topics (any, when none is given) from the client,
// while the requests reach the broker. Later answers on the same connection wait too, since a connection's answers come in
// order.
func (p *KafkaProxy) WithholdAcks(topics ...string) { p.setFilters(&filter{topics}, nil) }

// WithholdProduce keeps such produce requests from the broker, and what follows them on the same connection.
func (p *KafkaProxy) WithholdProduce(topics ...string) { p.setFilters(nil, &filter{topics}) }

// Release lets everything pass that was withheld, and all that comes.
func (p *KafkaProxy) Release() { p.setFilters(nil, nil) }

// Held is the number of produce answers that the broker gave and the client has not got yet.
func (p *KafkaProxy) Held() int {
	p.kmu.Lock()
	defer p.kmu.Unlock()
	return p.held
}

// Produced is the number of produce requests that the broker was given.
func (p *KafkaProxy) Produced() int {
	p.kmu.Lock()
	defer p.kmu.Unlock()
	return p.produced
}

func (p *KafkaProxy) setFilters(acks, requests *filter) {
	p.kmu.Lock()
	p.acks, p.requests = acks, requests
	p.kmu.Unlock()
	p.notify()
}

func (p *KafkaProxy) notify() {
	p.kmu.Lock()
	defer p.kmu.Unlock()
	close(p.change)
	p.change = make(chan struct{})
}

// kafkaConn is the state of one proxied connection.
type kafkaConn struct {
	mu sync.Mutex
	// produce holds the topics of the produce requests that are not answered yet, by correlation id.
	produce map[int32][]string
	dead    chan struct{} // closed when either direction ended
}

func (p *KafkaProxy) pipeKafka(client, server net.Conn) {
	c := &kafkaConn{produce: map[int32][]string{}, dead: make(chan struct{})}
	var once sync.Once
	end := func() {
		once.Do(func() {
			close(c.dead)
			reset(client)
			server.Close()
		})
	}
	var wg sync.WaitGroup
	wg.Add(2)
	answers := make(chan []byte) // closed by the reader
	go func() {                  // ends with the connection
		defer wg.Done()
		defer end()
		p.passRequests(c, server, client)
	}()
	go func() { // ends with the connection; apart from the writer, so that a cut is seen while answers are withheld
		defer wg.Done()
		defer close(answers)
		for {
			frame, err := readFrame(server)
			if err != nil {
				end()
				return
			}
			select {
			case answers <- frame:
			case <-c.dead:
				return
			}
		}
	}()
	p.passAnswers(c, client, answers)
	end()
	wg.Wait()
}

func (p *KafkaProxy) passRequests(c *kafkaConn, server, client net.Conn) {
	// A reader of its own sees the client's end while a request is withheld.
	requests, gone := make(chan []byte), make(chan struct{}) // closed by the reader, at the client's end
	var wg sync.WaitGroup
	wg.Add(1)
	go func() { // ends with the connection
		defer wg.Done()
		defer close(requests)
		defer close(gone)
		for {
			frame, err := readFrame(client)
			if err != nil {
				return
			}
			select {
			case requests <- frame:
			case <-c.dead:
				return
			}
		}
	}()
	defer wg.Wait()
	defer client.Close()
	for frame := range requests {
		topics, correlation, isProduce := produceTopics(frame[4:])
		if isProduce {
			if !p.await(c, gone, func() bool { return !p.requests.matches(topics) }) {
				return
			}
			if p.delay(topics, frame) {
				continue // the client waits in vain
			}
			c.mu.Lock()
			c.produce[correlation] = topics
			c.mu.Unlock()
			p.kmu.Lock()
			p.produced++
			p.kmu.Unlock()
		}
		if !p.pass(false, func() bool { return p.alive(client) }) {
			return
		}
		if _, err := server.Write(frame); err != nil {
			return
		}
	}
}

func (p *KafkaProxy) passAnswers(c *kafkaConn, client net.Conn, answers <-chan []byte) {
	for frame := range answers {
		correlation := int32(binary.BigEndian.Uint32(frame[4:]))
		c.mu.Lock()
		topics, isProduce := c.produce[correlation]
		delete(c.produce, correlation)
		c.mu.Unlock()
		if isProduce {
			p.count(1)
			ok := p.await(c, nil, func() bool { return !p.acks.matches(topics) })
			p.count(-1)
			if !ok || p.drop(topics) {
				return
			}
		}
		if !p.pass(true, func() bool { return p.alive(client) }) {
			return
		}
		if _, err := client.Write(frame); err != nil {
			return
		}
	}
}

func (p *KafkaProxy) count(n int) {
	p.kmu.Lock()
	p.held += n
	p.kmu.Unlock()
}

// await waits until free, which is asked under the lock at each change of the filters; false when the connection died or gone
// was closed.
func (p *KafkaProxy) await(c *kafkaConn, gone <-chan struct{}, free func() bool) bool {
	for {
		p.kmu.Lock()
		ok, change := free(), p.change
		p.kmu.Unlock()
		if ok {
			return true
		}
		select {
		case <-change:
		case <-gone:
			return false
		case <-c.dead:
			return false
		}
	}
}

// readFrame reads one frame, with its four bytes of size in front.
func readFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int32(binary.BigEndian.Uint32(head[:]))
	if n < 4 || n > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes is not Kafka's", n)
	}
	frame := make([]byte, 4+n)
	copy(frame, head[:])
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}

// produceTopics reads the topics of a produce request that wants an answer. From version 13 on requests name topics by id
// only; then the topics are unknown, and only a filter without topics matches.
func produceTopics(body []byte) (topics []string, correlation int32, ok bool) {
	if len(body) < 10 || binary.BigEndian.Uint16(body) != 0 {
		return nil, 0, false
	}
	req := kmsg.NewPtrProduceRequest()
	req.Version = int16(binary.BigEndian.Uint16(body[2:]))
	correlation = int32(binary.BigEndian.Uint32(body[4:]))
	rest := body[8:]
	if n := int16(binary.BigEndian.Uint16(rest)); n > 0 { // the client id; -1 is none
		if len(rest) < 2+int(n) {
			return nil, 0, false
		}
		rest = rest[n:]
	}
	rest = rest[2:]
	if req.IsFlexible() {
		if len(rest) < 1 || rest[0] != 0 {
			return nil, 0, false // tagged fields in the header: none are known
		}
		rest = rest[1:]
	}
	if err := req.ReadFrom(rest); err != nil || req.Acks == 0 {
		return nil, 0, false
	}
	for _, t := range req.Topics {
		topics = append(topics, t.Topic)
	}
	return topics, correlation, true
}
