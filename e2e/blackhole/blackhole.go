// Package blackhole is a Kafka broker for benchmarks: it acknowledges what is
// produced and drops it. It costs a read per request and hardly allocates, so the
// figures are those of the client.
package blackhole

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Broker is the only one of its cluster. Every topic that is asked for exists.
type Broker struct {
	ln         net.Listener
	partitions int32
	wg         sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	held  chan struct{} // closed when produce requests are answered again; nil when they are
	ended chan struct{} // closed by close
}

// versions are what it speaks of each request.
var versions = map[int16][2]int16{
	int16(kmsg.Produce):         {3, 8},
	int16(kmsg.Metadata):        {0, 8},
	int16(kmsg.ApiVersions):     {0, 2},
	int16(kmsg.InitProducerID):  {0, 1},
	int16(kmsg.DescribeConfigs): {0, 2},
}

// Start starts a broker whose topics have so many partitions, until the test ends.
func Start(tb testing.TB, partitions int) *Broker {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	b := &Broker{ln: ln, partitions: int32(partitions), conns: make(map[net.Conn]bool), ended: make(chan struct{})}
	b.wg.Go(b.accept)
	tb.Cleanup(b.close)
	return b
}

// Addrs are the addresses of the bootstrap brokers.
func (b *Broker) Addrs() []string { return []string{b.ln.Addr().String()} }

// Hold keeps produce requests from being answered until release is called.
func (b *Broker) Hold() (release func()) {
	held := make(chan struct{})
	b.mu.Lock()
	b.held = held
	b.mu.Unlock()
	return sync.OnceFunc(func() {
		b.mu.Lock()
		b.held = nil
		b.mu.Unlock()
		close(held)
	})
}

func (b *Broker) close() {
	b.ln.Close()
	b.mu.Lock()
	close(b.ended)
	for c := range b.conns {
		c.Close()
	}
	b.mu.Unlock()
	b.wg.Wait()
}

func (b *Broker) accept() {
	for {
		conn, err := b.ln.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		select {
		case <-b.ended:
			conn.Close()
		default:
		}
		b.conns[conn] = true
		b.mu.Unlock()
		b.wg.Go(func() {
			defer conn.Close()
			b.serve(conn)
		})
	}
}

// serve answers one connection's requests in order, until it ends or says what
// cannot be understood.
func (b *Broker) serve(conn net.Conn) {
	var in, out []byte
	produce := kmsg.NewPtrProduceRequest()
	for {
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint32(size[:]))
		if n > cap(in) {
			in = make([]byte, 2*n)
		}
		in = in[:n]
		if _, err := io.ReadFull(conn, in); err != nil || n < 10 {
			return
		}
		key, version := int16(binary.BigEndian.Uint16(in)), int16(binary.BigEndian.Uint16(in[2:]))
		body := in[10+max(0, int(int16(binary.BigEndian.Uint16(in[8:])))):] // behind correlation and client id
		var req kmsg.Request = produce
		if key != int16(kmsg.Produce) {
			req = kmsg.RequestForKey(key)
		}
		if req == nil {
			return
		}
		req.SetVersion(version)
		if err := req.ReadFrom(body); err != nil {
			return
		}
		res := b.answer(req)
		if res == nil {
			return
		}
		res.SetVersion(version)
		out = append(append(out[:0], 0, 0, 0, 0), in[4:8]...)
		out = res.AppendTo(out)
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

// answer returns nil for what it does not know.
func (b *Broker) answer(req kmsg.Request) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.ProduceRequest:
		b.mu.Lock()
		held := b.held
		b.mu.Unlock()
		if held != nil {
			select {
			case <-held:
			case <-b.ended:
			}
		}
		res := kmsg.NewPtrProduceResponse()
		for _, t := range req.Topics {
			rt := kmsg.ProduceResponseTopic{Topic: t.Topic, Partitions: make([]kmsg.ProduceResponseTopicPartition, len(t.Partitions))}
			for i, p := range t.Partitions {
				rt.Partitions[i] = kmsg.ProduceResponseTopicPartition{Partition: p.Partition, LogAppendTime: -1}
			}
			res.Topics = append(res.Topics, rt)
		}
		return res
	case *kmsg.ApiVersionsRequest:
		res := kmsg.NewPtrApiVersionsResponse()
		for key, v := range versions {
			res.ApiKeys = append(res.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key, MinVersion: v[0], MaxVersion: v[1]})
		}
		return res
	case *kmsg.MetadataRequest:
		return b.metadata(req)
	case *kmsg.InitProducerIDRequest:
		res := kmsg.NewPtrInitProducerIDResponse()
		res.ProducerID, res.ProducerEpoch = 1, 0
		return res
	case *kmsg.DescribeConfigsRequest:
		res := kmsg.NewPtrDescribeConfigsResponse()
		for _, r := range req.Resources {
			res.Resources = append(res.Resources, kmsg.DescribeConfigsResponseResource{ResourceType: r.ResourceType, ResourceName: r.ResourceName})
		}
		return res
	}
	return nil
}

func (b *Broker) metadata(req *kmsg.MetadataRequest) kmsg.Response {
	addr := b.ln.Addr().(*net.TCPAddr)
	res := kmsg.NewPtrMetadataResponse()
	res.ControllerID = 1
	res.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: addr.IP.String(), Port: int32(addr.Port)}}
	for _, t := range req.Topics {
		topic := kmsg.MetadataResponseTopic{Topic: t.Topic}
		for p := range b.partitions {
			topic.Partitions = append(topic.Partitions, kmsg.MetadataResponseTopicPartition{
				Partition: p, Leader: 1, LeaderEpoch: -1, Replicas: []int32{1}, ISR: []int32{1}})
		}
		res.Topics = append(res.Topics, topic)
	}
	return res
}
