package load

import (
	"context"
	"strconv"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Producer is the bare control: what a program does that may publish after its commit, and lose the event if it dies in between.
type Producer struct {
	client *kgo.Client
	topic  string
	size   int
	failed atomic.Pointer[error]
}

// NewProducer is a plain producer with all acks, which sends at once.
func NewProducer(addr, topic string, size int) (*Producer, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ClientID("bench-control"), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		return nil, err
	}
	return &Producer{client: client, topic: topic, size: size}, nil
}

// Send publishes event n without waiting.
func (p *Producer) Send(n int) {
	id := strconv.Itoa(n)
	r := &kgo.Record{Topic: p.topic, Key: []byte(Key(n)), Value: []byte(Payload(n, p.size)), Headers: []kgo.RecordHeader{
		{Key: "id", Value: []byte(id)}, {Key: "eventType", Value: []byte("created")}}}
	p.client.Produce(context.Background(), r, func(_ *kgo.Record, err error) {
		if err != nil {
			p.failed.CompareAndSwap(nil, &err)
		}
	})
}

// Close waits for the acks.
func (p *Producer) Close(ctx context.Context) error {
	err := p.client.Flush(ctx)
	p.client.Close()
	if failed := p.failed.Load(); failed != nil {
		return *failed
	}
	return err
}
