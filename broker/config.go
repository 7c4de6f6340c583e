// Package broker owns the connections to a Kafka cluster: TLS, SASL and their
// deadlines, the class of every error that Kafka and the network can give, and
// the few requests about topics that the relay makes. It produces and consumes
// nothing.
//
// # Handshakes
//
// A connection is handed to kafka-go's Transport only after TLS and SASL are
// done: they run inside the dial function, under one absolute deadline of
// Config.DialTimeout. kafka-go by itself runs SASL without a deadline, in the
// goroutine that also discovers the cluster, so that one broker that hangs in
// its handshake would stop discovery for ever. Password, certificate and key
// files are read again for each connection.
package broker

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/fault"
)

// Defaults of the durations that are left zero in Config.
const (
	DefaultDialTimeout    = 10 * time.Second
	DefaultRequestTimeout = 30 * time.Second
	DefaultMetadataTTL    = 2 * time.Second
)

// Config of a Cluster.
type Config struct {
	Brokers  []string // host:port; at least one
	ClientID string
	TLS      TLS
	SASL     SASL
	// DialTimeout bounds connecting to one broker: TCP, TLS and SASL together.
	DialTimeout time.Duration
	// RequestTimeout bounds one request that comes without a deadline of its own,
	// and every request of Client.
	RequestTimeout time.Duration
	// MetadataTTL is how long the Transport may route by a cached layout. It also
	// bounds its requests for the layout: not below a second.
	MetadataTTL time.Duration
}

// TLS to the brokers. Files are PEM.
type TLS struct {
	Enabled            bool
	CAFile             string // "" trusts the system's authorities
	CertFile, KeyFile  string // client certificate; both or none
	ServerName         string // "" verifies the host that is dialled
	InsecureSkipVerify bool
}

// SASL authentication. PasswordFile wins over Password.
type SASL struct {
	Mechanism    string // "", plain, scram-sha-256 or scram-sha-512
	Username     string
	Password     string
	PasswordFile string
}

func (c Config) withDefaults() Config {
	if c.ClientID == "" {
		c.ClientID = "cdc-relay"
	}
	if c.DialTimeout <= 0 {
		c.DialTimeout = DefaultDialTimeout
	}
	if c.RequestTimeout <= 0 {
		c.RequestTimeout = DefaultRequestTimeout
	}
	if c.MetadataTTL <= 0 {
		c.MetadataTTL = DefaultMetadataTTL
	}
	return c
}

// validate reports every problem at once, and reads each file once.
func (c Config) validate() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Brokers) == 0 {
		add("no broker is given")
	}
	for _, b := range c.Brokers {
		if err := checkAddress(b); err != nil {
			errs = append(errs, err)
		}
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		add("a client certificate needs both its certificate file and its key file")
	} else if c.TLS.Enabled {
		if _, err := c.TLS.Load(); err != nil {
			errs = append(errs, err)
		}
	}
	if !c.TLS.Enabled && (c.TLS.CAFile != "" || c.TLS.CertFile != "" || c.TLS.KeyFile != "") {
		add("TLS files are given but TLS is not enabled")
	}
	if c.SASL.Mechanism != "" {
		if c.SASL.Username == "" {
			add("SASL %s needs a user name", c.SASL.Mechanism)
		}
		if _, err := c.SASL.Load(); err != nil {
			errs = append(errs, err)
		}
	} else if c.SASL.Username != "" || c.SASL.Password != "" || c.SASL.PasswordFile != "" {
		add("a SASL user or password is given but no mechanism")
	}
	if len(errs) == 0 {
		return nil
	}
	return &fault.Error{
		Class: fault.Stop,
		What:  "the Kafka connection is not configured right",
		Fix:   "correct the keys under kafka in the configuration",
		Err:   errors.Join(errs...),
	}
}

func checkAddress(b string) error {
	host, port, err := net.SplitHostPort(b)
	if err != nil {
		return fmt.Errorf("broker %q is not host:port", b)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if host == "" || err != nil || n == 0 || strings.ContainsAny(host, ", /") {
		return fmt.Errorf("broker %q is not host:port", b)
	}
	return nil
}
