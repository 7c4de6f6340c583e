package stage_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/lab/stage"
)

// TestStage_HoldsKillsAndRecovers holds each process at each of its points with an order on the way, kills it there, lets go,
// starts it again, and wants one invoice and one mail per order after each.
func TestStage_HoldsKillsAndRecovers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	s, err := stage.Start(ctx, stage.Options{PostgresVersion: "15"})
	if errors.Is(err, kafkaserver.ErrNoJars) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer func() {
		if t.Failed() {
			for _, p := range s.Processes() {
				t.Logf("log of %s:\n%s", p.Name, p.Log()[max(0, len(p.Log())-3000):])
			}
		}
	}()
	orders := 0
	for _, p := range s.Processes() {
		for _, point := range p.Points() {
			t.Run(p.Name+" "+string(point), func(t *testing.T) {
				began := time.Now()
				orders++
				killAt(t, ctx, s, p, point, fmt.Sprintf("key-%d", orders))
				awaitEffects(t, ctx, s, orders)
				t.Logf("took %v", time.Since(began))
			})
		}
	}
	for _, p := range []*stage.Process{s.Kafka, s.Postgres} {
		t.Run(p.Name, func(t *testing.T) {
			began := time.Now()
			p.Kill()
			if err := p.Start(ctx); err != nil {
				t.Fatal(err)
			}
			orders++
			place(t, ctx, s, fmt.Sprintf("key-%d", orders))
			awaitEffects(t, ctx, s, orders)
			t.Logf("took %v", time.Since(began))
		})
	}
}

func killAt(t *testing.T, ctx context.Context, s *stage.Stage, p *stage.Process, point stage.Point, key string) {
	h := p.Hold(point)
	go func() { _, _ = s.PlaceOrder(ctx, key) }() // ends by its time-out at the latest; asked again below
	wait, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := h.Wait(wait); err != nil {
		h.Release()
		t.Fatal(err)
	}
	p.Kill()
	if p.Up() {
		t.Error("it runs after Kill")
	}
	h.Release()
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	place(t, ctx, s, key)
}

// place asks until it hears that the order is there.
func place(t *testing.T, ctx context.Context, s *stage.Stage, key string) {
	t.Helper()
	err := stage.Eventually(ctx, "the order is placed", func(ctx context.Context) (bool, error) {
		a, err := s.PlaceOrder(ctx, key)
		return a.Status == http.StatusCreated, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func awaitEffects(t *testing.T, ctx context.Context, s *stage.Stage, orders int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	var c stage.Counts
	err := stage.Eventually(ctx, "each order has its effects", func(ctx context.Context) (_ bool, err error) {
		c, err = s.Counts(ctx)
		return c.Orders == orders && c.Outbox == orders && c.Invoices == orders && c.OrdersOdd == 0 && c.Mails == orders, err
	})
	if err != nil {
		t.Fatalf("%v; %d orders, counts %+v", err, orders, c)
	}
	for _, group := range []string{stage.BillGroup, stage.MailGroup} {
		err := stage.Eventually(ctx, "the offsets are committed", func(ctx context.Context) (bool, error) {
			offsets, err := s.Offsets(ctx, group, stage.Topic)
			return len(offsets) == 1 && offsets[0].Committed == offsets[0].End, err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
