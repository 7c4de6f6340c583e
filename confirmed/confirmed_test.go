package confirmed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
)

func TestWaiter_WaitsForTheConfirmedPosition(t *testing.T) {
	const target = pglogrepl.LSN(100)
	active := func(lsn pglogrepl.LSN) catalog.Slot { return catalog.Slot{Active: true, Confirmed: lsn} }
	for name, tc := range map[string]struct {
		slot   func(after time.Duration) (catalog.Slot, bool, error)
		halted string
		after  time.Duration // when it ends, about
		want   string        // "" : no error
	}{
		"there already, and nobody runs": {slot: func(time.Duration) (catalog.Slot, bool, error) { return catalog.Slot{Confirmed: target}, true, nil }},
		"gets there": {slot: func(after time.Duration) (catalog.Slot, bool, error) {
			return active(pglogrepl.LSN(after / time.Second)), true, nil
		}, after: 100 * time.Second},
		"too slow": {slot: func(time.Duration) (catalog.Slot, bool, error) { return active(99), true, nil }, after: 5 * time.Minute,
			want: `did not get to 0/64 within 5m0s: slot "s" is at 0/63, 1 bytes behind`},
		"nobody reads": {slot: func(time.Duration) (catalog.Slot, bool, error) { return catalog.Slot{Confirmed: 1}, true, nil },
			after: idleGrace, want: "no relay reads slot"},
		"a standby instance takes over": {slot: func(after time.Duration) (catalog.Slot, bool, error) {
			switch {
			case after < 20*time.Second:
				return catalog.Slot{Confirmed: 1}, true, nil
			case after < time.Minute:
				return active(1), true, nil
			case after < time.Minute+20*time.Second:
				return catalog.Slot{Confirmed: 1}, true, nil
			}
			return active(target + 1), true, nil
		}, after: 80 * time.Second},
		"halted":   {slot: func(time.Duration) (catalog.Slot, bool, error) { return active(1), true, nil }, halted: "topic t, partition 3", want: "is halted and will not get to 0/64"},
		"no slot":  {slot: func(time.Duration) (catalog.Slot, bool, error) { return catalog.Slot{}, false, nil }, want: "does not exist"},
		"lost":     {slot: func(time.Duration) (catalog.Slot, bool, error) { return catalog.Slot{WALStatus: "lost"}, true, nil }, want: "is lost"},
		"an error": {slot: func(time.Duration) (catalog.Slot, bool, error) { return catalog.Slot{}, false, errors.New("boom") }, want: "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var said []string
				w := Waiter{Again: "verify again", Slot: "s", Timeout: 5 * time.Minute,
					Find:   func(context.Context) (catalog.Slot, bool, error) { return tc.slot(time.Since(began)) },
					Halted: func(context.Context) string { return tc.halted },
					Say:    func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }}
				err := w.Until(t.Context(), target)
				if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				if took := time.Since(began); took < tc.after || took > tc.after+time.Second {
					t.Errorf("took %s, want about %s", took, tc.after)
				}
				if len(said) > 1 {
					t.Errorf("said %q", said)
				}
			})
		})
	}
}

func TestWaiter_StopsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w := Waiter{Timeout: time.Hour, Halted: func(context.Context) string { return "" }, Say: func(string, ...any) {},
			Find: func(context.Context) (catalog.Slot, bool, error) { return catalog.Slot{Active: true}, true, nil }}
		if err := w.Until(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}
