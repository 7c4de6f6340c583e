package lab

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// Everything in this file is wrong on purpose. Copy examples/orders instead.

// actCommitThenPublish is wrong: when it dies between the two, the event is lost for ever.
func actCommitThenPublish(ctx context.Context, a actor) error {
	if err := pgx.BeginFunc(ctx, a.db, a.insertOrder(ctx)); err != nil {
		return err
	}
	return a.publish(ctx)
}

// actPublishThenCommit is wrong: when it dies between the two, the event tells of an order that there is not.
func actPublishThenCommit(ctx context.Context, a actor) error {
	return pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error {
		if err := a.insertOrder(ctx)(tx); err != nil {
			return err
		}
		return a.publish(ctx)
	})
}

func (a actor) insertOrder(ctx context.Context) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO lab.orders (id) VALUES ($1)`, a.order)
		return err
	}
}

func (a actor) publish(ctx context.Context) error {
	return a.kafka.ProduceSync(ctx, &kgo.Record{Topic: a.topic, Value: []byte(a.order)}).FirstErr()
}

// actShopWithoutKey is wrong: it takes a request that comes again for another order.
func actShopWithoutKey(ctx context.Context, a actor) error {
	l, err := net.Listen("tcp", os.Getenv("LISTEN"))
	if err != nil {
		return err
	}
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		defer db.Close(ctx)
		err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO lab.shop (client) VALUES ($1)`, r.Header.Get("X-Customer"))
			return err
		})
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
}

// actEffectThenMarker is wrong: effect and marker are two transactions. When it dies between them, the effect happens again.
func actEffectThenMarker(ctx context.Context, a actor) error {
	return a.each(ctx, func(r *kgo.Record, event string) error {
		seen, err := a.isMarked(ctx, event)
		if err != nil {
			return err
		}
		if !seen {
			if err := pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error { return a.invoice(ctx, tx, event) }); err != nil {
				return err
			}
			if err := pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error { return a.mark(ctx, tx, event) }); err != nil {
				return err
			}
		}
		return a.ack(ctx, r)
	})
}

// actMarkerThenEffect is wrong: when it dies between the two transactions, the effect never happens.
func actMarkerThenEffect(ctx context.Context, a actor) error {
	return a.each(ctx, func(r *kgo.Record, event string) error {
		seen, err := a.isMarked(ctx, event)
		if err != nil {
			return err
		}
		if !seen {
			if err := pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error { return a.mark(ctx, tx, event) }); err != nil {
				return err
			}
			if err := pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error { return a.invoice(ctx, tx, event) }); err != nil {
				return err
			}
		}
		return a.ack(ctx, r)
	})
}

func (a actor) isMarked(ctx context.Context, event string) (seen bool, err error) {
	err = a.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM inbox WHERE consumer = $1 AND event_id = $2)`, a.scene, event).Scan(&seen)
	return seen, err
}

func (a actor) mark(ctx context.Context, tx pgx.Tx, event string) error {
	_, err := tx.Exec(ctx, `INSERT INTO inbox (consumer, event_id) VALUES ($1, $2)`, a.scene, event)
	return err
}

func (a actor) invoice(ctx context.Context, tx pgx.Tx, event string) error {
	_, err := tx.Exec(ctx, `INSERT INTO lab.invoices (scene, event) VALUES ($1, $2)`, a.scene, event)
	return err
}

// actOffsetFirst is wrong: the event is acknowledged before it is handled, so one that fails does not come again.
func actOffsetFirst(ctx context.Context, a actor) error {
	return a.each(ctx, func(r *kgo.Record, event string) error {
		if err := a.ack(ctx, r); err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error { return a.bill(ctx, tx, event) })
	})
}

// actOffsetAnyway is wrong: it logs the error and acknowledges, so half of the effect stays for ever.
func actOffsetAnyway(ctx context.Context, a actor) error {
	return a.each(ctx, func(r *kgo.Record, event string) error {
		if err := a.bill(ctx, a.db, event); err != nil {
			fmt.Fprintln(os.Stderr, "skipped:", err)
		}
		return a.ack(ctx, r)
	})
}

// actOffsetLast is wrong: it acknowledges behind the effect, but each statement of the effect is committed by itself, so the
// next attempt repeats the half that was done.
func actOffsetLast(ctx context.Context, a actor) error {
	return a.each(ctx, func(r *kgo.Record, event string) error {
		if err := a.bill(ctx, a.db, event); err != nil {
			return err
		}
		return a.ack(ctx, r)
	})
}

// actOffsetWithInbox is right, for comparison: one transaction with the marker, and then the offset.
func actOffsetWithInbox(ctx context.Context, a actor) error {
	return a.each(ctx, func(r *kgo.Record, event string) error {
		err := pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error {
			_, err := inbox.Once(ctx, tx, a.scene, event, func(ctx context.Context) error { return a.bill(ctx, tx, event) })
			return err
		})
		if err != nil {
			return err
		}
		return a.ack(ctx, r)
	})
}

// bill writes an invoice and its line, and fails between the two when it runs for the event the first time.
func (a actor) bill(ctx context.Context, db database, event string) error {
	n, err := a.run(ctx, event)
	if err != nil {
		return err
	}
	if err := statement(ctx, db, `INSERT INTO lab.invoices (scene, event) VALUES ($1, $2)`, a.scene, event); err != nil {
		return err
	}
	if n == 1 {
		return errHandler
	}
	return statement(ctx, db, `INSERT INTO lab.lines (scene, event) VALUES ($1, $2)`, a.scene, event)
}

// statement runs one statement: of a transaction (behind a savepoint), or in one of its own.
func statement(ctx context.Context, db database, sql string, args ...any) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql, args...)
		return err
	})
}
