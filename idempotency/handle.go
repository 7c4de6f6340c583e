package idempotency

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"
)

var (
	errPanicked = errors.New("the handler panicked")
	errBadName  = errors.New("Config.Client gave no name of 1 to 255 bytes of UTF-8")
	errGone     = errors.New("the key expired and was deleted between two statements")
	errNoRow    = errors.New("the row of the key is not there any more, although its transaction wrote it")
)

// Handle returns the handler for one route, and keeps its keys apart from those of
// other routes. A route without a name, or without a handler, is a panic, as of
// http.ServeMux.
func (k *Keys[Tx]) Handle(route string, h Handler[Tx]) http.Handler {
	if !isName(route) || h == nil {
		panic("idempotency: Handle needs the name of a route (1 to 255 bytes of UTF-8) and a handler")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := &request[Tx]{keys: k, owner: owner{route: route}, handler: h, w: w, r: r,
			result: Result{Route: route, Outcome: Failed, Err: errPanicked}} // until something else is known
		defer func() { k.cfg.Observe(r, q.result) }()
		q.serve()
	})
}

func isName(s string) bool {
	return s != "" && len(s) <= 255 && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

// request is one request.
type request[Tx any] struct {
	keys    *Keys[Tx]
	owner   owner // without a key, where keys are optional
	handler Handler[Tx]
	w       http.ResponseWriter
	r       *http.Request
	result  Result

	ctx   context.Context // of the transaction, from begin on
	store store           // of the transaction; nil when there is none, or it has ended
}

func (q *request[Tx]) serve() {
	if !q.identify() {
		return
	}
	body, err := readBody(q.w, q.r, q.keys.cfg.MaxBodyBytes)
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		q.tell(Rejected, nil, bodyTooLarge)
		return
	} else if err != nil {
		q.tell(Rejected, err, unreadable)
		return
	}
	// The transaction ends when the client goes away, but not any more once the handler
	// has succeeded: a retry is to be told that answer.
	ctx, cancel := context.WithCancel(context.WithoutCancel(q.r.Context()))
	defer cancel()
	stop := context.AfterFunc(q.r.Context(), cancel)
	defer stop()
	tx, err := q.keys.begin(ctx)
	if err != nil {
		q.tell(Unavailable, err, unavailable)
		return
	}
	q.ctx, q.store = ctx, tx.store
	defer func() { _ = q.rollback() }() // also of a panic
	if q.owner.key != "" && !q.claim(fingerprint(q.r, body)) {
		return
	}
	rec := newRecorder(q.keys.cfg.MaxAnswerBytes)
	err = q.handler(rec, withBody(q.r, body), tx.tx)
	if rec.tooLarge && err == nil {
		err = ErrAnswerTooLarge
	}
	if err != nil {
		q.fail(fmt.Errorf("handle a request of %s: %w", q.owner.route, err), failed)
		return
	}
	rec.WriteHeader(http.StatusOK) // if it has not
	if rec.transient() || q.owner.key == "" && rec.status >= 400 {
		q.drop(rec.answer)
		return
	}
	if !stop() {
		q.fail(fmt.Errorf("finish a request of %s: %w", q.owner.route, context.Cause(q.r.Context())), unavailable)
		return
	}
	timer := time.AfterFunc(q.keys.cfg.FinishTimeout, cancel)
	defer timer.Stop()
	q.finish(rec.answer)
}

// identify reads key and client; false when the request was answered.
func (q *request[Tx]) identify() bool {
	key, err := keyOf(q.r.Header)
	switch {
	case errors.Is(err, errNoKey) && q.keys.cfg.Optional:
		return true
	case errors.Is(err, errNoKey):
		q.tell(Rejected, nil, missingKey)
		return false
	case err != nil:
		q.tell(Rejected, nil, malformedKey)
		return false
	}
	client, err := q.keys.cfg.Client(q.r)
	if err == nil && !isName(client) {
		err = errBadName
	}
	if err != nil {
		q.tell(Rejected, fmt.Errorf("name the client of a request of %s: %w", q.owner.route, err), unknownClient)
		return false
	}
	q.owner.key, q.owner.client = key, client
	return true
}

// claim makes the key this request's; false when it is not, and the request was
// answered.
//
// The lock is a statement of its own: the snapshot of the next one then has all that
// was committed by the one who held it before. What keeps two effects apart is the
// unique index; the lock only spares a second request from waiting for it.
func (q *request[Tx]) claim(fingerprint []byte) bool {
	ctx, s, o := q.ctx, q.keys.sql, q.owner
	fail := func(err error) bool {
		q.fail(fmt.Errorf("claim an idempotency key of %s: %w", s.table, err), unavailable)
		return false
	}
	var locked bool
	if _, err := q.store.row(ctx, tryLock, []any{o.lock(s.table)}, &locked); err != nil {
		return fail(err)
	}
	if locked {
		claimed, err := q.store.exec(ctx, s.claim, o.args(fingerprint, q.keys.cfg.Expiry.Seconds())...)
		if err == nil && claimed == 1 {
			_, err = q.store.exec(ctx, setSavepoint)
		}
		if err != nil {
			return fail(err)
		}
		if claimed == 1 {
			return true
		}
	}
	row, found, err := s.read(ctx, q.store, o)
	switch {
	case err != nil:
		return fail(err)
	case !found && locked:
		return fail(errGone)
	}
	_ = q.rollback() // nothing was written; the lock is free before the client hears of it
	switch {
	case !found:
		q.tell(InFlight, nil, inFlight)
	case !bytes.Equal(row.fingerprint, fingerprint):
		q.tell(Reused, nil, keyReused)
	case row.status == nil || row.headers == nil:
		q.tell(AnswerLost, nil, answerLost)
	default:
		a, err := stored(*row.status, *row.headers, row.body)
		if err != nil {
			q.tell(AnswerLost, err, answerLost)
			return false
		}
		q.send(Replayed, nil, a)
	}
	return false
}

// finish keeps the answer, commits, and only then tells it.
func (q *request[Tx]) finish(a answer) {
	var err error
	outcome := WithoutKey
	if q.owner.key != "" {
		outcome, err = First, q.keep(a)
	} else {
		// Where a statement failed or ended the transaction, COMMIT has no effect to keep, and
		// may succeed.
		_, err = q.store.exec(q.ctx, setSavepoint)
	}
	if err == nil {
		if err = q.store.commit(q.ctx); err == nil {
			q.store = nil
			q.send(outcome, nil, a)
			return
		}
		_ = q.rollback() // what it says after a commit tells nothing
	}
	p := unavailable
	if refused(err) {
		p = failed
	}
	q.fail(fmt.Errorf("keep the answer of a request of %s, and commit: %w", q.owner.route, err), p)
}

// keep writes the answer beside the effect. A client's error has no effect: what was
// written for it goes, also when a statement of it failed.
func (q *request[Tx]) keep(a answer) error {
	if a.status >= 400 {
		if _, err := q.store.exec(q.ctx, toSavepoint); err != nil {
			return err
		}
	}
	headers, err := a.keep(q.keys.cfg.KeepHeaders)
	if err != nil {
		return err
	}
	if a.body == nil {
		a.body = []byte{}
	}
	n, err := q.store.exec(q.ctx, q.keys.sql.answer, q.owner.args(a.status, headers, a.body)...)
	if err == nil && n != 1 {
		err = errNoRow
	}
	return err
}

// fail rolls back and tells the problem, or another one that fits better.
func (q *request[Tx]) fail(err error, p problem) {
	lost := q.rollback()
	outcome := Failed
	switch {
	case (ended(err) || ended(lost)) && q.ctx.Err() == nil:
		// By the handler: only *sql.Tx allows it. What it wrote may be there.
		outcome, p, err = AnswerLost, answerLost, errors.Join(err, ErrNotYours)
	case p == unavailable || passes(err) || lost != nil:
		outcome, p = Unavailable, unavailable
	}
	q.tell(outcome, err, p)
}

// drop rolls back, and tells an answer that is not kept.
func (q *request[Tx]) drop(a answer) {
	_ = q.rollback()
	q.send(NotKept, nil, a)
}

// rollback ends the transaction, if there is one, even if the client has gone.
func (q *request[Tx]) rollback() error {
	s := q.store
	if s == nil {
		return nil
	}
	q.store = nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.r.Context()), q.keys.cfg.FinishTimeout)
	defer cancel()
	return s.rollback(ctx)
}

func (q *request[Tx]) tell(o Outcome, err error, p problem) {
	q.send(o, err, p.answer(q.keys.cfg.Docs))
}

func (q *request[Tx]) send(o Outcome, err error, a answer) {
	q.result.Outcome, q.result.Err = o, err
	a.send(q.w)
}
