package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// bill is the billing worker.
func bill(ctx context.Context, s settings) error {
	return consume(ctx, s, inbox.Config{Group: "billing"}, writeInvoice)
}

// writeInvoice writes the invoice of an order in tx, where the marker of the event is
// too. The runner commits both, or rolls both back on an error, and only after the commit
// it commits the offset.
func writeInvoice(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
	if !isOrderPlaced(r) {
		return nil
	}
	e, err := decodeOrderPlaced(r)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO invoices (order_id, customer, cents) VALUES ($1, $2, $3)`, e.Order, e.Customer, e.Cents)
	if err != nil {
		return fmt.Errorf("insert the invoice of order %d: %w", e.Order, err)
	}
	return nil
}

// consume runs a handler for the events of orders until ctx ends. c says what is
// particular to the worker.
func consume(ctx context.Context, s settings, c inbox.Config, handle func(context.Context, pgx.Tx, inbox.Record) error) error {
	pool, err := pgxpool.New(ctx, s.databaseURL)
	if err != nil {
		return fmt.Errorf("read DATABASE_URL: %w", err)
	}
	defer pool.Close()
	c.Brokers, c.Topics = s.brokers, []string{s.topic}
	if s.kafkaTLS {
		c.TLS = &tls.Config{} // by the authorities that the system trusts, and SSL_CERT_FILE
	}
	if s.kafkaUser != "" {
		if c.SASL, err = scram.Mechanism(scram.SHA512, s.kafkaUser, s.kafkaPassword); err != nil {
			return errors.New("KAFKA_USER or KAFKA_PASSWORD has a character that SCRAM does not take") // its own text may quote them
		}
	}
	c.RetryTopic, c.DeadLetterTopic, c.Attempts = s.retryTopic, s.deadLetterTopic, s.attempts
	c.Cleanup = inbox.Cleanup{Keep: s.keep}
	c.SessionTimeout, c.Grace = s.session, s.session/3 // a worker that drains sends no heartbeats
	c.Observe = logInbox
	runner, err := inbox.ForPGX(pool.Begin, handle, c)
	if err != nil {
		return err
	}
	return runner.Run(ctx)
}

// logInbox logs the texts of errors, which is right only as long as the handlers put
// nothing of a payload into them.
func logInbox(e inbox.Event) {
	level := slog.LevelInfo
	switch e.Kind {
	case inbox.Lag, inbox.DeadLetterAge:
		if e.N == 0 {
			return
		}
	case inbox.DeadLettered, inbox.OffsetsLost, inbox.OffsetsAhead:
		level = slog.LevelError
	case inbox.Processed, inbox.Duplicates, inbox.Skipped, inbox.Assigned, inbox.Revoked, inbox.CleanedUp:
	default:
		level = slog.LevelWarn
	}
	attrs := []any{"kind", string(e.Kind), "topic", e.Topic, "partition", e.Partition, "offset", e.Offset, "n", e.N}
	if e.ID != "" {
		attrs = append(attrs, "event", e.ID, "attempt", e.Attempt)
	}
	if e.Age != 0 {
		attrs = append(attrs, "age", e.Age.String())
	}
	if e.Err != nil {
		attrs = append(attrs, "error", e.Err)
	}
	slog.Log(context.Background(), level, "inbox", attrs...)
}
