package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/cdc-relay/cdc-relay/fault"
)

// Load builds a tls.Config from the files as they are now. ServerName is left
// as configured.
func (t TLS) Load() (*tls.Config, error) {
	cfg := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         t.ServerName,
		InsecureSkipVerify: t.InsecureSkipVerify, //nolint:gosec // asked for by configuration, which warns
	}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificate authorities: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read the certificate authorities: %s holds no PEM certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read the client certificate %s and its key %s: %w", t.CertFile, t.KeyFile, err)
		}
		// Not Certificates: those are withheld, in silence, when their issuer is not
		// among the authorities that the broker names. Offered anyway, the broker
		// says why it refuses.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	return cfg, nil
}

// Load returns the mechanism with the password as it is now.
func (s SASL) Load() (sasl.Mechanism, error) {
	password := s.Password
	if s.PasswordFile != "" {
		b, err := os.ReadFile(s.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("read the SASL password: %w", err)
		}
		password = strings.TrimRight(string(b), "\r\n")
	}
	switch strings.ToLower(s.Mechanism) {
	case "plain":
		return plain.Mechanism{Username: s.Username, Password: password}, nil
	case "scram-sha-256":
		return scramMechanism(scram.SHA256, s.Username, password)
	case "scram-sha-512":
		return scramMechanism(scram.SHA512, s.Username, password)
	default:
		return nil, fmt.Errorf("SASL mechanism %q is not one of plain, scram-sha-256, scram-sha-512", s.Mechanism)
	}
}

func scramMechanism(algo scram.Algorithm, user, password string) (sasl.Mechanism, error) {
	m, err := scram.Mechanism(algo, user, password)
	if err != nil {
		// The cause quotes what it could not prepare, which is the secret.
		return nil, fmt.Errorf("user name or password holds a character that %s does not allow", algo.Name())
	}
	return m, nil
}

// startSASL begins an exchange, without letting an error quote a secret.
func startSASL(ctx context.Context, m sasl.Mechanism) (sasl.StateMachine, []byte, error) {
	sess, first, err := m.Start(ctx)
	if err != nil {
		return nil, nil, fault.Stopped("check kafka.sasl", "begin SASL %s", m.Name())
	}
	return sess, first, nil
}
