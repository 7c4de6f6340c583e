package load

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// Writer commits events at a fixed rate: each transaction has its time, and a slow one does not move the next.
type Writer struct {
	DSN         string
	Table       string // has the columns id, aggregateid and payload
	Rate        int    // events per second
	TxRows      int
	Events      int
	First       int // number of the first one: 0 in the ledger
	Size        int // bytes of a payload
	Connections int
	// Committed, where set, is called with the number of each event after its commit.
	Committed func(n int)
}

// Key is the key of event n.
func Key(n int) string { return "k" + strconv.Itoa(n%997) }

// Payload is the payload of event n.
func Payload(n, size int) string {
	s := fmt.Sprintf("%010d", n)
	return strings.Repeat(s, size/len(s)+1)[:size]
}

// Run commits all events.
func (w *Writer) Run(ctx context.Context, ledger *Ledger) error {
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	var next atomic.Int64
	for range w.Connections {
		g.Go(func() error { return w.writer(ctx, began, &next, ledger) })
	}
	return g.Wait()
}

func (w *Writer) writer(ctx context.Context, began time.Time, next *atomic.Int64, ledger *Ledger) error {
	conn, err := pgx.Connect(ctx, w.DSN)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// One statement, thus one transaction.
	insert := fmt.Sprintf("INSERT INTO %s (id, aggregateid, payload) SELECT * FROM unnest($1::text[], $2::text[], $3::text[])", w.Table)
	ids, keys, payloads := make([]string, w.TxRows), make([]string, w.TxRows), make([]string, w.TxRows)
	for {
		first := int(next.Add(int64(w.TxRows))) - w.TxRows
		if first+w.TxRows > w.Events {
			return nil
		}
		for i := range w.TxRows {
			n := w.First + first + i
			ids[i], keys[i], payloads[i] = strconv.Itoa(n), Key(n), Payload(n, w.Size)
		}
		due := began.Add(time.Duration(float64(first) / float64(w.Rate) * float64(time.Second)))
		if wait := time.Until(due); wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if _, err := conn.Exec(ctx, insert, ids, keys, payloads); err != nil {
			return fmt.Errorf("write into %s: %w", w.Table, err)
		}
		for i := range w.TxRows {
			ledger.Commit(first + i)
		}
		if w.Committed != nil {
			for i := range w.TxRows {
				w.Committed(w.First + first + i)
			}
		}
	}
}
