package relay

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/sink"
)

func ended(e pgconn.PgError) error { return fmt.Errorf("the server ended the stream: %w", &e) }

// inTransaction is a session that has received one row of a transaction.
func inTransaction(t *testing.T) *world {
	t.Helper()
	w := &world{confirmed: 0x100, store: memoryStore{mark: checkpoint.Mark{Slot: "s", Epoch: 1, LSN: 0x100}}}
	w.start(t)
	w.send(frameRelation())
	w.tx = 0x200
	w.send(frameBegin(w.tx))
	if err := w.receive(); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestUndecodable_IsNamedAtOnceWithoutItsContent(t *testing.T) {
	w := inTransaction(t)
	err := w.s.streamError(ended(pgconn.PgError{Code: "22021", Message: "invalid byte sequence: 0xde", Where: "associated LSN 0/180"}))
	var u *undecodableError
	if !errors.As(err, &u) || fault.ClassOf(err) != fault.Stop || !endsInOrder(err) {
		t.Fatalf("got %v", err)
	}
	for _, word := range []string{"committed at 0/200 (xid 7)", "22021", "Nothing behind it is published", "To fix it:", "cdc-relay recover"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("no %q in: %v", word, err)
		}
	}
	if strings.Contains(err.Error(), "0xde") {
		t.Errorf("shows a value: %v", err)
	}
}

func TestUndecodable_WhatCouldHealHaltsWhenItComesAgainAtOnePlace(t *testing.T) {
	w := inTransaction(t)
	damage := ended(pgconn.PgError{Code: "XX001", Message: "unexpected chunk number"})
	for attempt := 1; attempt <= 5; attempt++ {
		err := w.s.streamError(damage)
		if class := fault.ClassOf(err); (class == fault.Stop) != (attempt >= sameFailures) {
			t.Errorf("attempt %d: %v", attempt, err)
		}
	}
	w.s.tx.CommitLSN = 0x300
	if err := w.s.streamError(damage); fault.ClassOf(err) != fault.Retry {
		t.Errorf("at another place: %v", err)
	}
	if err := w.s.streamError(ended(pgconn.PgError{Code: "57P01"})); fault.ClassOf(err) != fault.Retry {
		t.Errorf("a shutdown: %v", err)
	}
}

// While it is halted it is not ready, says why and for how long, also between two
// attempts and during one; beyond that place it is forgotten.
func TestUndecodable_IsShownUntilItIsPassed(t *testing.T) {
	w := inTransaction(t)
	w.s.tx.CommitTime = time.Now().Add(-time.Hour).UnixMicro()
	r := w.s.r
	var u *undecodableError
	if !errors.As(w.s.streamError(ended(pgconn.PgError{Code: "22P05", Where: "associated LSN 0/1F0"})), &u) {
		t.Fatal("not taken for what it is")
	}
	r.known = preflight.Known{StartedAt: time.Now(), Durable: 0x1E0}
	for i, took := range []time.Duration{time.Hour, 0, 6 * time.Second, time.Hour} { // the first one was of a whole session
		want := []time.Duration{undecodableRetry, undecodableRetry, 2 * time.Minute, maxUndecodableRetry}[i]
		if wait := r.haltAt(u, time.Second, took); wait != want {
			t.Errorf("%d: looks again after %s, want %s", i, wait, want)
		}
	}
	if r.known != (preflight.Known{}) {
		t.Error("a slot that is put back by recover --from would not be read from there")
	}
	for _, state := range []State{StateHalted, StateStreaming} { // then the next attempt
		r.setState(state, "")
		st := r.Status()
		if st.Ready || st.State != StateHalted || len(st.Halts) != 1 || !strings.Contains(st.Reason, "cdc-relay recover") || time.Since(st.OldestUnacked) < time.Hour {
			t.Errorf("%s: %+v", state, st)
		}
	}
	r.passed(0x200) // the position itself
	if len(r.Status().Halts) != 1 {
		t.Error("forgotten before it is passed")
	}
	r.passed(0x201)
	if len(r.Status().Halts) != 0 {
		t.Error("shown after it is passed")
	}
}

func TestHaltReason_NamesThePositionThatPassesIt(t *testing.T) {
	poison := &fault.Error{Class: fault.Poison, What: "too large: 300 bytes", Fix: "raise max.message.bytes"}
	denied := &fault.Error{Class: fault.Stop, What: "may not write", Fix: "grant WRITE"}
	for name, c := range map[string]struct {
		reason  error
		says    string
		givesUp bool
	}{
		"with a way out": {poison, "raise max.message.bytes; or give", true},
		"without":        {errors.New("refused"), "mend the cause", true},
		"a privilege":    {denied, "grant WRITE", false},
	} {
		reason, fix := HaltReason(sink.Refusal{LSN: 0x197DCE0, Reason: c.reason})
		if !strings.Contains(fix, c.says) || strings.Contains(fix, "cdc-relay adopt --lsn 0/197DCE1") != c.givesUp || strings.Contains(reason, "To fix it") {
			t.Errorf("%s: %s. %s", name, reason, fix)
		}
	}
}

// A row that cannot be routed leaves nothing in flight, and is not published: its age
// is told.
func TestHalt_OfReadingHasAnAge(t *testing.T) {
	w := inTransaction(t)
	w.s.tx.CommitTime = time.Now().Add(-time.Minute).UnixMicro()
	w.queued = []replication.Message{{Data: frameRow("-", "k", "x")}}
	if err := w.receive(); err == nil || !w.halted {
		t.Fatalf("reading is not halted: %v", err)
	}
	w.s.r.session = w.s
	if st := w.s.r.Status(); time.Since(st.OldestUnacked) < time.Minute || !strings.Contains(st.Reason, "cdc-relay adopt --lsn 0/201") {
		t.Errorf("oldest %s, reason %s", st.OldestUnacked, st.Reason)
	}
}
