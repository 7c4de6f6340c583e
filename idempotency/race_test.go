package idempotency_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/idempotency"
)

// gate is a handler that waits to be let on.
type gate struct{ entered, leave chan struct{} }

func newGate() gate { return gate{make(chan struct{}, 8), make(chan struct{}, 8)} }

func (g gate) place(w http.ResponseWriter, r *http.Request, exec func(string, ...any) error) error {
	err := place(w, r, exec)
	g.entered <- struct{}{}
	<-g.leave
	return err
}

// begin serves in the background; the answer is received from the channel.
func begin(h http.Handler, r *http.Request) chan *httptest.ResponseRecorder {
	answered := make(chan *httptest.ResponseRecorder, 1)
	go func() { answered <- serve(h, r) }() // ends with the answer
	return answered
}

// Two at once: one runs, the other is told so without waiting, and later the answer.
func TestRace_SecondIsToldToTryAgain(t *testing.T) {
	each(t, func(t *testing.T, s *shop, handle handles) {
		g := newGate()
		h := handle(s.config(), "r", g.place)
		first := begin(h, post("k", "tea"))
		<-g.entered
		for range 3 {
			told(t, serve(h, post("k", "tea")), 409, "in-flight") // a second run would wait at the gate for ever
			told(t, serve(h, post("k", "coffee")), 409, "in-flight")
		}
		other := begin(h, post("k", "coffee", "Client", "b")) // the same key of another client is free
		<-g.entered
		g.leave <- struct{}{}
		g.leave <- struct{}{}
		a, b := <-first, <-other
		told(t, a, 201, "")
		told(t, b, 201, "")
		again := serve(h, post("k", "tea"))
		told(t, again, 201, "")
		if again.Body.String() != a.Body.String() || s.orders() != 2 {
			t.Errorf("told %s and %s; %d orders", a.Body, again.Body, s.orders())
		}
		if n := s.count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"); n != 0 {
			t.Errorf("%d locks stayed", n)
		}
	})
}

// Of many at once, again and again, one has an effect, and all are told its answer in
// the end.
func TestRace_ManyHaveOneEffect(t *testing.T) {
	s := newShop(t)
	isolation := func(level pgx.TxIsoLevel) http.Handler {
		return s.pgxWith(func(ctx context.Context) (pgx.Tx, error) { return s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level}) }, s.config(), "r", place)
	}
	handlers := []http.Handler{isolation(pgx.ReadCommitted), isolation(pgx.RepeatableRead), isolation(pgx.Serializable), s.sql(s.config(), "r", place)}
	const keys, clients = 15, 8
	var mu sync.Mutex
	statuses := map[int]int{}
	for i := range keys {
		key := fmt.Sprint("key ", i)
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() { // waited for below
				for {
					w := serve(handlers[(i+c)%len(handlers)], post(`"`+key+`"`, key))
					mu.Lock()
					statuses[w.Code]++
					mu.Unlock()
					switch w.Code {
					case 409, 503:
						continue
					}
					if w.Body.String() != "ordered "+key+"\n" || w.Code != 201 {
						t.Errorf("told %d %s", w.Code, w.Body)
					}
					return
				}
			})
		}
		wg.Wait()
	}
	if s.orders() != keys || statuses[201] != keys*clients {
		t.Errorf("%d orders, told %v", s.orders(), statuses)
	}
	fmt.Printf("RESULT idempotency_race keys=%d clients=%d orders=%d told=%v ok=%t\n", keys, clients, s.orders(), statuses, !t.Failed())
}

// The connection of a request is killed: nothing stays of it, and its key is free.
func TestRace_CrashFreesTheKey(t *testing.T) {
	each(t, func(t *testing.T, s *shop, handle handles) {
		g := newGate()
		h := handle(s.config(), "r", g.place)
		first := begin(h, post("k", "tea"))
		<-g.entered
		told(t, serve(h, post("k", "tea")), 409, "in-flight")
		if n := s.count("SELECT count(*) FROM pg_locks l, pg_terminate_backend(l.pid, 10000) ended WHERE l.locktype = 'advisory' AND ended"); n != 1 {
			t.Fatalf("%d killed", n)
		}
		// The process of the first request does not know yet; the second takes over.
		second := begin(h, post("k", "tea"))
		<-g.entered
		g.leave <- struct{}{}
		g.leave <- struct{}{}
		told(t, <-first, 503, "unavailable")
		told(t, <-second, 201, "")
		told(t, serve(h, post("k", "tea")), 201, "")
		if s.orders() != 1 {
			t.Errorf("%d orders", s.orders())
		}
	})
}

// A handler that has the raw *sql.Tx may end it; nothing is told as done that is not
// known, and nothing is done twice.
func TestRace_HandlerThatEndsTheTransaction(t *testing.T) {
	s := newShop(t)
	keys, err := idempotency.ForSQL(func(ctx context.Context) (*sql.Tx, error) { return s.std.BeginTx(ctx, nil) }, s.config())
	s.must(err)
	for name, result := range map[string]error{"nil": nil, "an error": http.ErrBodyNotAllowed} {
		h := keys.Handle(name, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
			if _, err := tx.Exec("INSERT INTO orders DEFAULT VALUES"); err != nil {
				return err
			}
			if err := tx.Commit(); err != nil {
				return err
			}
			return result
		})
		told(t, serve(h, post("k", "tea")), 500, "answer-lost")
		told(t, serve(h, post("k", "tea")), 500, "answer-lost")
		told(t, serve(h, post("k", "coffee")), 422, "key-reused")
	}
	if got := s.outcomes(); s.orders() != 2 || got != "answer_lost answer_lost reused answer_lost answer_lost reused" {
		t.Errorf("%d orders: %s", s.orders(), got)
	}

	lent, err := idempotency.ForPGX(s.pool.Begin, s.config())
	s.must(err)
	h := lent.Handle("pgx", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if err := tx.Commit(r.Context()); err != idempotency.ErrNotYours {
			t.Errorf("Commit: %v", err)
		}
		if err := tx.Rollback(r.Context()); err != idempotency.ErrNotYours {
			t.Errorf("Rollback: %v", err)
		}
		// Savepoints are the handler's own.
		return pgx.BeginFunc(r.Context(), tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(r.Context(), "INSERT INTO orders DEFAULT VALUES")
			return err
		})
	})
	told(t, serve(h, post("k", "tea")), 200, "")
	told(t, serve(h, post("k", "tea")), 200, "")
	if s.orders() != 3 {
		t.Errorf("%d orders", s.orders())
	}
}
