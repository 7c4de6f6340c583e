package outbox_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestKey_RepetitionReturnsTheRowThatExists(t *testing.T) {
	e := newEnv(t)
	o := e.outbox(outbox.Config{})
	for name, begin := range e.drivers() {
		first := e.commitOf(begin, o, keyed(placed("1"), name))[0]
		other := keyed(placed("2"), name+" other")
		tx := begin()
		refs, err := tx.writeBatch(o, keyed(placed("changed"), name), other, other, placed("3"), keyed(placed("1"), name))
		if err != nil {
			t.Fatal(err)
		}
		want := []outbox.Ref{{ID: first.ID, Duplicate: true}, {ID: outbox.KeyID(name + " other")}, {ID: outbox.KeyID(name + " other"), Duplicate: true},
			{ID: refs[3].ID}, {ID: first.ID, Duplicate: true}}
		if fmt.Sprint(refs) != fmt.Sprint(want) || first.Duplicate {
			t.Errorf("%s: got %v, want %v", name, refs, want)
		}
		// The transaction goes on.
		if err := tx.exec("SELECT 1"); err != nil {
			t.Error(err)
		}
		e.must(tx.commit())
		if n := e.count("SELECT count(*) FROM outbox WHERE id::text IN ($1, $2)", first.ID, want[1].ID); n != 2 {
			t.Errorf("%s: %d rows of two keys", name, n)
		}
		if n := e.count("SELECT count(*) FROM outbox WHERE aggregateid = 'changed'"); n != 0 {
			t.Errorf("%s: a repetition changed the row", name)
		}
	}
}

// Events with a key and without share no statement: a duplicate of the one kind is no
// error, of the other it is.
func TestKey_AmongEventsWithout(t *testing.T) {
	e := newEnv(t)
	o := e.outbox(outbox.Config{})
	e.commitOf(e.beginSQL, o, keyed(placed("1"), "k"), withID(placed("2"), id1))
	refs := e.commitOf(e.beginSQL, o, placed("3"), keyed(placed("1"), "k"))
	if refs[0].Duplicate || !refs[1].Duplicate {
		t.Errorf("refs %v", refs)
	}
	tx := e.beginSQL()
	defer tx.rollback()
	if refs, err := tx.writeBatch(o, keyed(placed("4"), "l"), withID(placed("5"), id1)); !errors.Is(err, outbox.ErrDuplicate) {
		t.Errorf("got %v, %v", refs, err)
	}
}

// Of many transactions at once with one key exactly one writes; none is aborted.
func TestKey_OneOfManyWrites(t *testing.T) {
	e := newEnv(t)
	o := e.outbox(outbox.Config{})
	begins := []func() tx{e.beginSQL, func() tx { return e.beginPGX(pgx.QueryExecModeCacheStatement) }}
	const rounds, writers = 20, 8
	written := 0
	for round := range rounds {
		key := fmt.Sprint("key ", round)
		var txs []tx
		for i := range writers {
			txs = append(txs, begins[i%2]())
		}
		var wg sync.WaitGroup
		results := make([]error, writers)
		refs := make([]outbox.Ref, writers)
		for i, tx := range txs {
			wg.Go(func() { // waited for below
				// What precedes the key in the transaction takes the snapshot too early.
				if results[i] = tx.exec("SELECT count(*) FROM outbox"); results[i] != nil {
					return
				}
				var r []outbox.Ref
				if r, results[i] = tx.writeBatch(o, keyed(placed("1"), key)); results[i] == nil {
					refs[i] = r[0]
					results[i] = tx.commit()
				}
			})
		}
		wg.Wait()
		for i := range txs {
			e.must(results[i])
			if refs[i].ID != outbox.KeyID(key) {
				t.Fatalf("ref %+v", refs[i])
			}
			if !refs[i].Duplicate {
				written++
			}
		}
	}
	rows, published := e.count("SELECT count(*) FROM outbox"), len(e.published(relay()))
	if rows != rounds || written != rounds || published != rounds {
		t.Errorf("%d keys: %d rows, %d writers, %d records", rounds, rows, written, published)
	}
	fmt.Printf("RESULT outbox_key keys=%d writers=%d rows=%d ok=%t\n", rounds, rounds*writers, rows, !t.Failed())
}

// A writer waits for another with the same key, and writes when that rolls back.
func TestKey_IsFreeAfterARollback(t *testing.T) {
	e := newEnv(t)
	o := e.outbox(outbox.Config{})
	first := e.beginSQL()
	if _, err := first.writeBatch(o, keyed(placed("lost"), "k")); err != nil {
		t.Fatal(err)
	}
	second := e.beginPGX(pgx.QueryExecModeCacheStatement).(pgxTx)
	done := make(chan error, 1)
	var refs []outbox.Ref
	go func() { // ends with the channel's message, received below
		var err error
		refs, err = second.writeBatch(o, keyed(placed("written"), "k"))
		done <- err
	}()
	pid := second.tx.Conn().PgConn().PID()
	for e.count("SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted", pid) == 0 {
		select {
		case err := <-done:
			t.Fatalf("it did not wait: %v, %v", refs, err)
		default:
		}
	}
	first.rollback()
	e.must(<-done)
	e.must(second.commit())
	if refs[0].Duplicate || e.count("SELECT count(*) FROM outbox WHERE aggregateid = 'written'") != 1 {
		t.Errorf("refs %v", refs)
	}
}

// KeyID is what other languages call UUID version 5.
func TestKeyID_IsThatOfOtherLanguages(t *testing.T) {
	if got := outbox.KeyID("order.created:42"); got != "65c9552e-2ab3-59bb-8ccf-daa0ccd1794b" { // made by Python's uuid.uuid5
		t.Errorf("got %s", got)
	}
}
