package lab

import (
	"context"
	"fmt"
	"strconv"

	"github.com/cdc-relay/cdc-relay/lab/stage"
)

var commitThenPublish = Scene{
	Name:   "commit_then_publish",
	Window: "no outbox; killed between the commit and the send",
	Expect: "orders=1 messages=0",
	run: func(ctx context.Context, l *lab) (string, error) {
		return l.dualWrite(ctx, "commit-then-publish", stage.BeforeProduce)
	},
}

var publishThenCommit = Scene{
	Name:   "publish_then_commit",
	Window: "no outbox; killed between the send and the commit",
	Expect: "orders=0 messages=1",
	run: func(ctx context.Context, l *lab) (string, error) {
		return l.dualWrite(ctx, "publish-then-commit", stage.BeforeCommit)
	},
}

func (l *lab) dualWrite(ctx context.Context, role string, point stage.Point) (string, error) {
	topic, err := l.topic(ctx)
	if err != nil {
		return "", err
	}
	id := l.name("order")
	p, err := l.role(role, "TOPIC="+topic, "ORDER="+id)
	if err != nil {
		return "", err
	}
	if err := killAt(ctx, p, point); err != nil {
		return "", err
	}
	orders, err := l.count(ctx, `SELECT count(*) FROM lab.orders WHERE id = $1`, id)
	if err != nil {
		return "", err
	}
	messages, err := l.messages(ctx, topic)
	return fmt.Sprintf("orders=%d messages=%d", orders, messages), err
}

var pollingRelay = Scene{
	Name:   "polling_relay",
	Window: "outbox with a polling relay; killed between the send and the mark, started again",
	Expect: "pending messages=1, completed messages=2",
	run: func(ctx context.Context, l *lab) (string, error) {
		topic, err := l.topic(ctx)
		if err != nil {
			return "", err
		}
		binary, err := l.pollingBinary(ctx)
		if err != nil {
			return "", err
		}
		p, err := l.Polling(binary, topic)
		if err != nil {
			return "", err
		}
		if _, err := l.DB.Exec(ctx, `INSERT INTO lab.outbox (aggregateid, type, payload) VALUES ('1', 'OrderPlaced', '{}')`); err != nil {
			return "", err
		}
		defer p.Kill()
		if err := killAt(ctx, p, stage.ProduceAnswer); err != nil {
			return "", err
		}
		look := func() (string, error) {
			var status string
			if err := l.DB.QueryRow(ctx, `SELECT status FROM lab.outbox`).Scan(&status); err != nil {
				return "", err
			}
			messages, err := l.messages(ctx, topic)
			return fmt.Sprintf("%s messages=%d", status, messages), err
		}
		first, err := look()
		if err != nil {
			return first, err
		}
		if err := p.Start(ctx); err != nil {
			return first, err
		}
		err = await(ctx, "the row is completed", func(ctx context.Context) (bool, error) {
			n, err := l.count(ctx, `SELECT count(*) FROM lab.outbox WHERE status = 'completed'`)
			return n == 1, err
		})
		if err != nil {
			return first, err
		}
		second, err := look()
		return first + ", " + second, err
	},
}

// Polling is the polling relay, on the lab's own outbox.
func (l *lab) Polling(binary, topic string) (*stage.Process, error) {
	return l.Guest("polling-relay", "/bin/sh", []string{"-c", `exec "$0" "$DATABASE_URL" "$BROKERS" "$1"`, binary, topic}, nil, "search_path=lab")
}

var relayAfterAck = Scene{
	Name:   "relay_after_ack",
	Window: "outbox with cdc-relay; killed between the broker's ack and the confirm, started again",
	Expect: "messages=1 confirmed=no, messages=2 ids=1 confirmed=yes invoices=1",
	run: func(ctx context.Context, l *lab) (string, error) {
		before, err := l.quiet(ctx)
		if err != nil {
			return "", err
		}
		h := l.Relay.Hold(stage.Confirm)
		defer h.Release()
		a, err := l.place(ctx, l.name("key"))
		if err != nil {
			return "", err
		}
		var placed string // behind the order's commit
		if err := l.DB.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&placed); err != nil {
			return "", err
		}
		if err := reach(ctx, l.Relay, h, stage.Confirm); err != nil {
			return "", err
		}
		look := func() (messages, ids int, confirmed string, err error) {
			if messages, ids, err = l.copies(ctx, a.Order); err != nil {
				return
			}
			err = l.DB.QueryRow(ctx, `SELECT CASE WHEN confirmed_flush_lsn >= $1::pg_lsn THEN 'yes' ELSE 'no' END
				FROM pg_replication_slots WHERE slot_name = $2`, placed, stage.Slot).Scan(&confirmed)
			return
		}
		messages, _, confirmed, err := look()
		if err != nil {
			return "", err
		}
		first := fmt.Sprintf("messages=%d confirmed=%s", messages, confirmed)
		l.Relay.Kill()
		h.Release()
		if err := l.Relay.Start(ctx); err != nil {
			return first, err
		}
		err = await(ctx, "the order is confirmed", func(ctx context.Context) (bool, error) {
			_, _, confirmed, err = look()
			return confirmed == "yes", err
		})
		if err != nil {
			return first, err
		}
		// Once more: what is confirmed is in the topic, which was looked at before the slot.
		messages, ids, confirmed, err := look()
		if err != nil {
			return first, err
		}
		after, err := l.quiet(ctx)
		return first + fmt.Sprintf(", messages=%d ids=%d confirmed=%s invoices=%d", messages, ids, confirmed, after.Invoices-before.Invoices), err
	},
}

// copies counts the records of an order, and the different ids in them.
func (l *lab) copies(ctx context.Context, order int64) (messages, ids int, err error) {
	records, err := l.Records(ctx, stage.Topic)
	seen := map[string]bool{}
	for _, r := range records {
		if string(r.Key) != strconv.FormatInt(order, 10) {
			continue
		}
		messages++
		for _, h := range r.Headers {
			if h.Key == "id" {
				seen[string(h.Value)] = true
			}
		}
	}
	return messages, len(seen), err
}
