// Package config is the one configuration of the service: read from a YAML
// file and the environment, strict about what it does not know, validated as a
// whole before anything connects.
package config

import "time"

//go:generate go run ../cmd/cdc-relay config doc --output ../docs/configuration.md

// Config is the whole configuration. Each field's tags are the single source of
// the example file, the reference in docs/configuration.md and the environment
// variable's name: `yaml` is the key, `default` its default as written in YAML,
// `doc` one sentence (with the unit), `secret:"true"` masks it when printed, and
// `secret:"url"` masks the passwords inside it.
// A key a.b.c is given by the environment as CDC_RELAY_A_B_C.
type Config struct {
	Source     Source     `yaml:"source" doc:"The PostgreSQL database with the outbox."`
	Outbox     []Outbox   `yaml:"outbox" doc:"The outbox tables. Without this key: one table public.outbox in the default shape, with the columns id, aggregatetype, aggregateid, type and payload. An empty list, [], only with messages.prefix."`
	Messages   Messages   `yaml:"messages" doc:"Logical messages, by pg_logical_emit_message, as an outbox without a table; off without a prefix. See docs/messages.md."`
	Kafka      Kafka      `yaml:"kafka" doc:"The Kafka cluster that receives the events."`
	Sink       string     `yaml:"sink" default:"kafka" doc:"Where events go: kafka, or null (counts and discards them; for development and benchmarks; needs checkpoint.store: file)."`
	Checkpoint Checkpoint `yaml:"checkpoint" doc:"Where the durable mark of what has been published is kept."`
	History    History    `yaml:"history" doc:"A second slot that stays behind, so that cdc-relay replay can publish again what was published; off without max_bytes and max_age, see docs/replay.md."`
	Mark       MarkRows   `yaml:"mark" doc:"Whether published rows are marked in the outbox tables, for systems that read that column; off without a column, see docs/migrate.md."`
	Retention  Retention  `yaml:"retention" doc:"What becomes of published rows in the outbox tables; see docs/retention.md."`
	Relay      Relay      `yaml:"relay" doc:"Budgets, limits and intervals of the relay."`
	Admin      Admin      `yaml:"admin" doc:"Health and metrics over HTTP."`
	Log        Log        `yaml:"log" doc:"Logging, to standard error."`
}

// Source is the connection to PostgreSQL and what it reads there.
type Source struct {
	URL          string `yaml:"url" secret:"url" doc:"Connection string, as a URL or in key=value form. The keys below fill in what it leaves out, and the usual PG* variables what is still missing."`
	Host         string `yaml:"host" doc:"Host name, address, or directory of a Unix socket."`
	Port         int    `yaml:"port" default:"0" doc:"TCP port; 0 takes PGPORT or 5432."`
	Database     string `yaml:"database" doc:"Database with the outbox."`
	User         string `yaml:"user" doc:"Role; it needs LOGIN and REPLICATION."`
	Password     string `yaml:"password" secret:"true" doc:"Password."`
	PasswordFile string `yaml:"password_file" doc:"File with the password; read again at each connect."`
	SSLMode      string `yaml:"sslmode" doc:"disable, allow, prefer, require, verify-ca or verify-full, as in libpq."`
	SSLRootCert  string `yaml:"sslrootcert" doc:"File with the certificate authorities to trust."`
	SSLCert      string `yaml:"sslcert" doc:"File with the client certificate."`
	SSLKey       string `yaml:"sslkey" doc:"File with the client key."`
	Slot         string `yaml:"slot" default:"cdc_relay" doc:"Logical replication slot; one relay each."`
	Publication  string `yaml:"publication" default:"cdc_relay" doc:"Publication that holds the outbox tables."`
	// ApplicationName is what pg_stat_activity and synchronous_standby_names see.
	ApplicationName    string        `yaml:"application_name" default:"cdc-relay" doc:"Name shown in pg_stat_activity and pg_stat_replication."`
	AllowSynchronous   bool          `yaml:"allow_synchronous" default:"false" doc:"Run although synchronous_standby_names can match application_name, so that every commit of the application may wait for Kafka."`
	StatusInterval     time.Duration `yaml:"status_interval" default:"1s" doc:"How often the position is confirmed to the server when nothing else asks for it."`
	SilenceTimeout     time.Duration `yaml:"silence_timeout" default:"15s" doc:"A connection on which the server says nothing for this long is given up; it is asked for a sign of life three times before."`
	WatchInterval      time.Duration `yaml:"watch_interval" default:"3s" doc:"How often slot, publication and tables are looked at."`
	LogicalDecodingMem string        `yaml:"logical_decoding_work_mem" doc:"Server memory for decoding on this connection, such as 256MB; empty leaves the server's setting."`
	WalSenderTimeout   time.Duration `yaml:"wal_sender_timeout" default:"0s" doc:"wal_sender_timeout on this connection; 0s takes silence_timeout. At most one and a half times that: a server that is busy decoding looks for its client only every half of it."`
	CoalesceReads      string        `yaml:"coalesce_reads" default:"auto" doc:"auto: while more than 18,000 messages a second come, they are read in few large pieces, with pauses of 5 ms between them; the server then decodes about twice as fast, for a fraction of the CPU. Only over TCP, on Linux, from a server that is as near as this host (a round trip of at most 75 µs); elsewhere it does nothing. off: every message is read when it comes, see docs/performance.md."`
	Failover           bool          `yaml:"failover" default:"false" doc:"Create the slot with FAILOVER, so that standbys can take it over (PostgreSQL 17 and newer)."`
}

// Outbox maps one table; see route.Table. What is not given is filled in by
// shape, see Outbox.applyShape.
type Outbox struct {
	Table           string            `yaml:"table" default:"public.outbox" doc:"Table, as schema.table; without a schema it is public."`
	Columns         OutboxColumns     `yaml:"columns" doc:"Which column is what."`
	Topic           string            `yaml:"topic" default:"outbox.event.{aggregatetype}" doc:"Topic, with {column} replaced by that column's value. Give either this or columns.topic."`
	Headers         map[string]string `yaml:"headers" doc:"Extra columns published as headers, as column: header; in the order of the columns' names."`
	IDHeader        string            `yaml:"id_header" default:"id" doc:"Header that carries the event's id; with cloudevents it is ce_id, and is not given."`
	TypeHeader      string            `yaml:"type_header" default:"eventType" doc:"Header that carries the event's type; not used without columns.type, and with cloudevents it is ce_type, and is not given."`
	PositionHeaders bool              `yaml:"position_headers" default:"true" doc:"Add the headers lsn (commit LSN, 16 hex digits) and seq (ordinal in the transaction), which order all events of one timeline."`
	Format          string            `yaml:"format" default:"raw" doc:"How an event is laid out, see docs/formats.md: raw (the value is the payload), json (an envelope with id, type, aggregate, key, time and payload) or cloudevents (CloudEvents 1.0, binary mode)."`
	Source          string            `yaml:"source" default:"" doc:"Attribute source of cloudevents, a URI-reference that names this producer; required there."`
	ContentType     string            `yaml:"content_type" default:"" doc:"Header content-type of cloudevents; empty string for the one of the payload's type (application/json for json and jsonb, application/octet-stream for bytea, else text/plain; charset=utf-8)."`
}

// OutboxColumns names the columns of an outbox table. "" means that there is
// none, where that is allowed.
type OutboxColumns struct {
	ID        string `yaml:"id" default:"id" doc:"Identity of the event; never NULL."`
	Key       string `yaml:"key" default:"aggregateid" doc:"Record key; empty string for no key. In a table of your own shape there is no default: name it, or give the empty string."`
	Type      string `yaml:"type" default:"type" doc:"Type of the event, published as a header; empty string for none, which is the default in a table of your own shape."`
	Payload   string `yaml:"payload" default:"payload" doc:"Record value."`
	Topic     string `yaml:"topic" default:"" doc:"Column that holds the topic; instead of the template."`
	Timestamp string `yaml:"timestamp" default:"" doc:"Column with the record's time (timestamptz, timestamp as UTC, or integer milliseconds); empty string for the commit time."`
	Partition string `yaml:"partition" default:"" doc:"Integer column with the partition; NULL or empty string for the choice by key."`
	Aggregate string `yaml:"aggregate" default:"" doc:"Column with the type of the aggregate, for formats other than raw; empty string for the column in the topic, if there is exactly one."`
}

// Messages are logical messages that are published like rows; see
// route.Messages.
type Messages struct {
	Prefix          string `yaml:"prefix" default:"" doc:"Publish the transactional messages with exactly this prefix; empty string for none. Needs PostgreSQL 14. Any role of the database may emit one, unless that is revoked."`
	Topic           string `yaml:"topic" default:"outbox.event.{aggregatetype}" doc:"Topic, with {aggregatetype}, {type} or {topic} replaced by that member of the body. Only with {topic} may a body name its topic."`
	IDHeader        string `yaml:"id_header" default:"id" doc:"Header that carries the event's id; with cloudevents it is ce_id, and is not given."`
	TypeHeader      string `yaml:"type_header" default:"eventType" doc:"Header that carries the event's type; null for a body without one; not with cloudevents."`
	PositionHeaders bool   `yaml:"position_headers" default:"true" doc:"Add the headers lsn and seq, as for tables: rows and messages of a transaction are numbered together."`
	Format          string `yaml:"format" default:"raw" doc:"How an event is laid out, see docs/formats.md: raw (the value is the payload), json (an envelope with id, type, aggregate, key, time and payload) or cloudevents (CloudEvents 1.0, binary mode)."`
	Source          string `yaml:"source" default:"" doc:"Attribute source of cloudevents, a URI-reference that names this producer; required there."`
	ContentType     string `yaml:"content_type" default:"" doc:"Header content-type of cloudevents; empty string for the one of the payload's type (application/json for json and jsonb, application/octet-stream for bytea, else text/plain; charset=utf-8)."`
}

// Kafka is the connection to the brokers and how records are produced.
type Kafka struct {
	Brokers        []string      `yaml:"brokers" default:"localhost:9092" doc:"Bootstrap brokers, as host:port."`
	ClientID       string        `yaml:"client_id" default:"cdc-relay" doc:"Client id shown in the brokers' logs and quotas."`
	TLS            TLS           `yaml:"tls" doc:"TLS to the brokers."`
	SASL           SASL          `yaml:"sasl" doc:"SASL authentication."`
	Compression    string        `yaml:"compression" default:"none" doc:"none, gzip, snappy, lz4 or zstd."`
	MaxBatchBytes  Bytes         `yaml:"max_batch_bytes" default:"900KiB" doc:"Largest record batch before compression; a larger record travels alone. The topic's max.message.bytes is respected when it is smaller."`
	RequestTimeout time.Duration `yaml:"request_timeout" default:"30s" doc:"How long a produce request may take before it is tried again; the broker gets half."`
	DialTimeout    time.Duration `yaml:"dial_timeout" default:"10s" doc:"How long connecting and authenticating may take."`
	MetadataTTL    time.Duration `yaml:"metadata_ttl" default:"2s" doc:"How long topic leaders are cached."`
	RetryMin       time.Duration `yaml:"retry_min" default:"50ms" doc:"First pause between attempts."`
	RetryMax       time.Duration `yaml:"retry_max" default:"1s" doc:"Longest pause between attempts."`
	Topics         Topics        `yaml:"topics" doc:"How setup --create-topics makes topics."`
}

// Topics says how topics are made.
type Topics struct {
	Names       []string `yaml:"names" doc:"Topics that setup --create-topics makes and check looks at, beside those without {column} in the template."`
	Partitions  int      `yaml:"partitions" default:"6" doc:"Partitions of a topic that is made."`
	Replication int      `yaml:"replication" default:"-1" doc:"Replication factor of a topic that is made; -1 takes the broker's default."`
}

// TLS to the brokers.
type TLS struct {
	Enabled    bool   `yaml:"enabled" default:"false" doc:"Use TLS."`
	CAFile     string `yaml:"ca_file" doc:"File with the certificate authorities to trust; empty takes the system's."`
	CertFile   string `yaml:"cert_file" doc:"File with the client certificate, for mutual TLS; read again at each connect."`
	KeyFile    string `yaml:"key_file" doc:"File with the client key; read again at each connect."`
	ServerName string `yaml:"server_name" doc:"Name to verify in the brokers' certificates; empty takes the host."`
	Insecure   bool   `yaml:"insecure_skip_verify" default:"false" doc:"Do not verify the brokers' certificates. Anyone on the network can then read and change events."`
}

// SASL authentication to the brokers.
type SASL struct {
	Mechanism    string `yaml:"mechanism" default:"" doc:"plain, scram-sha-256 or scram-sha-512; empty for none."`
	Username     string `yaml:"username" doc:"User name."`
	Password     string `yaml:"password" secret:"true" doc:"Password."`
	PasswordFile string `yaml:"password_file" doc:"File with the password; read again at each connect."`
}

// Checkpoint says where the mark is kept.
type Checkpoint struct {
	Store       string `yaml:"store" default:"kafka" doc:"kafka, or file (for the null sink, tests and development)."`
	Topic       string `yaml:"topic" default:"cdc-relay-marks" doc:"Compacted topic with one partition for the marks; several relays may share it."`
	Replication int    `yaml:"replication" default:"-1" doc:"Replication factor with which setup makes that topic; -1 takes the broker's default."`
	File        string `yaml:"file" default:"cdc-relay.mark" doc:"File for the mark with store: file."`
}

// History says what a replay can go back to.
type History struct {
	MaxBytes     Bytes         `yaml:"max_bytes" default:"0" doc:"How many bytes of WAL behind what is published can be replayed at most; 0 for no such limit."`
	MaxAge       time.Duration `yaml:"max_age" default:"0s" doc:"How far back in time at most; 0s for no such limit. With both, the shorter range counts. Times are remembered in memory: after a start more is kept, until it has run for that long."`
	HardMaxBytes Bytes         `yaml:"hard_max_bytes" default:"0" doc:"When the server keeps more WAL than this for it alone, beyond what it keeps for the relay's slot, since a transaction that was open for long holds it back, the history slot is dropped; 0 takes twice max_bytes. Needed with max_age alone."`
	Slot         string        `yaml:"slot" default:"" doc:"Name of that slot; empty takes source.slot with _history behind it. setup makes it."`
}

// On tells whether a history is kept.
func (h History) On() bool { return h.MaxBytes > 0 || h.MaxAge > 0 }

// HardLimit is hard_max_bytes, or what it is when it is not given.
func (h History) HardLimit() Bytes {
	if h.HardMaxBytes == 0 {
		return 2 * h.MaxBytes
	}
	return h.HardMaxBytes
}

// HistorySlot is the name of the history slot, also where none is kept.
func (c Config) HistorySlot() string {
	if c.History.Slot != "" {
		return c.History.Slot
	}
	return c.Source.Slot + "_history"
}

// Retention says what becomes of published rows.
type Retention struct {
	Mode              string        `yaml:"mode" default:"none" doc:"none: rows stay. delete: published rows are deleted; the role needs SELECT and DELETE on the outbox tables. drop_partitions: old partitions are dropped as a whole, and future ones made; the tables are partitioned by range of the column, and the role is their owner or a member of it."`
	After             time.Duration `yaml:"after" default:"24h" doc:"Age from which a published row is deleted, by the server's clock; a partition is dropped when all its rows are as old."`
	Column            string        `yaml:"column" default:"" doc:"Column of each outbox table that tells a row's age (timestamptz, timestamp or date as UTC, or integer milliseconds), best with an index; empty string for columns.timestamp of the table."`
	Interval          time.Duration `yaml:"interval" default:"1m" doc:"Pause between two rounds when little is left to delete."`
	BatchRows         int           `yaml:"batch_rows" default:"1000" doc:"Rows of one DELETE."`
	BatchPause        time.Duration `yaml:"batch_pause" default:"100ms" doc:"Pause after each DELETE, or each partition that was dropped."`
	LockTimeout       time.Duration `yaml:"lock_timeout" default:"1s" doc:"How long a DELETE waits for a row that somebody else has locked, and the detaching of a partition for its table, while those who insert wait behind it; the round then ends, and the rest stays until the next."`
	PartitionInterval time.Duration `yaml:"partition_interval" default:"24h" doc:"With drop_partitions: the time that a partition covers that the relay makes, counted from Monday, 2000-01-03, in UTC; 0s makes none."`
	PartitionAhead    int           `yaml:"partition_ahead" default:"3" doc:"With drop_partitions: how many partitions are kept ready after that of now."`
	PartitionName     string        `yaml:"partition_name" default:"{table}_{from}" doc:"With drop_partitions: name of a partition that the relay makes, in the schema of its table; {from} is where it begins, as 20060102 or 20060102_150405."`
}

// MarkRows says whether published rows are marked. It has nothing to do with the
// durable mark, which is under checkpoint.
type MarkRows struct {
	Column      string        `yaml:"column" default:"" doc:"Column of each outbox table that is set when a row is published, before its position is confirmed; empty string: no row is changed. The role needs SELECT on it and on the id, and UPDATE on it. Never with shadow topics: who reads the column would take the rows for published."`
	Value       string        `yaml:"value" default:"" doc:"What it is set to, as text that the column's type takes, such as completed."`
	BatchRows   int           `yaml:"batch_rows" default:"1000" doc:"Rows of one UPDATE."`
	LockTimeout time.Duration `yaml:"lock_timeout" default:"500ms" doc:"How long an UPDATE waits for a row that somebody else has locked; it is then tried again with fewer rows, and nothing behind that row is confirmed meanwhile. Shorter than the server's deadlock_timeout, so that the relay gives way."`
	MaxBytes    Bytes         `yaml:"max_bytes" default:"16MiB" doc:"Memory for the ids of rows that are published, or on their way, and not marked yet: 64 bytes each and the id. When it is full the relay stops reading. It also bounds how many rows are published past a halted record."`
}

// Relay holds budgets and limits.
type Relay struct {
	MaxInFlight     Bytes         `yaml:"max_in_flight_bytes" default:"64MiB" doc:"Memory for records that are not acked yet, with the client's copies. When it is full the relay stops reading; the slot then holds the rest."`
	MaxRowBytes     Bytes         `yaml:"max_row_bytes" default:"64MiB" doc:"A row or message larger than this stops the relay, naming its LSN."`
	MaxAheadTx      int           `yaml:"max_ahead_transactions" default:"1000000" doc:"How many transactions may be published past a halted record; a restart would repeat them."`
	MaxAheadWAL     Bytes         `yaml:"max_ahead_wal_bytes" default:"1GiB" doc:"How many bytes of WAL may be published past a halted record; a restart would repeat them."`
	SaveInterval    time.Duration `yaml:"save_interval" default:"100ms" doc:"Shortest pause between two saves of the mark while events flow; as much again for each 32 partitions of the outbox tables, whose names are in each mark."`
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout" default:"20s" doc:"How long a clean stop may take; past it the relay exits with 1 and says what will repeat."`
	StandbyInterval time.Duration `yaml:"standby_interval" default:"1s" doc:"How often a standby instance looks whether the slot is free."`
	ReconnectMin    time.Duration `yaml:"reconnect_min" default:"100ms" doc:"First pause before connecting to the server again."`
	ReconnectMax    time.Duration `yaml:"reconnect_max" default:"5s" doc:"Longest pause before connecting to the server again."`
	StallTimeout    time.Duration `yaml:"stall_timeout" default:"30s" doc:"Not ready when events wait and none was acked for this long."`
}

// Admin is the HTTP server.
type Admin struct {
	Listen string `yaml:"listen" default:"127.0.0.1:9464" doc:"Address for /livez, /readyz and /metrics; empty turns it off."`
}

// Log configures logging.
type Log struct {
	Level  string `yaml:"level" default:"info" doc:"debug, info, warn or error."`
	Format string `yaml:"format" default:"json" doc:"json or console."`
}
