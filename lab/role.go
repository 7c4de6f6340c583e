package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// exitHandler is the exit code of a role whose handler failed; one that cannot work at all ends with 1.
const exitHandler = 3

var errHandler = errors.New("the handler failed half-way")

// roles are the processes of the lab's own. Each is small, and does one thing in one order.
var roles = map[string]func(context.Context, actor) error{
	"commit-then-publish": actCommitThenPublish,
	"publish-then-commit": actPublishThenCommit,
	"shop-without-key":    actShopWithoutKey,
	"effect-then-marker":  actEffectThenMarker,
	"marker-then-effect":  actMarkerThenEffect,
	"offset-first":        actOffsetFirst,
	"offset-anyway":       actOffsetAnyway,
	"offset-last":         actOffsetLast,
	"offset-with-inbox":   actOffsetWithInbox,
	"once":                actOnce,
	"status":              actStatus,
}

// Role runs a role of the lab in this process, and returns its exit code.
func Role(ctx context.Context, name string) int {
	act := roles[name]
	if act == nil {
		fmt.Fprintln(os.Stderr, "there is no role", name)
		return 2
	}
	err := play(ctx, act)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errHandler):
		fmt.Fprintln(os.Stderr, err)
		return exitHandler
	default:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
}

// actor is what a role has.
type actor struct {
	db    *pgx.Conn
	kafka *kgo.Client
	topic string
	scene string // consumer and group
	order string
}

func play(ctx context.Context, act func(context.Context, actor) error) error {
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	kafka, err := kgo.NewClient(kgo.SeedBrokers(os.Getenv("BROKERS")), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return err
	}
	defer kafka.Close()
	return act(ctx, actor{db: db, kafka: kafka, topic: os.Getenv("TOPIC"), scene: os.Getenv("SCENE"), order: os.Getenv("ORDER")})
}

// events reads what the topic has behind the committed offset. There is no group to join: one process is all the consumers.
func (a actor) events(ctx context.Context) ([]*kgo.Record, error) {
	admin := kadm.NewClient(a.kafka)
	ends, err := admin.ListEndOffsets(ctx, a.topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return nil, err
	}
	next := int64(0)
	committed, err := admin.FetchOffsets(ctx, a.scene)
	if err != nil {
		return nil, err
	}
	if o, ok := committed.Lookup(a.topic, 0); ok {
		next = max(0, o.At)
	}
	end := ends[a.topic][0].Offset
	if next >= end {
		return nil, nil
	}
	a.kafka.AddConsumePartitions(map[string]map[int32]kgo.Offset{a.topic: {0: kgo.NewOffset().At(next)}})
	var events []*kgo.Record
	for next < end {
		fetches := a.kafka.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		events = slices.AppendSeq(events, fetches.RecordsAll())
		next = events[len(events)-1].Offset + 1
	}
	return events, nil
}

// ack commits the offset behind r.
func (a actor) ack(ctx context.Context, r *kgo.Record) error {
	offsets := kadm.Offsets{}
	offsets.AddOffset(r.Topic, r.Partition, r.Offset+1, -1)
	committed, err := kadm.NewClient(a.kafka).CommitOffsets(ctx, a.scene, offsets)
	return errors.Join(err, committed.Error())
}

// each gives every event to handle, and stops at the first error.
func (a actor) each(ctx context.Context, handle func(*kgo.Record, string) error) error {
	events, err := a.events(ctx)
	if err != nil {
		return err
	}
	for _, r := range events {
		if err := handle(r, string(r.Value)); err != nil {
			return err
		}
	}
	return nil
}

// run notes that a handler ran, whatever becomes of it, and returns how often it has for the event.
func (a actor) run(ctx context.Context, event string) (n int, err error) {
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL")) // not the handler's transaction
	if err != nil {
		return 0, err
	}
	defer db.Close(ctx)
	if _, err := db.Exec(ctx, `INSERT INTO lab.runs (scene, event) VALUES ($1, $2)`, a.scene, event); err != nil {
		return 0, err
	}
	err = db.QueryRow(ctx, `SELECT count(*) FROM lab.runs WHERE scene = $1 AND event = $2`, a.scene, event).Scan(&n)
	return n, err
}

// database is a connection or a transaction.
type database interface {
	Begin(context.Context) (pgx.Tx, error)
}
