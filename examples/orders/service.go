package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	netmail "net/mail"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/idempotency"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// serve is the order service.
func serve(ctx context.Context, s settings) error {
	pool, err := pgxpool.New(ctx, s.databaseURL)
	if err != nil {
		return fmt.Errorf("read DATABASE_URL: %w", err)
	}
	defer pool.Close()
	keys, err := idempotency.ForPGX(pool.Begin, idempotency.Config{Client: customerOf, Observe: logRequest})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", keys.Handle("POST /orders", placeOrder))
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) { showOrder(w, r, pool) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if pool.Ping(r.Context()) != nil {
			http.Error(w, "the database does not answer", http.StatusServiceUnavailable)
		}
	})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serveHTTP(ctx, s.listen, mux) })
	g.Go(func() error { sweep(ctx, pool, keys); return nil })
	return g.Wait()
}

// customerOf trusts the header X-Customer, as a gateway sets it that has authenticated
// the client. Keys belong to a customer: nobody is told the answer of another.
func customerOf(r *http.Request) (string, error) {
	customer := r.Header.Get("X-Customer")
	if !isText(customer) {
		return "", errors.New("the header X-Customer is missing or too long")
	}
	return customer, nil
}

// placeOrder writes the order and its event in tx, where the row of the request's key is
// too: all three are committed together, or none. nil commits, an error rolls back, and
// both are done by the middleware.
func placeOrder(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	ctx := r.Context()
	customer, err := customerOf(r)
	if err != nil {
		return err
	}
	e := orderPlaced{Customer: customer}
	if problem := readOrder(r, &e); problem != "" {
		http.Error(w, problem, http.StatusBadRequest) // kept with the key: a retry is told the same
		return nil
	}

	err = tx.QueryRow(ctx, `INSERT INTO orders (customer, item, cents, email) VALUES ($1, $2, $3, $4) RETURNING id`,
		e.Customer, e.Item, e.Cents, e.Email).Scan(&e.Order)
	if err != nil {
		return fmt.Errorf("insert the order: %w", err)
	}
	payload, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode the event of order %d: %w", e.Order, err)
	}
	id := strconv.FormatInt(e.Order, 10)
	ref, err := outbox.Write(ctx, tx, outbox.Event{AggregateType: "order", AggregateID: id, Type: typeOrderPlaced, Payload: payload})
	if err != nil {
		return fmt.Errorf("write the event of order %d: %w", e.Order, err)
	}

	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/orders/"+id)
	w.WriteHeader(http.StatusCreated)
	return json.NewEncoder(w).Encode(map[string]any{"order": e.Order, "event": ref.ID})
}

// readOrder returns what is wrong with the request, in words for the client.
func readOrder(r *http.Request, e *orderPlaced) (problem string) {
	var body struct {
		Item  string
		Cents int64
		Email string
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		return "send a JSON object with item, cents and email"
	}
	if _, err := netmail.ParseAddress(body.Email); err != nil || !isText(body.Email) {
		return "email is no mail address"
	}
	if !isText(body.Item) || body.Cents <= 0 {
		return "item must have 1 to 200 bytes, and cents be above 0"
	}
	e.Item, e.Cents, e.Email = body.Item, body.Cents, body.Email
	return ""
}

// isText is what a column of type text takes, and not much of it.
func isText(s string) bool {
	return s != "" && len(s) <= 200 && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

func showOrder(w http.ResponseWriter, r *http.Request, pool *pgxpool.Pool) {
	customer, err := customerOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	e := orderPlaced{Order: id, Customer: customer}
	err = pool.QueryRow(r.Context(), `SELECT item, cents, email FROM orders WHERE id = $1 AND customer = $2`, id, customer).
		Scan(&e.Item, &e.Cents, &e.Email)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		http.NotFound(w, r)
	case err != nil:
		slog.Error("order not read", "order", id, "error", err)
		http.Error(w, "try again", http.StatusServiceUnavailable)
	default:
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(e); err != nil {
			slog.Warn("answer not sent", "order", id, "error", err)
		}
	}
}

func logRequest(r *http.Request, result idempotency.Result) {
	log := slog.With("route", result.Route, "outcome", string(result.Outcome))
	if result.Err != nil {
		log.ErrorContext(r.Context(), "request failed", "error", result.Err)
		return
	}
	log.InfoContext(r.Context(), "request")
}

// sweep deletes expired keys, in transactions of its own.
func sweep(ctx context.Context, pool *pgxpool.Pool, keys *idempotency.Keys[pgx.Tx]) {
	const batch = 1000
	tick := time.NewTicker(10 * time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for deleted := int64(batch); deleted == batch; {
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
				deleted, err = keys.Cleanup(ctx, tx, batch)
				return err
			})
			if err != nil {
				slog.Warn("expired keys not deleted; tried again later", "error", err)
				break
			}
		}
	}
}
