package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// messageLoad is sessions that write rows and messages, and keep what of it
// committed.
type messageLoad struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu        sync.Mutex
	committed map[string]bool
	// ended is, for each committed id, a WAL position read after its commit.
	ended map[string]pglogrepl.LSN
	errs  []error
}

// underKills kills the relay again and again while rows and messages are written,
// and returns how often, when all is published.
func (m *messagesTest) underKills() (kills int, w *messageLoad) {
	ctx, cancel := context.WithCancel(context.Background())
	w = &messageLoad{stop: cancel, committed: map[string]bool{}, ended: map[string]pglogrepl.LSN{}}
	for i := range 4 {
		w.wg.Go(func() { w.note(w.writer(ctx, m.pg, i)) })
	}
	stop := func() {
		w.stop()
		w.wg.Wait()
	}
	m.t.Cleanup(stop)
	rnd := rand.New(rand.NewPCG(11, 11))
	for kills = 0; kills < 12; kills++ {
		relay := m.startReady(m.t)
		time.Sleep(time.Duration(rnd.IntN(400)) * time.Millisecond) // the random moment
		relay.Kill()
		m.log += relay.Log()
	}
	stop()
	for _, err := range w.errs {
		m.t.Error(err)
	}
	last := m.startReady(m.t)
	m.waitCaughtUp(m.t, time.Minute)
	if code := last.Terminate(m.t, 30*time.Second); code != 0 {
		m.t.Errorf("the last relay ended with %d after a clean stop", code)
	}
	m.log += last.Log()
	return kills, w
}

func (w *messageLoad) note(err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, err)
}

func (w *messageLoad) writer(ctx context.Context, pg *e2e.PG, n int) error {
	conn, err := pgx.Connect(context.Background(), pg.DSN())
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	rnd := rand.New(rand.NewPCG(uint64(n), 3))
	for i := 0; ctx.Err() == nil; i++ {
		if err := w.transaction(conn, rnd, fmt.Sprintf("w%d-%d", n, i)); err != nil {
			return err
		}
		sleep(ctx, 2*time.Millisecond)
	}
	return nil
}

// transaction writes a few rows and messages in any order, some of them in
// savepoints that are released or rolled back, and commits or not.
func (w *messageLoad) transaction(conn *pgx.Conn, rnd *rand.Rand, prefix string) error {
	ctx := context.Background() // a stop lets the transaction in hand end
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	commits := rnd.IntN(5) > 0
	key := fmt.Sprintf("k%d", rnd.IntN(20))
	var keep []string
	for i := range 1 + rnd.IntN(6) {
		undo, released := rnd.IntN(6) == 0, rnd.IntN(3) == 0
		if undo || released {
			if _, err := tx.Exec(ctx, "SAVEPOINT s"); err != nil {
				return err
			}
		}
		id, err := write(tx, rnd, fmt.Sprintf("%s-%d", prefix, i), key, undo || !commits)
		if err != nil {
			return err
		}
		if !undo && id != "" {
			keep = append(keep, id)
		}
		end := ""
		switch {
		case undo:
			end = "ROLLBACK TO s"
		case released:
			end = "RELEASE s"
		}
		if _, err := tx.Exec(ctx, end); err != nil {
			return err
		}
	}
	if !commits {
		return tx.Rollback(ctx)
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	var after pglogrepl.LSN
	if err := conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&after); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range keep {
		w.committed[id], w.ended[id] = true, after
	}
	return nil
}

// write writes a row or a message, and returns its id; "" for a message that is
// never published. undone marks what will be rolled back.
func write(tx pgx.Tx, rnd *rand.Rand, id, key string, undone bool) (string, error) {
	const emit = "SELECT pg_logical_emit_message($1, $2, json_build_object('id', $3::text, 'aggregateid', $4::text, 'payload', json_build_object('n', 1))::text)"
	mark := ""
	if undone {
		mark = undoneID
	}
	var err error
	switch rnd.IntN(6) {
	case 0:
		_, err = tx.Exec(context.Background(), emit, true, "other", id+foreignID, key)
		return "", err
	case 1:
		_, err = tx.Exec(context.Background(), emit, false, "outbox", id+nontxID, key)
		return "", err
	case 2, 3:
		id += "-m" + mark
		_, err = tx.Exec(context.Background(), emit, true, "outbox", id, key)
	default:
		id += "-r" + mark
		_, err = tx.Exec(context.Background(), "INSERT INTO outbox (id, aggregateid, payload) VALUES ($1, $2, '{}')", id, key)
	}
	return id, err
}

// crossCheck holds what the writers saw committed against the oracle's.
func (w *messageLoad) crossCheck(t testing.TB, inserts []e2e.Insert) {
	t.Helper()
	there := map[string]bool{}
	for _, in := range inserts {
		there[in.Value] = true
	}
	for id := range w.committed {
		if !there[id] {
			t.Errorf("the oracle lacks %s, which a writer saw committed", id)
		}
	}
}
