package catalog_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/fault"
)

// serverWithTLS starts a server that wants a password, with a certificate of its
// own making, and returns that certificate's file.
func serverWithTLS(t *testing.T) (*pgserver.Server, string) {
	t.Helper()
	s, err := pgserver.Start(t.Context(), pgserver.Options{
		Version: os.Getenv("CDC_RELAY_TEST_PG_VERSION"), Scram: true,
		HBA: []string{"hostssl certified all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca", "host nobody all 127.0.0.1/32 reject"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "db.example"}, DNSNames: []string{"db.example"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	owner, err := os.Stat(s.DataDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"server.crt": {Type: "CERTIFICATE", Bytes: der}, "server.key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		path := filepath.Join(s.DataDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if st, ok := owner.Sys().(*syscall.Stat_t); ok {
			if err := os.Chown(path, int(st.Uid), int(st.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Set(map[string]string{"ssl": "on", "ssl_ca_file": "server.crt"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, filepath.Join(s.DataDir(), "server.crt")
}

func TestOpen_StopsOnWrongCredentialsAndFailedTLSWithTheTrueCause(t *testing.T) {
	s, cert := serverWithTLS(t)
	if err := s.CreateDatabase(t.Context(), "certified", ""); err != nil {
		t.Fatal(err)
	}
	base := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres ", s.Port())
	right := "password=" + pgserver.Password + " dbname=postgres "
	for _, c := range []struct{ name, dsn, code string }{
		{"right", right + "sslmode=verify-ca sslrootcert=" + cert, ""},
		{"wrong password", "password=wrong-secret dbname=postgres sslmode=require", "28P01"},
		{"wrong password, TLS preferred", "password=wrong-secret dbname=postgres sslmode=prefer", "28P01"},
		{"rejected by pg_hba.conf", "password=x dbname=nobody sslmode=prefer", "28000"},
		{"no client certificate", "password=" + pgserver.Password + " dbname=certified sslmode=require", "28000"},
		{"certificate for another name", right + "sslmode=verify-full sslrootcert=" + cert, catalog.CodeTLS},
		{"unknown authority", right + "sslmode=verify-full", catalog.CodeTLS},
	} {
		cfg, err := pgx.ParseConfig(base + c.dsn)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		session, err := catalog.Open(t.Context(), cfg, "")
		if err == nil {
			session.Close(t.Context())
		}
		class, code := catalog.Classify(err)
		if code != c.code || (class == fault.Stop) != (c.code != "") || time.Since(began) > 10*time.Second {
			t.Errorf("%s: %s %q after %s: %v", c.name, class, code, time.Since(began), err)
		}
	}
}
