package catalog

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/fault"
)

// Kinds of errors that have no SQLSTATE, as Classify returns them.
const (
	CodeCanceled    = "canceled"
	CodeTimeout     = "timeout"
	CodeDNS         = "dns"
	CodeRefused     = "refused"
	CodeReset       = "reset"
	CodeEOF         = "eof"
	CodeUnreachable = "unreachable"
	CodeNetwork     = "network"
	CodeTLS         = "tls"
	CodeTLSRefused  = "tls_refused"
	CodeConfig      = "config"
	CodeOther       = "other"
)

// Classify puts an error of the PostgreSQL side into its class and names it: the
// SQLSTATE, or the kind of network error. It is pure. What is not proven fatal
// is fault.Retry; nil gives the code "". A *fault.Error keeps its class.
func Classify(err error) (fault.Class, string) {
	if err == nil {
		return fault.Retry, ""
	}
	class, code := classify(err)
	var fe *fault.Error
	if errors.As(err, &fe) {
		class = fe.Class
	}
	return class, code
}

func classify(err error) (fault.Class, string) {
	if attempts := connectAttempts(err); len(attempts) > 1 {
		return classifyAttempts(attempts)
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return classifySQLState(pgErr), pgErr.Code
	}
	return classifyOther(err)
}

// connectAttempts returns the errors of each address that was tried, where err
// is a failure to connect.
func connectAttempts(err error) []error {
	var ce *pgconn.ConnectError
	if !errors.As(err, &ce) {
		return nil
	}
	if joined, ok := ce.Unwrap().(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return nil
}

// classifyAttempts judges a connect that tried several addresses, or with and
// without TLS: an answer of a server counts more than the absence of one, and it
// is fatal only when all answers are. A refusal of TLS alone is no answer, since
// the next attempt may have done without.
func classifyAttempts(attempts []error) (fault.Class, string) {
	answered, first := "", ""
	for _, attempt := range attempts {
		class, code := classify(attempt)
		if first == "" || first == CodeTLSRefused {
			first = code
		}
		switch {
		case class != fault.Stop && isSQLState(code):
			return class, code
		case class == fault.Stop && code != CodeTLSRefused && answered == "":
			answered = code
		}
	}
	switch {
	case answered != "":
		return fault.Stop, answered
	case first == CodeTLSRefused:
		return fault.Stop, first
	default:
		return fault.Retry, first
	}
}

func isSQLState(code string) bool { return len(code) == 5 && strings.ToUpper(code) == code }

// classifySQLState: what a person must mend is Stop; a server that is away,
// busy, starting, stopping or full heals by itself.
func classifySQLState(e *pgconn.PgError) fault.Class {
	switch e.Code {
	case "3D000", // database does not exist
		"0A000",          // feature not supported
		"25006",          // read-only transaction
		"54000",          // a row, or a WAL record, past a limit of the server
		"55000",          // slot lost, wal_level too low, database closed for connections
		"58P01", "58P02", // WAL already removed, output plugin not installed
		"57P04": // database dropped
		return fault.Stop
	case "XX000":
		// The server cannot hold the row in one allocation, and never will.
		if neverAllocated(e) {
			return fault.Stop
		}
		return fault.Retry
	}
	if len(e.Code) != 5 {
		return fault.Retry
	}
	switch e.Code[:2] {
	case "28", // wrong password, pg_hba.conf, role may not log in
		"42", // privilege, missing publication or slot, statements the server does not know
		"22": // a value that has no form in UTF-8, invalid parameter
		return fault.Stop
	default:
		// 08 connection, 40 rollback, 53 resources, 55006 slot active, 57 shutdown
		// and cancel, 58030 I/O, XX internal.
		return fault.Retry
	}
}

func classifyOther(err error) (fault.Class, string) {
	var parse *pgconn.ParseConfigError
	switch {
	case errors.As(err, &parse):
		return fault.Stop, CodeConfig
	case isTLSRefused(err):
		return fault.Stop, CodeTLSRefused
	case isTLSFailure(err):
		return fault.Stop, CodeTLS
	case errors.Is(err, context.Canceled):
		return fault.Retry, CodeCanceled
	}
	return fault.Retry, networkKind(err)
}

// networkKind names an error of the network.
func networkKind(err error) string {
	var dns *net.DNSError
	var netErr net.Error
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		return CodeDNS
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT),
		errors.As(err, &netErr) && netErr.Timeout():
		return CodeTimeout
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		return CodeRefused // ENOENT: no such Unix socket
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNABORTED):
		return CodeReset
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return CodeUnreachable
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return CodeEOF
	case errors.As(err, &op), errors.Is(err, net.ErrClosed):
		return CodeNetwork
	default:
		return CodeOther
	}
}

// isTLSRefused: the driver has no value to compare with.
func isTLSRefused(err error) bool {
	return strings.Contains(err.Error(), "server refused TLS connection")
}

// fatalAlerts are the alerts of a peer that will say the same the next time:
// handshake failure, the certificate alerts, protocol and security mismatches.
var fatalAlerts = map[uint64]bool{40: true, 42: true, 43: true, 44: true, 45: true, 46: true, 47: true,
	48: true, 49: true, 70: true, 71: true, 86: true, 109: true, 112: true, 113: true, 116: true, 120: true}

func isTLSFailure(err error) bool {
	var verify *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var roots x509.SystemRootsError
	var header tls.RecordHeaderError
	if errors.As(err, &verify) || errors.As(err, &authority) || errors.As(err, &host) ||
		errors.As(err, &invalid) || errors.As(err, &roots) || errors.As(err, &header) {
		return true
	}
	// crypto/tls reports the peer's alert as an OpError over an unexported number.
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" && op.Err != nil {
		v := reflect.ValueOf(op.Err)
		return v.Kind() == reflect.Uint8 && fatalAlerts[v.Uint()]
	}
	return false
}

// IsShutdown tells whether the server is stopping, starting or was told to end
// this connection (57P01, 57P02, 57P03).
func IsShutdown(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code {
	case "57P01", "57P02", "57P03":
		return true
	default:
		return false
	}
}

// SQLState returns the SQLSTATE of err, or "".
func SQLState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}
