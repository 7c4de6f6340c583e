package rig

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// Backend watches the server's process that serves a client, whose CPU time is gone with it.
type Backend struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu   sync.Mutex
	used time.Duration
}

// WatchWalsender watches the process that serves a slot, until Stop.
func (r *Rig) WatchWalsender(slot string) *Backend {
	return r.watchBackend("SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1", slot)
}

// WatchClient watches the process that serves a client of that application_name, until Stop.
func (r *Rig) WatchClient(name string) *Backend {
	return r.watchBackend("SELECT max(pid) FROM pg_stat_activity WHERE application_name = $1", name)
}

func (r *Rig) watchBackend(query, arg string) *Backend {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Backend{stop: cancel}
	w.wg.Go(func() { w.watch(ctx, r, query, arg) })
	return w
}

func (w *Backend) watch(ctx context.Context, r *Rig, query, arg string) {
	conn, err := r.PG.Connect(ctx, Database)
	if err != nil {
		return
	}
	defer conn.Close(context.Background())
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var pid int
	for {
		if pid == 0 {
			pid = backendPID(ctx, conn, query, arg)
		} else if used := proc.CPUOf(pid); used > 0 {
			w.mu.Lock()
			w.used = used
			w.mu.Unlock()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func backendPID(ctx context.Context, conn *pgx.Conn, query, arg string) int {
	var pid *int
	err := conn.QueryRow(ctx, query, arg).Scan(&pid)
	if err != nil || pid == nil {
		return 0
	}
	return *pid
}

// CPU is what the process had used when it was last seen.
func (w *Backend) CPU() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used
}

// Stop ends the watch and is CPU.
func (w *Backend) Stop() time.Duration {
	w.stop()
	w.wg.Wait()
	return w.CPU()
}
