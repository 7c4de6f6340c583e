package lab

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
	"github.com/cdc-relay/cdc-relay/lab/stage"
)

// step bounds one wait of a scene.
const step = time.Minute

// name is a new name, for topics, ids and consumers that no other scene has.
func (l *lab) name(what string) string {
	l.n++
	return fmt.Sprintf("lab-%s-%d", what, l.n)
}

// topic makes a topic of one partition.
func (l *lab) topic(ctx context.Context) (string, error) {
	name := l.name("topic")
	if _, err := l.Admin.CreateTopic(ctx, 1, 1, nil, name); err != nil {
		return "", fmt.Errorf("create topic %s: %w", name, err)
	}
	return name, nil
}

// produce writes one event to the topic.
func (l *lab) produce(ctx context.Context, topic, id string) error {
	r := &kgo.Record{Topic: topic, Value: []byte(id), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}}
	if err := l.Client.ProduceSync(ctx, r).FirstErr(); err != nil {
		return fmt.Errorf("write event %s: %w", id, err)
	}
	return nil
}

// role is a process of the lab's own: a role of its binary.
func (l *lab) role(name string, env ...string) (*stage.Process, error) {
	return l.Guest(name, l.self, []string{"role", name}, env, "")
}

// count is the number that a query gives.
func (l *lab) count(ctx context.Context, query string, args ...any) (n int, err error) {
	if err := l.DB.QueryRow(ctx, query, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count: %w", err)
	}
	return n, nil
}

// messages is the number of records in a topic.
func (l *lab) messages(ctx context.Context, topic string) (int, error) {
	records, err := l.Records(ctx, topic)
	return len(records), err
}

// killAt starts p, kills it with SIGKILL where the point is reached, and lets go of what it kept.
func killAt(ctx context.Context, p *stage.Process, point stage.Point) error {
	h := p.Hold(point)
	defer h.Release()
	if err := p.Start(ctx); err != nil {
		return err
	}
	if err := reach(ctx, p, h, point); err != nil {
		return err
	}
	p.Kill()
	return nil
}

// reach waits until p stands at the point.
func reach(ctx context.Context, p *stage.Process, h *stage.Hold, point stage.Point) error {
	ctx, cancel := context.WithTimeout(ctx, step)
	defer cancel()
	select {
	case <-h.Reached():
		return nil
	case <-p.Done():
		return fmt.Errorf("%s ended before %q: %s", p.Name, point, p.Log())
	case <-ctx.Done():
		return fmt.Errorf("%s did not reach %q: %w: %s", p.Name, point, ctx.Err(), tailOf(p))
	}
}

// finish starts p and waits until it has ended by itself. Roles end when their topic is read, and err when a handler fails.
func finish(ctx context.Context, p *stage.Process) error {
	if err := p.Start(ctx); err != nil {
		return err
	}
	return ended(ctx, p)
}

func ended(ctx context.Context, p *stage.Process) error {
	ctx, cancel := context.WithTimeout(ctx, step)
	defer cancel()
	select {
	case <-p.Done():
	case <-ctx.Done():
		return fmt.Errorf("%s did not end: %w: %s", p.Name, ctx.Err(), tailOf(p))
	}
	if code := p.ExitCode(); code != 0 && code != exitHandler {
		return fmt.Errorf("%s ended with exit code %d: %s", p.Name, code, tailOf(p))
	}
	return nil
}

func tailOf(p *stage.Process) string { return p.Log()[max(0, len(p.Log())-1500):] }

// await waits until ok says true.
func await(ctx context.Context, what string, ok func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, step)
	defer cancel()
	return stage.Eventually(ctx, what, ok)
}

// quiet waits until all orders have their invoice and mail and both groups have committed all offsets, so that a scene sees
// nothing of the one before.
func (l *lab) quiet(ctx context.Context) (c stage.Counts, err error) {
	err = await(ctx, "all orders have their effects", func(ctx context.Context) (bool, error) {
		if c, err = l.Counts(ctx); err != nil || c.Invoices < c.Orders || c.InboxMail < c.Orders {
			return false, err
		}
		for _, group := range []string{stage.BillGroup, stage.MailGroup} {
			if ok, err := l.caughtUp(ctx, group); !ok {
				return false, err
			}
		}
		return true, nil
	})
	return c, err
}

func (l *lab) caughtUp(ctx context.Context, group string) (bool, error) {
	offsets, err := l.Offsets(ctx, group, stage.Topic)
	if err != nil {
		return false, err
	}
	for _, o := range offsets {
		if max(0, o.Committed) < o.End {
			return false, nil
		}
	}
	return true, nil
}

// place asks, as often as it takes, until it hears that the order of the key is there.
func (l *lab) place(ctx context.Context, key string) (a stage.Answer, err error) {
	err = await(ctx, "the order is placed", func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		a, err = l.PlaceOrder(ctx, key)
		return err == nil && a.Order != 0, err
	})
	return a, err
}

// pollingBinary builds the polling relay unless it was given.
func (l *lab) pollingBinary(ctx context.Context) (string, error) {
	if l.polling != "" {
		return filepath.Abs(l.polling)
	}
	root, err := proc.ModuleRoot()
	if err != nil {
		return "", err
	}
	dir, err := proc.TempDir("polling")
	if err != nil {
		return "", err
	}
	l.polling = filepath.Join(dir, "polling-relay")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", l.polling, "./e2e/cmd/polling-relay")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build polling-relay: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return l.polling, nil
}
