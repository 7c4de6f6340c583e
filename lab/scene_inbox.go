package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/lab/stage"
)

var deliveredTwice = Scene{
	Name:   "delivered_twice",
	Window: "inbox; the same record delivered a second time",
	Expect: "delivery 1 processed=true duplicate=false committed=true invoices=1, delivery 2 processed=false duplicate=true committed=true invoices=1",
	run: func(ctx context.Context, l *lab) (string, error) {
		if _, err := l.quiet(ctx); err != nil {
			return "", err
		}
		var said []string
		processed, duplicates := observed(l.Bill)
		look := func(order int64) error {
			err := await(ctx, "the offset is committed", func(ctx context.Context) (bool, error) { return l.caughtUp(ctx, stage.BillGroup) })
			if err != nil {
				return err
			}
			invoices, err := l.count(ctx, `SELECT count(*) FROM invoices WHERE order_id = $1`, order)
			p, d := observed(l.Bill)
			said = append(said, fmt.Sprintf("delivery %d processed=%t duplicate=%t committed=true invoices=%d", len(said)+1, p > processed, d > duplicates, invoices))
			processed, duplicates = p, d
			return err
		}
		a, err := l.place(ctx, l.name("key"))
		if err != nil {
			return "", err
		}
		err = await(ctx, "the event is in the topic", func(ctx context.Context) (bool, error) {
			n, _, err := l.copies(ctx, a.Order)
			return n > 0, err
		})
		if err != nil {
			return "", err
		}
		if err := look(a.Order); err != nil {
			return "", err
		}
		if err := l.deliverAgain(ctx, a.Order); err != nil {
			return "", err
		}
		err = look(a.Order)
		return strings.Join(said, ", "), err
	},
}

// observed counts what the worker's log tells of records whose effect was made, and of those that were seen before.
func observed(p *stage.Process) (processed, duplicates int) {
	for line := range strings.Lines(p.Log()) {
		var e struct {
			Kind string
			N    int
		}
		if json.Unmarshal([]byte(line), &e) != nil {
			continue
		}
		switch e.Kind {
		case "processed":
			processed += e.N
		case "duplicates":
			duplicates += e.N
		}
	}
	return processed, duplicates
}

// deliverAgain writes a copy of the order's event, as the relay does after a crash.
func (l *lab) deliverAgain(ctx context.Context, order int64) error {
	records, err := l.Records(ctx, stage.Topic)
	if err != nil {
		return err
	}
	for _, r := range records {
		if string(r.Key) == fmt.Sprint(order) {
			again := &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
			return l.Client.ProduceSync(ctx, again).FirstErr()
		}
	}
	return fmt.Errorf("there is no record of order %d", order)
}

var twoGroups = Scene{
	Name:   "two_groups",
	Window: "one event, delivered twice to two consumer groups",
	Expect: "invoices=1 mails=1 markers=2",
	run: func(ctx context.Context, l *lab) (string, error) {
		before, err := l.quiet(ctx)
		if err != nil {
			return "", err
		}
		a, err := l.place(ctx, l.name("key"))
		if err != nil {
			return "", err
		}
		if _, err := l.quiet(ctx); err != nil {
			return "", err
		}
		if err := l.deliverAgain(ctx, a.Order); err != nil {
			return "", err
		}
		after, err := l.quiet(ctx)
		if err != nil {
			return "", err
		}
		markers, err := l.count(ctx, `SELECT count(*) FROM inbox WHERE event_id = $1`, a.Event)
		return fmt.Sprintf("invoices=%d mails=%d markers=%d", after.Invoices-before.Invoices, after.Mails-before.Mails, markers), err
	},
}

var effectThenMarker = Scene{
	Name:   "effect_then_marker",
	Window: "effect and marker in two transactions, the effect first; killed between them, started again",
	Expect: "invoices=2 markers=1",
	run: func(ctx context.Context, l *lab) (string, error) {
		return l.separate(ctx, "effect-then-marker")
	},
}

var markerThenEffect = Scene{
	Name:   "marker_then_effect",
	Window: "effect and marker in two transactions, the marker first; killed between them, started again",
	Expect: "invoices=0 markers=1",
	run: func(ctx context.Context, l *lab) (string, error) {
		return l.separate(ctx, "marker-then-effect")
	},
}

func (l *lab) separate(ctx context.Context, role string) (string, error) {
	w, err := l.worker(ctx, role)
	if err != nil {
		return "", err
	}
	if err := killAt(ctx, w.Process, stage.CommitAnswer); err != nil { // of the first transaction
		return "", err
	}
	if err := finish(ctx, w.Process); err != nil {
		return "", err
	}
	invoices, err := l.invoices(ctx, w)
	if err != nil {
		return "", err
	}
	markers, err := l.markers(ctx, w)
	return fmt.Sprintf("invoices=%d markers=%d", invoices, markers), err
}

// worker is a role that consumes a topic of its own with one event in it.
type worker struct {
	*stage.Process
	topic, scene, event string
}

func (l *lab) worker(ctx context.Context, role string) (w worker, err error) {
	w = worker{scene: l.name(role), event: l.name("event")}
	if w.topic, err = l.topic(ctx); err != nil {
		return w, err
	}
	if err := l.produce(ctx, w.topic, w.event); err != nil {
		return w, err
	}
	w.Process, err = l.role(role, "TOPIC="+w.topic, "SCENE="+w.scene)
	return w, err
}

func (l *lab) invoices(ctx context.Context, w worker) (int, error) {
	return l.count(ctx, `SELECT count(*) FROM lab.invoices WHERE scene = $1 AND event = $2`, w.scene, w.event)
}

func (l *lab) markers(ctx context.Context, w worker) (int, error) {
	return l.count(ctx, `SELECT count(*) FROM inbox WHERE consumer = $1 AND event_id = $2`, w.scene, w.event)
}

func (l *lab) runs(ctx context.Context, w worker) (int, error) {
	return l.count(ctx, `SELECT count(*) FROM lab.runs WHERE scene = $1 AND event = $2`, w.scene, w.event)
}

var sameRecordAtOnce = Scene{
	Name:   "same_record_at_once",
	Window: "two workers given the same record at once; the second comes while the first stands in front of its commit",
	Expect: "processed=1 duplicates=1 invoices=1",
	run: func(ctx context.Context, l *lab) (string, error) {
		w, err := l.worker(ctx, "once")
		if err != nil {
			return "", err
		}
		second, err := l.role("once", "TOPIC="+w.topic, "SCENE="+w.scene)
		if err != nil {
			return "", err
		}
		h := w.Hold(stage.BeforeCommit)
		defer h.Release()
		if err := w.Start(ctx); err != nil {
			return "", err
		}
		if err := reach(ctx, w.Process, h, stage.BeforeCommit); err != nil {
			return "", err
		}
		if err := second.Start(ctx); err != nil {
			return "", err
		}
		err = await(ctx, "the second worker waits for the first", func(ctx context.Context) (bool, error) {
			n, err := l.count(ctx, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO public.inbox%'`)
			return n == 1, err
		})
		if err != nil {
			return "", err
		}
		h.Release()
		processed, duplicates := 0, 0
		for _, p := range []*stage.Process{w.Process, second} {
			if err := ended(ctx, p); err != nil {
				return "", err
			}
			processed += strings.Count(p.Log(), "processed=true")
			duplicates += strings.Count(p.Log(), "duplicate=true")
		}
		invoices, err := l.invoices(ctx, w)
		return fmt.Sprintf("processed=%d duplicates=%d invoices=%d", processed, duplicates, invoices), err
	},
}

var missingOrder = Scene{
	Name:   "missing_order",
	Window: "the order that the event names is not there yet; it comes before the second delivery",
	Expect: "runs=1 markers=0 billed=0, runs=2 markers=1 billed=1",
	run: func(ctx context.Context, l *lab) (string, error) {
		w, err := l.worker(ctx, "status")
		if err != nil {
			return "", err
		}
		deliver := func() (string, error) {
			if err := finish(ctx, w.Process); err != nil {
				return "", err
			}
			runs, err := l.runs(ctx, w)
			if err != nil {
				return "", err
			}
			markers, err := l.markers(ctx, w)
			if err != nil {
				return "", err
			}
			billed, err := l.count(ctx, `SELECT count(*) FROM lab.orders WHERE id = $1 AND status = 'billed'`, w.event)
			return fmt.Sprintf("runs=%d markers=%d billed=%d", runs, markers, billed), err
		}
		first, err := deliver()
		if err != nil {
			return "", err
		}
		if _, err := l.DB.Exec(ctx, `INSERT INTO lab.orders (id) VALUES ($1)`, w.event); err != nil {
			return first, err
		}
		second, err := deliver()
		return first + ", " + second, err
	},
}
