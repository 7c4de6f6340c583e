package inbox

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/segmentio/kafka-go"
)

// mistake is what a check has found, and only a person can mend.
type mistake struct{ error }

func (m mistake) Unwrap() error { return m.error }

func mistakef(format string, args ...any) error { return mistake{fmt.Errorf(format, args...)} }

// awaitStart checks until all answer, with growing pauses while the database or Kafka is
// away. It returns false when ctx ends first. Nothing was read or written by then.
func (r *Runner) awaitStart(ctx context.Context) (bool, error) {
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if r.cfg.StartTimeout > 0 {
		bounded, cancel = context.WithTimeout(ctx, r.cfg.StartTimeout)
	}
	defer cancel()
	var last error // the latest that the bound itself did not cause
	for pauses := r.pauses(); ; {
		err := r.checkOnce(bounded)
		switch {
		case err == nil:
			return true, nil
		case ctx.Err() != nil:
			return false, nil
		case final(err):
			return false, err
		case bounded.Err() == nil:
			last = err
			r.cfg.Observe(Event{Kind: Waiting, Err: fmt.Errorf("start: %w", err)})
		}
		if sleep(bounded, pauses.NextBackOff()) {
			continue
		}
		if ctx.Err() != nil {
			return false, nil
		}
		if last == nil {
			last = err
		}
		return false, fmt.Errorf("no answer within StartTimeout (%v): %w", r.cfg.StartTimeout, last)
	}
}

// checkOnce bounds a server that accepts connections and says nothing.
func (r *Runner) checkOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return r.check(ctx)
}

// final tells what waiting does not mend. All that is not proven to be so is waited
// for: a server that is away, starts, or has no connection left, or a name that is not known yet.
func final(err error) bool {
	if err == nil {
		return false
	}
	var m mistake
	if errors.As(err, &m) {
		return true
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok && slices.ContainsFunc(many.Unwrap(), final) { // every branch is looked at
		return true
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) && len(state.SQLState()) == 5 {
		switch state.SQLState()[:2] {
		case "28", "3D", "3F", "42", "0A": // password, database, schema; table or privilege; not supported
			return true
		}
	}
	var code kafka.Error
	if errors.As(err, &code) {
		switch code {
		case kafka.UnknownTopicOrPartition, kafka.InvalidTopic, kafka.TopicAuthorizationFailed, kafka.GroupAuthorizationFailed, kafka.ClusterAuthorizationFailed,
			kafka.SASLAuthenticationFailed, kafka.UnsupportedSASLMechanism, kafka.IllegalSASLState, kafka.SecurityDisabled:
			return true
		}
	}
	var untrusted *tls.CertificateVerificationError
	var op *net.OpError // "remote error" is an alert: the peer refused the certificate, or that there was none
	var notTLS tls.RecordHeaderError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	return errors.As(err, &untrusted) || errors.As(err, &op) && op.Op == "remote error" || errors.As(err, &notTLS) || errors.As(err, &authority) || errors.As(err, &host)
}
