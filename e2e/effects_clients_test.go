package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/idempotency"
)

// clients place orders all the time. Each order has a key, and its request is repeated
// until it is answered; some clients do not wait for long.
type clients struct {
	urls []string // of the processes that serve
	stop func()   // returns when every order that was begun is answered

	mu       sync.Mutex
	answered map[int64]int // order: how many keys were answered with it
	requests int
	replayed int // answers that were told again
	wrong    []string
}

func startClients(t testing.TB, n int, urls ...string) *clients {
	t.Helper()
	c := &clients{urls: urls, answered: map[int64]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	// Broken off only at the end of a test that has failed already.
	last, abandon := context.WithCancel(context.Background())
	t.Cleanup(abandon)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for seq := 0; ctx.Err() == nil && last.Err() == nil; seq++ {
				c.place(last, fmt.Sprintf("client-%d", i), fmt.Sprintf("%d-%d", i, seq))
				time.Sleep(rand.N(50 * time.Millisecond))
			}
		})
	}
	c.stop = sync.OnceFunc(func() {
		cancel()
		limit := time.AfterFunc(2*time.Minute, func() {
			t.Error("some orders got no answer within 2 minutes after everything was started")
			abandon()
		})
		defer limit.Stop()
		wg.Wait()
	})
	t.Cleanup(c.stop)
	return c
}

// place sends one order until it is answered with 201.
func (c *clients) place(ctx context.Context, customer, key string) {
	body := fmt.Sprintf(`{"item": "tea", "cents": %d, "email": "%s@example.com"}`, 100+rand.N(900), customer)
	for attempt := rand.N(len(c.urls)); ctx.Err() == nil; attempt++ { // as behind a load balancer
		patience := 5 * time.Second
		if rand.N(20) == 0 {
			patience = time.Millisecond + rand.N(20*time.Millisecond)
		}
		status, answer, replayed := c.ask(ctx, patience, c.urls[attempt%len(c.urls)], customer, key, body)
		c.mu.Lock()
		c.requests++
		c.mu.Unlock()
		switch status {
		case http.StatusCreated:
			var placed struct{ Order int64 }
			err := json.Unmarshal([]byte(answer), &placed)
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil || placed.Order == 0 {
				c.wrong = append(c.wrong, fmt.Sprintf("key %s was answered %q", key, answer))
			}
			c.answered[placed.Order]++
			if replayed {
				c.replayed++
			}
			return
		case 0, http.StatusConflict, http.StatusInternalServerError, http.StatusServiceUnavailable:
			time.Sleep(20*time.Millisecond + rand.N(100*time.Millisecond))
		default:
			c.mu.Lock()
			defer c.mu.Unlock()
			c.wrong = append(c.wrong, fmt.Sprintf("key %s was answered %d %q", key, status, answer))
			return
		}
	}
}

// ask returns status 0 when no whole answer came.
func (c *clients) ask(ctx context.Context, patience time.Duration, url, customer, key, body string) (status int, answer string, replayed bool) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/orders", strings.NewReader(body))
	if err != nil {
		return 0, "", false
	}
	req.Header.Set("X-Customer", customer)
	req.Header.Set(idempotency.Header, strconv.Quote(key))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", false
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, "", false
	}
	return resp.StatusCode, string(b), resp.Header.Get("Idempotency-Replayed") == "true"
}
