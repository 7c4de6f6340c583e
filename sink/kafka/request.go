package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
)

// produceRequest is a produce request of sealed batches for one broker. It is
// kafka-go's rawproduce.Request in another form: it writes itself to the
// connection (protocol.RawExchanger), so that kafka-go makes no copy of the
// batches in pages of its own, and so that we know when the connection has
// finished with them. A request that was given up is never sent later.
//
// Versions 3 to 8 of the request are equal on the wire; 9 is the first flexible
// one, which kafka-go does not negotiate.
type produceRequest struct {
	ctx      context.Context
	node     int32
	clientID string
	timeout  time.Duration // how long the broker may wait for its followers
	parts    []part
	// scratch holds the fields around the batches, and small batches, while they are
	// written. It is the caller's again, perhaps grown, after settle.
	scratch []byte

	version int16
	state   atomic.Int32
	done    chan struct{} // closed when the exchange has ended
}

// part is one partition's share of a request. Parts of one topic are adjacent.
type part struct {
	topic     string
	partition int32
	batch     []byte
}

const (
	exchangePending int32 = iota
	exchangeRunning
	exchangeAbandoned
)

var errAbandoned = errors.New("the request was given up before it was sent")

var (
	_ protocol.BrokerMessage = (*produceRequest)(nil)
	_ protocol.RawExchanger  = (*produceRequest)(nil)
)

func newRequest(ctx context.Context, node int32, clientID string, timeout time.Duration, parts []part) *produceRequest {
	return &produceRequest{ctx: ctx, node: node, clientID: clientID, timeout: timeout, parts: parts, done: make(chan struct{})}
}

// ApiKey says that it is a produce request.
func (r *produceRequest) ApiKey() protocol.ApiKey { return protocol.Produce } //nolint:revive // the name is kafka-go's

// Broker routes the request to the leader that the lanes were grouped by.
func (r *produceRequest) Broker(cluster protocol.Cluster) (protocol.Broker, error) {
	b, ok := cluster.Brokers[r.node]
	if !ok {
		return protocol.Broker{ID: -1}, protocol.NewErrNoLeader(r.parts[0].topic, r.parts[0].partition)
	}
	return b, nil
}

// Required takes note of the version that was negotiated.
func (r *produceRequest) Required(versions map[protocol.ApiKey]int16) bool {
	r.version = versions[protocol.Produce]
	return true
}

// RawExchange writes the request and reads its response. It is called by the
// connection's goroutine, which may do so after RoundTrip has returned.
func (r *produceRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if !r.state.CompareAndSwap(exchangePending, exchangeRunning) {
		return nil, errAbandoned
	}
	defer close(r.done)
	if r.version < 3 {
		return nil, fmt.Errorf("produce: the broker knows version %d of the request at most, Kafka 0.11 or newer is needed: %w", r.version, kafka.UnsupportedVersion)
	}
	defer r.interruptible(rw)()
	if err := r.write(rw); err != nil {
		return nil, err
	}
	id, res, err := protocol.ReadResponse(rw, protocol.Produce, r.version)
	if err != nil {
		return nil, err
	}
	if id != correlationID {
		return nil, protocol.Errorf("correlation id mismatch (expected=%d, found=%d)", correlationID, id)
	}
	if _, ok := res.(*produce.Response); !ok {
		return nil, protocol.Errorf("unexpected response %T to a produce request", res)
	}
	return res, nil
}

// settle makes sure that the connection neither uses the batches now nor will
// later. It is called when RoundTrip has returned, whatever it said; the
// exchange ends at once when the request's context has ended.
func (r *produceRequest) settle() {
	if r.state.CompareAndSwap(exchangePending, exchangeAbandoned) {
		return
	}
	<-r.done
}

// interruptible ends the exchange's reads and writes when ctx ends, also when it
// is cancelled before its deadline. The function it returns undoes that, and
// waits for it.
func (r *produceRequest) interruptible(rw io.ReadWriter) func() {
	conn, ok := rw.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return func() {}
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(r.ctx, func() {
		_ = conn.SetDeadline(time.Unix(1, 0))
		close(ended)
	})
	return func() {
		if !stop() {
			<-ended
		}
	}
}

// One request is on a connection at a time, so its id needs not change.
const correlationID = 1

// Batches smaller than this are copied together with the fields around them,
// to be written at once.
const copyBelow = 16 << 10

func (r *produceRequest) write(w io.Writer) error {
	be := binary.BigEndian
	b := append(r.scratch[:0], 0, 0, 0, 0)
	defer func() { r.scratch = b }()
	b = be.AppendUint16(b, uint16(protocol.Produce))
	b = be.AppendUint16(b, uint16(r.version))
	b = be.AppendUint32(b, correlationID)
	b = appendString(b, r.clientID)
	b = be.AppendUint16(b, ^uint16(0)) // no transactional id
	b = be.AppendUint16(b, ^uint16(0)) // acks=all
	b = be.AppendUint32(b, uint32(r.timeout.Milliseconds()))
	b = be.AppendUint32(b, uint32(r.topics()))
	be.PutUint32(b, uint32(r.size(len(b))-4))
	for i := range r.parts {
		p := &r.parts[i]
		if i == 0 || r.parts[i-1].topic != p.topic {
			b = appendString(b, p.topic)
			b = be.AppendUint32(b, uint32(r.adjacent(i)))
		}
		b = be.AppendUint32(b, uint32(p.partition))
		b = be.AppendUint32(b, uint32(len(p.batch)))
		if len(p.batch) < copyBelow && len(b) < 4*copyBelow {
			b = append(b, p.batch...)
			continue
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
		if _, err := w.Write(p.batch); err != nil {
			return err
		}
		b = b[:0]
	}
	if len(b) == 0 {
		return nil
	}
	_, err := w.Write(b)
	return err
}

// size is the length of the whole request, whose first head bytes are known.
func (r *produceRequest) size(head int) int {
	for i := range r.parts {
		p := &r.parts[i]
		if i == 0 || r.parts[i-1].topic != p.topic {
			head += 2 + len(p.topic) + 4
		}
		head += 8 + len(p.batch)
	}
	return head
}

func (r *produceRequest) topics() (n int) {
	for i := range r.parts {
		if i == 0 || r.parts[i-1].topic != r.parts[i].topic {
			n++
		}
	}
	return n
}

// adjacent counts the parts of the same topic from i on.
func (r *produceRequest) adjacent(i int) int {
	n := i
	for n < len(r.parts) && r.parts[n].topic == r.parts[i].topic {
		n++
	}
	return n - i
}

func appendString(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}
