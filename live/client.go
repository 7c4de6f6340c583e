package live

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/idempotency"
)

// answer is what a client heard; err: nothing.
type answer struct {
	status   int
	order    int64
	event    string
	replayed bool
	err      error
}

// client opens a connection per request: one to a process that was killed is of no use.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}

// placeOrder sends one order of the customer, who has one key.
func placeOrder(ctx context.Context, url, customer, key string) (a answer) {
	body := strings.NewReader(`{"item": "tea", "cents": 450, "email": "ann@example.org"}`)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/orders", body)
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Customer", customer)
	req.Header.Set(idempotency.Header, strconv.Quote(key))
	resp, err := client.Do(req)
	if err != nil {
		return answer{err: fmt.Errorf("place the order: %w", err)}
	}
	defer resp.Body.Close()
	a = answer{status: resp.StatusCode, replayed: resp.Header.Get("Idempotency-Replayed") == "true"}
	var placed struct {
		Order int64
		Event string
	}
	if a.status != http.StatusCreated {
		a.err = fmt.Errorf("place the order: the service answered %s", resp.Status)
	} else if err := json.NewDecoder(resp.Body).Decode(&placed); err != nil {
		a.err = fmt.Errorf("read the answer to the order: %w", err)
	}
	a.order, a.event = placed.Order, placed.Event
	return a
}
