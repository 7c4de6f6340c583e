package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	writers         = 4   // sessions that insert orders
	openOrders      = 50  // orders that are under way at a time
	rollBackShare   = 0.1 // of the transactions are rolled back on purpose
	reconnectPause  = time.Second
	statementsLimit = 15 * time.Second // for one transaction
)

// ordersSchema is the application's own table; the outbox is the relay's.
const ordersSchema = `CREATE TABLE IF NOT EXISTS orders (
	id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	customer text   NOT NULL,
	cents    bigint NOT NULL,
	status   text   NOT NULL,
	version  int    NOT NULL
)`

// steps an order goes through, with the event of each.
var steps = []struct{ Status, Event string }{
	{"placed", "OrderPlaced"}, {"paid", "OrderPaid"}, {"packed", "OrderPacked"}, {"shipped", "OrderShipped"}, {"delivered", "OrderDelivered"},
}

var customers = []string{"Ada", "Barbara", "Edsger", "Grace", "Hedy", "Katherine", "Leslie", "Niklaus", "Radia", "Tony"}

// order is one that is under way. A writer takes it out of the book while it
// changes it.
type order struct {
	ID       int64  `json:"order"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
	Status   string `json:"status"`
	Version  int    `json:"version"` // number of its event, from 1
}

// last tells whether it has no more steps.
func (o order) last() bool { return o.Version == len(steps) }

// shop inserts and changes orders, each in a transaction with its event.
type shop struct {
	url   string
	rate  float64
	tally *tally
	out   *screen

	mu   sync.Mutex
	book []order
}

// run works until ctx ends, and returns when no transaction is open any more.
func (s *shop) run(ctx context.Context) {
	work := make(chan struct{}) // closed by pace
	var wg sync.WaitGroup
	wg.Go(func() { s.pace(ctx, work) })
	for range writers {
		wg.Go(func() { s.write(ctx, work) })
	}
	wg.Wait()
}

// pace asks for transactions at the rate, and for none that it is behind with.
func (s *shop) pace(ctx context.Context, work chan<- struct{}) {
	defer close(work)
	tick := time.NewTicker(time.Duration(float64(time.Second) / s.rate))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case <-ctx.Done():
			return
		case work <- struct{}{}:
		}
	}
}

// write carries out transactions on one session, and opens another when that
// fails.
func (s *shop) write(ctx context.Context, work <-chan struct{}) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			s.close(conn)
		}
	}()
	for range work {
		// Not ctx: what has begun is brought to its end.
		tctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementsLimit)
		var err error
		if conn == nil {
			conn, err = pgx.Connect(tctx, s.url)
		}
		if err == nil {
			err = s.transact(tctx, conn)
		}
		cancel()
		if err == nil {
			continue
		}
		s.out.note("an order failed, trying again: %v", err)
		if conn != nil {
			s.close(conn)
			conn = nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnectPause):
		}
	}
}

func (s *shop) close(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// transact places an order, or takes one a step further, and writes the event
// in the same transaction: that is all an application does with an outbox.
func (s *shop) transact(ctx context.Context, conn *pgx.Conn) error {
	before, known := s.take()
	id, after, err := s.change(ctx, conn, before, known)
	switch {
	case err != nil:
		s.tally.failed(id) // whether an order came further is not known: it is left alone
		return err
	case after == nil: // rolled back
		if known {
			s.put(before)
		}
	case !after.last():
		s.put(*after)
	}
	return nil
}

// change returns the event's id, and the order as it is now; nil when it was
// rolled back.
func (s *shop) change(ctx context.Context, conn *pgx.Conn, o order, known bool) (id string, after *order, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	step := steps[o.Version]
	o.Status = step.Status
	o.Version++
	if known {
		_, err = tx.Exec(ctx, `UPDATE orders SET status = $2, version = $3 WHERE id = $1`, o.ID, o.Status, o.Version)
	} else {
		o.Customer, o.Cents = customers[rand.IntN(len(customers))], 100+rand.Int64N(20_000)
		err = tx.QueryRow(ctx, `INSERT INTO orders (customer, cents, status, version) VALUES ($1, $2, $3, $4) RETURNING id`,
			o.Customer, o.Cents, o.Status, o.Version).Scan(&o.ID)
	}
	if err != nil {
		return "", nil, fmt.Errorf("write order: %w", err)
	}
	payload, err := json.Marshal(o)
	if err != nil {
		return "", nil, err
	}
	err = tx.QueryRow(ctx, `INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', $1, $2, $3) RETURNING id::text`,
		strconv.FormatInt(o.ID, 10), step.Event, payload).Scan(&id)
	if err != nil {
		return "", nil, fmt.Errorf("write event: %w", err)
	}
	if rand.Float64() < rollBackShare {
		s.tally.rolledBack(id)
		return id, nil, tx.Rollback(ctx)
	}
	s.tally.committing(id, time.Now())
	if err := tx.Commit(ctx); err != nil {
		return id, nil, fmt.Errorf("commit: %w", err)
	}
	s.tally.committed(!known)
	return id, &o, nil
}

// take takes a random order that is under way; false asks for a new one.
func (s *shop) take() (order, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.book)
	if n == 0 || n < openOrders && rand.IntN(3) == 0 {
		return order{}, false
	}
	i := rand.IntN(n)
	o := s.book[i]
	s.book[i] = s.book[n-1]
	s.book = s.book[:n-1]
	return o, true
}

func (s *shop) put(o order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.book = append(s.book, o)
}
