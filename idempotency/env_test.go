package idempotency_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/idempotency"
)

var server *pgserver.Server

func TestMain(m *testing.M) {
	var err error
	server, err = pgserver.Start(context.Background(), pgserver.Options{Version: os.Getenv("CDC_RELAY_TEST_PG_VERSION")})
	if err != nil {
		fmt.Fprintln(os.Stderr, "start PostgreSQL:", err)
		os.Exit(1)
	}
	code := m.Run()
	server.Close()
	os.Exit(code)
}

// shop takes orders, in a database of its own.
type shop struct {
	t    *testing.T
	db   string
	pool *pgxpool.Pool
	std  *sql.DB

	mu      sync.Mutex
	results []idempotency.Result
}

var shops atomic.Int64

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{t: t, db: fmt.Sprintf("db%d", shops.Add(1))}
	s.must(server.CreateDatabase(t.Context(), s.db, ""))
	s.must(server.Exec(t.Context(), s.db, idempotency.Schema, "CREATE TABLE orders (id bigserial PRIMARY KEY, item text UNIQUE)"))
	cfg, err := pgxpool.ParseConfig(server.DSN(s.db))
	s.must(err)
	cfg.MaxConns = 20
	s.pool, err = pgxpool.NewWithConfig(context.Background(), cfg)
	s.must(err)
	s.std = stdlib.OpenDB(*cfg.ConnConfig)
	s.std.SetMaxOpenConns(20)
	t.Cleanup(func() { s.pool.Close(); _ = s.std.Close() })
	return s
}

func (s *shop) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// count returns the result of a query for one number.
func (s *shop) count(query string, args ...any) (n int) {
	s.t.Helper()
	s.must(s.pool.QueryRow(s.t.Context(), query, args...).Scan(&n))
	return n
}

func (s *shop) orders() int { s.t.Helper(); return s.count("SELECT count(*) FROM orders") }

// config is that of most tests: the client is a header.
func (s *shop) config() idempotency.Config {
	return idempotency.Config{
		Client: func(r *http.Request) (string, error) {
			if r.Header.Get("Client") == "" {
				return "", fmt.Errorf("nobody")
			}
			return r.Header.Get("Client"), nil
		},
		Observe: func(_ *http.Request, result idempotency.Result) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.results = append(s.results, result)
		},
	}
}

// outcomes returns what was observed since the last call.
func (s *shop) outcomes() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, r := range s.results {
		out = append(out, string(r.Outcome))
	}
	s.results = nil
	return strings.Join(out, " ")
}

// work is a handler without the type of its transaction.
type work func(w http.ResponseWriter, r *http.Request, exec func(sql string, args ...any) error) error

func (s *shop) pgx(c idempotency.Config, route string, do work) http.Handler {
	s.t.Helper()
	return s.pgxWith(s.pool.Begin, c, route, do)
}

func (s *shop) pgxWith(begin func(context.Context) (pgx.Tx, error), c idempotency.Config, route string, do work) http.Handler {
	s.t.Helper()
	keys, err := idempotency.ForPGX(begin, c)
	s.must(err)
	return keys.Handle(route, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		return do(w, r, func(sql string, args ...any) error { _, err := tx.Exec(r.Context(), sql, args...); return err })
	})
}

func (s *shop) sql(c idempotency.Config, route string, do work) http.Handler {
	s.t.Helper()
	keys, err := idempotency.ForSQL(func(ctx context.Context) (*sql.Tx, error) { return s.std.BeginTx(ctx, nil) }, c)
	s.must(err)
	return keys.Handle(route, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		return do(w, r, func(sql string, args ...any) error { _, err := tx.ExecContext(r.Context(), sql, args...); return err })
	})
}

// each runs a test with both drivers, each in a shop of its own.
func each(t *testing.T, test func(t *testing.T, s *shop, handle func(idempotency.Config, string, work) http.Handler)) {
	t.Run("pgx", func(t *testing.T) { s := newShop(t); test(t, s, s.pgx) })
	t.Run("database/sql", func(t *testing.T) { s := newShop(t); test(t, s, s.sql) })
}

// place inserts an order named by the body.
func place(w http.ResponseWriter, r *http.Request, exec func(string, ...any) error) error {
	item, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if err := exec("INSERT INTO orders (item) VALUES ($1)", string(item)); err != nil {
		return err
	}
	w.Header().Set("Location", "/orders/"+string(item))
	w.Header().Set("Content-Type", "text/x-order")
	w.Header().Set("Set-Cookie", "session=secret")
	w.WriteHeader(http.StatusCreated)
	_, err = fmt.Fprintf(w, "ordered %s\n", item)
	return err
}

// post is a request; pairs of names and values are headers.
func post(key, body string, headers ...string) *http.Request {
	r := httptest.NewRequest("POST", "/orders", strings.NewReader(body))
	r.Header.Set("Client", "a")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// told checks an answer's status, and the code of a problem.
func told(t *testing.T, w *httptest.ResponseRecorder, status int, code string) {
	t.Helper()
	if w.Code != status {
		t.Errorf("got %d %s, want %d %s", w.Code, w.Body, status, code)
		return
	}
	if code == "" {
		return
	}
	var p struct {
		Type, Title, Detail, Code string
		Status                    int
	}
	d := json.NewDecoder(bytes.NewReader(w.Body.Bytes()))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil || p.Code != code || p.Status != status || p.Title != http.StatusText(status) || p.Detail == "" || p.Type == "" ||
		w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("got %s %s, want the problem %s: %v", w.Header(), w.Body, code, err)
	}
	if again := w.Header().Get("Retry-After") != ""; again != (status == 409 || status == 503) {
		t.Errorf("%d with Retry-After %q", status, w.Header().Get("Retry-After"))
	}
}
