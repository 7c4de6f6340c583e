package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/fault"
)

// explain turns the error of a connection into a sentence for a person.
func (d *dialer) explain(st stage, address string, err error) *fault.Error {
	var known *fault.Error
	if errors.As(err, &known) {
		return known
	}
	class, _ := Classify(err)
	e := &fault.Error{Class: class, What: fmt.Sprintf("%s Kafka broker %s", st, address), Err: err}
	if st == stageFiles {
		// A file being replaced is away for a moment; at the start Open has read it.
		e.Fix = "check that the file exists, is whole and can be read by the relay"
		return e
	}
	if st == stageTCP {
		e.What = fmt.Sprintf("Kafka broker %s cannot be reached", address)
	}
	switch {
	case errors.Is(err, errSpeaksTLS):
		e.Fix = "set kafka.tls.enabled, or give the plaintext port"
	case errors.Is(err, errNotKafka):
		e.Fix = "give the port of a Kafka broker in kafka.brokers"
	case isRecordHeader(err):
		e.Fix = "set kafka.tls.enabled: false, or give the TLS port"
	case isExpired(err):
		e.Fix = "renew the broker's certificate, or set this machine's clock"
	case isVerification(err):
		e.Fix = "give the authority that signed the broker's certificate in kafka.tls.ca_file, and its name in kafka.tls.server_name when it is not the host's"
	case isAlert(err):
		e.Fix = "give a client certificate that the broker accepts in kafka.tls.cert_file and kafka.tls.key_file"
	case errors.Is(err, kafka.SASLAuthenticationFailed), errors.Is(err, errServerProof):
		e.Fix = fmt.Sprintf("check kafka.sasl.username (%q) and the password, and that the broker knows this user for %s",
			d.cfg.SASL.Username, strings.ToUpper(d.cfg.SASL.Mechanism))
	case errors.Is(err, kafka.UnsupportedSASLMechanism):
		e.Fix = "set kafka.sasl.mechanism to one that the broker offers"
	case errors.Is(err, kafka.IllegalSASLState):
		e.Fix = "this port does not take SASL: remove kafka.sasl, or give the port that does"
	case errors.Is(err, kafka.UnsupportedVersion):
		e.Fix = "use Kafka 2.1 or newer"
	case errors.Is(err, context.Canceled):
	case st == stageTCP:
		e.Fix = d.whereabouts(address)
	case closedByPeer(err), timedOut(err) && st == stageTLS:
		e.Fix = d.hint(st)
	}
	switch {
	case timedOut(err):
		e.Err = errNoAnswer
	case closedByPeer(err):
		e.Err = fmt.Errorf("the broker closed the connection: %w", err)
	}
	return e
}

// whereabouts says whose mistake an address may be at which nothing answers.
func (d *dialer) whereabouts(address string) string {
	if slices.Contains(d.cfg.Brokers, address) {
		return "start it, or correct kafka.brokers, now " + strings.Join(d.cfg.Brokers, ",")
	}
	return "start it; if this is no address of a broker, correct advertised.listeners of the brokers, from where it comes"
}

// hint says what a connection closed without a word may mean. It proves
// nothing: a broker that stops does the same.
func (d *dialer) hint(st stage) string {
	const soon = "it may pass by itself; if it goes on, "
	switch {
	case st == stageTLS:
		return soon + "check kafka.tls.enabled and the port: this one may not speak TLS"
	case st == stageSASL:
		return soon + "check kafka.sasl: the broker may not accept these credentials"
	case !d.cfg.TLS.Enabled && d.cfg.SASL.Mechanism == "":
		return soon + "check kafka.tls, kafka.sasl and the port: this one may expect TLS or SASL"
	case d.cfg.SASL.Mechanism == "":
		return soon + "check kafka.sasl and kafka.tls.cert_file: the broker may expect SASL or a client certificate"
	default:
		return soon + "check kafka.tls, kafka.sasl and the port: this one may expect other security"
	}
}

// errNoAnswer stands for the several errors of a deadline.
var errNoAnswer = fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)

func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func isExpired(err error) bool {
	var e x509.CertificateInvalidError
	return errors.As(err, &e) && e.Reason == x509.Expired
}

func isRecordHeader(err error) bool {
	var rh tls.RecordHeaderError
	return errors.As(err, &rh)
}
