package marking

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/sink"
)

func never() bool { return false }

func names(rows []Row) (names []string) {
	for _, r := range rows {
		names = append(names, r.ID)
	}
	return names
}

func TestQueue_RowsAreDueOnceTheirTransactionIsAcked(t *testing.T) {
	q := NewQueue(1 << 20)
	q.Add(0, []byte("a"))
	q.Add(1, []byte("b"))
	if due := q.Due(100, never, 10); len(due) != 0 {
		t.Errorf("due within the transaction: %v", due)
	}
	q.Commit(20)
	q.Commit(30) // without a row
	q.Add(0, []byte("c"))
	q.Commit(40)
	if due := q.Due(19, never, 10); len(due) != 0 {
		t.Errorf("due below the transaction's end: %v", due)
	}
	if at := q.Position(19); at != 19 {
		t.Errorf("with nothing due the position is %d", at)
	}
	due := q.Due(45, never, 10)
	if !slices.Equal(due, []Row{{0, "a"}, {1, "b"}, {0, "c"}}) {
		t.Fatalf("due: %v", due)
	}
	if at := q.Position(45); at != 19 {
		t.Errorf("with rows not marked the position is %d", at)
	}
	q.Marked(1)
	if at := q.Position(45); at != 19 {
		t.Errorf("with half a transaction marked the position is %d", at)
	}
	q.Marked(1)
	if at := q.Position(45); at != 20 {
		t.Errorf("with the first transaction marked the position is %d", at)
	}
	q.Marked(1)
	if at := q.Position(45); at != 45 {
		t.Errorf("with all marked the position is %d", at)
	}
	if rows, bytes := q.Held(); rows != 0 || bytes != 0 {
		t.Errorf("%d rows and %d bytes are left", rows, bytes)
	}
}

func TestQueue_ATransactionThatDoesNotFitIsMarkedAsItIsAcked(t *testing.T) {
	q := NewQueue(3 * (rowBytes + 1))
	settled := false
	inFlight := func() bool { return settled }
	for i := range 3 {
		if q.Full() {
			t.Fatalf("full with %d rows", i)
		}
		q.Add(0, []byte(fmt.Sprint(i)))
	}
	if !q.Full() || len(q.Due(1000, inFlight, 10)) != 0 {
		t.Fatal("rows that are in flight are due")
	}
	settled = true
	if due := names(q.Due(1000, inFlight, 2)); !slices.Equal(due, []string{"0", "1"}) {
		t.Fatalf("due: %v", due)
	}
	q.Marked(2)
	if q.Full() || len(q.Due(1000, inFlight, 2)) != 0 {
		t.Fatal("there is room, and a row is due before the end of its transaction")
	}
	q.Add(0, []byte("3"))
	q.Commit(50)
	if due := names(q.Due(50, never, 10)); !slices.Equal(due, []string{"2", "3"}) {
		t.Fatalf("due: %v", due)
	}
	q.Marked(2)
	if at := q.Position(50); at != 50 {
		t.Errorf("the position is %d", at)
	}
	// All of one marked before its end is known.
	for i := range 3 {
		q.Add(0, []byte(fmt.Sprint(i)))
	}
	q.Marked(len(q.Due(50, inFlight, 10)))
	q.Commit(60)
	if at := q.Position(60); at != 60 {
		t.Errorf("the position is %d", at)
	}
}

// The queue and a tracker, under random acks: no row is due before it is acked, and
// no position covers a row that is not marked.
func TestQueue_AgreesWithTheTracker(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		q, tr := NewQueue(20*(rowBytes+4)), checkpoint.NewTracker(1)
		type record struct {
			id    string
			tx    uint64
			acked bool
			end   pglogrepl.LSN // 0: not known
		}
		var flying, all []*record
		marked := map[string]bool{}
		lsn, open, n := pglogrepl.LSN(10), false, 0
		var tx uint64
		var last pglogrepl.LSN
		for range 400 {
			switch k := rnd.IntN(10); {
			case k < 4:
				if !open {
					tx, open = tr.Begin(0), true
				}
				if q.Full() {
					break
				}
				r := &record{id: fmt.Sprintf("%04d", n), tx: tx}
				n++
				tr.Add(tx, 1)
				q.Add(0, []byte(r.id))
				flying, all = append(flying, r), append(all, r)
			case k == 4 && open:
				lsn += 10
				for _, r := range all {
					if r.tx == tx && r.end == 0 {
						r.end = lsn
					}
				}
				q.Commit(lsn)
				tr.Commit(lsn)
				open = false
			case k < 8 && len(flying) > 0:
				i := rnd.IntN(len(flying))
				r := flying[i]
				flying = slices.Delete(flying, i, i+1)
				r.acked = true
				tr.Done([]sink.Acked{{Tx: r.tx, N: 1}}, nil)
			default:
				due := names(q.Due(tr.Watermark(), tr.Settled, 1+rnd.IntN(5)))
				for _, id := range due {
					i := slices.IndexFunc(all, func(r *record) bool { return r.id == id })
					if !all[i].acked {
						t.Fatalf("seed %d: row %s is due and not acked", seed, id)
					}
					marked[id] = true
				}
				q.Marked(len(due))
			}
			at := q.Position(tr.Watermark())
			if at < last || at > tr.Watermark() {
				t.Fatalf("seed %d: the position goes from %d to %d; the watermark is %d", seed, last, at, tr.Watermark())
			}
			last = at
			for _, r := range all {
				if r.end != 0 && r.end <= at && !marked[r.id] {
					t.Fatalf("seed %d: position %d covers row %s, which is not marked", seed, at, r.id)
				}
			}
		}
	}
}
