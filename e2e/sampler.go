package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// ConfirmedSampler watches a slot's confirmed_flush_lsn through a test and fails the test when it decreases within one run of
// the server, or reaches past a limit. It lives until the end of the test or Stop.
type ConfirmedSampler struct {
	t      testing.TB
	dsn    string
	slot   string
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	started string // pg_postmaster_start_time of the last sample
	last    pglogrepl.LSN
	limit   func() pglogrepl.LSN
	samples int
	bad     int
}

// SampleConfirmed starts a sampler, which looks every few milliseconds and outlives restarts of the server.
func SampleConfirmed(t testing.TB, pg *PG, slot string) *ConfirmedSampler {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &ConfirmedSampler{t: t, dsn: pg.DSN(), slot: slot, cancel: cancel}
	s.wg.Add(1)
	go s.run(ctx) // ends by Stop
	t.Cleanup(s.Stop)
	return s
}

// Limit sets an upper bound, asked after each sample, that the confirmed LSN may not exceed: the end of what was acked, say.
// It must never decrease. Nil takes the limit away.
func (s *ConfirmedSampler) Limit(f func() pglogrepl.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = f
}

// Stop ends the sampler; stopping twice is safe.
func (s *ConfirmedSampler) Stop() {
	s.cancel()
	s.wg.Wait()
}

// Last is the newest sample, 0 before the first.
func (s *ConfirmedSampler) Last() pglogrepl.LSN {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// OK tells whether samples were taken and none was bad.
func (s *ConfirmedSampler) OK() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.samples > 0 && s.bad == 0
}

// Samples is the number of samples taken.
func (s *ConfirmedSampler) Samples() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.samples
}

func (s *ConfirmedSampler) run(ctx context.Context) {
	defer s.wg.Done()
	for ctx.Err() == nil {
		s.session(ctx)
		pause(ctx, 20*time.Millisecond)
	}
}

// session samples over one connection until that breaks.
func (s *ConfirmedSampler) session(ctx context.Context) {
	dial, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := pgx.Connect(dial, s.dsn)
	if err != nil {
		return
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c.Close(ctx)
	}()
	var started string
	if err := c.QueryRow(ctx, "SELECT pg_postmaster_start_time()::text").Scan(&started); err != nil {
		return
	}
	for ctx.Err() == nil {
		s.mu.Lock()
		limit := s.limit
		s.mu.Unlock()
		var text *string
		err := c.QueryRow(ctx, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", s.slot).Scan(&text)
		var upper pglogrepl.LSN
		if limit != nil {
			upper = limit() // asked after the sample: what is acked in between only widens it, so no false alarm
		}
		switch {
		case err == pgx.ErrNoRows || err == nil && text == nil:
		case err != nil:
			return
		default:
			lsn, err := pglogrepl.ParseLSN(*text)
			if err != nil {
				s.t.Errorf("confirmed_flush_lsn of slot %s: %v", s.slot, err)
				return
			}
			s.judge(started, lsn, upper)
		}
		pause(ctx, 5*time.Millisecond)
	}
}

func (s *ConfirmedSampler) judge(started string, lsn, upper pglogrepl.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	complaint := ""
	if s.started == started && lsn < s.last {
		complaint = fmt.Sprintf("went back from %s to %s within one run of the server", s.last, lsn)
	}
	if upper != 0 && lsn > upper {
		complaint = fmt.Sprintf("is %s, past the limit %s", lsn, upper)
	}
	if complaint != "" {
		s.bad++
		if s.bad <= 3 {
			s.t.Errorf("confirmed_flush_lsn of slot %s %s", s.slot, complaint)
		}
	}
	s.started, s.last = started, lsn
	s.samples++
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
