package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/idempotency"
	"github.com/cdc-relay/cdc-relay/outbox"
)

type handles = func(idempotency.Config, string, work) http.Handler

func TestHandle_SameRequestIsToldTheFirstAnswer(t *testing.T) {
	each(t, func(t *testing.T, s *shop, handle handles) {
		h := handle(s.config(), "POST /orders", place)
		first := serve(h, post(`"k 1"`, "tea"))
		told(t, first, 201, "")
		if first.Header().Get("Set-Cookie") == "" || first.Header().Get("Idempotency-Replayed") != "" {
			t.Errorf("the first answer has %v", first.Header())
		}
		for range 2 {
			again := serve(h, post(`"k 1"`, "tea"))
			told(t, again, 201, "")
			if again.Body.String() != "ordered tea\n" || again.Body.String() != first.Body.String() || again.Header().Get("Location") != "/orders/tea" ||
				again.Header().Get("Content-Type") != "text/x-order" || again.Header().Get("Idempotency-Replayed") != "true" || again.Header().Get("Set-Cookie") != "" {
				t.Errorf("told %v %s", again.Header(), again.Body)
			}
		}
		if got := s.outcomes(); s.orders() != 1 || got != "first replayed replayed" {
			t.Errorf("%d orders: %s", s.orders(), got)
		}
		// A string of RFC 9651 and the same text without its quotes are one key.
		told(t, serve(h, post(`bare`, "a")), 201, "")
		told(t, serve(h, post(`"bare"`, "a")), 201, "")
		told(t, serve(h, post(`"with \"quotes\" and \\"`, "b")), 201, "")
		if s.orders() != 3 {
			t.Errorf("%d orders", s.orders())
		}
	})
}

func TestHandle_OtherRequestIsRefused(t *testing.T) {
	each(t, func(t *testing.T, s *shop, handle handles) {
		h := handle(s.config(), "POST /orders", place)
		told(t, serve(h, post("k", "tea")), 201, "")
		other := post("k", "tea")
		other.URL.Path = "/orders/1"
		query := post("k", "tea")
		query.URL.RawQuery = "a=1"
		method := post("k", "tea")
		method.Method = "PUT"
		for name, r := range map[string]*http.Request{"body": post("k", "coffee"), "no body": post("k", ""), "path": other, "query": query,
			"method": method, "content type": post("k", "tea", "Content-Type", "text/plain")} {
			w := serve(h, r)
			told(t, w, 422, "key-reused")
			if strings.Contains(w.Body.String(), "ordered") {
				t.Errorf("%s: it shows the other answer: %s", name, w.Body)
			}
		}
		if s.orders() != 1 {
			t.Errorf("%d orders", s.orders())
		}
	})
}

// A key of another client or route is another key, and shows nothing of this one.
func TestHandle_KeysBelongToClientAndRoute(t *testing.T) {
	each(t, func(t *testing.T, s *shop, handle handles) {
		orders, refunds := handle(s.config(), "POST /orders", place), handle(s.config(), "POST /refunds", place)
		told(t, serve(orders, post("k", "a")), 201, "")
		told(t, serve(orders, post("k", "b", "Client", "b")), 201, "")
		told(t, serve(refunds, post("k", "c")), 201, "")
		told(t, serve(orders, post("k", "b")), 422, "key-reused")
		if got := s.outcomes(); s.orders() != 3 || got != "first first first reused" {
			t.Errorf("%d orders: %s", s.orders(), got)
		}
	})
}

// What becomes of the handler's writes, of its answer, and of a second request.
func TestHandle_AnswerDecidesWhatStays(t *testing.T) {
	errFailed := errors.New("no stock, secret")
	insert := func(exec func(string, ...any) error) error { return exec("INSERT INTO orders (item) VALUES ($1)", "x") }
	answers := func(status int, err error) work {
		return func(w http.ResponseWriter, _ *http.Request, exec func(string, ...any) error) error {
			if err := insert(exec); err != nil {
				return err
			}
			if status != 0 {
				w.WriteHeader(status)
				fmt.Fprint(w, "the handler's own")
			}
			return err
		}
	}
	conflict := func(w http.ResponseWriter, _ *http.Request, exec func(string, ...any) error) error {
		if exec("INSERT INTO orders (item) VALUES ('y'), ('y')") != nil {
			w.WriteHeader(http.StatusConflict) // the transaction is aborted
		}
		return nil
	}
	swallow := func(w http.ResponseWriter, _ *http.Request, exec func(string, ...any) error) error {
		_ = exec("INSERT INTO orders (item) VALUES ('y'), ('y')")
		w.WriteHeader(http.StatusCreated)
		return nil
	}
	cases := map[string]struct {
		do      work
		status  int
		code    string // of a problem; "" : the handler's own answer
		orders  int    // after one request
		runs    int    // of the handler for two
		outcome string
	}{
		"created":                  {answers(201, nil), 201, "", 1, 1, "first replayed"},
		"nothing written":          {answers(0, nil), 200, "", 1, 1, "first replayed"},
		"no content":               {answers(204, nil), 204, "", 1, 1, "first replayed"},
		"see other":                {answers(303, nil), 303, "", 1, 1, "first replayed"},
		"a client's error":         {answers(422, nil), 422, "", 0, 1, "first replayed"},
		"after a failed statement": {conflict, 409, "", 0, 1, "first replayed"},
		"error and answer":         {answers(201, errFailed), 500, "failed", 0, 2, "failed failed"},
		"error":                    {answers(0, errFailed), 500, "failed", 0, 2, "failed failed"},
		"500":                      {answers(500, nil), 500, "", 0, 2, "not_kept not_kept"},
		"503":                      {answers(503, nil), 503, "", 0, 2, "not_kept not_kept"},
		"429":                      {answers(429, nil), 429, "", 0, 2, "not_kept not_kept"},
		"error passed over":        {swallow, 500, "failed", 0, 2, "failed failed"},
	}
	each(t, func(t *testing.T, s *shop, handle handles) {
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				s.must(server.Exec(t.Context(), s.db, "TRUNCATE orders, idempotency_keys"))
				runs := 0
				h := handle(s.config(), "r", func(w http.ResponseWriter, r *http.Request, exec func(string, ...any) error) error {
					runs++
					return c.do(w, r, exec)
				})
				for i := range 2 {
					w := serve(h, post("k", "tea"))
					told(t, w, c.status, c.code)
					if own := strings.Contains(w.Body.String(), "the handler's own"); own && c.code != "" || strings.Contains(w.Body.String(), "secret") {
						t.Errorf("told %s", w.Body)
					}
					if n := s.orders(); n != c.orders {
						t.Errorf("%d orders after request %d", n, i+1)
					}
				}
				kept := s.count("SELECT count(*) FROM idempotency_keys WHERE status IS NOT NULL")
				if got := s.outcomes(); runs != c.runs || got != c.outcome || kept != 2-c.runs || s.count("SELECT count(*) FROM idempotency_keys") != kept {
					t.Errorf("ran %d times, %s, %d kept", runs, got, kept)
				}
			})
		}
	})
}

func TestHandle_PanicRollsBack(t *testing.T) {
	each(t, func(t *testing.T, s *shop, handle handles) {
		runs := 0
		h := handle(s.config(), "r", func(w http.ResponseWriter, r *http.Request, exec func(string, ...any) error) error {
			if err := place(w, r, exec); err != nil {
				return err
			}
			if runs++; runs == 1 {
				panic(http.ErrAbortHandler)
			}
			return nil
		})
		func() {
			defer func() {
				if p := recover(); p != http.ErrAbortHandler {
					t.Errorf("recovered %v", p)
				}
			}()
			serve(h, post("k", "tea"))
		}()
		if s.orders() != 0 || s.count("SELECT count(*) FROM idempotency_keys") != 0 {
			t.Error("something stayed")
		}
		told(t, serve(h, post("k", "tea")), 201, "")
		if got := s.outcomes(); s.orders() != 1 || got != "failed first" {
			t.Errorf("%d orders: %s", s.orders(), got)
		}
	})
}

// What is refused at the door begins no transaction.
func TestHandle_RefusesAtTheDoor(t *testing.T) {
	s := newShop(t)
	c := s.config()
	c.MaxBodyBytes, c.Docs = 5, "https://shop.example/docs"
	h := s.pgxWith(func(context.Context) (pgx.Tx, error) {
		t.Error("a transaction was begun")
		return nil, errors.New("none")
	}, c, "r", place)
	two := post("a", "tea")
	two.Header.Add("Idempotency-Key", "b")
	endless := post("k", "123456")
	endless.ContentLength = -1
	broken := post("k", "tea")
	broken.Body = io.NopCloser(iotest.ErrReader(errors.New("connection reset")))
	for name, c := range map[string]struct {
		r      *http.Request
		status int
		code   string
	}{
		"no key":          {post("", "tea"), 400, "missing-key"},
		"empty":           {post(`""`, "tea"), 400, "malformed-key"},
		"blank":           {post(" ", "tea"), 400, "malformed-key"},
		"two keys":        {two, 400, "malformed-key"},
		"list":            {post("a, b", "tea"), 400, "malformed-key"},
		"list of strings": {post(`"a", "b"`, "tea"), 400, "malformed-key"},
		"parameter":       {post(`"a";b=c`, "tea"), 400, "malformed-key"},
		"not closed":      {post(`"a`, "tea"), 400, "malformed-key"},
		"one quote":       {post(`"`, "tea"), 400, "malformed-key"},
		"bad escape":      {post(`"a\n"`, "tea"), 400, "malformed-key"},
		"escape at end":   {post(`"a\"`, "tea"), 400, "malformed-key"},
		"not ASCII":       {post("ä", "tea"), 400, "malformed-key"},
		"too long":        {post(strings.Repeat("a", 256), "tea"), 400, "malformed-key"},
		"nobody":          {post("k", "tea", "Client", ""), 401, "unknown-client"},
		"no name":         {post("k", "tea", "Client", strings.Repeat("a", 256)), 401, "unknown-client"},
		"large":           {post("k", "123456"), 413, "body-too-large"},
		"endless":         {endless, 413, "body-too-large"},
		"broken off":      {broken, 400, "unreadable-body"},
	} {
		t.Run(name, func(t *testing.T) {
			w := serve(h, c.r)
			told(t, w, c.status, c.code)
			if !strings.Contains(w.Body.String(), `"type":"https://shop.example/docs#`+c.code+`"`) {
				t.Errorf("told %s", w.Body)
			}
			if got := s.outcomes(); got != "rejected" {
				t.Errorf("observed %s", got)
			}
		})
	}
}

func TestHandle_OptionalKeys(t *testing.T) {
	each(t, func(t *testing.T, s *shop, handle handles) {
		c := s.config()
		c.Optional = true
		status := http.StatusCreated
		h := handle(c, "r", func(w http.ResponseWriter, r *http.Request, exec func(string, ...any) error) error {
			err := exec("INSERT INTO orders DEFAULT VALUES")
			w.WriteHeader(status)
			return err
		})
		told(t, serve(h, post("", "tea", "Client", "")), 201, "")
		told(t, serve(h, post("", "tea")), 201, "")
		status = http.StatusUnprocessableEntity
		told(t, serve(h, post("", "tea")), 422, "")
		told(t, serve(h, post("a, b", "tea")), 400, "malformed-key")
		if n := s.count("SELECT count(*) FROM idempotency_keys"); s.orders() != 2 || n != 0 {
			t.Errorf("%d orders, %d keys", s.orders(), n)
		}
	})
}

// An expired key is a new one; Cleanup deletes no other.
func TestHandle_ExpiredKeyIsNew(t *testing.T) {
	each(t, func(t *testing.T, s *shop, handle handles) {
		c := s.config()
		c.Expiry = time.Hour
		h := handle(c, "r", place)
		for _, item := range []string{"a", "b", "c", "d"} {
			told(t, serve(h, post(item, item)), 201, "")
		}
		if n := s.count("SELECT count(*) FROM idempotency_keys WHERE expires_at - created_at = interval '1 hour'"); n != 4 {
			t.Errorf("%d keys of an hour", n)
		}
		s.must(server.Exec(t.Context(), s.db, "UPDATE idempotency_keys SET expires_at = now() WHERE key <> 'd'"))
		told(t, serve(h, post("a", "another")), 201, "")
		told(t, serve(h, post("a", "another")), 201, "")
		keys, err := idempotency.ForPGX(s.pool.Begin, c)
		s.must(err)
		for _, want := range []int64{1, 1, 0} {
			tx, err := s.pool.Begin(t.Context())
			s.must(err)
			n, err := keys.Cleanup(t.Context(), tx, 1)
			s.must(err)
			s.must(tx.Commit(t.Context()))
			if n != want {
				t.Errorf("deleted %d, want %d", n, want)
			}
		}
		told(t, serve(h, post("d", "d")), 201, "")
		if got := s.outcomes(); s.orders() != 5 || got != "first first first first first replayed replayed" || s.count("SELECT count(*) FROM idempotency_keys") != 2 {
			t.Errorf("%d orders: %s", s.orders(), got)
		}
	})
}

func TestNew_ReportsEveryProblem(t *testing.T) {
	_, err := idempotency.ForPGX(nil, idempotency.Config{Expiry: -1, Table: "a\x00"})
	for _, word := range []string{"begin is nil", "Client is nil", "negative", "zero byte"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("no %q in %v", word, err)
		}
	}
}

// The event of an order is written in the same lent transaction: one order, one event.
func TestHandle_WithAnOutbox(t *testing.T) {
	s := newShop(t)
	s.must(server.Exec(t.Context(), s.db, outbox.Schema))
	keys, err := idempotency.ForPGX(s.pool.Begin, s.config())
	s.must(err)
	fail := true
	h := keys.Handle("r", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		_, err := outbox.Write(r.Context(), tx, outbox.Event{AggregateType: "order", AggregateID: "1", Type: "OrderPlaced"})
		if err == nil && fail {
			err = errors.New("the order failed")
		}
		return err
	})
	told(t, serve(h, post("k", "tea")), 500, "failed")
	fail = false
	for range 3 {
		told(t, serve(h, post("k", "tea")), 200, "")
	}
	if n := s.count("SELECT count(*) FROM outbox"); n != 1 {
		t.Errorf("%d events", n)
	}
}
