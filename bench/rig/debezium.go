package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	jars, err := debezium.Ensure(ctx)
	if err != nil {
		return err
	}
	const prefix = "debezium-connector-postgres-"
	if names, _ := filepath.Glob(filepath.Join(jars, prefix+"*.jar")); len(names) > 0 {
		e.Machine.Debezium = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(names[0]), prefix), ".jar")
	}
	return nil
}

// StartDebezium starts Debezium on a slot and returns when its task is running.
func (r *Rig) StartDebezium(ctx context.Context, slot, topic string, profile debezium.Profile) (*debezium.Worker, error) {
	// One of its own: a stored offset would be that of another server.
	dir, err := os.MkdirTemp(r.Dir, "debezium-")
	if err != nil {
		return nil, err
	}
	return debezium.Start(ctx, debezium.Options{
		Host: r.PG.Host(), Port: r.PG.Port(), User: pgserver.Superuser, Password: pgserver.Password, Database: Database,
		Slot: slot, Publication: Publication, Table: "public.outbox", Topic: topic, Bootstrap: r.Broker.Addr(), Heap: DebeziumHeap,
		Profile: profile, Dir: dir,
	})
}

// Arrival is how a topic filled.
type Arrival struct {
	First, Last time.Time
	Before      int64         // records that were there when the first were seen
	CPU         time.Duration // that the writer had used by then
	Half        time.Time
	AtHalf      int64 // records that were there when half of them were seen
}

// WatchTopic waits for n records that w writes, from the first that it sees.
func (e *Env) WatchTopic(ctx context.Context, topic string, n int, limit time.Duration, w *debezium.Worker) (Arrival, error) {
	var a Arrival
	err := Poll(ctx, limit, 10*time.Millisecond, fmt.Sprintf("%d records in the topic", n), func() (bool, error) {
		have, err := e.Records(ctx, topic)
		if err != nil {
			return false, err
		}
		now := time.Now()
		if have > 0 && a.First.IsZero() {
			a.First, a.Before, a.CPU = now, have, w.CPU()
		}
		if have >= int64(n/2) && a.Half.IsZero() {
			a.Half, a.AtHalf = now, have
		}
		a.Last = now
		if have >= int64(n) {
			return true, nil
		}
		select {
		case <-w.Done():
			return false, fmt.Errorf("the writer ended with %d of %d records in the topic", have, n)
		default:
			return false, nil
		}
	})
	return a, err
}
