package idempotency_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/idempotency"
)

// committing is a transaction whose commit the test sees.
type committing struct {
	pgx.Tx
	commit func(commit func() error) error
}

func (c committing) Commit(ctx context.Context) error {
	return c.commit(func() error { return c.Tx.Commit(ctx) })
}

// watched begins transactions whose commits go through f.
func (s *shop) watched(f func(commit func() error) error) func(context.Context) (pgx.Tx, error) {
	return func(ctx context.Context) (pgx.Tx, error) {
		tx, err := s.pool.Begin(ctx)
		if err != nil {
			return nil, err
		}
		return committing{tx, f}, nil
	}
}

var errLost = errors.New("connection reset, secret")

// A commit whose confirmation was lost is not told as done; the next request with the
// key finds out.
func TestCommit_LostConfirmation(t *testing.T) {
	for name, happened := range map[string]bool{"it happened": true, "it did not": false} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			lost, runs := true, 0
			h := s.pgxWith(s.watched(func(commit func() error) error {
				if !lost {
					return commit()
				}
				if happened {
					s.must(commit())
				}
				return errLost
			}), s.config(), "r", func(w http.ResponseWriter, r *http.Request, exec func(string, ...any) error) error {
				runs++
				return place(w, r, exec)
			})
			w := serve(h, post("k", "tea"))
			told(t, w, 503, "unavailable")
			if strings.Contains(w.Body.String(), "ordered") || strings.Contains(w.Body.String(), "secret") || w.Header().Get("Location") != "" {
				t.Errorf("told %v %s", w.Header(), w.Body)
			}
			lost = false
			again := serve(h, post("k", "tea"))
			told(t, again, 201, "")
			if want := map[bool]int{true: 1, false: 2}[happened]; s.orders() != 1 || runs != want || again.Body.String() != "ordered tea\n" {
				t.Errorf("%d orders, ran %d times, told %s", s.orders(), runs, again.Body)
			}
		})
	}
}

// A commit that the server refuses is a failure, without the handler's answer.
func TestCommit_Refused(t *testing.T) {
	each(t, func(t *testing.T, s *shop, handle handles) {
		s.must(server.Exec(t.Context(), s.db, "ALTER TABLE orders ADD parent bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED"))
		h := handle(s.config(), "r", func(w http.ResponseWriter, r *http.Request, exec func(string, ...any) error) error {
			w.WriteHeader(http.StatusCreated)
			return exec("INSERT INTO orders (parent) VALUES (99)")
		})
		told(t, serve(h, post("k", "tea")), 500, "failed")
		if got := s.outcomes(); got != "failed" || s.orders() != 0 || s.count("SELECT count(*) FROM idempotency_keys") != 0 {
			t.Errorf("observed %s, %d orders", got, s.orders())
		}
	})
}

// Not a byte is told before the commit, however the handler writes.
func TestCommit_ComesBeforeTheAnswer(t *testing.T) {
	s := newShop(t)
	reached, leave := make(chan struct{}), make(chan struct{})
	h := s.pgxWith(s.watched(func(commit func() error) error {
		close(reached)
		<-leave
		return commit()
	}), s.config(), "r", func(w http.ResponseWriter, r *http.Request, exec func(string, ...any) error) error {
		w.WriteHeader(http.StatusEarlyHints)
		for range 100 {
			if _, err := io.WriteString(w, strings.Repeat("x", 1000)); err != nil {
				return err
			}
		}
		if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Flush: %v", err)
		}
		return place(w, r, exec)
	})
	srv := httptest.NewServer(h)
	defer srv.Close()
	conn := send(t, srv, "k", "tea")
	defer conn.Close()
	<-reached
	first := make(chan byte, 1)
	r := bufio.NewReader(conn)
	go func() { // ends with the first byte
		b, _ := r.ReadByte()
		first <- b
	}()
	select {
	case b := <-first:
		t.Errorf("%q was told before the commit", b)
	default:
	}
	if s.orders() != 0 {
		t.Error("it is committed already")
	}
	close(leave)
	if b := <-first; b != 'H' || r.UnreadByte() != nil {
		t.Fatalf("got %q", b)
	}
	resp, err := http.ReadResponse(r, nil)
	s.must(err)
	body, err := io.ReadAll(resp.Body)
	s.must(err)
	if resp.StatusCode != 200 || len(body) != 100_000+len("ordered tea\n") || s.orders() != 1 {
		t.Errorf("told %d, %d bytes; %d orders", resp.StatusCode, len(body), s.orders())
	}
}

// send writes a request on a connection of its own.
func send(t *testing.T, srv *httptest.Server, key, body string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r := post(key, body)
	r.Host, r.URL.Host = "shop", "shop"
	if err := r.Write(conn); err != nil {
		t.Fatal(err)
	}
	return conn
}

// A client that goes away while its handler runs has no effect; one that goes away
// when the handler has succeeded has one, and is told so later.
func TestCommit_ClientGoesAway(t *testing.T) {
	for name, late := range map[string]bool{"during the handler": false, "during the commit": true} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			gone, reached, answered := make(chan struct{}), make(chan struct{}), make(chan struct{})
			first := true
			wait := func(ctx context.Context) {
				if first {
					first = false
					close(reached)
					<-ctx.Done() // net/http has noticed
					close(gone)
				}
			}
			var client context.Context
			c := s.config()
			observe := c.Observe
			c.Observe = func(r *http.Request, result idempotency.Result) {
				observe(r, result)
				if r.Header.Get("Last") == "" {
					close(answered)
				}
			}
			h := s.pgxWith(s.watched(func(commit func() error) error {
				if late {
					wait(client)
				}
				return commit()
			}), c, "r", func(w http.ResponseWriter, r *http.Request, exec func(string, ...any) error) error {
				client = r.Context()
				err := place(w, r, exec)
				if !late {
					wait(client)
				}
				return err
			})
			srv := httptest.NewServer(h)
			defer srv.Close()
			conn := send(t, srv, "k", "tea")
			<-reached
			_ = conn.Close()
			<-gone
			<-answered
			if want := map[bool]int{true: 1, false: 0}[late]; s.orders() != want {
				t.Errorf("%d orders, want %d", s.orders(), want)
			}
			w := serve(h, post("k", "tea", "Last", "yes"))
			told(t, w, 201, "")
			if replayed := w.Header().Get("Idempotency-Replayed") == "true"; replayed != late || s.orders() != 1 || w.Body.String() != "ordered tea\n" {
				t.Errorf("replayed=%t, %d orders", replayed, s.orders())
			}
		})
	}
}

func TestCommit_LargeAnswerIsRolledBack(t *testing.T) {
	each(t, func(t *testing.T, s *shop, handle handles) {
		c := s.config()
		c.MaxAnswerBytes = 20
		size := 21
		h := handle(c, "r", func(w http.ResponseWriter, r *http.Request, exec func(string, ...any) error) error {
			_, err := w.Write(bytes.Repeat([]byte("x"), size))
			if errors.Is(err, idempotency.ErrAnswerTooLarge) != (size > 20) {
				t.Errorf("Write: %v", err)
			}
			return exec("INSERT INTO orders DEFAULT VALUES") // and the error is passed over
		})
		told(t, serve(h, post("k", "tea")), 500, "failed")
		if s.orders() != 0 {
			t.Errorf("%d orders", s.orders())
		}
		size = 20
		told(t, serve(h, post("k", "tea")), 200, "")
		if w := serve(h, post("k", "tea")); w.Body.String() != strings.Repeat("x", 20) || s.orders() != 1 {
			t.Errorf("told %s; %d orders", w.Body, s.orders())
		}
	})
}

// An answer that says yes is told of no transaction that is gone or was aborted, and none
// says that nothing happened where that is not known.
func TestCommit_TransactionThatTheHandlerSpoiled(t *testing.T) {
	for name, c := range map[string]struct {
		key, statement, code string
		status, orders       int
	}{
		"without key, ROLLBACK":          {"", "ROLLBACK", "answer-lost", 201, 0},
		"without key, a swallowed error": {"", "SELECT 1/0", "failed", 201, 0},
		"a swallowed error":              {"k", "SELECT 1/0", "failed", 201, 0},
		"COMMIT, and a refusal":          {"k", "COMMIT", "answer-lost", 409, 1},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, s *shop, handle handles) {
				cfg := s.config()
				cfg.Optional = true
				h := handle(cfg, "r", func(w http.ResponseWriter, r *http.Request, exec func(string, ...any) error) error {
					s.must(exec("INSERT INTO orders DEFAULT VALUES"))
					_ = exec(c.statement)
					w.WriteHeader(c.status)
					return nil
				})
				told(t, serve(h, post(c.key, "tea")), 500, c.code)
				if s.orders() != c.orders {
					t.Errorf("%d orders", s.orders())
				}
			})
		})
	}
}

// While the database is away no handler runs; nor when the table is.
func TestCommit_CannotFailOpen(t *testing.T) {
	own, err := pgserver.Start(t.Context(), pgserver.Options{Version: os.Getenv("CDC_RELAY_TEST_PG_VERSION")})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	pool, err := pgxpool.New(t.Context(), own.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s := &shop{t: t, pool: pool}
	runs := 0
	h := s.pgx(s.config(), "r", func(http.ResponseWriter, *http.Request, func(string, ...any) error) error { runs++; return nil })
	told(t, serve(h, post("k", "tea")), 503, "unavailable") // no table
	s.must(own.Exec(t.Context(), "postgres", idempotency.Schema))
	told(t, serve(h, post("k", "tea")), 200, "")
	own.Kill9()
	for range 2 {
		told(t, serve(h, post("k", "tea")), 503, "unavailable")
		told(t, serve(h, post("other", "tea")), 503, "unavailable")
	}
	if got := s.outcomes(); runs != 1 || strings.Count(got, "unavailable") != 5 {
		t.Errorf("ran %d times: %s", runs, got)
	}
}
