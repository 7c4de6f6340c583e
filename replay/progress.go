package replay

import (
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/sink"
)

// Progress is a snapshot of a replay.
type Progress struct {
	// From and To are the range; From is zero while the first transaction of it is
	// looked for.
	From, To pglogrepl.LSN
	// Acked: all of the range before it is acked.
	Acked pglogrepl.LSN
	// Read is how far the server has read: it begins before the range.
	Read           pglogrepl.LSN
	Events, Filter uint64 // published or counted; left out
	EventsAcked    uint64
	Elapsed        time.Duration
	// Trouble is why nothing is acked; "" when nothing is in the way.
	Trouble string
}

// Progress returns a snapshot.
func (r *Replay) Progress() Progress {
	p := Progress{
		From: pglogrepl.LSN(r.from.Load()), To: pglogrepl.LSN(r.to.Load()), Read: pglogrepl.LSN(r.read.Load()),
		Events: r.events.Load(), EventsAcked: r.acked.Load(), Filter: r.filtered.Load(), Elapsed: time.Since(r.began),
	}
	p.Acked = r.watermark()
	r.mu.Lock()
	sk := r.sink
	r.mu.Unlock()
	if sk != nil {
		p.Trouble = trouble(sk.Lanes())
	}
	return p
}

// troubleAfter is how long a lane may fail before a person is told.
const troubleAfter = 5 * time.Second

func trouble(lanes []sink.LaneStatus) string {
	for _, l := range lanes {
		if l.LastError != "" && !l.Since.IsZero() && time.Since(l.Since) > troubleAfter {
			return fmt.Sprintf("%s, cannot be written since %s: %s", sink.Place(l.Topic, l.Partition), l.Since.UTC().Format(time.RFC3339), l.LastError)
		}
	}
	return ""
}

// watermark is the position before which all of the range is acked; zero while the
// range has not begun.
func (r *Replay) watermark() pglogrepl.LSN {
	t := r.tracker.Load()
	if t == nil {
		return 0
	}
	return min(max(t.Watermark(), pglogrepl.LSN(r.from.Load())), max(pglogrepl.LSN(r.to.Load()), pglogrepl.LSN(r.from.Load())))
}

// note remembers the first event and the last.
func (r *Replay) note(rec *sink.Record) {
	n := r.events.Add(1)
	if n > 1 && r.sink != nil {
		return // the last one is shown by a dry run only
	}
	e := Event{LSN: rec.LSN, Seq: rec.Seq, Topic: rec.Topic, ID: string(rec.ID), Time: time.UnixMicro(r.tx.CommitTime)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n == 1 {
		r.first = e
	}
	r.last = e
}

func (r *Replay) report() Report {
	r.mu.Lock()
	rep := Report{First: r.first, Last: r.last}
	r.mu.Unlock()
	rep.From, rep.To = pglogrepl.LSN(r.from.Load()), pglogrepl.LSN(r.to.Load())
	rep.Transactions, rep.Events = r.transactions.Load(), r.events.Load()
	rep.Acked, rep.Filtered = r.acked.Load(), r.filtered.Load()
	rep.Next = r.o.From
	if lsn := r.watermark(); lsn != 0 {
		rep.Next = Bound{LSN: lsn}
	}
	rep.Took = time.Since(r.began)
	return rep
}
