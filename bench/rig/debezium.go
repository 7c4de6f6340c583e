package rig

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/cdc-relay/cdc-relay/bench/debezium"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

// DebeziumHeap is the heap of its JVM.
const DebeziumHeap = "512m"

// HaveDebezium says why Debezium cannot be run, or nothing. The first time, Maven fetches it.
func (e *Env) HaveDebezium(ctx context.Context) error {
	if e.NoBroker != nil {
		return e.NoBroker
	}
	_, err := debezium.Ensure(ctx)
	return err
}

// StartDebezium starts Debezium on a slot and returns when its task is running.
func (r *Rig) StartDebezium(ctx context.Context, slot, topic string) (*debezium.Worker, error) {
	return debezium.Start(ctx, debezium.Options{
		Host: r.PG.Host(), Port: r.PG.Port(), User: pgserver.Superuser, Password: pgserver.Password, Database: Database,
		Slot: slot, Publication: Publication, Table: "public.outbox", Topic: topic, Bootstrap: r.Broker.Addr(), Heap: DebeziumHeap,
		Dir: filepath.Join(r.Dir, "debezium-"+slot),
	})
}

// Arrival is how a topic filled.
type Arrival struct {
	First, Last time.Time
	Before      int64 // records that were there when the first were seen
	Half        time.Time
	AtHalf      int64 // records that were there when half of them were seen
}

// WatchTopic waits for n records, from the first that it sees, until ended is closed.
func (e *Env) WatchTopic(ctx context.Context, topic string, n int, limit time.Duration, ended func() <-chan struct{}) (Arrival, error) {
	var a Arrival
	err := poll(ctx, limit, 10*time.Millisecond, fmt.Sprintf("%d records in the topic", n), func() (bool, error) {
		have, err := e.Records(ctx, topic)
		if err != nil {
			return false, err
		}
		now := time.Now()
		if have > 0 && a.First.IsZero() {
			a.First, a.Before = now, have
		}
		if have >= int64(n/2) && a.Half.IsZero() {
			a.Half, a.AtHalf = now, have
		}
		a.Last = now
		if have >= int64(n) {
			return true, nil
		}
		if ch := ended(); ch != nil {
			select {
			case <-ch:
				return false, fmt.Errorf("the writer ended with %d of %d records in the topic", have, n)
			default:
			}
		}
		return false, nil
	})
	return a, err
}
