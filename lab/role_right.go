package lab

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// actOnce writes one invoice per event, by the inbox.
func actOnce(ctx context.Context, a actor) error {
	return a.once(ctx, a.invoice)
}

// actStatus changes the order that the event names, and fails when there is none: it may come later.
func actStatus(ctx context.Context, a actor) error {
	return a.once(ctx, func(ctx context.Context, tx pgx.Tx, event string) error {
		if _, err := a.run(ctx, event); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `UPDATE lab.orders SET status = 'billed' WHERE id = $1`, event)
		if err == nil && tag.RowsAffected() == 0 {
			return errHandler
		}
		return err
	})
}

// once runs the effect of each event with its marker in one transaction, and acknowledges after the commit.
func (a actor) once(ctx context.Context, effect func(context.Context, pgx.Tx, string) error) error {
	return a.each(ctx, func(r *kgo.Record, event string) error {
		var first bool
		err := pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) (err error) {
			first, err = inbox.Once(ctx, tx, a.scene, event, func(ctx context.Context) error { return effect(ctx, tx, event) })
			return err
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "processed=%t duplicate=%t committed=true\n", first, !first)
		return a.ack(ctx, r)
	})
}
