package config

import (
	"fmt"
	"net"
	"strings"
)

// Warnings returns what is allowed in a valid configuration and rarely meant.
func (c Config) Warnings() []string {
	var out []string
	warn := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if c.Admin.Listen != "" && !loopback(c.Admin.Listen) {
		warn("admin.listen: %s can be reached from other machines; the pages hold no secrets, but neither do they ask for a password", c.Admin.Listen)
	}
	k := c.Kafka
	if c.Sink == "kafka" {
		if k.SASL.Mechanism == "plain" && !k.TLS.Enabled {
			warn("kafka.sasl.mechanism: plain without kafka.tls.enabled sends the password in clear text")
		}
		if k.TLS.Enabled && k.TLS.Insecure {
			warn("kafka.tls.insecure_skip_verify: the brokers' certificates are not verified; anyone on the network can read and change events")
		}
		if c.Checkpoint.Store == "file" {
			warn("checkpoint.store: file keeps the mark on this machine only; a standby elsewhere cannot take over")
		}
	}
	if c.Sink == "null" {
		warn("sink: null discards every event and confirms it; the slot moves on")
	}
	for i, o := range c.Outbox {
		if o.Columns.Key == "" {
			warn("outbox[%d].columns.key: records without a key have no order", i)
		}
	}
	return out
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
