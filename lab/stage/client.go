package stage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/cdc-relay/cdc-relay/idempotency"
)

// Answer is what the order service said.
type Answer struct {
	Status   int
	Order    int64  // 0 unless Status is 201
	Event    string // id of the outbox row
	Replayed bool   // the answer to an earlier request with the key
}

// PlaceOrder sends one request with an idempotency key, over a connection of its own, and returns the answer. An error means
// that the client does not know whether there is an order now.
func (s *Stage) PlaceOrder(ctx context.Context, key string) (a Answer, err error) {
	body := []byte(`{"item": "tea", "cents": 450, "email": "ann@example.org"}`)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.OrdersURL+"/orders", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Customer", "ann")
	req.Header.Set(idempotency.Header, strconv.Quote(key))
	resp, err := direct.Do(req)
	if err != nil {
		return a, fmt.Errorf("place the order of key %s: %w", key, err)
	}
	defer resp.Body.Close()
	a.Status, a.Replayed = resp.StatusCode, resp.Header.Get("Idempotency-Replayed") != ""
	if a.Status != http.StatusCreated {
		return a, nil
	}
	var placed struct {
		Order int64
		Event string
	}
	if err := json.NewDecoder(resp.Body).Decode(&placed); err != nil {
		return a, fmt.Errorf("read the answer to the order of key %s: %w", key, err)
	}
	a.Order, a.Event = placed.Order, placed.Event
	return a, nil
}
