package rig

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// Walsender watches the server process that serves a slot, whose CPU time is gone with it.
type Walsender struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu   sync.Mutex
	used time.Duration
}

// WatchWalsender watches until Stop.
func (r *Rig) WatchWalsender(slot string) *Walsender {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Walsender{stop: cancel}
	w.wg.Go(func() { w.watch(ctx, r, slot) })
	return w
}

func (w *Walsender) watch(ctx context.Context, r *Rig, slot string) {
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
			pid = activePID(ctx, conn, slot)
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

func activePID(ctx context.Context, conn *pgx.Conn, slot string) int {
	var pid *int
	err := conn.QueryRow(ctx, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1", slot).Scan(&pid)
	if err != nil || pid == nil {
		return 0
	}
	return *pid
}

// CPU is what the process had used when it was last seen.
func (w *Walsender) CPU() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used
}

// Stop ends the watch and is CPU.
func (w *Walsender) Stop() time.Duration {
	w.stop()
	w.wg.Wait()
	return w.CPU()
}
