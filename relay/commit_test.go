package relay

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/sink"
)

// lockedStore is a store whose mark can be looked at while it is saved.
type lockedStore struct {
	mu sync.Mutex
	memoryStore
}

func (l *lockedStore) Save(ctx context.Context, m checkpoint.Mark) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memoryStore.Save(ctx, m)
}

func (l *lockedStore) saved() pglogrepl.LSN {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mark.LSN
}

// The pause after a position without events is a long one. An event that is acked
// at the very moment when that pause is chosen ends it.
func TestCommit_SavesAnEventThatMeetsALongPause(t *testing.T) {
	store := &lockedStore{memoryStore: memoryStore{mark: checkpoint.Mark{LSN: 1}}}
	s := &session{
		r:   New(Config{StatusInterval: time.Hour, SaveInterval: time.Microsecond}, Deps{Log: zap.NewNop(), Store: store}),
		log: zap.NewNop(), stream: &world{}, tracker: checkpoint.NewTracker(1), nudge: make(chan struct{}, 1), mark: store.mark,
	}
	s.checked.Store(&checkedIdentities{Identities: catalog.Identities{}})
	s.durable.Store(1)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.commit(ctx) })
	defer wg.Wait()
	defer cancel()
	for lsn := pglogrepl.LSN(2); lsn < 10_000; lsn += 2 {
		s.received.Store(uint64(lsn + 1))
		s.tracker.Idle(lsn)
		tx := s.tracker.Begin(0)
		s.tracker.Add(tx, 1)
		s.tracker.Commit(lsn + 1)
		s.wake() // for the position before it
		s.Done([]sink.Acked{{Tx: tx, N: 1}})
		for deadline := time.Now().Add(10 * time.Second); store.saved() < lsn+1; {
			if time.Now().After(deadline) {
				t.Fatalf("the event at %s is acked and not saved; the mark is %s", lsn+1, store.saved())
			}
		}
	}
}
