// Package checkpointtest is the suite that each checkpoint.Store must pass.
package checkpointtest

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/checkpoint"
)

// Backend makes a new, empty place for marks, and returns how to open a store on
// it. Each call of open gives another instance, as another process would have.
// Stores are closed by the suite.
type Backend func(t *testing.T) (open func() checkpoint.Store)

const (
	system = "7412345678901234567"
	slot   = "cdc_relay"
)

// At is a mark for the suite's slot.
func At(epoch uint64, lsn pglogrepl.LSN) checkpoint.Mark {
	return checkpoint.Mark{SystemID: system, Slot: slot, Epoch: epoch, Timeline: 1, LSN: lsn, SavedAt: time.Unix(1_700_000_000, 123_000_000).UTC()}
}

// Run runs the suite.
func Run(t *testing.T, backend Backend) {
	for name, test := range map[string]func(*testing.T, func() checkpoint.Store){
		"NoMarkAtFirst":         testNoMark,
		"SavedIsLoaded":         testRoundTrip,
		"SameMarkAgain":         testSameAgain,
		"LowerIsStale":          testStale,
		"LoadedCountsForStale":  testStaleAfterLoad,
		"EpochWinsOverLSN":      testEpoch,
		"SlotsAreApart":         testKeys,
		"OtherClustersAreFound": testOthers,
		"IntentThenMark":        testIntent,
		"NeedsAKey":             testNeedsKey,
		"EndedContext":          testContext,
		"CloseTwice":            testClose,
	} {
		t.Run(name, func(t *testing.T) { test(t, backend(t)) })
	}
}

func context30(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func opened(t *testing.T, open func() checkpoint.Store) checkpoint.Store {
	t.Helper()
	s := open()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func save(t *testing.T, s checkpoint.Store, m checkpoint.Mark) {
	t.Helper()
	if err := s.Save(context30(t), m); err != nil {
		t.Fatalf("save %s of epoch %d: %v", m.LSN, m.Epoch, err)
	}
}

func wantMark(t *testing.T, s checkpoint.Store, want checkpoint.Mark) {
	t.Helper()
	got, ok, err := s.Load(context30(t), want.SystemID, want.Slot)
	if err != nil || !ok || !reflect.DeepEqual(got, want) {
		t.Fatalf("load: %+v, %v, %v; want %+v", got, ok, err, want)
	}
}

func wantStale(t *testing.T, s checkpoint.Store, m checkpoint.Mark) {
	t.Helper()
	if err := s.Save(context30(t), m); !errors.Is(err, checkpoint.ErrStale) {
		t.Fatalf("save %s of epoch %d: %v, want %v", m.LSN, m.Epoch, err, checkpoint.ErrStale)
	}
}

func testNoMark(t *testing.T, open func() checkpoint.Store) {
	if m, ok, err := opened(t, open).Load(context30(t), system, slot); ok || err != nil {
		t.Fatalf("load: %+v, %v, %v; want none", m, ok, err)
	}
}

func testRoundTrip(t *testing.T, open func() checkpoint.Store) {
	m := At(3, 0xFFFFFFFF_12345678)
	m.Publication = checkpoint.Identity{OID: 1, Name: "cdc_relay", Def: "insert,via_root"}
	m.Relations = []checkpoint.Identity{{OID: 4294967295, Name: "public.outbox"}, {OID: 3, Name: "public.outbox_p1", Root: 2}}
	m.Gaps = []checkpoint.Gap{{From: 1, To: 2, Table: "public.outbox", Reason: "adopted", Found: m.SavedAt}}
	s := opened(t, open)
	save(t, s, m)
	wantMark(t, s, m)
	wantMark(t, opened(t, open), m)
	m.LSN++
	m.Gaps = nil
	save(t, s, m)
	wantMark(t, opened(t, open), m)
}

func testSameAgain(t *testing.T, open func() checkpoint.Store) {
	s := opened(t, open)
	save(t, s, At(1, 100))
	save(t, s, At(1, 100))
	later := At(1, 100)
	later.SavedAt = later.SavedAt.Add(10 * time.Second)
	save(t, s, later)
	wantMark(t, opened(t, open), later)
}

func testStale(t *testing.T, open func() checkpoint.Store) {
	s := opened(t, open)
	save(t, s, At(2, 100))
	wantStale(t, s, At(2, 99))
	wantStale(t, s, At(1, 1000))
	wantMark(t, s, At(2, 100))
	wantMark(t, opened(t, open), At(2, 100))
}

func testStaleAfterLoad(t *testing.T, open func() checkpoint.Store) {
	save(t, opened(t, open), At(2, 100))
	s := opened(t, open)
	wantMark(t, s, At(2, 100))
	wantStale(t, s, At(2, 50))
}

func testEpoch(t *testing.T, open func() checkpoint.Store) {
	s := opened(t, open)
	save(t, s, At(1, 1000))
	save(t, s, At(2, 10))
	wantMark(t, s, At(2, 10))
	wantMark(t, opened(t, open), At(2, 10))
}

func testKeys(t *testing.T, open func() checkpoint.Store) {
	a, b, c := At(5, 1000), At(1, 10), At(2, 20)
	b.Slot, c.SystemID = "other", "1"
	s := opened(t, open)
	for _, m := range []checkpoint.Mark{a, b, c} {
		save(t, s, m)
	}
	other := opened(t, open)
	for _, m := range []checkpoint.Mark{a, b, c} {
		wantMark(t, other, m)
	}
}

func testOthers(t *testing.T, open func() checkpoint.Store) {
	of := func(system, slot string, epoch uint64, lsn pglogrepl.LSN) checkpoint.Mark {
		m := At(epoch, lsn)
		m.SystemID, m.Slot = system, slot
		return m
	}
	s := opened(t, open)
	if others, err := s.Others(context30(t), system, slot); len(others) != 0 || err != nil {
		t.Fatalf("others in an empty store: %+v, %v", others, err)
	}
	for _, m := range []checkpoint.Mark{At(1, 100), of("8", slot, 1, 100), of("8", slot, 2, 50), of("9", slot, 1, 7), of("8", "other", 1, 1), of("6", slot, 1, 0), of("9", checkpoint.CoverKey(slot), 1, 1)} {
		save(t, s, m)
	}
	want := []checkpoint.Mark{of("8", slot, 2, 50), of("9", slot, 1, 7)}
	for _, s := range []checkpoint.Store{s, opened(t, open)} {
		if others, err := s.Others(context30(t), system, slot); err != nil || !reflect.DeepEqual(others, want) {
			t.Fatalf("others: %+v, %v; want %+v", others, err, want)
		}
	}
	if others, err := s.Others(context30(t), "7", slot); err != nil || len(others) != 3 {
		t.Fatalf("others of a cluster without a mark: %+v, %v", others, err)
	}
	wantMark(t, s, At(1, 100))
	save(t, s, At(1, 200)) // looking at others bounds nothing
}

func testIntent(t *testing.T, open func() checkpoint.Store) {
	intent := At(1, 0)
	intent.Intent = true
	s := opened(t, open)
	save(t, s, intent)
	wantMark(t, opened(t, open), intent)
	save(t, s, At(1, 100))
	wantMark(t, opened(t, open), At(1, 100))
}

func testNeedsKey(t *testing.T, open func() checkpoint.Store) {
	s := opened(t, open)
	noSystem, noSlot := At(1, 1), At(1, 1)
	noSystem.SystemID, noSlot.Slot = "", ""
	for _, m := range []checkpoint.Mark{noSystem, noSlot} {
		if err := s.Save(context30(t), m); err == nil || errors.Is(err, checkpoint.ErrStale) {
			t.Fatalf("save of a mark without its key: %v", err)
		}
	}
}

func testContext(t *testing.T, open func() checkpoint.Store) {
	s := opened(t, open)
	save(t, s, At(1, 100))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Save(ctx, At(1, 200)); err == nil {
		t.Fatal("save with an ended context reports success")
	}
	if _, _, err := s.Load(ctx, system, slot); err == nil {
		t.Fatal("load with an ended context reports success")
	}
	save(t, s, At(1, 300)) // it can be used again
	wantMark(t, opened(t, open), At(1, 300))
}

func testClose(t *testing.T, open func() checkpoint.Store) {
	s := open()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
}
