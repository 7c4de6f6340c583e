package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// examplePool is a database with the tables of inbox.Schema, and invoices.
func examplePool() *pgxpool.Pool {
	ctx, db := context.Background(), "example"
	_ = server.CreateDatabase(ctx, db, "")
	_ = server.Exec(ctx, db, "DROP TABLE IF EXISTS inbox, invoices", inbox.Schema, "CREATE TABLE invoices (order_id text)")
	pool, err := pgxpool.New(ctx, server.DSN(db))
	if err != nil {
		panic(err)
	}
	return pool
}

func ExampleOnce() {
	ctx := context.Background()
	pool := examplePool()
	defer pool.Close()

	deliver := func(id, order string) error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx) // does nothing after a commit
		first, err := inbox.Once(ctx, tx, "billing", id, func(ctx context.Context) error {
			_, err := tx.Exec(ctx, "INSERT INTO invoices (order_id) VALUES ($1)", order)
			return err
		})
		if err != nil {
			return err
		}
		fmt.Println("first:", first)
		return tx.Commit(ctx) // and only then acknowledge the record
	}
	for range 2 {
		if err := deliver("event-42", "order-42"); err != nil {
			fmt.Println(err)
		}
	}
	var invoices int
	_ = pool.QueryRow(ctx, "SELECT count(*) FROM invoices").Scan(&invoices)
	fmt.Println("invoices:", invoices)
	// Output:
	// first: true
	// first: false
	// invoices: 1
}

func ExampleForPGX() {
	pool := examplePool()
	defer pool.Close()

	metrics := inbox.NewMetrics("billing")
	runner, err := inbox.ForPGX(pool.Begin, func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		if len(r.Value) == 0 {
			return inbox.Permanent("an order without content", nil)
		}
		_, err := tx.Exec(ctx, "INSERT INTO invoices (order_id) VALUES ($1)", string(r.Key))
		return err
	}, inbox.Config{
		Brokers: []string{"127.0.0.1:1"}, Group: "billing", Topics: []string{"outbox.event.order"},
		RetryTopic: "billing.retry", DeadLetterTopic: "billing.dead",
		Cleanup: inbox.Cleanup{Keep: 30 * 24 * time.Hour},
		Observe: metrics.Observe,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	// Until ctx ends; here there is no Kafka, and the tables of dead letters are missing.
	fmt.Println("ended at the start:", runner.Run(ctx) != nil)
	// Output: ended at the start: true
}

func ExampleDeadLetters() {
	pool := examplePool()
	defer pool.Close()

	letters := inbox.DeadLettersForPGX(pool.Begin, []string{"127.0.0.1:1"}, nil, nil)
	defer letters.Close()
	err := letters.Redrive(context.Background(), 7, inbox.Redrive{Actor: "ann"})
	fmt.Println(errors.Is(err, inbox.ErrActor), err)
	// Output: true redrive dead letter 7: say who does it, and why
}
