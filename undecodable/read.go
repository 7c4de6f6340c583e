package undecodable

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/replication"
)

// reading is what one attempt to read the WAL came to.
type reading struct {
	search Search

	failed error         // of the server: it cannot decode
	begin  decoder.Begin // of the transaction in hand, when open
	open   bool
	end    lsn // everything before it was decoded

	decoded          bool // a table or a row was
	events           int  // of the transaction in hand
	unpublished      int
	firstUnpublished lsn

	noticed         bool // the server skipped the publication
	endBeforeNotice lsn
	afterNotice     bool // a row came after it
	pastNotice      lsn  // nothing before it is to be trusted
}

// copy makes a temporary copy of the slot, on a connection of its own.
func (s Search) copy(ctx context.Context, onNotice func(*pgconn.Notice)) (conn *replication.Conn, slot string, err error) {
	cfg := s.Stream
	cfg.OnNotice = onNotice
	if conn, err = replication.Connect(ctx, cfg); err != nil {
		return nil, "", err
	}
	slot = fmt.Sprintf("%.40s_probe_%d", s.Slot, conn.PID())
	if _, err := conn.CopySlot(ctx, s.Slot, slot); err != nil {
		conn.Close()
		return nil, "", noRoom(err)
	}
	return conn, slot, nil
}

// noRoom explains an error of the server when it has no place for a copy.
func noRoom(err error) error {
	if catalog.SQLState(err) != "53400" {
		return err
	}
	return &fault.Error{Class: fault.Stop, Err: err, What: "all replication slots are in use, and looking at the WAL needs one for a moment",
		Fix: "raise max_replication_slots and restart the server, or drop a slot that is not used"}
}

// read streams from at until the server fails, or the end is reached; brief ends it
// as soon as something was decoded.
func (s Search) read(ctx context.Context, at lsn, brief bool) (*reading, error) {
	r := &reading{search: s, end: at}
	conn, slot, err := s.copy(ctx, r.notice)
	if err != nil {
		return nil, err
	}
	stream, err := conn.Start(ctx, slot, s.Publication, at)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, stream.Interrupt)()
	dec := decoder.New()
	for {
		m, err := stream.Next()
		switch {
		case errors.Is(err, replication.ErrInterrupted):
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			continue
		case err != nil:
			if perhaps, _ := catalog.Undecodable(err); perhaps {
				r.failed = err
				return r, nil
			}
			return nil, tooLarge(err, r.place())
		}
		done, err := r.take(dec, m)
		if err != nil || done || brief && r.decoded {
			return r, err
		}
	}
}

// notice hears PostgreSQL 18, which only warns when the publication did not exist,
// and drops the rows.
func (r *reading) notice(n *pgconn.Notice) {
	if n.Code != "55000" || n.SeverityUnlocalized != "WARNING" {
		return
	}
	if !r.noticed {
		r.noticed, r.endBeforeNotice = true, r.end
	}
	r.afterNotice = false
}

func (r *reading) place() string {
	if r.open {
		return "of the transaction committed at " + r.begin.CommitLSN.String()
	}
	return "after " + r.end.String()
}

// take takes one message; done says that nothing more needs to be read.
func (r *reading) take(dec *decoder.Decoder, m replication.Message) (done bool, err error) {
	if m.Data == nil { // a keepalive; within a transaction it means nothing
		if !r.open {
			r.end = max(r.end, m.WALEnd)
		}
		if r.end >= r.search.Until {
			r.pastNotice = r.end
			return true, nil
		}
		return false, nil
	}
	ev, err := dec.Decode(m.Data)
	if err != nil {
		return false, fault.Stopped("report this with the server's version", "decode the WAL message at %s: %v", m.WALStart, err)
	}
	switch ev.Kind {
	case decoder.KindBegin:
		r.open, r.begin, r.events = true, ev.Begin, 0
	case decoder.KindRelation:
		r.decoded = true
	case decoder.KindInsert:
		r.decoded, r.afterNotice = true, r.noticed
		r.events++
	case decoder.KindMessage:
		if p := r.search.Stream.MessagePrefix; p != "" && string(ev.Message.Prefix) == p && ev.Message.Transactional {
			r.events++
		}
	case decoder.KindCommit:
		return r.commit(ev.Commit), nil
	}
	return false, nil
}

// commit ends a transaction. Of one that was in hand when the publication came into
// being, rows may be missing; with a row that was decoded it is there.
func (r *reading) commit(c decoder.Commit) (done bool) {
	r.open = false
	r.end = max(r.end, c.EndLSN)
	if !r.noticed && r.events > 0 && c.CommitLSN >= r.search.Published {
		if r.unpublished == 0 {
			r.firstUnpublished = c.CommitLSN
		}
		r.unpublished++
	}
	r.pastNotice = c.CommitLSN + 1
	return r.noticed && r.afterNotice || !r.noticed && r.end >= r.search.Until
}
