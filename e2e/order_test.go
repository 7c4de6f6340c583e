package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// TestE2E_Order commits transactions in another order than they inserted, by
// hand and by chance: the records come in commit order, and their lsn and seq
// headers tell it over all partitions.
func TestE2E_Order(t *testing.T) {
	r := newRig(t, rigOptions{partitions: 1})
	r.pg.Exec(t, `CREATE SEQUENCE numbers`)
	oracle := e2e.NewOracle(t, r.pg)
	sampler := e2e.SampleConfirmed(t, r.pg, r.slot)
	relay := r.startReady(t)

	want := interleavings(t, r.pg)
	want = append(want, r.openOverKill(t, relay)...)
	r.waitCaughtUp(t, 30*time.Second)
	first := ids(r.k.Consume(t, r.topic))
	// What was acked and not yet confirmed when the relay was killed comes twice.
	scripted := slices.Equal(firstCopies(first), want)
	if !scripted {
		t.Errorf("the scripted transactions arrived as\n%v, they were committed as\n%v", first, want)
	}

	r.pg.Exec(t, `ALTER SEQUENCE numbers RESTART 1000`)
	numberedLoad(t, r.pg, 6, 4*time.Second)
	r.waitCaughtUp(t, 30*time.Second)
	inserts := oracle.Inserts(t, "public.outbox", "id")
	records := r.k.Consume(t, r.topic)
	v := judge(inserts, records)
	for _, d := range v.details {
		t.Log(d)
	}
	byHeaders := sameAsOracle(t, inserts, records)
	inverted := inversions(inserts)
	ok := scripted && v.ok() && byHeaders && inverted > 0 && sampler.OK()
	e2e.Result(t, "order", ok, "scripted", len(want), "committed", v.committed, "inversions", inverted,
		"missing", v.missing, "uncommitted", v.uncommitted, "overtaken", v.overtaken, "duplicates", v.duplicate, "by_headers", byHeaders)
}

// interleavings runs transactions whose inserts and commits interleave in chosen
// ways, and returns the ids in commit order. An id is the number that the
// sequence gave, with a name.
func interleavings(t testing.TB, pg *e2e.PG) []string {
	t.Helper()
	a, b, c := newScripted(t, pg), newScripted(t, pg), newScripted(t, pg)
	var want []string
	commit := func(s *scripted) { want = append(want, s.commit()...) }

	a.insert("late") // the first number commits last
	b.insert("early")
	commit(b)
	commit(a)

	a.insert("3rd") // three, in reverse
	b.insert("2nd")
	c.insert("1st")
	commit(c)
	commit(b)
	commit(a)

	a.insert("a1") // rows interleave, transactions do not
	b.insert("b1")
	a.insert("a2")
	b.insert("b2")
	c.insert("c1")
	b.insert("b3")
	commit(b)
	a.insert("a3")
	commit(c)
	commit(a)

	a.insert("kept") // savepoints, and a rollback between two commits
	a.exec("SAVEPOINT s")
	a.insert("undone")
	b.insert("meanwhile")
	c.insert("rolled-back")
	commit(b)
	c.exec("ROLLBACK")
	c.open, c.ids = false, nil
	a.exec("ROLLBACK TO s")
	a.ids = a.ids[:1]
	a.insert("kept-too")
	a.exec("RELEASE s")
	commit(a)

	a.insert("subtransaction-outer")
	a.exec("SAVEPOINT inner_one")
	a.insert("subtransaction-inner")
	b.insertMany("multi", 50) // rows of one statement keep their order
	commit(b)
	c.copyIn("copy", 50) // and share one LSN
	commit(c)
	commit(a)
	return want
}

// openOverKill leaves a transaction open while the relay is killed and started
// again, and others that began later commit before it.
func (r *rig) openOverKill(t testing.TB, relay *e2e.Relay) []string {
	t.Helper()
	a, b := newScripted(t, r.pg), newScripted(t, r.pg)
	var want []string
	a.insert("open-over-kill")
	b.insert("before-kill")
	want = append(want, b.commit()...)
	relay.Kill()
	b.insert("while-killed")
	want = append(want, b.commit()...)
	r.startReady(t)
	b.insert("after-kill")
	want = append(want, b.commit()...)
	a.insert("open-over-kill-2")
	return append(want, a.commit()...)
}

// scripted is a session that runs one transaction after another, a step at a
// time. Its ids are those of the transaction in hand.
type scripted struct {
	t    testing.TB
	conn *pgx.Conn
	open bool
	ids  []string
}

func newScripted(t testing.TB, pg *e2e.PG) *scripted {
	t.Helper()
	return &scripted{t: t, conn: pg.Conn(t)}
}

func (s *scripted) exec(query string, args ...any) {
	s.t.Helper()
	if _, err := s.conn.Exec(context.Background(), query, args...); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
}

func (s *scripted) begin() {
	s.t.Helper()
	if !s.open {
		s.exec("BEGIN")
		s.open = true
	}
}

const insertNumbered = `INSERT INTO outbox (id, aggregateid, payload)
	SELECT lpad(nextval('numbers')::text, 8, '0') || '-' || $1::text, 'k' || n % 7, '{}' FROM generate_series(1, $2::int) n RETURNING id`

func (s *scripted) insert(name string) {
	s.t.Helper()
	s.insertMany(name, 1)
}

func (s *scripted) insertMany(name string, n int) {
	s.t.Helper()
	s.begin()
	rows, err := s.conn.Query(context.Background(), insertNumbered, name, n)
	if err != nil {
		s.t.Fatal(err)
	}
	added, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(added) != n {
		s.t.Fatalf("insert %s: %d of %d rows: %v", name, len(added), n, err)
	}
	s.ids = append(s.ids, added...)
}

func (s *scripted) copyIn(name string, n int) {
	s.t.Helper()
	s.begin()
	var rows [][]any
	for i := range n {
		id := fmt.Sprintf("%08d-%s", 900-i, name) // against the order of the numbers
		s.ids = append(s.ids, id)
		rows = append(rows, []any{id, "k", "copied"})
	}
	if _, err := s.conn.CopyFrom(context.Background(), pgx.Identifier{"outbox"}, []string{"id", "aggregateid", "payload"}, pgx.CopyFromRows(rows)); err != nil {
		s.t.Fatal(err)
	}
}

// commit returns the ids that were committed.
func (s *scripted) commit() []string {
	s.t.Helper()
	s.exec("COMMIT")
	done := s.ids
	s.open, s.ids = false, nil
	return done
}

// numberedLoad lets n sessions insert rows numbered by a sequence and hold their
// transactions open for different times.
func numberedLoad(t testing.TB, pg *e2e.PG, n int, d time.Duration) {
	t.Helper()
	end := time.Now().Add(d)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			ctx := context.Background()
			rnd := rand.New(rand.NewPCG(uint64(i), 2))
			conn, err := pgx.Connect(ctx, pg.DSN())
			if err != nil {
				errs[i] = err
				return
			}
			defer conn.Close(ctx)
			for time.Now().Before(end) && errs[i] == nil {
				errs[i] = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
					for range 1 + rnd.IntN(3) {
						if _, err := tx.Exec(ctx, insertNumbered, "load", 1+rnd.IntN(3)); err != nil {
							return err
						}
						time.Sleep(time.Duration(rnd.IntN(8)) * time.Millisecond) // others insert and commit meanwhile
					}
					return nil
				})
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// inversions counts how often a transaction committed after one with a higher
// first number.
func inversions(inserts []e2e.Insert) int {
	n, highest := 0, 0
	for _, in := range inserts {
		if in.RowSeq != 0 {
			continue
		}
		number, _ := strconv.Atoi(in.Value[:min(8, len(in.Value))])
		if number < highest {
			n++
		}
		highest = max(highest, number)
	}
	return n
}

// sameAsOracle sorts the first copies by lsn and seq, as a consumer of many
// partitions would, and compares with the order of the commits.
func sameAsOracle(t testing.TB, inserts []e2e.Insert, records []e2e.Record) bool {
	t.Helper()
	place := map[string]string{}
	var got []string
	for _, rec := range records {
		id, _ := rec.Header("id")
		at := position(t, rec)
		if was, again := place[id]; again {
			if was != at {
				t.Errorf("two copies of %s are at %s and %s", id, was, at)
			}
			continue
		}
		place[id] = at
		got = append(got, id)
	}
	slices.SortFunc(got, func(a, b string) int {
		if place[a] < place[b] {
			return -1
		}
		return 1
	})
	var want []string
	for _, in := range inserts {
		want = append(want, in.Value)
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Errorf("by lsn and seq, number %d is %s; it should be %s", i, got[i], want[i])
			return false
		}
	}
	return len(got) == len(want)
}

// position is lsn and seq of a record, as text that sorts.
func position(t testing.TB, rec e2e.Record) string {
	t.Helper()
	lsn, _ := rec.Header("lsn")
	text, _ := rec.Header("seq")
	seq, err := strconv.Atoi(text)
	if len(lsn) != 16 || err != nil {
		t.Errorf("record at %s/%d@%d has the headers lsn %q and seq %q", rec.Topic, rec.Partition, rec.Offset, lsn, text)
	}
	return fmt.Sprintf("%s/%010d", lsn, seq)
}

// ids are the id headers in the order of the records.
func ids(records []e2e.Record) []string {
	out := make([]string, len(records))
	for i, rec := range records {
		out[i], _ = rec.Header("id")
	}
	return out
}

// firstCopies leaves out what was there before.
func firstCopies(list []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range list {
		if !seen[s] {
			out = append(out, s)
		}
		seen[s] = true
	}
	return out
}
