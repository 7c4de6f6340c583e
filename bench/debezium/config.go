package debezium

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const connectorName = "outbox"

// workerProperties is the file of the Connect worker. Its producer is the one that the connector writes with.
func (o *Options) workerProperties(restPort int, offsets string) map[string]string {
	p := map[string]string{
		"bootstrap.servers":            o.Bootstrap,
		"listeners":                    "http://127.0.0.1:" + strconv.Itoa(restPort),
		"offset.storage.file.filename": offsets,
		// How often the position is stored and, through it, the slot confirmed.
		"offset.flush.interval.ms": "10000",
		// Bytes as they are: no schema, no JSON envelope.
		"key.converter":    "org.apache.kafka.connect.storage.StringConverter",
		"value.converter":  "org.apache.kafka.connect.storage.StringConverter",
		"header.converter": "org.apache.kafka.connect.storage.StringConverter",
		// The connector is on the class path; the worker need not look further for it.
		"plugin.discovery": "service_load",

		"producer.acks":             "all",
		"producer.compression.type": "none",
		"producer.linger.ms":        "0",
		"producer.batch.size":       "262144",
		"producer.buffer.memory":    "67108864",
		// A worker's own default is one request at a time; with idempotence the order holds for five.
		"producer.enable.idempotence":                    "true",
		"producer.max.in.flight.requests.per.connection": "5",
	}
	maps.Copy(p, o.Worker)
	return p
}

// connectorProperties is the file of the connector: Debezium for PostgreSQL, with the outbox event router.
func (o *Options) connectorProperties() map[string]string {
	p := map[string]string{
		"name":            connectorName,
		"connector.class": "io.debezium.connector.postgresql.PostgresConnector",
		"tasks.max":       "1",

		"database.hostname":  o.Host,
		"database.port":      strconv.Itoa(o.Port),
		"database.user":      o.User,
		"database.password":  o.Password,
		"database.dbname":    o.Database,
		"topic.prefix":       "bench",
		"table.include.list": o.Table,

		"plugin.name":                 "pgoutput",
		"slot.name":                   o.Slot,
		"slot.drop.on.stop":           "false",
		"publication.name":            o.Publication,
		"publication.autocreate.mode": "disabled",
		// Without a stored offset this streams from the slot's own position, so the backlog comes first.
		"snapshot.mode": "no_data",

		// The queue hands over a batch that is full, or what it has when poll.interval.ms has passed. A short interval is
		// thus good for latency and costs a full queue nothing.
		"max.batch.size":   "2048",
		"max.queue.size":   "8192",
		"poll.interval.ms": "5",

		"tombstones.on.delete": "false",

		"transforms":             "outbox",
		"transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.route.topic.replacement": o.Topic,
		"transforms.outbox.table.field.event.key":   "aggregateid",
	}
	maps.Copy(p, o.Connector)
	return p
}

// propertiesFile is p in the format of Java's properties, sorted.
func propertiesFile(p map[string]string) string {
	// A leading space would be lost; the rest would be read as an escape or the end of the line.
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`, " ", `\ `)
	var s strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&s, "%s=%s\n", k, escape.Replace(p[k]))
	}
	return s.String()
}

const log4j2 = `rootLogger.level = warn
rootLogger.appenderRef.out.ref = OUT
appender.out.type = Console
appender.out.name = OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
logger.debezium.name = io.debezium
logger.debezium.level = info
`
