package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/cdc-relay/cdc-relay/fault"
)

// declaredCodes reads the error codes out of kafka-go's source.
func declaredCodes(t *testing.T) map[int]string {
	t.Helper()
	pkg, err := build.Import("github.com/segmentio/kafka-go", ".", build.FindOnly)
	if err != nil {
		t.Fatal(err)
	}
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(pkg.Dir, "error.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		if typ, ok := v.Type.(*ast.Ident); !ok || typ.Name != "Error" {
			return true
		}
		sign, value := 1, v.Values[0]
		if u, ok := value.(*ast.UnaryExpr); ok {
			sign, value = -1, u.X
		}
		if lit, ok := value.(*ast.BasicLit); ok {
			n, err := strconv.Atoi(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			out[sign*n] = v.Names[0].Name
		}
		return true
	})
	return out
}

func TestClassify_KnowsEveryCodeOfTheClient(t *testing.T) {
	declared := declaredCodes(t)
	if len(declared) < 100 {
		t.Fatalf("found only %d codes in kafka-go", len(declared))
	}
	for code, name := range declared {
		if _, ok := codes[code]; !ok {
			t.Errorf("code %d (%s) is not in the table", code, name)
		}
	}
}

// The names are those of another client's table, but for one that Kafka renamed.
func TestClassify_NamesAreKafkas(t *testing.T) {
	for code := -1; code < 200; code++ {
		ke := kerr.TypedErrorForCode(int16(code))
		if code == 0 || ke == nil || ke.Code != int16(code) {
			continue
		}
		want := ke.Message
		if code == 6 {
			want = "NOT_LEADER_OR_FOLLOWER"
		}
		if _, got := Classify(kafka.Error(code)); got != want {
			t.Errorf("code %d is named %s, want %s", code, got, want)
		}
	}
}

func TestClassify_ClassPerCode(t *testing.T) {
	want := map[fault.Class][]int{
		fault.Retry:   {-1, 2, 7, 19, 20, 42, 45, 46, 47, 59, 78, 89, 999},
		fault.Refresh: {3, 5, 6, 8, 9, 13, 56, 72, 74, 75, 100, 103},
		fault.Poison:  {10, 17, 18, 32, 43, 44, 87},
		fault.Stop:    {21, 29, 31, 33, 34, 35, 53, 58, 76},
	}
	for class, cs := range want {
		for _, c := range cs {
			if got, code := Classify(fmt.Errorf("produce: %w: detail", kafka.Error(c))); got != class || code == "" {
				t.Errorf("code %d (%s) is %v, want %v", c, code, got, class)
			}
		}
	}
}

func opError(err error) error {
	return &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", err)}
}

func TestClassify_NetworkAndClientErrors(t *testing.T) {
	for _, tt := range []struct {
		err   error
		class fault.Class
		code  string
	}{
		{nil, fault.Retry, ""},
		{errors.New("something"), fault.Retry, "other"},
		{protocol.NewErrNoTopic("t"), fault.Refresh, "no_topic"},
		{protocol.NewErrNoPartition("t", 1), fault.Refresh, "no_partition"},
		{protocol.NewErrNoLeader("t", 1), fault.Refresh, "no_leader"},
		{protocol.ErrNoRecord, fault.Retry, "no_record"},
		{rawproduce.NewError(errors.New("mismatching leaders (1!=2)")), fault.Refresh, "mismatching_leaders"},
		{protocol.Errorf("correlation id mismatch"), fault.Refresh, "protocol"},
		{context.Canceled, fault.Retry, "canceled"},
		{context.DeadlineExceeded, fault.Refresh, "timeout"},
		{os.ErrDeadlineExceeded, fault.Refresh, "timeout"},
		{opError(syscall.ETIMEDOUT), fault.Refresh, "timeout"},
		{opError(syscall.ECONNREFUSED), fault.Refresh, "connection_refused"},
		{opError(syscall.ECONNRESET), fault.Refresh, "connection_reset"},
		{opError(syscall.EPIPE), fault.Refresh, "connection_closed"},
		{net.ErrClosed, fault.Refresh, "connection_closed"},
		{opError(syscall.EHOSTUNREACH), fault.Refresh, "unreachable"},
		{opError(syscall.ENETUNREACH), fault.Refresh, "unreachable"},
		{io.EOF, fault.Refresh, "eof"},
		{io.ErrUnexpectedEOF, fault.Refresh, "eof"},
		{&net.DNSError{Name: "kafka", IsNotFound: true}, fault.Refresh, "dns"},
		{opError(syscall.EIO), fault.Refresh, "network"},
		{x509.UnknownAuthorityError{}, fault.Stop, "tls_certificate"},
		{x509.HostnameError{Certificate: &x509.Certificate{}}, fault.Stop, "tls_certificate"},
		{&tls.CertificateVerificationError{Err: errors.New("expired")}, fault.Stop, "tls_certificate"},
		{tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, fault.Stop, "tls_mismatch"},
		{errSpeaksTLS, fault.Stop, "tls_mismatch"},
		{&net.OpError{Op: "remote error", Err: tlsAlert(42)}, fault.Stop, "tls_alert"},
		{&net.OpError{Op: "remote error", Err: tlsAlert(80)}, fault.Refresh, "tls_alert"},
		{fmt.Errorf("save: %w", &fault.Error{Class: fault.Stop, Err: kafka.UnknownTopicOrPartition}), fault.Stop, "UNKNOWN_TOPIC_OR_PARTITION"},
		{ErrClosed, fault.Stop, "closed"},
	} {
		wrapped := tt.err
		if wrapped != nil {
			wrapped = fmt.Errorf("kafka.(*Client).RawProduce: %w", tt.err)
		}
		if class, code := Classify(wrapped); class != tt.class || code != tt.code {
			t.Errorf("%v is %v %q, want %v %q", tt.err, class, code, tt.class, tt.code)
		}
	}
}
