package e2e_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// audit holds the confirm rule against the outside world through a whole test:
// every event whose commit ended at or before a confirmed LSN was in the topic
// when that LSN was seen. It samples the confirmed LSN, then the topic's end
// offsets; what it means is judged when the test knows all records.
type audit struct {
	*e2e.ConfirmedSampler
	r      *rig
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	samples []auditSample
}

type auditSample struct {
	confirmed pglogrepl.LSN
	ends      map[int32]int64 // by partition
}

// startAudit begins to sample; it ends by judge, or with the test.
func (r *rig) startAudit(t testing.TB) *audit {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a := &audit{ConfirmedSampler: e2e.SampleConfirmed(t, r.pg, r.slot), r: r, cancel: cancel}
	client := r.k.Client(t, kgo.RetryTimeout(2*time.Second))
	a.wg.Go(func() { a.run(ctx, kadm.NewClient(client)) })
	t.Cleanup(func() {
		cancel()
		a.wg.Wait()
	})
	return a
}

func (a *audit) run(ctx context.Context, admin *kadm.Client) {
	for ctx.Err() == nil {
		a.session(ctx, admin)
		sleep(ctx, 50*time.Millisecond)
	}
}

// session samples over one connection until that breaks.
func (a *audit) session(ctx context.Context, admin *kadm.Client) {
	conn, err := pgx.Connect(ctx, a.r.pg.DSN())
	if err != nil {
		return
	}
	defer conn.Close(context.Background())
	for ctx.Err() == nil {
		var s auditSample
		err := conn.QueryRow(ctx, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", a.r.slot).Scan(&s.confirmed)
		if err != nil {
			return
		}
		octx, cancel := context.WithTimeout(ctx, 3*time.Second)
		ends, err := admin.ListEndOffsets(octx, a.r.topic)
		cancel()
		if err == nil && ends.Error() == nil {
			s.ends = map[int32]int64{}
			ends.Each(func(o kadm.ListedOffset) { s.ends[o.Partition] = o.Offset })
			a.mu.Lock()
			a.samples = append(a.samples, s)
			a.mu.Unlock()
		}
		sleep(ctx, 40*time.Millisecond)
	}
}

// judge ends the sampling and returns how many events were confirmed before they
// were in the topic. ended gives an upper bound of where each event's commit
// ended.
func (a *audit) judge(t testing.TB, records []e2e.Record, ended map[string]pglogrepl.LSN) (early int) {
	t.Helper()
	a.cancel()
	a.wg.Wait()
	type place struct {
		partition int32
		offset    int64
	}
	first := map[string]place{}
	for _, rec := range records {
		id, _ := rec.Header("id")
		if _, ok := first[id]; !ok {
			first[id] = place{rec.Partition, rec.Offset}
		}
	}
	if len(a.samples) == 0 {
		t.Error("the audit has no sample")
	}
	ids := slices.SortedFunc(maps.Keys(ended), func(x, y string) int { return cmp.Compare(ended[x], ended[y]) })
	slices.SortFunc(a.samples, func(x, y auditSample) int { return cmp.Compare(x.confirmed, y.confirmed) })
	// As the confirmed LSN rises, more events must be there: need is one past the
	// highest offset, by partition, at which one of them came first.
	need := map[int32]int64{}
	next := 0
	for _, s := range a.samples {
		for ; next < len(ids) && ended[ids[next]] <= s.confirmed; next++ {
			p, ok := first[ids[next]]
			if !ok {
				early++ // also missing
				continue
			}
			need[p.partition] = max(need[p.partition], p.offset+1)
		}
		for partition, n := range need {
			if s.ends[partition] < n {
				early++
				t.Logf("when %s was confirmed, partition %d ended at %d, but an event that was committed before came at %d",
					s.confirmed, partition, s.ends[partition], n-1)
			}
		}
	}
	return early
}
