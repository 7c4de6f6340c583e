package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"strconv"
	"syscall"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"

	"github.com/cdc-relay/cdc-relay/fault"
)

// Classify says what err asks for, and names it by a short constant for metrics
// and logs: a Kafka error's canonical name ("NOT_LEADER_OR_FOLLOWER"), or the
// kind of a network error in lower case ("timeout"). nil gives code "". It is
// pure. Everything that is not proven to be fatal is Retry or Refresh.
//
// An authorization error of a topic (TOPIC_AUTHORIZATION_FAILED) is Stop; a
// caller that was allowed before tells it by its code and halts only that
// topic.
func Classify(err error) (class fault.Class, code string) {
	if err == nil {
		return fault.Retry, ""
	}
	class, code = classifyCause(err)
	var f *fault.Error
	if errors.As(err, &f) {
		class = f.Class // decided where more was known
	}
	return class, code
}

func classifyCause(err error) (fault.Class, string) {
	var ke kafka.Error
	if errors.As(err, &ke) {
		if k, ok := codes[int(ke)]; ok {
			return k.class, k.name
		}
		return fault.Retry, "KAFKA_" + strconv.Itoa(int(ke))
	}
	if class, code, ok := classifyClient(err); ok {
		return class, code
	}
	if class, code, ok := classifySecurity(err); ok {
		return class, code
	}
	return classifyNetwork(err)
}

// classifyClient knows the errors that kafka-go makes without a broker.
func classifyClient(err error) (fault.Class, string, bool) {
	switch {
	case errors.Is(err, protocol.ErrNoTopic):
		// Also what every request gets while the cluster could not be discovered.
		return fault.Refresh, "no_topic", true
	case errors.Is(err, protocol.ErrNoPartition):
		return fault.Refresh, "no_partition", true
	case errors.Is(err, protocol.ErrNoLeader):
		return fault.Refresh, "no_leader", true
	case errors.Is(err, protocol.ErrNoRecord), errors.Is(err, protocol.ErrNoReset):
		return fault.Retry, "no_record", true
	case errors.Is(err, errNotKafka):
		return fault.Refresh, "not_kafka", true // a balancer may say so for a while
	case errors.Is(err, ErrClosed):
		return fault.Stop, "closed", true
	}
	// "mismatching leaders": the leader of one partition of a request moved.
	if errors.As(err, new(*rawproduce.Error)) || errors.As(err, new(*produce.Error)) {
		return fault.Refresh, "mismatching_leaders", true
	}
	var pe protocol.Error
	if errors.As(err, &pe) {
		return fault.Refresh, "protocol", true // a broken connection: take a new one
	}
	return 0, "", false
}

// classifySecurity knows TLS, certificates and SASL.
func classifySecurity(err error) (fault.Class, string, bool) {
	switch {
	case errors.Is(err, errSpeaksTLS), isRecordHeader(err):
		return fault.Stop, "tls_mismatch", true
	case isVerification(err):
		return fault.Stop, "tls_certificate", true
	case errors.Is(err, errServerProof):
		return fault.Stop, "sasl", true
	}
	if alert, ok := alertOf(err); ok {
		return alert.class(), "tls_alert", true
	}
	return 0, "", false
}

func classifyNetwork(err error) (fault.Class, string) {
	var dns *net.DNSError
	switch {
	case errors.Is(err, context.Canceled):
		return fault.Retry, "canceled"
	case errors.As(err, &dns):
		return fault.Refresh, "dns"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return fault.Refresh, "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return fault.Refresh, "connection_refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ECONNABORTED):
		return fault.Refresh, "connection_reset"
	case errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe):
		return fault.Refresh, "connection_closed"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.ENETDOWN), errors.Is(err, syscall.EHOSTDOWN):
		return fault.Refresh, "unreachable"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fault.Refresh, "eof"
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
		return fault.Retry, "file"
	}
	var ne net.Error
	if errors.As(err, &ne) {
		if ne.Timeout() {
			return fault.Refresh, "timeout"
		}
		return fault.Refresh, "network"
	}
	return fault.Retry, "other"
}

// isVerification tells that the broker's certificate was looked at and refused.
func isVerification(err error) bool {
	return errors.As(err, new(*tls.CertificateVerificationError)) ||
		errors.As(err, new(x509.UnknownAuthorityError)) ||
		errors.As(err, new(x509.HostnameError)) ||
		errors.As(err, new(x509.CertificateInvalidError)) ||
		errors.As(err, new(x509.ConstraintViolationError)) ||
		errors.As(err, new(x509.SystemRootsError))
}

// tlsAlert is the number of an alert that the peer sent.
type tlsAlert uint8

func (a tlsAlert) Error() string { return tls.AlertError(a).Error() }

// class is Stop for the alerts by which a peer refuses what we are, and Refresh
// for those that may pass.
func (a tlsAlert) class() fault.Class {
	switch a {
	case 40, 42, 43, 44, 45, 46, 48, 49, 51, 70, 71, 112, 116, 120:
		return fault.Stop
	default:
		return fault.Refresh
	}
}

// alertOf finds the alert in the error that crypto/tls gives for one: its type
// is not exported, its kind is that of a byte.
func alertOf(err error) (tlsAlert, bool) {
	var a tlsAlert
	if errors.As(err, &a) {
		return a, true
	}
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" || op.Err == nil {
		return 0, false
	}
	v := reflect.ValueOf(op.Err)
	if v.Kind() != reflect.Uint8 {
		return 0, false
	}
	return tlsAlert(v.Uint()), true
}

func isAlert(err error) bool {
	a, ok := alertOf(err)
	return ok && a.class() == fault.Stop
}
