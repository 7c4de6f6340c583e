package lab

import (
	"context"
	"fmt"

	"github.com/cdc-relay/cdc-relay/lab/stage"
)

var retriesExhausted = Scene{
	Name:   "retries_exhausted",
	Window: "the mail provider is dead and two attempts fail; the worker is killed between the dead letter and the offset, started again",
	Expect: "letters=1 offset=waits, offset=committed letters=2 listed=1 markers=0 mails=0",
	run: func(ctx context.Context, l *lab) (string, error) {
		if _, err := l.quiet(ctx); err != nil {
			return "", err
		}
		l.Mail.Kill()
		l.Mail.Setenv("ATTEMPTS=2", "DEAD_LETTER_TOPIC="+stage.MailLetters)
		l.Provider.Kill()
		h := l.Mail.Hold(stage.BeforeOffsetCommit)
		defer h.Release()
		a, err := l.place(ctx, l.name("key"))
		if err != nil {
			return "", err
		}
		if err := l.Mail.Start(ctx); err != nil {
			return "", err
		}
		if err := reach(ctx, l.Mail, h, stage.BeforeOffsetCommit); err != nil {
			return "", err
		}
		letters, err := l.messages(ctx, stage.MailLetters)
		if err != nil {
			return "", err
		}
		offset := func() (string, error) {
			ok, err := l.caughtUp(ctx, stage.MailGroup)
			if ok {
				return "committed", err
			}
			return "waits", err
		}
		waits, err := offset()
		if err != nil {
			return "", err
		}
		first := fmt.Sprintf("letters=%d offset=%s", letters, waits)
		l.Mail.Kill()
		h.Release()
		if err := l.Mail.Start(ctx); err != nil {
			return first, err
		}
		err = await(ctx, "the offset is committed", func(ctx context.Context) (bool, error) { return l.caughtUp(ctx, stage.MailGroup) })
		if err != nil {
			return first, err
		}
		markers, err := l.count(ctx, `SELECT count(*) FROM inbox WHERE consumer = $1 AND event_id = $2`, stage.MailGroup, a.Event)
		if err != nil {
			return first, err
		}
		listed, err := l.count(ctx, `SELECT count(*) FROM inbox_dead_letters WHERE consumer = $1 AND event_id = $2`, stage.MailGroup, a.Event)
		if err != nil {
			return first, err
		}
		if letters, err = l.messages(ctx, stage.MailLetters); err != nil {
			return first, err
		}
		l.Mail.Kill()
		if err := l.Provider.Start(ctx); err != nil {
			return first, err
		}
		mails, err := l.Mails(ctx)
		if err != nil {
			return first, err
		}
		second := fmt.Sprintf("offset=committed letters=%d listed=%d markers=%d mails=%d", letters, listed, markers, len(mails.Mails))
		// The mail of this order, so that later scenes find every order with all its effects.
		l.Mail.Setenv("ATTEMPTS=0", "DEAD_LETTER_TOPIC=")
		if err := l.Mail.Start(ctx); err != nil {
			return first, err
		}
		if err := l.deliverAgain(ctx, a.Order); err != nil {
			return first, err
		}
		_, err = l.quiet(ctx)
		return first + ", " + second, err
	},
}
