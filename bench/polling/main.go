// Command polling is a relay of the usual kind, for the benchmark to compare with: it asks the outbox table for unpublished rows, locks
// them, publishes them, marks them, commits, and sleeps when there was less than a full batch.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// applicationName tells its session from others.
const applicationName = "bench-polling"

type relay struct {
	conn  *pgx.Conn
	kafka *kgo.Client
	topic string
	batch int
}

// The sort is by an ordinal with a partial index on it, so that only unpublished rows are read. That index knows no marked row, so rows are
// marked by their primary key.
const (
	selectRows = `SELECT id, aggregateid, type, payload FROM outbox_polling WHERE published_at IS NULL
		ORDER BY ordinal LIMIT $1 FOR UPDATE SKIP LOCKED`
	markRows = `UPDATE outbox_polling SET published_at = now() WHERE id = ANY($1)`
)

func main() {
	dsn := flag.String("dsn", "", "PostgreSQL")
	broker := flag.String("broker", "", "Kafka's host:port")
	topic := flag.String("topic", "", "where every event goes")
	batch := flag.Int("batch", 100, "rows of a batch")
	interval := flag.Duration("interval", 100*time.Millisecond, "pause after a batch that was not full")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, *dsn, *broker, *topic, *batch, *interval)
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "polling:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dsn, broker, topic string, batch int, interval time.Duration) error {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return err
	}
	config.RuntimeParams["application_name"] = applicationName
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	kafka, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ClientID(applicationName), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		return err
	}
	defer kafka.Close()
	r := &relay{conn: conn, kafka: kafka, topic: topic, batch: batch}
	for {
		n, err := r.once(ctx)
		if err != nil {
			return err
		}
		if n == batch {
			continue // there is more
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return nil
		}
	}
}

// once publishes one batch and returns its size.
func (r *relay) once(ctx context.Context) (int, error) {
	tx, err := r.conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(context.Background()) }() // nothing after a commit
	rows, err := tx.Query(ctx, selectRows, r.batch)
	if err != nil {
		return 0, err
	}
	var ids []string
	var records []*kgo.Record
	for rows.Next() {
		var id, key, kind, payload string
		if err := rows.Scan(&id, &key, &kind, &payload); err != nil {
			return 0, err
		}
		ids = append(ids, id)
		records = append(records, &kgo.Record{Topic: r.topic, Key: []byte(key), Value: []byte(payload), Headers: []kgo.RecordHeader{
			{Key: "id", Value: []byte(id)}, {Key: "eventType", Value: []byte(kind)}}})
	}
	if err := rows.Err(); err != nil || len(records) == 0 {
		return 0, err
	}
	if err := r.kafka.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return 0, err
	}
	if _, err := tx.Exec(ctx, markRows, ids); err != nil {
		return 0, err
	}
	return len(records), tx.Commit(ctx)
}
