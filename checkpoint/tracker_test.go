package checkpoint

import (
	"flag"
	"fmt"
	"math/rand"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/sink"
)

var (
	trackerSeed      = flag.Int64("tracker.seed", 0, "seed of the tracker's model test; 0 takes a new one")
	trackerSchedules = flag.Int("tracker.schedules", 1000, "schedules of the tracker's model test")
)

// model is deliberately dumb: it keeps everything for ever and walks through it
// all to answer.
type model struct {
	start  pglogrepl.LSN
	events []modelEvent
}

type modelEvent struct {
	end       pglogrepl.LSN
	time      int64
	added     int
	acked     int
	committed bool
	idle      bool
}

func (m *model) watermark() pglogrepl.LSN {
	w := m.start
	for _, e := range m.events {
		if !e.idle && (!e.committed || e.acked < e.added) {
			break
		}
		w = max(w, e.end)
	}
	return w
}

func (m *model) oldest() (int64, int, bool) {
	var first int64
	n := 0
	for _, e := range m.events {
		if e.idle || e.added == 0 || e.committed && e.acked == e.added {
			continue
		}
		if n == 0 {
			first = e.time
		}
		n++
	}
	return first, n, n > 0
}

// firstUnacked is the end of the first committed transaction with an unacked
// record.
func (m *model) firstUnacked() (pglogrepl.LSN, bool) {
	for _, e := range m.events {
		if !e.idle && e.committed && e.acked < e.added {
			return e.end, true
		}
	}
	return 0, false
}

func (m *model) ahead() int {
	n, held := 0, false
	for _, e := range m.events {
		switch {
		case e.idle:
		case !e.committed || e.acked < e.added:
			held = true
		case held && e.added > 0:
			n++
		}
	}
	return n
}

// schedule drives a Tracker and the model through one random schedule.
type schedule struct {
	t     *testing.T
	r     *rand.Rand
	tr    *Tracker
	m     *model
	lsn   pglogrepl.LSN
	open  int // index of the open event, -1
	tx    map[int]uint64
	steps int
	last  pglogrepl.LSN
}

func (s *schedule) step(weights [5]int) {
	s.steps++
	n := 0
	for _, w := range weights {
		n += w
	}
	k := s.r.Intn(n)
	op := 0
	for k >= weights[op] {
		k -= weights[op]
		op++
	}
	switch op {
	case 0:
		s.begin()
	case 1:
		s.add()
	case 2:
		s.commit()
	case 3:
		s.idle()
	case 4:
		s.done()
	}
	s.check()
}

func (s *schedule) begin() {
	if s.open >= 0 {
		return
	}
	at := int64(s.steps)
	s.open = len(s.m.events)
	s.m.events = append(s.m.events, modelEvent{time: at})
	s.tx[s.open] = s.tr.Begin(at)
}

func (s *schedule) add() {
	if s.open < 0 {
		return
	}
	n := s.r.Intn(4)
	s.m.events[s.open].added += n
	s.tr.Add(s.tx[s.open], n)
}

func (s *schedule) commit() {
	if s.open < 0 {
		return
	}
	s.lsn += pglogrepl.LSN(1 + s.r.Intn(100))
	e := &s.m.events[s.open]
	e.end, e.committed = s.lsn, true
	at, done := s.tr.Commit(s.lsn)
	s.sameDone(at, done, *e)
	s.open = -1
}

func (s *schedule) idle() {
	end := s.lsn + pglogrepl.LSN(s.r.Intn(50))
	if s.r.Intn(10) == 0 {
		end = s.lsn / 2 // an old position changes nothing
	}
	if s.open < 0 {
		s.lsn = max(s.lsn, end)
		s.m.events = append(s.m.events, modelEvent{idle: true, end: end})
	}
	s.tr.Idle(end)
}

func (s *schedule) done() {
	var waiting []int
	for i, e := range s.m.events {
		if e.acked < e.added {
			waiting = append(waiting, i)
		}
	}
	if len(waiting) == 0 {
		return
	}
	i := waiting[s.r.Intn(len(waiting))]
	e := &s.m.events[i]
	n := 1 + s.r.Intn(e.added-e.acked)
	e.acked += n
	at, done := done(s.tr, s.tx[i], n)
	s.sameDone(at, done, *e)
}

func (s *schedule) sameDone(at int64, done bool, e modelEvent) {
	s.t.Helper()
	want := e.committed && e.added > 0 && e.acked == e.added
	if done != want || done && at != e.time {
		s.t.Fatalf("step %d: done = %v (time %d), want %v (time %d)", s.steps, done, at, want, e.time)
	}
}

func (s *schedule) check() {
	s.t.Helper()
	w := s.tr.Watermark()
	if want := s.m.watermark(); w != want {
		s.t.Fatalf("step %d: watermark %s, want %s", s.steps, w, want)
	}
	if end, ok := s.m.firstUnacked(); ok && w >= end {
		s.t.Fatalf("step %d: watermark %s reaches %s, the end of a transaction with an unacked record", s.steps, w, end)
	}
	if w < s.last {
		s.t.Fatalf("step %d: watermark went back from %s to %s", s.steps, s.last, w)
	}
	s.last = w
	at, n, ok := s.tr.Oldest()
	if wantAt, wantN, wantOK := s.m.oldest(); at != wantAt || n != wantN || ok != wantOK {
		s.t.Fatalf("step %d: oldest %d %d %v, want %d %d %v", s.steps, at, n, ok, wantAt, wantN, wantOK)
	}
	ahead, open, watermark := s.tr.Backlog()
	if want := s.m.ahead(); ahead != want || open != n || watermark != w {
		s.t.Fatalf("step %d: ahead %d, open %d, watermark %s, want %d, %d, %s", s.steps, ahead, open, watermark, want, n, w)
	}
}

// done acks n records of a transaction.
func done(tr *Tracker, tx uint64, n int) (commitTime int64, finished bool) {
	var buf [1]int64
	times := tr.Done([]sink.Acked{{Tx: tx, N: n}}, buf[:0])
	if len(times) == 0 {
		return 0, false
	}
	return times[0], true
}

func TestTracker_AgreesWithModel(t *testing.T) {
	seed := *trackerSeed
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	t.Logf("seed %d (-tracker.seed)", seed)
	schedules, steps := 0, 0
	defer func() {
		fmt.Printf("RESULT tracker schedules=%d steps=%d seed=%d ok=%v\n", schedules, steps, seed, !t.Failed())
	}()
	for i := range *trackerSchedules {
		schedules++
		r := rand.New(rand.NewSource(seed + int64(i)))
		start := pglogrepl.LSN(r.Intn(1000))
		s := &schedule{t: t, r: r, tr: NewTracker(start), m: &model{start: start}, lsn: start, open: -1, tx: map[int]uint64{}, last: start}
		// Some schedules ack fast, some starve, some are mostly empty transactions.
		weights := [5]int{2 + r.Intn(4), r.Intn(6), 2 + r.Intn(4), r.Intn(4), r.Intn(9)}
		for range 50 + r.Intn(250) {
			s.step(weights)
		}
		if s.open >= 0 {
			s.commit()
		}
		for {
			if _, _, ok := s.tr.Oldest(); !ok {
				break
			}
			s.done()
			s.steps++
			s.check()
		}
		if w := s.tr.Watermark(); w != max(s.lsn, start) {
			t.Fatalf("schedule %d: everything acked, watermark %s, end %s", i, w, s.lsn)
		}
		steps += s.steps
	}
}

func TestTracker_IdleQueuesBehindWhatIsInFlight(t *testing.T) {
	tr := NewTracker(100)
	tx := tr.Begin(1)
	tr.Add(tx, 1)
	tr.Idle(500) // within the transaction: ignored
	tr.Commit(200)
	tr.Idle(300)
	if w := tr.Watermark(); w != 100 {
		t.Fatalf("watermark %s before the ack, want 0/64", w)
	}
	done(tr, tx, 1)
	if w := tr.Watermark(); w != 300 {
		t.Fatalf("watermark %s, want 0/12C: the idle position, and not the one within the transaction", w)
	}
	tr.Idle(250)
	if w := tr.Watermark(); w != 300 {
		t.Fatalf("watermark %s went back", w)
	}
}

func TestTracker_EmptyTransactionsDoNotGrowIt(t *testing.T) {
	tr := NewTracker(0)
	held := tr.Begin(1)
	tr.Add(held, 1)
	tr.Commit(10)
	for i := range 100_000 {
		tr.Begin(2)
		tr.Commit(pglogrepl.LSN(20 + i))
	}
	if len(tr.ring) != minRing {
		t.Fatalf("the ring grew to %d transactions", len(tr.ring))
	}
	if w := tr.Watermark(); w != 0 {
		t.Fatalf("watermark %s passes an unacked record", w)
	}
	done(tr, held, 1)
	if w := tr.Watermark(); w != 100_019 {
		t.Fatalf("watermark %d, want 100019", w)
	}
}

func TestTracker_LowerCommitNeverLowersWatermark(t *testing.T) {
	tr := NewTracker(1000)
	for _, end := range []pglogrepl.LSN{2000, 1500, 500} {
		tx := tr.Begin(1)
		tr.Add(tx, 1)
		tr.Commit(end)
		done(tr, tx, 1)
		if w := tr.Watermark(); w != 2000 {
			t.Fatalf("watermark %d after a commit that ends at %d, want 2000", w, end)
		}
	}
}

func TestTracker_ReleasesALargeRing(t *testing.T) {
	tr := NewTracker(0)
	const n = 3 * keepRing
	for i := range n {
		tx := tr.Begin(1)
		tr.Add(tx, 1)
		tr.Commit(pglogrepl.LSN(i + 1))
		if i > 0 {
			done(tr, tx, 1)
		}
	}
	if ahead, open, _ := tr.Backlog(); ahead != n-1 || open != 1 {
		t.Fatalf("ahead %d, open %d, want %d and 1", ahead, open, n-1)
	}
	done(tr, 0, 1)
	if len(tr.ring) != minRing || tr.Watermark() != n {
		t.Fatalf("ring of %d, watermark %d, want %d, %d", len(tr.ring), tr.Watermark(), minRing, n)
	}
}

func TestTracker_WrongAcksPanicAndChangeNothing(t *testing.T) {
	tr := NewTracker(0)
	tx := tr.Begin(1)
	tr.Add(tx, 2)
	tr.Commit(10)
	finished := tr.Begin(1)
	tr.Add(finished, 1)
	tr.Commit(20)
	done(tr, finished, 1)
	for name, call := range map[string]func(){
		"too many":      func() { done(tr, tx, 3) },
		"negative":      func() { done(tr, tx, -1) },
		"finished":      func() { done(tr, finished, 1) },
		"unknown":       func() { done(tr, 99, 1) },
		"add committed": func() { tr.Add(tx, 1) },
		"commit":        func() { tr.Commit(30) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
				if w := tr.Watermark(); w != 0 {
					t.Errorf("watermark %s passes an unacked record", w)
				}
			}()
			call()
		})
	}
	done(tr, tx, 2)
	if w := tr.Watermark(); w != 20 {
		t.Fatalf("watermark %d, want 20", w)
	}
}

func TestTracker_AcksFromManyGoroutines(t *testing.T) {
	type ack struct {
		tx uint64
		n  int
	}
	tr := NewTracker(0)
	acks := make(chan ack, 1000) // closed below, when all are sent
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var last pglogrepl.LSN
			for a := range acks {
				done(tr, a.tx, a.n)
				w := tr.Watermark()
				if w < last {
					t.Errorf("watermark went back from %s to %s", last, w)
				}
				last = w
				tr.Oldest()
				tr.Backlog()
			}
		}()
	}
	const transactions = 20_000
	for i := range transactions {
		tx := tr.Begin(int64(i))
		for range 1 + i%3 {
			tr.Add(tx, 1)
			acks <- ack{tx, 1}
		}
		tr.Commit(pglogrepl.LSN(10 * (i + 1)))
		tr.Idle(pglogrepl.LSN(10*(i+1) + 5))
	}
	close(acks)
	wg.Wait()
	if w := tr.Watermark(); w != 10*transactions+5 {
		t.Fatalf("watermark %d, want %d", w, 10*transactions+5)
	}
}

func TestTracker_AllocatesNothing(t *testing.T) {
	tr := NewTracker(0)
	var lsn pglogrepl.LSN
	if n := testing.AllocsPerRun(1000, func() { lsn = oneTransaction(tr, lsn) }); n != 0 {
		t.Fatalf("%v allocations per transaction, want 0", n)
	}
}

func oneTransaction(tr *Tracker, lsn pglogrepl.LSN) pglogrepl.LSN {
	tx := tr.Begin(1)
	tr.Add(tx, 1)
	lsn += 10
	tr.Commit(lsn)
	done(tr, tx, 1)
	return lsn
}

func BenchmarkTracker_Transaction(b *testing.B) {
	tr := NewTracker(0)
	var lsn pglogrepl.LSN
	b.ReportAllocs()
	for b.Loop() {
		lsn = oneTransaction(tr, lsn)
	}
}

func BenchmarkTracker_EmptyTransaction(b *testing.B) {
	tr := NewTracker(0)
	var lsn pglogrepl.LSN
	b.ReportAllocs()
	for b.Loop() {
		lsn += 10
		tr.Begin(1)
		tr.Commit(lsn)
	}
}
