package inbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/inbox"
)

const invoice = "INSERT INTO invoices (order_id) VALUES ('42')"

func eachDriver(t *testing.T, test func(t *testing.T, e *env, begin func() tx)) {
	e := newEnv(t)
	for name, begin := range e.drivers() {
		t.Run(name, func(t *testing.T) {
			e.must(server.Exec(t.Context(), e.db, "TRUNCATE inbox, invoices"))
			test(t, e, begin)
		})
	}
}

func TestOnce_DuplicateDeliveryIsOneEffect(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env, begin func() tx) {
		deliver := func(consumer string) bool {
			x := begin()
			defer x.rollback()
			first, err := x.once(t.Context(), consumer, "event-1", func(ctx context.Context) error { return x.exec(ctx, invoice) })
			e.must(err)
			e.must(x.commit())
			return first
		}
		if !deliver("billing") || deliver("billing") || e.invoices() != 1 {
			t.Errorf("%d invoices after two deliveries", e.invoices())
		}
		if !deliver("audit") || e.invoices() != 2 {
			t.Errorf("%d invoices after another consumer", e.invoices())
		}
	})
}

func TestOnce_FailedEffectCannotBeCommitted(t *testing.T) {
	failure := errors.New("no such order")
	eachDriver(t, func(t *testing.T, e *env, begin func() tx) {
		for name, run := range map[string]func(x tx) error{
			"error": func(x tx) error {
				_, err := x.once(t.Context(), "billing", "e", func(ctx context.Context) error {
					e.must(x.exec(ctx, invoice))
					return failure
				})
				if !errors.Is(err, failure) || errors.Is(err, inbox.ErrNotAborted) {
					t.Errorf("error %v", err)
				}
				return x.commit()
			},
			"panic": func(x tx) error {
				func() {
					defer func() { _ = recover() }()
					_, _ = x.once(t.Context(), "billing", "e", func(ctx context.Context) error {
						e.must(x.exec(ctx, invoice))
						panic("in the handler")
					})
				}()
				return x.commit()
			},
			"ended context": func(x tx) error {
				ctx, cancel := context.WithCancel(t.Context())
				_, err := x.once(ctx, "billing", "e", func(ctx context.Context) error {
					e.must(x.exec(ctx, invoice))
					cancel()
					return ctx.Err()
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("error %v", err)
				}
				return x.commit()
			},
		} {
			x := begin()
			if err := run(x); err == nil {
				t.Errorf("%s: the commit of a failed effect was no error", name)
			}
			x.rollback()
			if e.markers() != 0 || e.invoices() != 0 {
				t.Errorf("%s: %d markers, %d invoices", name, e.markers(), e.invoices())
			}
		}
	})
}

func TestOnce_TwoWorkersAtOnceAreOneEffect(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env, begin func() tx) {
		for _, commits := range []bool{true, false} {
			e.must(server.Exec(t.Context(), e.db, "TRUNCATE inbox, invoices"))
			one, two := begin(), begin()
			if first, err := one.once(t.Context(), "billing", "e", func(ctx context.Context) error { return one.exec(ctx, invoice) }); err != nil || !first {
				t.Fatal(first, err)
			}
			type answer struct {
				first bool
				err   error
			}
			second := make(chan answer, 1)
			go func() {
				first, err := two.once(t.Context(), "billing", "e", func(ctx context.Context) error { return two.exec(ctx, invoice) })
				second <- answer{first, err}
			}()
			waitFor(t, "the second worker to wait", func() bool {
				return e.count("SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock'", e.db) == 1
			})
			if commits {
				e.must(one.commit())
			} else {
				one.rollback()
			}
			got := <-second
			e.must(got.err)
			e.must(two.commit())
			if got.first == commits || e.invoices() != 1 {
				t.Errorf("first commits=%v: the second ran=%v, %d invoices", commits, got.first, e.invoices())
			}
		}
	})
}

func TestOnce_RefusesNamesBeforeItTouchesTheDatabase(t *testing.T) {
	e := newEnv(t)
	x := e.drivers()["pgx"]()
	for _, id := range []string{"", "a\x00b", "\xff", strings.Repeat("x", 1001)} {
		if _, err := x.once(t.Context(), "billing", id, func(context.Context) error { return nil }); !errors.Is(err, inbox.ErrName) {
			t.Errorf("%q: %v", id, err)
		}
	}
	if first, err := x.once(t.Context(), "billing", "good", func(context.Context) error { return nil }); err != nil || !first {
		t.Error("the transaction did not go on:", first, err)
	}
	e.must(x.commit())
}

// waitFor polls, since what it waits for happens in another process.
func waitFor(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
