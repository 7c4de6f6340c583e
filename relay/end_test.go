package relay

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
)

// What was durable before a failover says nothing about the new primary's WAL,
// however many attempts it takes to begin there.
func TestKnown_IsOfOneRunOfTheServer(t *testing.T) {
	w := &world{confirmed: 0xA0, store: memoryStore{mark: checkpoint.Mark{Slot: "s", SystemID: "7", Timeline: 1, Epoch: 1, LSN: 0xB0}, fails: true}}
	w.start(t)
	s := w.s
	s.r.known = preflight.Known{StartedAt: time.Unix(1, 0), Durable: 0xB0}
	f := preflight.Facts{
		SystemID: "7", Timeline: 2, HasSlot: true, HasMark: true, HasPublication: true,
		Mark:        w.store.mark,
		Slot:        catalog.Slot{Name: "s", Type: "logical", Plugin: "pgoutput", Confirmed: 0xA0, Failover: true},
		Server:      catalog.Server{SystemID: "7", Timeline: 2, VersionNum: 170000, WALLevel: "logical", CurrentLSN: 0x100, StartedAt: time.Unix(2, 0)},
		Publication: catalog.Publication{Insert: true},
		Identities:  catalog.Identities{Relations: []checkpoint.Identity{{OID: 1, Name: "public.outbox"}}},
	}
	for attempt := range 3 {
		plan, err := s.decide(f)
		if err != nil {
			t.Fatal(err)
		}
		if plan.Start != 0xA0 {
			t.Fatalf("attempt %d starts at %s: what was committed from 0/A0 on is skipped", attempt, plan.Start)
		}
		if s.plan = plan; !plan.SaveFirst {
			t.Fatal("the new epoch is not saved first")
		}
		if err := s.run(t.Context()); err == nil {
			t.Fatal("streaming began without the new epoch's mark")
		}
	}
}

// stuckSink never drains.
type stuckSink struct{ scriptSink }

func (stuckSink) Drain(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// deadStream cannot end in order.
type deadStream struct{ *world }

func (deadStream) Finish(context.Context) error { return net.ErrClosed }

// A person must mend what ended the stream, whatever else is wrong meanwhile: the
// relay neither hangs nor begins anew.
func TestSettle_EndsWithWhatAPersonMustMend(t *testing.T) {
	for name, breaks := range map[string]func(*world){
		"marks cannot be saved": func(w *world) { w.store.fails = true },
		"Kafka is away":         func(w *world) { w.s.sink = stuckSink{scriptSink{w}} },
		"connection is gone":    func(w *world) { w.s.stream = deadStream{w} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{confirmed: 0x100, store: memoryStore{mark: checkpoint.Mark{Slot: "s", Epoch: 1, LSN: 0x100}}}
				w.start(t)
				w.s.r.cfg.ShutdownTimeout = 20 * time.Second
				w.s.tracker.Idle(0x200) // something to save
				breaks(w)
				end := fault.Stopped("map another", "column %q is gone", "payload")
				began := time.Now()
				if err := w.s.settle(t.Context(), end, func() {}); !errors.Is(err, end) {
					t.Errorf("ended with: %v", err)
				}
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("took %s", took)
				}
			})
		})
	}
}

// A stop while there is no stream is clean only if all that was acked on the last
// one is confirmed.
func TestRun_StopWhileConnectingTellsWhatWillRepeat(t *testing.T) {
	for _, test := range []struct {
		acked pglogrepl.LSN
		says  string
	}{{0x100, ""}, {0x200, "published again"}} {
		r := New(Config{ReconnectMin: time.Second, ReconnectMax: time.Second}, Deps{Log: zap.NewNop()})
		r.confirmed, r.lastAcked = 0x100, test.acked
		r.cfg.Connect = func() (*pgx.ConnConfig, error) {
			r.Stop()
			cfg, err := pgx.ParseConfig("host=192.0.2.1 sslmode=disable") // TEST-NET-1: nobody answers
			if err == nil {
				cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
			}
			return cfg, err
		}
		err := r.sessions(t.Context())
		if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("acked up to %s: %v", test.acked, err)
		}
	}
}
