package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// An order and its event, in one transaction.
func Example() {
	placeOrder := func(ctx context.Context, pool *pgxpool.Pool, order int64, body []byte) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, order); err != nil {
				return err
			}
			_, err := outbox.Write(ctx, tx, outbox.Event{
				AggregateType: "order", AggregateID: fmt.Sprint(order), Type: "OrderPlaced", Payload: body,
			})
			return err
		})
	}
	_ = placeOrder
}

// The same with database/sql. A repetition of the key writes nothing.
func ExampleWriteSQL() {
	cancel := func(ctx context.Context, tx *sql.Tx, order int64) error {
		ref, err := outbox.WriteSQL(ctx, tx, outbox.Event{
			AggregateType: "order", AggregateID: fmt.Sprint(order), Type: "OrderCancelled", Payload: []byte(`{}`),
			IdempotencyKey: fmt.Sprintf("order.cancelled:%d", order),
		})
		if err == nil && ref.Duplicate {
			fmt.Println("cancelled before, as event", ref.ID)
		}
		return err
	}
	_ = cancel
}

func ExampleWriteBatch() {
	ship := func(ctx context.Context, tx pgx.Tx, orders []int64) error {
		events := make([]outbox.Event, 0, len(orders))
		for _, order := range orders {
			events = append(events, outbox.Event{AggregateType: "order", AggregateID: fmt.Sprint(order), Type: "OrderShipped"})
		}
		_, err := outbox.WriteBatch(ctx, tx, events)
		return err
	}
	_ = ship
}

// An event that PostgreSQL or Kafka would not take is refused before anything is
// sent, so that the caller's transaction can go on.
func ExampleRefusal() {
	ctx, tx := context.Background(), pgx.Tx(nil) // nothing is sent
	_, err := outbox.Write(ctx, tx, outbox.Event{AggregateType: "order", AggregateID: "42", Type: "OrderPlaced", Payload: []byte("{")})
	var refusal *outbox.Refusal
	if errors.As(err, &refusal) {
		fmt.Println(refusal.Field, errors.Is(err, outbox.ErrRefused), errors.Is(err, outbox.ErrJSON))
	}
	fmt.Println(err)
	// Output:
	// Payload true true
	// refuse outbox event 0: Payload: it is not valid JSON: the payload column does not take it; give valid JSON, or configure Table.Payload as the column really is
}

// Logical messages need no table, only a relay with messages.prefix.
func ExampleNew_messages() {
	o, err := outbox.New(outbox.Config{Mode: outbox.Message, Messages: outbox.Messages{Prefix: "shop"}})
	fmt.Println(o != nil, err)
	// Output: true <nil>
}

// A table that the relay maps with topic, tenant and trace.
func ExampleNew_table() {
	columns := outbox.DefaultColumns()
	columns.Topic = "topic"
	_, err := outbox.New(outbox.Config{Table: outbox.Table{
		Schema: "shop", Name: "events", Columns: columns, Payload: outbox.JSON,
		Headers: map[string]string{"tenant": "tenant", "traceparent": "traceparent"},
	}})
	fmt.Println(err)
	// Output: <nil>
}

func ExampleKeyID() {
	fmt.Println(outbox.KeyID("order.created:42"))
	// Output: 65c9552e-2ab3-59bb-8ccf-daa0ccd1794b
}
