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
	}
	maps.Copy(p, o.Profile.producer())
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

		"tombstones.on.delete": "false",

		"transforms":             "outbox",
		"transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.route.topic.replacement": o.Topic,
		"transforms.outbox.table.field.event.key":   "aggregateid",
	}
	maps.Copy(p, o.Profile.queue())
	maps.Copy(p, o.Connector)
	return p
}

// Profile is a set of documented settings, each the best that was found by measuring for what it is named after.
type Profile int

const (
	// Throughput is for draining a backlog: large batches everywhere. It costs some milliseconds of latency.
	Throughput Profile = iota
	// Latency is for a steady stream: nothing waits for company. It costs processor time, and a fifth of the drain rate.
	Latency
	// OutOfTheBox leaves all that is tuned to the defaults of Debezium and Kafka Connect: a poll every 500 ms.
	OutOfTheBox
)

func (p Profile) String() string {
	switch p {
	case Throughput:
		return "throughput"
	case Latency:
		return "latency"
	case OutOfTheBox:
		return "out-of-the-box"
	default:
		return "Profile(" + strconv.Itoa(int(p)) + ")"
	}
}

// producer is the part of the profile that goes to the worker's producer.
func (p Profile) producer() map[string]string {
	if p == OutOfTheBox {
		return nil
	}
	linger := "5"
	if p == Latency {
		linger = "0"
	}
	return map[string]string{
		"producer.linger.ms":     linger,
		"producer.batch.size":    "262144",
		"producer.buffer.memory": "67108864",
		// A worker's own default is one request at a time; with idempotence the order holds for five.
		"producer.enable.idempotence":                    "true",
		"producer.max.in.flight.requests.per.connection": "5",
	}
}

// queue is the part of the profile that sizes the connector's queue. It hands over a batch that is full, or what it has when
// poll.interval.ms has passed; the reader of the stream naps as long when nothing came. So the interval is most of the latency
// at a low rate and matters little to a full queue, but a very short one makes many small batches.
func (p Profile) queue() map[string]string {
	if p == OutOfTheBox {
		return nil
	}
	interval := "5"
	if p == Latency {
		interval = "1"
	}
	return map[string]string{
		"max.batch.size":   "10240",
		"max.queue.size":   "40960",
		"poll.interval.ms": interval,
	}
}

// jvmFlags chooses the collector; compilation is the JVM's default, tiered. Kafka's own start script asks for G1 with short
// pauses. The parallel collector, which does nothing beside the program, drained a fifth more on two cores.
func (p Profile) jvmFlags() []string {
	if p == Throughput {
		return []string{"-server", "-XX:+UseParallelGC", "-Djava.awt.headless=true"}
	}
	return []string{"-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
		"-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"}
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
