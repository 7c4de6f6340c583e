package relay

import (
	"context"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/checkpoint"
)

// watchedSink ends a test when it is flushed.
type watchedSink struct {
	scriptSink
	flushed func()
}

func (k watchedSink) Flush() { k.flushed() }

// Whatever receive waits for, it does not wait with records that are not sent.
func TestReceive_FlushesBeforeItWaits(t *testing.T) {
	for name, script := range map[string][]string{
		"for a person": {"begin 200", "row 1 k v", "row - k v"},
		"for acks":     {"begin 200", "row 1 k v", "commit 210", "begin 300", "row 2 k v", "commit 310"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{confirmed: 0x100, store: memoryStore{mark: checkpoint.Mark{Slot: "s", Epoch: 1, LSN: 0x100}}}
			w.start(t)
			w.s.r.cfg.MaxAheadWAL = 1
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			flushed := false
			w.s.sink = watchedSink{scriptSink{w}, func() {
				flushed = flushed || ctx.Err() == nil
				cancel()
			}}
			w.send(frameRelation())
			for _, line := range script {
				w.queue(t, line)
			}
			if err := w.s.receive(ctx, ctx); err == nil {
				t.Fatal("receive did not wait")
			}
			if len(w.held) == 0 || !flushed {
				t.Fatalf("%d records were published, flushed: %t", len(w.held), flushed)
			}
		})
	}
}
