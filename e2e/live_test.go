package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// live is a stream of single events by 8 writers, whose way from INSERT to the
// consumer is timed.
type live struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	times []time.Duration // since measure began
}

// livePause is between two events of a writer.
const livePause = 20 * time.Millisecond

func startLive(t testing.TB, r *rig) *live {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &live{cancel: cancel}
	t.Cleanup(l.stop)
	cl := r.k.Client(t, kgo.ConsumeTopics(r.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()), kgo.FetchMaxWait(100*time.Millisecond))
	l.wg.Go(func() { l.consume(ctx, cl) })
	for i := range 8 {
		conn := r.pg.Conn(t)
		l.wg.Go(func() { l.write(ctx, t, conn, i) })
	}
	return l
}

func (l *live) stop() {
	l.cancel()
	l.wg.Wait()
}

func (l *live) write(ctx context.Context, t testing.TB, conn *pgx.Conn, writer int) {
	for n := 0; ctx.Err() == nil; n++ {
		_, err := conn.Exec(context.Background(), "INSERT INTO outbox (id, aggregateid, payload) VALUES ($1, $2, $3)",
			fmt.Sprintf("live-%d-%d", writer, n), fmt.Sprintf("live-%d", writer), strconv.FormatInt(time.Now().UnixNano(), 10))
		if err != nil {
			t.Error(err)
			return
		}
		sleep(ctx, livePause)
	}
}

// consume takes the time of what is new; a replayed record carries a mark.
func (l *live) consume(ctx context.Context, cl *kgo.Client) {
	for ctx.Err() == nil {
		fetches := cl.PollFetches(ctx)
		now := time.Now()
		for it := fetches.RecordIter(); !it.Done(); {
			rec := it.Next()
			if slices.ContainsFunc(rec.Headers, func(h kgo.RecordHeader) bool { return h.Key == replayedFrom }) {
				continue
			}
			sent, err := strconv.ParseInt(string(rec.Value), 10, 64)
			if err != nil || sent < 1e18 {
				continue
			}
			l.mu.Lock()
			l.times = append(l.times, now.Sub(time.Unix(0, sent)))
			l.mu.Unlock()
		}
	}
}

// measure returns what arrived in d, sorted.
func (l *live) measure(d time.Duration) []time.Duration {
	return l.measureWhile(func() { time.Sleep(d) })
}

// measureWhile returns what arrived while f ran, sorted.
func (l *live) measureWhile(f func()) []time.Duration {
	l.take()
	f()
	times := l.take()
	slices.Sort(times)
	return times
}

func (l *live) take() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	times := l.times
	l.times = nil
	return times
}

// quantile of sorted times; zero of none.
func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	return times[min(len(times)-1, int(q*float64(len(times))))]
}
