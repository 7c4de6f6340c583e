package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// validator collects problems by key.
type validator struct{ problems Problems }

func (v *validator) fail(key, format string, args ...any) {
	v.problems = append(v.problems, Problem{Key: key, Message: fmt.Sprintf(format, args...)})
}

// check fails key unless ok.
func (v *validator) check(ok bool, key, format string, args ...any) {
	if !ok {
		v.fail(key, format, args...)
	}
}

// Validate checks everything that can be checked without connecting. Its error is
// of type Problems.
func (c Config) Validate() error {
	if ps := c.problems(); len(ps) > 0 {
		return ps
	}
	return nil
}

func (c Config) problems() Problems {
	v := &validator{}
	v.source(c.Source)
	v.outbox(c)
	v.messages(c)
	v.kafka(c)
	v.checkpoint(c)
	v.history(c)
	v.retention(c)
	v.markRows(c)
	v.relay(c.Relay)
	v.sizes(c)
	if c.Admin.Listen != "" {
		v.hostPort("admin.listen", c.Admin.Listen, true)
	}
	v.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", c.Log.Format, "json", "console")
	return v.problems
}

var (
	slotName   = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
	memorySize = regexp.MustCompile(`^\d+\s*(B|kB|MB|GB|TB)?$`)
	topicName  = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)
)

func (v *validator) source(s Source) {
	v.check(slotName.MatchString(s.Slot), "source.slot",
		"%q is not a slot name; use 1 to 63 of the characters a-z, 0-9 and _", s.Slot)
	if err := checkIdentifier(s.Publication); err != nil {
		v.fail("source.publication", "%v", err)
	}
	v.check(s.ApplicationName != "" && len(s.ApplicationName) <= 63 && printable(s.ApplicationName),
		"source.application_name", "%q must be 1 to 63 printable ASCII characters", s.ApplicationName)
	v.check(s.Port >= 0 && s.Port <= 65535, "source.port", "%d is not a port; use 1 to 65535, or 0 for the default", s.Port)
	if s.SSLMode != "" {
		v.oneOf("source.sslmode", s.SSLMode, "disable", "allow", "prefer", "require", "verify-ca", "verify-full")
	}
	v.check(s.Password == "" || s.PasswordFile == "", "source.password_file", "given beside source.password; give one of them")
	files := v.readable("source.password_file", s.PasswordFile)
	files = v.readable("source.sslrootcert", s.SSLRootCert) && files
	files = v.readable("source.sslcert", s.SSLCert) && files
	files = v.readable("source.sslkey", s.SSLKey) && files
	v.check((s.SSLCert == "") == (s.SSLKey == ""), "source.sslkey", "source.sslcert and source.sslkey are given together or not at all")
	if files && len(v.problems) == 0 {
		key := "source.url"
		if s.URL == "" {
			key = "source" // from its keys, or from PG* variables
		}
		if _, err := s.Connect(); err != nil {
			v.fail(key, "%v", err)
		}
	}
	v.check(s.LogicalDecodingMem == "" || memorySize.MatchString(s.LogicalDecodingMem), "source.logical_decoding_work_mem",
		"%q is not a size as PostgreSQL writes it, such as 256MB", s.LogicalDecodingMem)
	v.check(s.WalSenderTimeout >= 0 && (s.SilenceTimeout <= 0 || 2*s.WalSenderTimeout <= 3*s.SilenceTimeout), "source.wal_sender_timeout",
		"%s must not be negative, and at most one and a half times source.silence_timeout, %s", s.WalSenderTimeout, s.SilenceTimeout)
	v.oneOf("source.coalesce_reads", s.CoalesceReads, "auto", "off")
	v.positive("source.status_interval", s.StatusInterval)
	v.positive("source.silence_timeout", s.SilenceTimeout)
	v.positive("source.watch_interval", s.WatchInterval)
	v.check(s.SilenceTimeout <= 0 || s.StatusInterval < s.SilenceTimeout, "source.silence_timeout",
		"%s must be longer than source.status_interval, %s", s.SilenceTimeout, s.StatusInterval)
}

func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

func (v *validator) kafka(c Config) {
	k := c.Kafka
	if c.Sink == "kafka" || c.Checkpoint.Store == "kafka" {
		v.check(len(k.Brokers) > 0, "kafka.brokers", "name at least one broker, as host:port")
	}
	for i, b := range k.Brokers {
		v.hostPort(fmt.Sprintf("kafka.brokers[%d]", i), b, false)
	}
	v.check(k.ClientID != "" && len(k.ClientID) <= 249 && printable(k.ClientID), "kafka.client_id",
		"%q must be 1 to 249 printable ASCII characters", k.ClientID)
	v.oneOf("kafka.compression", k.Compression, "none", "gzip", "snappy", "lz4", "zstd")
	v.tls(k.TLS)
	v.sasl(k.SASL)
	v.positive("kafka.request_timeout", k.RequestTimeout)
	v.positive("kafka.dial_timeout", k.DialTimeout)
	v.positive("kafka.metadata_ttl", k.MetadataTTL)
	v.positive("kafka.retry_min", k.RetryMin)
	v.check(k.RetryMax >= k.RetryMin, "kafka.retry_max", "%s is shorter than kafka.retry_min, %s", k.RetryMax, k.RetryMin)
	v.check(k.Topics.Partitions >= 1, "kafka.topics.partitions", "%d must be at least 1", k.Topics.Partitions)
	v.replication("kafka.topics.replication", k.Topics.Replication)
	for i, name := range k.Topics.Names {
		v.topic(fmt.Sprintf("kafka.topics.names[%d]", i), name)
	}
}

func (v *validator) tls(t TLS) {
	for _, f := range []struct{ key, path string }{{"ca_file", t.CAFile}, {"cert_file", t.CertFile}, {"key_file", t.KeyFile}} {
		if f.path != "" && !t.Enabled {
			v.fail("kafka.tls."+f.key, "given while kafka.tls.enabled is false: the connection would not be encrypted; set kafka.tls.enabled: true")
			continue
		}
		v.readable("kafka.tls."+f.key, f.path)
	}
	v.check((t.CertFile == "") == (t.KeyFile == ""), "kafka.tls.key_file", "kafka.tls.cert_file and kafka.tls.key_file are given together or not at all")
	v.check(!t.Insecure || t.CAFile == "", "kafka.tls.insecure_skip_verify", "given beside kafka.tls.ca_file: either verify the brokers with it, or do not verify them")
}

func (v *validator) sasl(s SASL) {
	if s.Mechanism == "" {
		v.check(s.Username == "" && s.Password == "" && s.PasswordFile == "", "kafka.sasl.mechanism",
			"user or password are given without a mechanism; use plain, scram-sha-256 or scram-sha-512")
		return
	}
	v.oneOf("kafka.sasl.mechanism", s.Mechanism, "plain", "scram-sha-256", "scram-sha-512")
	v.check(s.Username != "", "kafka.sasl.username", "needed with kafka.sasl.mechanism %s", s.Mechanism)
	v.check(s.Password == "" || s.PasswordFile == "", "kafka.sasl.password_file", "given beside kafka.sasl.password; give one of them")
	v.check(s.Password != "" || s.PasswordFile != "", "kafka.sasl.password", "needed with kafka.sasl.mechanism %s; or give kafka.sasl.password_file", s.Mechanism)
	v.readable("kafka.sasl.password_file", s.PasswordFile)
}

func (v *validator) checkpoint(c Config) {
	v.oneOf("sink", c.Sink, "kafka", "null")
	v.oneOf("checkpoint.store", c.Checkpoint.Store, "kafka", "file")
	v.check(c.Sink != "null" || c.Checkpoint.Store == "file", "checkpoint.store",
		"must be file with sink: null: what is discarded must not move the mark that a real relay begins at")
	v.replication("checkpoint.replication", c.Checkpoint.Replication)
	switch c.Checkpoint.Store {
	case "kafka":
		v.topic("checkpoint.topic", c.Checkpoint.Topic)
		for i, o := range c.Outbox {
			v.check(o.Topic != c.Checkpoint.Topic, fmt.Sprintf("outbox[%d].topic", i),
				"%q is checkpoint.topic, which is compacted: events would be lost there", o.Topic)
		}
	case "file":
		v.check(c.Checkpoint.File != "", "checkpoint.file", "needed with checkpoint.store: file")
		v.directory("checkpoint.file", c.Checkpoint.File)
	}
}

func (v *validator) history(c Config) {
	h := c.History
	v.check(h.MaxAge >= 0, "history.max_age", "%s must not be negative", h.MaxAge)
	if !h.On() {
		v.check(h.HardMaxBytes == 0, "history.hard_max_bytes", "given without history.max_bytes or history.max_age, so that no history is kept")
		return
	}
	if h.MaxBytes != 0 {
		v.size("history.max_bytes", h.MaxBytes, 1<<20, 1<<50)
	}
	v.check(h.HardMaxBytes != 0 || h.MaxBytes != 0, "history.hard_max_bytes",
		"needed with history.max_age alone: nothing else bounds the WAL that the server keeps")
	v.check(h.HardMaxBytes == 0 || h.HardMaxBytes > h.MaxBytes && h.HardMaxBytes >= 1<<20, "history.hard_max_bytes",
		"%s must be more than history.max_bytes, %s, and at least 1MiB; twice of it leaves room for open transactions", h.HardMaxBytes, h.MaxBytes)
	v.check(slotName.MatchString(c.HistorySlot()), "history.slot",
		"%q is not a slot name; use 1 to 63 of the characters a-z, 0-9 and _", c.HistorySlot())
	v.check(c.HistorySlot() != c.Source.Slot, "history.slot", "%q is source.slot; it must be another one", h.Slot)
}

func (v *validator) relay(r Relay) {
	v.check(r.MaxAheadTx > 0, "relay.max_ahead_transactions", "%d must be at least 1", r.MaxAheadTx)
	v.positive("relay.save_interval", r.SaveInterval)
	v.positive("relay.shutdown_timeout", r.ShutdownTimeout)
	v.positive("relay.standby_interval", r.StandbyInterval)
	v.positive("relay.reconnect_min", r.ReconnectMin)
	v.check(r.ReconnectMax >= r.ReconnectMin, "relay.reconnect_max", "%s is shorter than relay.reconnect_min, %s", r.ReconnectMax, r.ReconnectMin)
	v.positive("relay.stall_timeout", r.StallTimeout)
}

// What a record batch and a row of PostgreSQL can hold.
const (
	maxBatch = 1 << 30
	maxRow   = 1 << 30
)

func (v *validator) sizes(c Config) {
	v.size("kafka.max_batch_bytes", c.Kafka.MaxBatchBytes, 1<<10, maxBatch)
	v.size("relay.max_in_flight_bytes", c.Relay.MaxInFlight, 1<<20, 1<<40)
	v.size("relay.max_row_bytes", c.Relay.MaxRowBytes, 1<<10, maxRow)
	v.size("relay.max_ahead_wal_bytes", c.Relay.MaxAheadWAL, 1<<20, 1<<50)
	v.check(c.Kafka.MaxBatchBytes <= c.Relay.MaxInFlight, "kafka.max_batch_bytes",
		"%s is more than relay.max_in_flight_bytes, %s: no batch could fill", c.Kafka.MaxBatchBytes, c.Relay.MaxInFlight)
}

func (v *validator) size(key string, b, low, high Bytes) {
	v.check(b >= low && b <= high, key, "%s is out of range; use %s to %s", b, low, high)
}

func (v *validator) positive(key string, d time.Duration) {
	v.check(d > 0, key, "%s must be longer than 0", d)
}

func (v *validator) replication(key string, n int) {
	v.check(n == -1 || n >= 1 && n <= 32767, key, "%d is not a replication factor; use 1 or more, or -1 for the broker's default", n)
}

func (v *validator) oneOf(key, value string, allowed ...string) {
	v.check(slices.Contains(allowed, value), key, "%q is not one of %s", value, strings.Join(allowed, ", "))
}

func (v *validator) topic(key, name string) {
	if name == "." || name == ".." || !topicName.MatchString(name) {
		v.fail(key, "%q is not a topic name; use 1 to 249 of the characters a-z, A-Z, 0-9, dot, _ and -", name)
	}
}

// hostPort checks an address. A listening one may leave out the host, which means
// every interface, and may have port 0.
func (v *validator) hostPort(key, addr string, listen bool) {
	host, port, err := net.SplitHostPort(addr)
	n, perr := strconv.Atoi(port)
	switch {
	case err != nil:
		v.fail(key, "%q is not of the form host:port", maskText(addr))
	case host == "" && !listen:
		v.fail(key, "%q has no host; write host:port", addr)
	case strings.ContainsAny(host, "/ @"):
		v.fail(key, "%q is not of the form host:port; leave out schemes, users and spaces", maskText(addr))
	case perr != nil || n < 0 || n > 65535 || n == 0 && !listen:
		v.fail(key, "%q has no valid port; use 1 to 65535", addr)
	}
}

// readable checks a file that is read at each connect; an empty path is fine.
func (v *validator) readable(key, path string) bool {
	if path == "" {
		return true
	}
	f, err := os.Open(path)
	if err == nil {
		var info fs.FileInfo
		if info, err = f.Stat(); err == nil && info.IsDir() {
			err = fmt.Errorf("%s is a directory", path)
		}
		_ = f.Close()
	}
	if err != nil {
		v.fail(key, "the file cannot be read: %v", err)
	}
	return err == nil
}

// directory checks that a file can be made beside path.
func (v *validator) directory(key, path string) {
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = errors.New("is not a directory")
	}
	if err != nil {
		v.fail(key, "the directory %s: %v", dir, err)
	}
}
