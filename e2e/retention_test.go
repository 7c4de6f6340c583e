package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e"
)

const retentionYAML = `retention:
  mode: delete
  column: created_at
  after: 1s
  interval: 200ms
  batch_rows: 40
  batch_pause: 5ms
`

// deletionLog keeps the id of each row that is deleted from the outbox.
var deletionLog = []string{
	"CREATE TABLE deleted (id text)",
	`CREATE FUNCTION log_deletion() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.deleted VALUES (OLD.id); RETURN NULL; END $$`,
	"CREATE TRIGGER log_deletion AFTER DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION log_deletion()",
}

// TestE2E_Retention deletes published rows while writers hold transactions open,
// Kafka freezes and the relay is killed. Whenever it is killed, each row that was
// deleted until then must be in the topic already.
func TestE2E_Retention(t *testing.T) {
	r := newRig(t, rigOptions{proxy: true, noSetup: true})
	r.pg.Exec(t, append([]string{"CREATE SEQUENCE numbers", "ALTER TABLE outbox ADD created_at timestamptz NOT NULL DEFAULT clock_timestamp() - interval '1 hour'"}, deletionLog...)...)
	r.relayYAML = retentionYAML
	r.setup(t)
	relay := r.startReady(t)

	long := newScripted(t, r.pg) // open for the whole run, its rows old from the beginning
	long.insert("long-first")
	w := startRetentionWriters(t, r.pg, 6)
	unpublished, stalls := 0, 0
	for round := range 12 {
		time.Sleep(time.Duration(300+rand.IntN(900)) * time.Millisecond)
		long.insert(fmt.Sprintf("long-%d", round))
		if round%2 == 1 { // rows go on becoming visible and old, and nothing is published
			r.proxy.WithholdProduce(r.topic)
			time.Sleep(1500 * time.Millisecond)
			stalls++
		}
		relay.Kill()
		if round%2 == 1 {
			r.proxy.Release()
		}
		unpublished += r.deletedButNotPublished(t)
		relay = r.startReady(t)
	}
	w.stop()
	rows := len(long.commit()) + int(w.committed.Load())
	e2e.Eventually(t, time.Minute, "all rows to be deleted", func() bool {
		left, err := r.pg.TryQuery("SELECT count(*) FROM outbox")
		return err == nil && left == "0"
	})
	relay.Kill()
	unpublished += r.deletedButNotPublished(t)
	deleted, _ := strconv.Atoi(r.pg.Query(t, "SELECT count(*) FROM deleted"))
	published := len(firstCopies(ids(r.k.Consume(t, r.topic))))
	blocked := r.retentionIsHeldUp(t)
	ok := unpublished == 0 && deleted == rows && published == rows && blocked
	e2e.Result(t, "retention", ok, "deleted", deleted, "rows", rows, "published", published, "unpublished_deleted", unpublished,
		"kills", 13, "stalls", stalls, "held_up_by_filter", blocked)
}

// deletedButNotPublished counts rows that were deleted and are not in the topic,
// while no relay runs.
func (r *rig) deletedButNotPublished(t testing.TB) int {
	t.Helper()
	published := map[string]bool{}
	for _, id := range ids(r.k.Consume(t, r.topic)) {
		published[id] = true
	}
	n := 0
	for _, id := range strings.Fields(r.pg.Query(t, "SELECT coalesce(string_agg(id, ' '), '') FROM deleted")) {
		if !published[id] {
			t.Logf("row %s was deleted and is not in the topic", id)
			n++
		}
	}
	return n
}

// retentionIsHeldUp gives the publication a row filter: what it leaves out was
// never published, and stays.
func (r *rig) retentionIsHeldUp(t testing.TB) bool {
	t.Helper()
	r.pg.Exec(t, "ALTER PUBLICATION cdc_relay SET TABLE outbox WHERE (id <> 'left-out')")
	if code, stdout, stderr := r.command(t, "adopt", "--lsn", r.confirmed(t), "--yes"); code != 0 {
		t.Fatalf("adopt ended with %d:\n%s%s", code, stdout, stderr)
	}
	r.pg.Exec(t, "INSERT INTO outbox (id, created_at) VALUES ('left-out', now() - interval '1 day')")
	relay := r.startReady(t)
	defer relay.Kill()
	relay.WaitLog(t, 20*time.Second, "published rows are not deleted")
	time.Sleep(time.Second)
	_, check, _ := r.command(t, "check")
	return r.pg.Query(t, "SELECT count(*) FROM outbox WHERE id = 'left-out'") == "1" && strings.Contains(check, "row filter")
}

// retentionWriters write rows that are old at once, in transactions that stay
// open for a while, some of which are rolled back.
type retentionWriters struct {
	stop      func()
	committed atomic.Int64
}

func startRetentionWriters(t testing.TB, pg *e2e.PG, n int) *retentionWriters {
	t.Helper()
	w := &retentionWriters{}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		conn := pg.Conn(t)
		wg.Go(func() {
			for tx := 0; ; tx++ {
				select {
				case <-done:
					return
				default:
				}
				rows, err := writeOne(conn, fmt.Sprintf("w%d-%d", i, tx))
				if err != nil {
					t.Errorf("write: %v", err)
					return
				}
				w.committed.Add(int64(rows))
			}
		})
	}
	var once sync.Once
	w.stop = func() {
		once.Do(func() { close(done) })
		wg.Wait()
	}
	t.Cleanup(w.stop)
	return w
}

func writeOne(conn *pgx.Conn, name string) (rows int, err error) {
	ctx := context.Background()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	n := 1 + rand.IntN(5)
	for i := range n {
		if _, err := tx.Exec(ctx, "INSERT INTO outbox (id, aggregateid) VALUES ($1, $2)", fmt.Sprintf("%s-%d", name, i), name); err != nil {
			return 0, err
		}
		if rand.IntN(10) == 0 {
			time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		}
	}
	if rand.IntN(8) == 0 {
		return 0, nil
	}
	return n, tx.Commit(ctx)
}
