package load

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Consumer reads a topic as records arrive, and notes each event by its header id.
type Consumer struct {
	client *kgo.Client
	wg     sync.WaitGroup
	err    error // valid after wg
}

// Consume starts a consumer of all partitions of a topic, from their beginning. The ledger begins with the event of number first.
func Consume(addr, topic string, first int, ledger *Ledger) (*Consumer, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ClientID("bench-consumer"), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMinBytes(1), kgo.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		return nil, err
	}
	c := &Consumer{client: client}
	c.wg.Go(func() { c.err = c.consume(first, ledger) })
	return c, nil
}

func (c *Consumer) consume(first int, ledger *Ledger) error {
	for {
		fetches := c.client.PollFetches(context.Background()) // ends when the client is closed
		if fetches.IsClientClosed() {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		now := time.Now()
		var bad error
		fetches.EachRecord(func(r *kgo.Record) {
			n, err := number(r)
			if err != nil {
				bad = err
				return
			}
			ledger.Arrive(n-first, now)
		})
		if bad != nil {
			return bad
		}
	}
}

func number(r *kgo.Record) (int, error) {
	for _, h := range r.Headers {
		if h.Key == "id" {
			return strconv.Atoi(string(h.Value))
		}
	}
	return 0, errors.New("a record without the header id")
}

// Close ends the consumer; the error is what ended it before.
func (c *Consumer) Close() error {
	c.client.Close()
	c.wg.Wait()
	return c.err
}
