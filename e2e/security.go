package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
)

// CA is a certificate authority for one test.
type CA struct {
	// CertFile is its certificate.
	CertFile string
	dir      string
	cert     *x509.Certificate
	key      *ecdsa.PrivateKey
}

// NewCA makes an authority whose files live as long as the test.
func NewCA(t testing.TB) *CA {
	t.Helper()
	ca := &CA{dir: t.TempDir()}
	if err := os.Chmod(ca.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if ca.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	tmpl := template("e2e authority")
	tmpl.IsCA, tmpl.BasicConstraintsValid, tmpl.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &ca.key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	ca.CertFile = ca.write(t, "ca.pem", pemOf("CERTIFICATE", der))
	return ca
}

// Issue signs a certificate for server and client use and returns the files of certificate and key, and one with both (a PEM
// key store of Kafka's).
func (ca *CA) Issue(t testing.TB, name string, hosts ...string) (certFile, keyFile, bothFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := template(name)
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert, private := pemOf("CERTIFICATE", der), pemOf("PRIVATE KEY", keyDER)
	return ca.write(t, name+".crt", cert), ca.write(t, name+".key", private), ca.write(t, name+".pem", private+cert)
}

func (ca *CA) write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(ca.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func template(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		panic(err) // the system has no randomness
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// SecureListener is a further listener of a broker, by its upper-case name, for kafkaserver.Options: over TLS when ca is given
// (mutual TLS when it has no users), with SASL PLAIN and SCRAM when there are users. SCRAM users are made by SetScramUser
// once the broker runs.
//
//	l, settings := e2e.SecureListener(t, "SECURE", ca, map[string]string{"app": "secret"})
//	k := e2e.ExclusiveKafka(t, kafkaserver.Options{Listeners: []kafkaserver.Listener{l}, Settings: settings})
//	addr := k.Broker.ListenerAddr("SECURE")
func SecureListener(t testing.TB, name string, ca *CA, users map[string]string) (kafkaserver.Listener, map[string]string) {
	t.Helper()
	prefix := "listener.name." + strings.ToLower(name) + "."
	settings := map[string]string{}
	protocol := "PLAINTEXT"
	if ca != nil {
		protocol = "SSL"
		_, _, both := ca.Issue(t, "broker", "localhost", "127.0.0.1")
		maps.Copy(settings, map[string]string{
			prefix + "ssl.keystore.type": "PEM", prefix + "ssl.keystore.location": both,
			prefix + "ssl.truststore.type": "PEM", prefix + "ssl.truststore.location": ca.CertFile,
		})
		if len(users) == 0 {
			settings[prefix+"ssl.client.auth"] = "required"
		}
	}
	if len(users) > 0 {
		protocol = "SASL_" + protocol
		plain := "org.apache.kafka.common.security.plain.PlainLoginModule required"
		for _, u := range slices.Sorted(maps.Keys(users)) {
			plain += fmt.Sprintf(" user_%s=%q", u, users[u])
		}
		const scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
		maps.Copy(settings, map[string]string{
			prefix + "sasl.enabled.mechanisms":          "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
			prefix + "plain.sasl.jaas.config":           plain + ";",
			prefix + "scram-sha-256.sasl.jaas.config":   scram,
			prefix + "scram-sha-512.sasl.jaas.config":   scram,
			"connection.failed.authentication.delay.ms": "50",
		})
	}
	return kafkaserver.Listener{Name: name, Protocol: protocol}, settings
}

// SetScramUser gives a user a password for SCRAM-SHA-256 and SCRAM-SHA-512, over the plain listener, and returns when the
// broker knows it.
func (k *Cluster) SetScramUser(t testing.TB, user, password string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	cl := k.Client(t)
	for mechanism := int8(1); mechanism <= 2; mechanism++ { // one per request: a user may appear only once in each
		up, err := scramCredential(user, password, mechanism)
		if err != nil {
			t.Fatal(err)
		}
		req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		req.Upsertions = append(req.Upsertions, up)
		resp, err := req.RequestWith(ctx, cl)
		if err == nil {
			err = kerr.ErrorForCode(resp.Results[0].ErrorCode)
		}
		if err != nil {
			t.Fatalf("set the password of %s: %v", user, err)
		}
	}
	Eventually(t, Timeout, "the broker knows the user "+user, func() bool {
		req := kmsg.NewPtrDescribeUserSCRAMCredentialsRequest()
		u := kmsg.NewDescribeUserSCRAMCredentialsRequestUser()
		u.Name = user
		req.Users = append(req.Users, u)
		resp, err := req.RequestWith(ctx, cl)
		return err == nil && len(resp.Results) == 1 && len(resp.Results[0].CredentialInfos) == 2
	})
}

func scramCredential(user, password string, mechanism int8) (kmsg.AlterUserSCRAMCredentialsRequestUpsertion, error) {
	const iterations = 4096
	up := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
	up.Name, up.Mechanism, up.Iterations, up.Salt = user, mechanism, iterations, []byte("salt of the test")
	var err error
	if mechanism == 1 {
		up.SaltedPassword, err = pbkdf2.Key(sha256.New, password, up.Salt, iterations, sha256.Size)
	} else {
		up.SaltedPassword, err = pbkdf2.Key(sha512.New, password, up.Salt, iterations, sha512.Size)
	}
	return up, err
}
