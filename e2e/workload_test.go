package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// workload writes events as applications do: commits, rollbacks, savepoints that
// are rolled back, several rows at once, COPY, several keys. It keeps a log of
// its own of what committed.
type workload struct {
	pg   *e2e.PG
	stop context.CancelFunc
	wg   sync.WaitGroup

	paused atomic.Bool

	mu        sync.Mutex
	committed map[string]bool
	undone    map[string]bool // rolled back: must never be seen
	unknown   map[string]bool // the connection broke at the commit
	// ended is, for each committed id, a WAL position read after its commit: at or
	// above the commit's end.
	ended map[string]pglogrepl.LSN
	// newest is the highest WAL position read within a transaction, before its
	// commit, that a writer then saw committed: its commit lies at or above it.
	newest pglogrepl.LSN
}

// startWorkload starts n writers, each with a pause between its transactions. A
// writer that loses its connection connects again.
func startWorkload(t testing.TB, pg *e2e.PG, n int, pause time.Duration) *workload {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &workload{pg: pg, stop: cancel, committed: map[string]bool{}, undone: map[string]bool{}, unknown: map[string]bool{}, ended: map[string]pglogrepl.LSN{}}
	for i := range n {
		w.wg.Go(func() { w.writer(ctx, i, pause) })
	}
	t.Cleanup(w.Stop)
	return w
}

// Stop ends the writers; stopping twice is safe.
func (w *workload) Stop() {
	w.stop()
	w.wg.Wait()
}

// Pause lets the writers rest once the transactions in hand are done.
func (w *workload) Pause() { w.paused.Store(true) }

// Resume lets them go on.
func (w *workload) Resume() { w.paused.Store(false) }

func (w *workload) writer(ctx context.Context, n int, pause time.Duration) {
	rnd := rand.New(rand.NewPCG(uint64(n), 1))
	for i := 0; ctx.Err() == nil; {
		conn, err := pgx.Connect(context.Background(), w.pg.DSN())
		if err != nil {
			sleep(ctx, 50*time.Millisecond)
			continue
		}
		for ctx.Err() == nil {
			if w.paused.Load() {
				sleep(ctx, 20*time.Millisecond)
				continue
			}
			i++
			if err := w.transaction(conn, rnd, fmt.Sprintf("w%d-%d", n, i)); err != nil {
				break
			}
			sleep(ctx, pause)
		}
		conn.Close(context.Background())
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// transaction runs one transaction of a random kind; its ids begin with prefix.
func (w *workload) transaction(conn *pgx.Conn, rnd *rand.Rand, prefix string) error {
	ctx := context.Background() // a stop lets the transaction in hand end
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	var keep, undo []string
	id := func(list *[]string) string {
		s := fmt.Sprintf("%s-%d", prefix, len(keep)+len(undo))
		*list = append(*list, s)
		return s
	}
	key := fmt.Sprintf("k%d", rnd.IntN(20))
	insert := func(ids ...string) error {
		var values []string
		for _, s := range ids {
			values = append(values, fmt.Sprintf("('%s', '%s', '{\"id\": \"%s\"}')", s, key, s))
		}
		_, err := tx.Exec(ctx, "INSERT INTO outbox (id, aggregateid, payload) VALUES "+strings.Join(values, ", "))
		return err
	}
	kind := rnd.IntN(6)
	switch kind {
	case 0: // rollback
		err = insert(id(&undo), id(&undo))
	case 1: // savepoint
		if err = insert(id(&keep)); err != nil {
			break
		}
		if _, err = tx.Exec(ctx, "SAVEPOINT s"); err != nil {
			break
		}
		if err = insert(id(&undo)); err != nil {
			break
		}
		if _, err = tx.Exec(ctx, "ROLLBACK TO s"); err != nil {
			break
		}
		err = insert(id(&keep))
	case 2: // several rows
		err = insert(id(&keep), id(&keep), id(&keep), id(&keep), id(&keep))
	case 3: // COPY
		var rows [][]any
		for range 20 {
			rows = append(rows, []any{id(&keep), key, "copied"})
		}
		_, err = tx.CopyFrom(ctx, pgx.Identifier{"outbox"}, []string{"id", "aggregateid", "payload"}, pgx.CopyFromRows(rows))
	default:
		err = insert(id(&keep))
	}
	if err != nil {
		w.note(w.undone, append(keep, undo...))
		return err
	}
	if kind == 0 {
		err = tx.Rollback(ctx)
		w.note(w.undone, undo)
		return err
	}
	var before pglogrepl.LSN
	if err = tx.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&before); err != nil {
		w.note(w.undone, append(keep, undo...))
		return err
	}
	if err = tx.Commit(ctx); err != nil {
		w.note(w.unknown, keep)
		w.note(w.undone, undo)
		return err
	}
	var after pglogrepl.LSN
	lost := conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&after)
	w.note(w.committed, keep)
	w.note(w.undone, undo)
	w.mu.Lock()
	w.newest = max(w.newest, before)
	if lost == nil {
		for _, id := range keep {
			w.ended[id] = after
		}
	}
	w.mu.Unlock()
	return lost
}

func (w *workload) note(m map[string]bool, ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		m[id] = true
	}
}

// Committed is the number of ids that the writers saw committed.
func (w *workload) Committed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.committed)
}

// Newest is a position at or below the commit of a transaction that was committed.
func (w *workload) Newest() pglogrepl.LSN {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newest
}

// crossCheck holds the writers' log against the oracle's: every id that a writer
// saw committed must be there, none that was rolled back, and none besides.
func (w *workload) crossCheck(t testing.TB, inserts []e2e.Insert) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	there := map[string]bool{}
	for _, in := range inserts {
		there[in.Value] = true
		if w.undone[in.Value] {
			t.Errorf("the oracle has %s, which was rolled back", in.Value)
		}
	}
	for id := range w.committed {
		if !there[id] {
			t.Errorf("the oracle lacks %s, which a writer saw committed", id)
		}
	}
}
