package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/idempotency"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// The order, its event and the key of its request, in one transaction.
func Example() {
	routes := func(mux *http.ServeMux, pool *pgxpool.Pool, account func(*http.Request) (string, error)) error {
		keys, err := idempotency.ForPGX(pool.Begin, idempotency.Config{Client: account})
		if err != nil {
			return err
		}
		mux.Handle("POST /orders", keys.Handle("POST /orders", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			var order int64
			if err := tx.QueryRow(r.Context(), `INSERT INTO orders DEFAULT VALUES RETURNING id`).Scan(&order); err != nil {
				return err
			}
			if _, err := outbox.Write(r.Context(), tx, outbox.Event{
				AggregateType: "order", AggregateID: fmt.Sprint(order), Type: "OrderPlaced", Payload: body,
			}); err != nil {
				return err
			}
			w.WriteHeader(http.StatusCreated)
			_, err = fmt.Fprintf(w, `{"order": %d}`, order)
			return err
		}))
		return nil
	}
	_ = routes
}

// Expired keys are deleted in a transaction of the caller's, a thousand at a time.
func ExampleKeys_Cleanup() {
	sweep := func(ctx context.Context, pool *pgxpool.Pool, keys *idempotency.Keys[pgx.Tx]) error {
		for {
			var deleted int64
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
				deleted, err = keys.Cleanup(ctx, tx, 1000)
				return err
			})
			if err != nil || deleted < 1000 {
				return err
			}
		}
	}
	_ = sweep
}

// Conflicts are counted by Config.Observe. Here the database is away, and so no
// handler runs.
func ExampleForSQL() {
	keys, err := idempotency.ForSQL(func(context.Context) (*sql.Tx, error) { return nil, errors.New("connection refused") }, idempotency.Config{
		Client: func(*http.Request) (string, error) { return "account 7", nil },
		Expiry: 48 * time.Hour,
		Observe: func(_ *http.Request, result idempotency.Result) {
			fmt.Println(result.Route, result.Outcome, result.Err)
		},
	})
	if err != nil {
		panic(err)
	}
	h := keys.Handle("POST /orders", func(http.ResponseWriter, *http.Request, *sql.Tx) error { panic("never") })
	for _, key := range []string{`"8e03978e-40d5-43dd-bc93-6894a57f9324"`, ""} {
		r := httptest.NewRequest("POST", "/orders", strings.NewReader(`{"item": "tea"}`))
		if key != "" {
			r.Header.Set(idempotency.Header, key)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("Content-Type"))
	}
	// Output:
	// POST /orders unavailable begin the transaction of a request: connection refused
	// 503 application/problem+json
	// POST /orders rejected <nil>
	// 400 application/problem+json
}
