// Command polling-relay is a relay of the kind that cdc-relay replaces, for the tests: it polls the rows that are pending,
// sends them, and marks them completed, in one transaction. It may be killed at any moment; rows that were sent and not
// marked are then sent again.
//
//	polling-relay DSN BROKER TOPIC
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	batch = 50
	idle  = 20 * time.Millisecond
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: polling-relay DSN BROKER TOPIC")
		os.Exit(2)
	}
	if err := run(ctx, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dsn, broker, topic string) error {
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(0))
	if err != nil {
		return err
	}
	defer client.Close()
	for ctx.Err() == nil { // a batch in hand is finished
		n, err := poll(context.Background(), conn, client)
		if err != nil {
			return err
		}
		if n < batch {
			time.Sleep(idle)
		}
	}
	return nil
}

// poll sends one batch, and marks it once all of it is acknowledged.
func poll(ctx context.Context, conn *pgx.Conn, client *kgo.Client) (int, error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	rows, err := tx.Query(ctx, `SELECT id, aggregateid, type, payload FROM outbox WHERE status = 'pending'
		ORDER BY created_at, id LIMIT $1 FOR UPDATE SKIP LOCKED`, batch)
	if err != nil {
		return 0, err
	}
	var records []*kgo.Record
	var ids []string
	var id, kind string
	var key, payload *string
	_, err = pgx.ForEachRow(rows, []any{&id, &key, &kind, &payload}, func() error {
		ids = append(ids, id)
		records = append(records, &kgo.Record{Key: bytes(key), Value: bytes(payload),
			Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}, {Key: "eventType", Value: []byte(kind)}}})
		return nil
	})
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return 0, err
	}
	if _, err := tx.Exec(ctx, `UPDATE outbox SET status = 'completed' WHERE id = ANY ($1)`, ids); err != nil {
		return 0, err
	}
	return len(ids), tx.Commit(ctx)
}

func bytes(s *string) []byte {
	if s == nil {
		return nil
	}
	return []byte(*s)
}
