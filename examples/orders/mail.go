package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/idempotency"
	"github.com/cdc-relay/cdc-relay/inbox"
)

// mail is the mail worker.
func mail(ctx context.Context, s settings) error {
	m := mailer{url: s.mailURL + "/mails", client: &http.Client{Timeout: 10 * time.Second}}
	return consume(ctx, s, inbox.Config{
		Group: "mail",
		// One transaction per record: what fails behind a mail does not send it again.
		PerRecord:   true,
		AttemptTime: 15 * time.Second,
	}, m.confirmOrder)
}

type mailer struct {
	url    string
	client *http.Client
}

// message is a mail as the provider takes it.
type message struct {
	To      string `json:"to"`
	Subject string `json:"subject"`
}

// confirmOrder sends the mail of an order. It writes nothing with the transaction, in
// which the runner commits the marker afterwards. When that does not happen (a crash, an
// answer that is lost) the event comes again, and so does this call: the provider knows
// it by its key, and drops it.
func (m mailer) confirmOrder(ctx context.Context, _ pgx.Tx, r inbox.Record) error {
	if !isOrderPlaced(r) {
		return nil
	}
	e, err := decodeOrderPlaced(r)
	if err != nil {
		return err
	}
	return m.send(ctx, mailKey(r.ID), message{To: e.Email, Subject: fmt.Sprintf("We have your order %d", e.Order)})
}

// mailKey is the same in every copy of the event, and another for each mail that one
// event causes.
func mailKey(event string) string { return "order-confirmation/" + event }

// send asks the provider. Its errors name no recipient.
func (m mailer) send(ctx context.Context, key string, mail message) error {
	body, err := json.Marshal(mail)
	if err != nil {
		return fmt.Errorf("encode mail %s: %w", key, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("send mail %s: %w", key, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(idempotency.Header, fmt.Sprintf("%q", key))
	resp, err := m.client.Do(req)
	if err != nil {
		return inbox.WithReason("the mail provider did not answer", fmt.Errorf("send mail %s: %w", key, err))
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) // so that the connection can be used again

	answer := fmt.Errorf("send mail %s: the provider answered %s", key, resp.Status)
	switch code := resp.StatusCode; {
	case code < 300:
		return nil
	case code >= 500, code == http.StatusRequestTimeout, code == http.StatusConflict, code == http.StatusTooEarly, code == http.StatusTooManyRequests:
		return inbox.WithReason("the mail provider asks to try again", answer)
	default:
		return inbox.Permanent("the mail provider refused the mail", answer)
	}
}
