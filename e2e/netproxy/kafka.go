package netproxy

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// maxFrame bounds what a proxied frame may claim to be, against a stream that is not Kafka's.
const maxFrame = 256 << 20

// KafkaProxy is a Proxy that knows Kafka's requests: it can withhold the answers to produce requests, so that the broker has
// the records and the client does not know, or withhold the requests themselves, and hold any kind of request or answer.
//
//	proxy, err := netproxy.NewKafka()
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
	// asked and answered hold requests, and the answers to them.
	asked, answered holds[request]
}

// request is what is known of one that awaits its answer.
type request struct {
	key     int16
	topics  []string // of a produce request
	produce bool     // that wants an answer
}

// filter chooses produce requests by topic.
type filter struct{ topics []string }

func (f *filter) matches(topics []string) bool {
	if f == nil {
		return false
	}
	return len(f.topics) == 0 || slices.ContainsFunc(topics, func(t string) bool { return slices.Contains(f.topics, t) })
}

// NewKafka starts a proxy on a free port. The broker behind it must advertise the proxy's address.
func NewKafka() (*KafkaProxy, error) {
	p := &KafkaProxy{Proxy: &Proxy{}, change: make(chan struct{})}
	p.pipe = p.pipeKafka
	return p, p.listen()
}

// Close ends the proxy and all its connections; closing twice is safe.
func (p *KafkaProxy) Close() {
	p.notify()
	p.Proxy.Close()
}

// Kinds of requests that can be held.
const (
	KeyProduce      int16 = 0
	KeyOffsetCommit int16 = 8
)

// HoldRequests keeps requests of a kind from the broker until the hold is released. Topics, where given, choose produce
// requests that name one of them. What follows on the same connection waits too.
func (p *KafkaProxy) HoldRequests(key int16, topics ...string) *Hold {
	return p.asked.add(requestFilter(key, topics))
}

// HoldAnswers keeps the answers to such requests from the client until the hold is released.
func (p *KafkaProxy) HoldAnswers(key int16, topics ...string) *Hold {
	return p.answered.add(requestFilter(key, topics))
}

func requestFilter(key int16, topics []string) func(request) bool {
	f := &filter{topics}
	return func(r request) bool { return r.key == key && f.matches(r.topics) }
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
	// open holds the requests that are not answered yet, by correlation id.
	open map[int32]request
	dead chan struct{} // closed when either direction ended
}

func (p *KafkaProxy) pipeKafka(client, server net.Conn) {
	c := &kafkaConn{open: map[int32]request{}, dead: make(chan struct{})}
	var once sync.Once
	end := func() {
		once.Do(func() {
			close(c.dead)
			reset(client)
			server.Close()
		})
	}
	var wg sync.WaitGroup
	requests := readFrames(&wg, client, readFrame, c.dead)
	answers := readFrames(&wg, server, readFrame, c.dead)
	wg.Add(2)
	go func() { // ends with the connection
		defer wg.Done()
		defer end()
		p.passRequests(c, server, client, requests)
	}()
	go func() { // ends with the connection: a cut is seen while answers are withheld
		defer wg.Done()
		select {
		case <-answers.gone:
			end()
		case <-c.dead:
		}
	}()
	p.passAnswers(c, client, answers)
	end()
	wg.Wait()
}

func (p *KafkaProxy) passRequests(c *kafkaConn, server, client net.Conn, requests frames) {
	for frame := range requests.next {
		r, correlation := readRequest(frame[4:])
		if !p.asked.await(r, requests.gone, c.dead) {
			return
		}
		if r.produce {
			if !p.await(c, requests.gone, func() bool { return !p.requests.matches(r.topics) }) {
				return
			}
			if p.delay(r.topics, frame) {
				continue // the client waits in vain
			}
			p.kmu.Lock()
			p.produced++
			p.kmu.Unlock()
		}
		if r.key != KeyProduce || r.produce {
			c.mu.Lock()
			c.open[correlation] = r
			c.mu.Unlock()
		}
		if !p.pass(false, func() bool { return p.alive(client) }) {
			return
		}
		if _, err := server.Write(frame); err != nil {
			return
		}
	}
}

func (p *KafkaProxy) passAnswers(c *kafkaConn, client net.Conn, answers frames) {
	for frame := range answers.next {
		correlation := int32(binary.BigEndian.Uint32(frame[4:]))
		c.mu.Lock()
		r := c.open[correlation]
		delete(c.open, correlation)
		c.mu.Unlock()
		if !p.answered.await(r, c.dead) {
			return
		}
		if r.produce {
			p.count(1)
			ok := p.await(c, nil, func() bool { return !p.acks.matches(r.topics) })
			p.count(-1)
			if !ok || p.drop(r.topics) {
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

// readRequest reads what a request asks for, and its correlation id.
func readRequest(body []byte) (r request, correlation int32) {
	r.key = -1
	if len(body) < 10 {
		return r, 0
	}
	r.key = int16(binary.BigEndian.Uint16(body))
	correlation = int32(binary.BigEndian.Uint32(body[4:]))
	r.topics, _, r.produce = produceTopics(body)
	return r, correlation
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
