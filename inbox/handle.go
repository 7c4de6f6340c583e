package inbox

import (
	"context"
	"errors"
	"time"
)

// together handles records in one transaction. When it returns false nothing of it
// has happened, or it is not known whether: one by one they are settled either way.
func (w *worker) together(records []record) bool {
	if w.r.cfg.PerRecord || w.topic == w.r.cfg.RetryTopic {
		return false
	}
	for _, r := range records {
		if r.poison != "" {
			return false
		}
	}
	failed, err := w.attempt(records)
	if err == nil {
		w.next.Store(records[len(records)-1].at + 1)
		return true
	}
	if failed >= 0 && !isParked(err) {
		records[failed].failed = err
	}
	return false
}

// attempt handles records in one transaction: gate, handlers, commit. failed is the
// index of the record that failed, -1 where none of them is to blame.
func (w *worker) attempt(records []record) (failed int, err error) {
	ctx, cfg := w.work, w.r.cfg
	if cfg.AttemptTime > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cfg.AttemptTime)
		defer cancel()
	}
	failed = -1
	duplicates, ran := 0, false
	err = w.r.begin.within(ctx, func(s session) error {
		fresh, err := claim(ctx, s, cfg.Consumer, records)
		if err != nil {
			return err
		}
		if cfg.Policy == Park {
			i, err := parked(ctx, s, cfg.Consumer, records, fresh)
			if err != nil {
				return err
			}
			if i >= 0 {
				failed = i
				return errParked
			}
		}
		for i := range records {
			r := &records[i]
			if !fresh[r.ID] {
				duplicates++
				continue
			}
			delete(fresh, r.ID)
			ran = true
			if err := call(ctx, s, r.Record); err != nil {
				failed = i
				return err
			}
		}
		return resolved(ctx, s, cfg.Consumer, records)
	})
	if err != nil && !ran && !isParked(err) {
		err = notRun{err}
	}
	if err != nil {
		return failed, err
	}
	if n := len(records) - duplicates; n > 0 {
		w.observe(Event{Kind: Processed, Offset: records[0].at, N: int64(n)})
	}
	if duplicates > 0 {
		w.observe(Event{Kind: Duplicates, Offset: records[0].at, N: int64(duplicates)})
	}
	return -1, nil
}

// notRun is why no handler was called: no transaction could be begun, or no marker
// written. That is no attempt of a record, also where the database answers a moment later.
type notRun struct{ error }

func (e notRun) Unwrap() error { return e.error }

// call makes a panic an error: the record is poison, and the others are not.
func call(ctx context.Context, s session, r Record) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panicked{v}
		}
	}()
	return s.handle(ctx, r)
}

// alone settles one record, however long it takes. false: the worker must end.
func (w *worker) alone(r *record) bool {
	cfg := w.r.cfg
	switch {
	case r.foreign:
		w.observe(Event{Kind: Skipped, Offset: r.at, N: 1})
		return true
	case !sleep(w.stop, time.Until(r.notBefore)):
		return false
	case r.poison != "":
		return w.giveUp(r, &failure{reason: r.poison, permanent: true}, 0)
	}
	tried, here := r.Attempt-1, 0
	err := r.failed // together with others
	for pauses := w.r.pauses(); ; {
		if w.stop.Err() != nil {
			return false
		}
		if err == nil {
			if _, err = w.attempt([]record{*r}); err == nil {
				return true
			}
		}
		switch {
		case w.stop.Err() != nil && w.work.Err() != nil: // the handler was ended, and is not to blame
			return false
		case isParked(err):
			return w.giveUp(r, err, tried)
		}
		away := err
		if !errors.As(err, new(notRun)) {
			away = w.r.databaseAnswers(w.work)
		}
		if away != nil {
			w.observe(Event{Kind: Waiting, Offset: r.at, ID: r.ID, Err: away})
		} else {
			tried, here = tried+1, here+1
			if permanent(err) || tried >= cfg.Attempts {
				if cfg.DeadLetterTopic != "" {
					return w.giveUp(r, err, tried)
				}
			} else if cfg.Policy == Retry && here >= cfg.RetryInPlace {
				return w.sendToRetry(r, err, tried)
			}
			w.observe(Event{Kind: Retried, Offset: r.at, ID: r.ID, Attempt: tried, Err: err})
		}
		// What is settled must not come again because this one waits.
		if !w.commit() || !sleep(w.stop, pauses.NextBackOff()) {
			return false
		}
		r.Attempt, err = tried+1, nil
	}
}
