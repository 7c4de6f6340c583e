package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// topic is where the default mapping publishes events of the aggregate "order".
const topic = "outbox.event.order"

// event is a record as the consumer got it.
type event struct {
	ID        string
	Key       string
	Type      string
	Payload   string
	Partition int32
	Offset    int64
}

// consumer reads the topic with a client that shares nothing with the relay.
type consumer struct {
	client *kgo.Client
	tally  *tally
	out    *screen
}

// newConsumer begins at records of that time; the zero time means all.
func newConsumer(brokers string, since time.Time, t *tally, out *screen) (*consumer, error) {
	from := kgo.NewOffset().AtStart()
	if !since.IsZero() {
		from = kgo.NewOffset().AfterMilli(since.UnixMilli())
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...), kgo.ClientID("cdc-relay-demo"),
		kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(from), kgo.FetchMaxWait(time.Second),
		kgo.MetadataMinAge(250*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("make a consumer of %s: %w", brokers, err)
	}
	return &consumer{client: client, tally: t, out: out}, nil
}

// run reads until ctx ends.
func (c *consumer) run(ctx context.Context) {
	var complained time.Time
	for {
		fetches := c.client.PollFetches(ctx)
		if ctx.Err() != nil {
			return
		}
		at := time.Now()
		fetches.EachError(func(_ string, p int32, err error) {
			if at.Sub(complained) > 10*time.Second {
				complained = at
				c.out.note("the consumer cannot read partition %d of %s, trying again: %v", p, topic, err)
			}
		})
		fetches.EachRecord(func(r *kgo.Record) { c.take(r, at) })
	}
}

func (c *consumer) take(r *kgo.Record, at time.Time) {
	e := event{Key: string(r.Key), Payload: string(r.Value), Partition: r.Partition, Offset: r.Offset}
	for _, h := range r.Headers {
		switch h.Key {
		case "id":
			e.ID = string(h.Value)
		case "eventType":
			e.Type = string(h.Value)
		}
	}
	var o order
	_ = json.Unmarshal(r.Value, &o) // somebody else's event may be anything
	a := c.tally.arrive(e.ID, e.Key, o.Version, at)
	if a.Known && o.last() {
		c.tally.done(e.Key)
	}
	c.out.event(e, a, at)
}

func (c *consumer) close() { c.client.Close() }
