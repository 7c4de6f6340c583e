package inbox

import (
	"context"
	"errors"
	"fmt"
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
	// Of several, another one may be to blame: it swallowed its error, or took all the time.
	if failed == 0 && len(records) == 1 && !isParked(err) {
		records[0].failed = err
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
	duplicates, handled := 0, false
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
			if err := call(ctx, s, r.Record); err != nil {
				failed = i
				return err
			}
		}
		if err := resolved(ctx, s, cfg.Consumer, records); err != nil {
			return err
		}
		handled = true
		return nil
	})
	if err != nil {
		if handled && len(records) == 1 { // what it did was refused at COMMIT, as by a deferred constraint
			failed = 0
		}
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

// call makes a panic an error, and the end of the goroutine too: the record is poison,
// and the others are not. In the worker's goroutine, runtime.Goexit would leave the
// transaction open, and whoever gets the record next would wait for it.
func call(ctx context.Context, s session, r Record) error {
	err := error(errGone)
	done := make(chan struct{}) // closed by the goroutine, however it ends
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				err = panicked{v}
			}
		}()
		err = s.handle(ctx, r)
	}()
	<-done
	return err
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
	failed, err := 0, r.failed // together, where it was the only one
	for pauses := w.r.pauses(); ; {
		if w.stop.Err() != nil {
			return false
		}
		if err == nil {
			if failed, err = w.attempt([]record{*r}); err == nil {
				return true
			}
		}
		switch {
		case w.stop.Err() != nil && w.work.Err() != nil: // the handler was ended, and is not to blame
			return false
		case isParked(err):
			return w.giveUp(r, err, tried)
		}
		if away := w.r.databaseAnswers(w.work); away != nil {
			w.observe(Event{Kind: Waiting, Offset: r.at, ID: r.ID, Err: away})
		} else if failed < 0 {
			w.observe(Event{Kind: Waiting, Offset: r.at, ID: r.ID, Err: err})
		} else if errors.As(err, new(lostConnection)) { // though the database answers already
			w.observe(Event{Kind: Waiting, Offset: r.at, ID: r.ID, Err: fmt.Errorf("%w: %s; if it is lost at every try, the partition waits until the cause is mended: "+
				"a statement that ends its server process, or idle_in_transaction_session_timeout", errLost, reasonOf(err))})
		} else if passes(err) { // the handler's text may hold a payload
			w.observe(Event{Kind: Waiting, Offset: r.at, ID: r.ID, Err: errors.New(reasonOf(err) + ", which is no fault of the record")})
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
