package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/sink"
)

const (
	// sameFailures at one place make of an error that could heal one that a person
	// must see.
	sameFailures = 3
	// undecodableRetry is how often a relay that is halted at what the server cannot
	// decode tries again, by which it sees that somebody has passed it. The server is to
	// spend no more than one in retryShare of its time on that.
	undecodableRetry    = 30 * time.Second
	maxUndecodableRetry = 10 * time.Minute
	retryShare          = 20
)

// undecodableError is the end of a stream at what the server cannot decode. No
// attempt of ours changes that; cdc-relay recover passes it.
type undecodableError struct {
	fault   *fault.Error
	refusal sink.Refusal  // as which it is shown
	past    pglogrepl.LSN // beyond it the stream has passed
	at      time.Time     // commit time; zero when it is not known
	cause   error
	// publication: it did not exist at that point of the WAL.
	publication bool
}

func (u *undecodableError) Error() string { return u.fault.Error() }
func (u *undecodableError) Unwrap() error { return u.fault }

// failurePlace is where a stream failed, and how.
type failurePlace struct {
	lsn  pglogrepl.LSN
	code string
}

// undecodable gives an error of the stream that meaning: at once when it is
// certain, else when it came at one place again and again. nil: it has another.
func (s *session) undecodable(err error) error {
	perhaps, certain := catalog.Undecodable(err)
	if !perhaps {
		return nil
	}
	at := failurePlace{max(s.receivedLSN(), catalog.DecodedLSN(err)), catalog.SQLState(err)}
	what := "the server cannot decode what is in the WAL " + s.place()
	if s.tx.open {
		at.lsn = s.tx.CommitLSN
		what = fmt.Sprintf("the server cannot decode the transaction committed at %s (xid %d)", s.tx.CommitLSN, s.tx.xid)
	}
	if s.r.failedAt != at {
		s.r.failedAt, s.r.failures = at, 0
	}
	if s.r.failures++; !certain && s.r.failures < sameFailures {
		return nil
	}
	what += ": " + catalog.DecodingFault(err)
	if !certain {
		what += fmt.Sprintf("; it has ended the stream there %d times", s.r.failures)
	}
	return s.cannotDecode(what, max(at.lsn, catalog.DecodedLSN(err)), err)
}

// publicationMissing is the error for a publication that did not exist at the
// point of the WAL that is decoded.
func (s *session) publicationMissing(err error) error {
	what := fmt.Sprintf("publication %q did not exist at this point of the WAL: it was created after the slot, or dropped. Rows inserted from %s on, until it was there, cannot be sent",
		s.r.cfg.Publication, s.receivedLSN())
	u := s.cannotDecode(what, max(s.receivedLSN(), catalog.DecodedLSN(err)), err)
	u.publication = true
	u.fault.Fix = "see that it is there (" + catalog.CreatePublicationSQL(s.r.cfg.Publication, tableNames(s.r.cfg.Tables)) + "); " + u.fault.Fix
	return u
}

// cannotDecode says what it means, and what to do.
func (s *session) cannotDecode(what string, past pglogrepl.LSN, cause error) *undecodableError {
	u := &undecodableError{past: past, cause: cause, fault: &fault.Error{Class: fault.Stop,
		What: what + ". Nothing behind it is published, and the server keeps the WAL from there on",
		Fix:  "stop the relay and run cdc-relay recover: it finds the transaction, asks before it skips it, and publishes its rows from the table"}}
	u.refusal = sink.Refusal{Partition: sink.PartitionByKey, LSN: s.receivedLSN(), Reason: u, At: time.Now()}
	if s.tx.open {
		u.refusal.LSN, u.refusal.Seq = s.tx.CommitLSN, s.tx.seq
		u.at = time.UnixMicro(s.tx.CommitTime)
	}
	return u
}

// haltAt has the process stay up, not ready, and say why. It returns when to look
// again: where the publication did not exist, soon once, since the checks of a connect
// tell more when there is none by now either. took is how long the last attempt did.
func (r *Relay) haltAt(u *undecodableError, soon, took time.Duration) (wait time.Duration) {
	log, wait := r.log.Error, undecodableRetry
	switch was := r.unread.Load(); {
	case was != nil && was.past == u.past:
		u.refusal.At = was.refusal.At
		log = r.log.Warn
		wait = max(wait, min(retryShare*took, maxUndecodableRetry))
	case u.publication:
		wait = soon
	}
	// A person may put the slot back meanwhile: it is then read from where it stands.
	r.known = preflight.Known{}
	r.unread.Store(u)
	r.setFailed(StateHalted, u)
	log("the server cannot decode what comes next; halted, and looking again now and then", zap.String("what", u.fault.What),
		zap.String("fix", u.fault.Fix), zap.Stringer("lsn", u.refusal.LSN), zap.String("code", catalog.SQLState(u.cause)))
	return wait
}

// keepAheadHalted is keepAhead where the server cannot decode what comes next: then
// every session ends before retention has begun, for days perhaps.
func (s *session) keepAheadHalted(ctx context.Context) {
	if s.r.cfg.Retention.After == 0 || s.r.cfg.Retention.Partitions == nil {
		return
	}
	ctx, done := s.r.untilStop(ctx)
	defer done()
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var found problems
	c, err := s.openRetention(ctx)
	if err == nil {
		defer c.Close(context.WithoutCancel(ctx))
		_, err = s.keepAhead(ctx, c, &found)
	}
	if err = errors.Join(err, found.err()); err != nil && ctx.Err() == nil {
		s.r.noteRetention(err)
	}
}

// passed forgets what could not be decoded, once the stream is beyond it.
func (r *Relay) passed(lsn pglogrepl.LSN) {
	if u := r.unread.Load(); u != nil && lsn > u.past {
		r.unread.Store(nil)
		r.log.Info("what the server could not decode is passed", zap.Stringer("lsn", lsn))
	}
}

// since is the age of what waits behind u.
func (u *undecodableError) since() time.Time {
	if u.at.IsZero() {
		return u.refusal.At
	}
	return u.at
}
