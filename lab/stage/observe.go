package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Counts are the committed rows of the example's tables, and the mails.
type Counts struct {
	Orders, Outbox, Invoices     int
	InboxBill, InboxMail         int // markers
	Mails, MailRepeats           int // sent, and dropped by the provider as its key came before
	OrdersBilledTwice, OrdersOdd int // orders with more than one invoice; orders without exactly one
}

// Counts reads them, the rows in one snapshot. Mails are not counted while the provider is down.
func (s *Stage) Counts(ctx context.Context) (c Counts, err error) {
	err = s.DB.QueryRow(ctx, `SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox), (SELECT count(*) FROM invoices),
		(SELECT count(*) FROM inbox WHERE consumer = $1), (SELECT count(*) FROM inbox WHERE consumer = $2),
		(SELECT count(*) FROM (SELECT FROM invoices GROUP BY order_id HAVING count(*) > 1) AS twice),
		(SELECT count(*) FROM orders AS o WHERE (SELECT count(*) FROM invoices AS i WHERE i.order_id = o.id) <> 1)`, BillGroup, MailGroup).
		Scan(&c.Orders, &c.Outbox, &c.Invoices, &c.InboxBill, &c.InboxMail, &c.OrdersBilledTwice, &c.OrdersOdd)
	if err != nil {
		return c, fmt.Errorf("count the rows: %w", err)
	}
	if s.Provider.Up() {
		mails, err := s.Mails(ctx)
		if err != nil {
			return c, err
		}
		c.Mails, c.MailRepeats = len(mails.Mails), mails.Repeats
	}
	return c, nil
}

// Mails is what the provider has done since its last start.
type Mails struct {
	Mails []struct {
		To, Subject, Key string
	}
	Repeats int // requests whose key came before, and which sent nothing
}

// Mails asks the provider.
func (s *Stage) Mails(ctx context.Context) (m Mails, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.MailURL+"/mails", http.NoBody)
	if err != nil {
		return m, err
	}
	resp, err := direct.Do(req)
	if err != nil {
		return m, fmt.Errorf("ask the provider for its mails: %w", err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
		return m, fmt.Errorf("read the provider's mails: %w", err)
	}
	return m, nil
}

// direct opens a connection per request: one to a process that was killed is of no use.
var direct = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}

// Records reads all records that a topic has now, in the order of partition and offset.
func (s *Stage) Records(ctx context.Context, topic string) ([]*kgo.Record, error) {
	ends, err := s.Admin.ListEndOffsets(ctx, topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return nil, fmt.Errorf("list the offsets of %s: %w", topic, err)
	}
	from, left := map[int32]kgo.Offset{}, map[int32]int64{}
	for p, o := range ends[topic] {
		if o.Offset > 0 {
			from[p], left[p] = kgo.NewOffset().At(0), o.Offset
		}
	}
	if len(left) == 0 {
		return nil, nil
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.KafkaAddr()), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	byPartition := map[int32][]*kgo.Record{}
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("read %s: %w", topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if end, open := left[r.Partition]; open {
				byPartition[r.Partition] = append(byPartition[r.Partition], r)
				if r.Offset+1 >= end {
					delete(left, r.Partition)
				}
			}
		})
	}
	var all []*kgo.Record
	for p := range int32(len(ends[topic])) {
		all = append(all, byPartition[p]...)
	}
	return all, nil
}

// Offset is where a group stands in a partition.
type Offset struct {
	Partition int32
	Committed int64 // the next record to read; -1: nothing was committed
	End       int64 // behind the last record
}

// Offsets reads where a group stands in a topic, by partition.
func (s *Stage) Offsets(ctx context.Context, group, topic string) ([]Offset, error) {
	ends, err := s.Admin.ListEndOffsets(ctx, topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return nil, fmt.Errorf("list the offsets of %s: %w", topic, err)
	}
	committed, err := s.Admin.FetchOffsets(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("fetch the offsets of %s: %w", group, err)
	}
	offsets := make([]Offset, 0, len(ends[topic]))
	for p := range int32(len(ends[topic])) {
		o := Offset{Partition: p, Committed: -1, End: ends[topic][p].Offset}
		if c, ok := committed.Lookup(topic, p); ok {
			o.Committed = c.At
		}
		offsets = append(offsets, o)
	}
	return offsets, nil
}

// ConfirmedLSN is the slot's confirmed_flush_lsn, such as "0/1A2B3C8".
func (s *Stage) ConfirmedLSN(ctx context.Context) (lsn string, err error) {
	err = s.DB.QueryRow(ctx, `SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, Slot).Scan(&lsn)
	if err != nil {
		return "", fmt.Errorf("read the confirmed LSN of slot %s: %w", Slot, err)
	}
	return lsn, nil
}

// Eventually asks ok until it says true, and errs when ctx ends before; what says what was waited for. An error of ok is
// asked again, too: what it asks may be down.
func Eventually(ctx context.Context, what string, ok func(context.Context) (bool, error)) error {
	var last error
	for {
		done, err := ok(ctx)
		if done && err == nil {
			return nil
		}
		last = err
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("wait until %s: %w", what, ctx.Err()), last)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
