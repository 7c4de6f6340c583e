package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
	"github.com/cdc-relay/cdc-relay/lab/stage"
)

// impatience is the time-out of a client that does not hear the answer.
const impatience = 500 * time.Millisecond

var httpWithoutKey = Scene{
	Name:   "http_retry_without_key",
	Window: "the client times out while the answer to the commit is on its way, and sends the request again, without a key",
	Expect: "requests=2 orders=2",
	run: func(ctx context.Context, l *lab) (string, error) {
		port, err := proc.FreePort()
		if err != nil {
			return "", err
		}
		listen := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		p, err := l.role("shop-without-key", "LISTEN="+listen)
		if err != nil {
			return "", err
		}
		h := p.Hold(stage.CommitAnswer)
		defer h.Release()
		if err := p.Start(ctx); err != nil {
			return "", err
		}
		defer p.Kill()
		client := l.name("client")
		ask := func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+listen, http.NoBody)
			if err != nil {
				return err
			}
			req.Header.Set("X-Customer", client)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			return resp.Body.Close()
		}
		err = await(ctx, "the shop listens", func(context.Context) (bool, error) {
			c, err := net.Dial("tcp", listen)
			if err == nil {
				c.Close()
			}
			return err == nil, err
		})
		if err != nil {
			return "", err
		}
		if err := unheard(ctx, p, h, stage.CommitAnswer, ask); err != nil {
			return "", err
		}
		if err := ask(ctx); err != nil {
			return "", err
		}
		orders, err := l.count(ctx, `SELECT count(*) FROM lab.shop WHERE client = $1`, client)
		return fmt.Sprintf("requests=2 orders=%d", orders), err
	},
}

var httpWithKey = Scene{
	Name:   "http_retry_with_key",
	Window: "the same, with the key of the first request",
	Expect: "requests=2 orders=1 replayed=true",
	run: func(ctx context.Context, l *lab) (string, error) {
		before, err := l.Counts(ctx)
		if err != nil {
			return "", err
		}
		key := l.name("key")
		h := l.Serve.Hold(stage.CommitAnswer)
		defer h.Release()
		err = unheard(ctx, l.Serve, h, stage.CommitAnswer, func(ctx context.Context) error {
			_, err := l.PlaceOrder(ctx, key)
			return err
		})
		if err != nil {
			return "", err
		}
		a, err := l.place(ctx, key)
		if err != nil {
			return "", err
		}
		after, err := l.Counts(ctx)
		return fmt.Sprintf("requests=2 orders=%d replayed=%t", after.Orders-before.Orders, a.Replayed), err
	},
}

// unheard sends a request whose client gives up while p is held, and lets p go on.
func unheard(ctx context.Context, p *stage.Process, h *stage.Hold, point stage.Point, ask func(context.Context) error) error {
	asked, cancel := context.WithTimeout(ctx, step)
	defer cancel()
	heard := make(chan error, 1)
	go func() { heard <- ask(asked) }() // received from below
	if err := reach(ctx, p, h, point); err != nil {
		cancel()
		return errors.Join(err, <-heard)
	}
	time.AfterFunc(impatience, cancel)
	if err := <-heard; err == nil {
		return fmt.Errorf("the client heard an answer although %q was held", point)
	}
	h.Release()
	return nil
}
