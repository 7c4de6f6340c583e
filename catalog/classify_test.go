package catalog

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/fault"
)

type alert uint8 // as crypto/tls has it

func (alert) Error() string { return "tls: alert" }

func TestClassify_StopsOnlyOnWhatIsProvenFatal(t *testing.T) {
	pg := func(code string) error { return fmt.Errorf("do: %w", &pgconn.PgError{Code: code, Message: "m"}) }
	for _, c := range []struct {
		name  string
		err   error
		class fault.Class
		code  string
	}{
		{"nil", nil, fault.Retry, ""},
		{"wrong password", pg("28P01"), fault.Stop, "28P01"},
		{"pg_hba", pg("28000"), fault.Stop, "28000"},
		{"no database", pg("3D000"), fault.Stop, "3D000"},
		{"privilege", pg("42501"), fault.Stop, "42501"},
		{"publication or slot missing", pg("42704"), fault.Stop, "42704"},
		{"slot exists", pg("42710"), fault.Stop, "42710"},
		{"not in this encoding", pg("22P05"), fault.Stop, "22P05"},
		{"invalid bytes", pg("22021"), fault.Stop, "22021"},
		{"slot lost", pg("55000"), fault.Stop, "55000"},
		{"slot active", pg("55006"), fault.Retry, "55006"},
		{"too many connections", pg("53300"), fault.Retry, "53300"},
		{"slots in use", pg("53400"), fault.Retry, "53400"},
		{"admin shutdown", pg("57P01"), fault.Retry, "57P01"},
		{"crash", pg("57P02"), fault.Retry, "57P02"},
		{"starting", pg("57P03"), fault.Retry, "57P03"},
		{"canceled by the server", pg("57014"), fault.Retry, "57014"},
		{"connection", pg("08006"), fault.Retry, "08006"},
		{"pooler", pg("08P01"), fault.Retry, "08P01"},
		{"WAL removed", pg("58P01"), fault.Stop, "58P01"},
		{"I/O", pg("58030"), fault.Retry, "58030"},
		{"disk full", pg("53100"), fault.Retry, "53100"},
		{"deadlock", pg("40P01"), fault.Retry, "40P01"},
		{"internal", pg("XX000"), fault.Retry, "XX000"},
		{"too large to send", &pgconn.PgError{Code: "XX000", File: "mcxt.c"}, fault.Stop, "XX000"},
		{"too large for a WAL record", pg("54000"), fault.Stop, "54000"},
		{"unknown code", pg("ZZ999"), fault.Retry, "ZZ999"},
		{"no code", pg(""), fault.Retry, ""},
		{"refused", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, fault.Retry, CodeRefused},
		{"reset", &net.OpError{Op: "read", Err: syscall.ECONNRESET}, fault.Retry, CodeReset},
		{"eof", fmt.Errorf("read: %w", io.ErrUnexpectedEOF), fault.Retry, CodeEOF},
		{"dns", &net.DNSError{Err: "no such host", IsNotFound: true}, fault.Retry, CodeDNS},
		{"timeout", context.DeadlineExceeded, fault.Retry, CodeTimeout},
		{"canceled", context.Canceled, fault.Retry, CodeCanceled},
		{"unreachable", syscall.EHOSTUNREACH, fault.Retry, CodeUnreachable},
		{"unknown authority", fmt.Errorf("x: %w", x509.UnknownAuthorityError{}), fault.Stop, CodeTLS},
		{"host name", x509.HostnameError{Certificate: &x509.Certificate{}}, fault.Stop, CodeTLS},
		{"client certificate refused", &net.OpError{Op: "remote error", Err: alert(42)}, fault.Stop, CodeTLS},
		{"peer's internal error", &net.OpError{Op: "remote error", Err: alert(80)}, fault.Retry, CodeNetwork},
		{"no TLS", errors.New("server refused TLS connection"), fault.Stop, CodeTLSRefused},
		{"anything else", errors.New("x"), fault.Retry, CodeOther},
		{"explained", fault.Stopped("", "x"), fault.Stop, CodeOther},
	} {
		if class, code := Classify(c.err); class != c.class || code != c.code {
			t.Errorf("%s: got %s %q, want %s %q", c.name, class, code, c.class, c.code)
		}
	}
}

func TestClassify_AnAnswerOfAServerCountsMoreThanNone(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	noTLS := errors.New("server refused TLS connection")
	hba, starting := &pgconn.PgError{Code: "28000"}, &pgconn.PgError{Code: "57P03"}
	for _, c := range []struct {
		name     string
		attempts []error
		class    fault.Class
		code     string
	}{
		{"::1 is closed, 127.0.0.1 says no", []error{refused, hba}, fault.Stop, "28000"},
		{"one host starts", []error{hba, starting}, fault.Retry, "57P03"},
		{"all closed", []error{refused, refused}, fault.Retry, CodeRefused},
		{"TLS refused, then away without", []error{noTLS, io.EOF}, fault.Retry, CodeEOF},
		{"TLS refused everywhere", []error{noTLS, noTLS}, fault.Stop, CodeTLSRefused},
		{"TLS refused, then no", []error{noTLS, hba}, fault.Stop, "28000"},
		{"certificate, other host away", []error{x509.UnknownAuthorityError{}, refused}, fault.Stop, CodeTLS},
	} {
		if class, code := classifyAttempts(c.attempts); class != c.class || code != c.code {
			t.Errorf("%s: got %s %q, want %s %q", c.name, class, code, c.class, c.code)
		}
	}
}

func TestExplain_HidesValuesAndNamesTheWayOut(t *testing.T) {
	err := Explain(fmt.Errorf("stream: %w", &pgconn.PgError{Code: "22P05", Message: "character secret has no equivalent"}))
	if text := err.Error(); strings.Contains(text, "secret") || !strings.Contains(text, "22P05") || !strings.Contains(text, "To fix it") {
		t.Errorf("got %q", text)
	}
	if fault.ClassOf(err) != fault.Stop {
		t.Error("not Stop")
	}
	if _, code := Classify(err); code != "22P05" {
		t.Errorf("code lost: %q", code)
	}
	for code := range map[string]bool{"28P01": true, "28000": true, "3D000": true, "42501": true, "42704": true, "55000": true,
		"58P01": true, "0A000": true, "42601": true} {
		var fe *fault.Error
		if !errors.As(Explain(&pgconn.PgError{Code: code}), &fe) || fe.What == "" || fe.Fix == "" {
			t.Errorf("%s: no sentence or no fix: %v", code, fe)
		}
	}
	if Explain(nil) != nil {
		t.Error("nil is explained")
	}
}

func TestExplain_TellsAFailureToConnectOnce(t *testing.T) {
	cfg, err := pgconn.ParseConfig("host=127.0.0.1 port=1 user=u dbname=d sslmode=prefer")
	if err != nil {
		t.Fatal(err)
	}
	_, err = pgconn.ConnectConfig(t.Context(), cfg)
	explained := Explain(fmt.Errorf("connect to the database: %w", err))
	const want = "PostgreSQL cannot be reached: 127.0.0.1:1 (127.0.0.1): dial tcp 127.0.0.1:1: connect: connection refused. " +
		"To fix it: start it, or correct source.host and source.port"
	if explained.Error() != want {
		t.Errorf("got  %s\nwant %s", explained, want)
	}
	if class, code := Classify(explained); class != fault.Retry || code != CodeRefused {
		t.Errorf("%s %s", class, code)
	}
}

func TestIsShutdown_OnlyTheServersGoodbye(t *testing.T) {
	for code, want := range map[string]bool{"57P01": true, "57P02": true, "57P03": true, "57014": false, "08006": false} {
		if got := IsShutdown(fmt.Errorf("x: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("%s: %t", code, got)
		}
	}
	if IsShutdown(io.EOF) || IsShutdown(nil) {
		t.Error("not a goodbye")
	}
}
