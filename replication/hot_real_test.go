package replication

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

// tlsFiles writes a certificate and its key.
func tlsFiles(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	cert := selfSigned(t).Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	for path, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert.Certificate[0]}, keyFile: {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// TestReal_BusyStream reads backlogs of a server on this host, whose reads are
// coalesced, as they are and through TLS.
func TestReal_BusyStream(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	if _, err := pgserver.FindBinaries("15"); err != nil {
		t.Skip(err)
	}
	certFile, keyFile := tlsFiles(t)
	srv, err := pgserver.Start(t.Context(), pgserver.Options{CertFile: certFile, KeyFile: keyFile})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	execute(t, srv, "postgres", "CREATE TABLE busy (n int, s text)", "CREATE PUBLICATION busy FOR TABLE busy")
	plain := pgConfig(t, srv, "postgres")
	secure := pgConfig(t, srv, "postgres")
	secure.TLSConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // as sslmode=require
	for name, pc := range map[string]*pgconn.Config{"as it is": plain, "through TLS": secure} {
		t.Run(name, func(t *testing.T) { realBusy(t, srv, pc) })
	}
	for name, pc := range map[string]*pgconn.Config{"as it is": plain, "through TLS": secure} {
		t.Run("killed, "+name, func(t *testing.T) { realBusyKilled(t, srv, pc) })
	}
}

const busyRows = 150_000

// startBusy starts a stream behind which a backlog waits, with one large row in
// the middle of it.
func startBusy(t *testing.T, srv *pgserver.Server, pc *pgconn.Config, slot string) (s *Stream, naps *atomic.Uint64) {
	t.Helper()
	start := makeSlot(t, srv, "postgres", slot)
	insert := "INSERT INTO busy SELECT n, repeat('x', 200) FROM generate_series(%d, %d) n"
	execute(t, srv, "postgres", "BEGIN; "+fmt.Sprintf(insert, 1, busyRows/2)+
		"; INSERT INTO busy VALUES (0, repeat('y', 3000000)); "+fmt.Sprintf(insert, busyRows/2+1, busyRows)+"; COMMIT")
	naps = new(atomic.Uint64)
	c := connectTo(t, pc, func(c *Config) {
		ordinary(c)
		c.CoalesceReads, c.Naps = true, naps
	})
	if rtt, ok := minRTT(coalesced(c.pg.Conn()).raw); !ok || rtt > maxRTT {
		t.Skipf("reads are not coalesced here: the shortest round trip is %s (told: %t)", rtt, ok)
	}
	s, err := c.Start(t.Context(), slot, "busy", start)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, naps
}

// isHot tells that reads are coalesced now. A reader that is slower than the server,
// as under the race detector, finds more to read each time, and need not nap.
func isHot(s *Stream) bool { return coalesced(s.conn).pace.hot }

// Every row comes, over interrupts, and the end is in order.
func realBusy(t *testing.T, srv *pgserver.Server, pc *pgconn.Config) {
	s, naps := startBusy(t, srv, pc, fmt.Sprintf("busy_%t", pc.TLSConfig != nil))
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			s.Interrupt()
			select {
			case <-ctx.Done():
			case <-time.After(3 * time.Millisecond):
			}
		}
	}()
	rows, interrupts, hot := 0, 0, false
	for done := false; !done; {
		m, err := s.Next()
		hot = hot || isHot(s)
		switch {
		case errors.Is(err, ErrInterrupted):
			interrupts++
		case err != nil:
			t.Fatalf("after %d rows: %v", rows, err)
		case m.Data != nil && m.Data[0] == 'I':
			rows++
		case m.Data != nil && m.Data[0] == 'C':
			done = rows > 0
		}
	}
	cancel()
	<-stopped
	if rows != busyRows+1 {
		t.Errorf("%d rows, want %d", rows, busyRows+1)
	}
	if !hot || interrupts == 0 {
		t.Errorf("%d interrupts in a backlog; reads were coalesced: %t", interrupts, hot)
	}
	t.Logf("%d naps, %d interrupts", naps.Load(), interrupts)
	if err := s.Finish(t.Context()); err != nil {
		t.Error(err)
	}
}

// A server that is killed is noticed at once, and as a failed connection.
func realBusyKilled(t *testing.T, srv *pgserver.Server, pc *pgconn.Config) {
	s, _ := startBusy(t, srv, pc, fmt.Sprintf("killed_%t", pc.TLSConfig != nil))
	for !isHot(s) {
		next(t, s)
	}
	srv.Kill9()
	killed := time.Now()
	for {
		_, err := s.Next()
		if err == nil {
			continue
		}
		if took := time.Since(killed); took > 4*time.Second || errors.Is(err, ErrSilent) {
			t.Errorf("after %s: %v", took, err)
		}
		t.Logf("%v after %s", err, time.Since(killed))
		break
	}
	if err := srv.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}
