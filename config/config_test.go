package config

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/route"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata/*.want")

func parse(t *testing.T, text string, env ...string) (Config, error) {
	t.Helper()
	return Parse("test.yaml", []byte(text), env, nil)
}

func mustParse(t *testing.T, text string, env ...string) Config {
	t.Helper()
	c, err := parse(t, text, env...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestLoad_ReportsEveryProblem compares the whole message of each broken file in
// testdata with the golden one beside it.
func TestLoad_ReportsEveryProblem(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no test files", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			_, err := Load(file, nil, nil)
			if err == nil {
				t.Fatal("no error")
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the message shows the secret:\n%s", err)
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".want"
			if *rewrite {
				if err := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, rerr := os.ReadFile(golden)
			if rerr != nil {
				t.Fatal(rerr)
			}
			if got := err.Error() + "\n"; got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func TestLoad_EmptyFileIsTheDefaults(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n", "---\n", "---\n# nothing\n", "source:\nkafka:\n  tls:\n"} {
		c, err := parse(t, text)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if !reflect.DeepEqual(c, Default()) {
			t.Errorf("%q differs from the defaults: %+v", text, c)
		}
	}
}

func TestExample_LoadsAndEqualsTheDefaults(t *testing.T) {
	var b bytes.Buffer
	if err := Example(&b); err != nil {
		t.Fatal(err)
	}
	c := mustParse(t, b.String())
	if !reflect.DeepEqual(c, Default()) {
		t.Errorf("got %+v\nwant %+v", c, Default())
	}
	walk(reflect.ValueOf(&c).Elem(), "", func(f field) {
		if !strings.Contains(b.String(), f.name+": ") {
			t.Errorf("%s is missing", f.path)
		}
		if f.doc == "" || !strings.HasSuffix(f.doc, ".") {
			t.Errorf("%s: doc must be a sentence: %q", f.path, f.doc)
		}
	})
	for i, l := range strings.Split(b.String(), "\n") {
		if len(l) > 110 {
			t.Errorf("line %d has %d columns", i+1, len(l))
		}
	}
}

func TestDoc_CommittedFileIsCurrent(t *testing.T) {
	var b bytes.Buffer
	if err := Doc(&b); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, b.Bytes()) {
		t.Error("docs/configuration.md is stale; run: go generate ./config")
	}
}

func TestPrint_MasksSecretsAndLoadsAgain(t *testing.T) {
	text := `
source: {url: "postgres://u:hunter2@h/db?sslpassword=hunter2", slot: s1}
kafka:
  brokers: [a:1, b:2]
  sasl: {mechanism: plain, username: u, password: hunter2}
outbox:
  - {table: a.b, topic: t, columns: {id: i, key: k}, headers: {x: y, a: b}}
  - {table: c, columns: {id: i, key: "", topic: t}}
`
	c := mustParse(t, text)
	var b bytes.Buffer
	if err := Print(&b, c); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "hunter2") {
		t.Errorf("shows the secret:\n%s", b.String())
	}
	again := mustParse(t, b.String())
	again.Source.URL, again.Kafka.SASL.Password = c.Source.URL, c.Kafka.SASL.Password
	if !reflect.DeepEqual(again, c) {
		t.Errorf("got %+v\nwant %+v", again, c)
	}
	b.Reset()
	c.Source.URL = `host=h password='hunter2 x' dbname=d`
	if err := Print(&b, c); err != nil || strings.Contains(b.String(), "hunter2") {
		t.Errorf("shows the secret:\n%s", b.String())
	}
}

func TestEnv_GivesEveryKey(t *testing.T) {
	c := Default()
	var env []string
	walk(reflect.ValueOf(&c).Elem(), "", func(f field) {
		text := f.deflt
		if text == "" && (f.value.Kind() == reflect.Bool || f.value.Kind() == reflect.Int) {
			t.Errorf("%s needs a default", f.path)
		}
		env = append(env, f.env()+"="+text)
	})
	got := mustParse(t, "", env...)
	if !reflect.DeepEqual(got, Default()) {
		t.Errorf("got %+v\nwant %+v", got, Default())
	}
}

func TestEnv_WinsOverTheFile(t *testing.T) {
	c := mustParse(t, "kafka: {brokers: [a:1]}\nrelay: {save_interval: 1s}\noutbox: [{table: x}]",
		"CDC_RELAY_KAFKA_BROKERS=b:2, c:3",
		"CDC_RELAY_RELAY_SAVE_INTERVAL=250ms",
		"CDC_RELAY_RELAY_MAX_IN_FLIGHT_BYTES=32MiB",
		"CDC_RELAY_OUTBOX_HEADERS=tenant=x-tenant,trace=traceparent",
		"CDC_RELAY_OUTBOX_1_TABLE=shop.events",
		"CDC_RELAY_OUTBOX_1_TOPIC=shop",
		"CDC_RELAY_CONFIG=elsewhere.yaml",
		"CDC_RELAY_TEST_POSTGRES=x",
		"CDC_RELAY_SERVICE_HOST=10.0.0.1",
		"CDC_RELAY_PORT=tcp://10.0.0.1:9464",
		"CDC_RELAY_PORT_9464_TCP_ADDR=10.0.0.1",
		"OTHER=1")
	if !reflect.DeepEqual(c.Kafka.Brokers, []string{"b:2", "c:3"}) || c.Relay.SaveInterval != 250*time.Millisecond ||
		c.Relay.MaxInFlight != 32<<20 {
		t.Errorf("%+v", c)
	}
	if len(c.Outbox) != 2 || c.Outbox[0].Headers["trace"] != "traceparent" || c.Outbox[0].Table != "x" ||
		c.Outbox[1].Table != "shop.events" || c.Outbox[1].Topic != "shop" {
		t.Errorf("%+v", c.Outbox)
	}
}

func TestEnv_ReportsProblems(t *testing.T) {
	_, err := parse(t, "", "CDC_RELAY_SOURCE_HOTS=x", "CDC_RELAY_SUORCE_PORT=1", "CDC_RELAY_ADMIN_LISTEN=nowhere",
		"CDC_RELAY_SOURCE_PORT=hunter", "CDC_RELAY_OUTBOX_TABLE=a", "CDC_RELAY_OUTBOX_0_TABLE=b",
		"CDC_RELAY_OUTBOX_3_TABLE=c", "CDC_RELAY_SOURCE_URL=postgres://u:hunter2@[x")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"CDC_RELAY_SOURCE_HOTS: unknown variable; did you mean CDC_RELAY_SOURCE_HOST?",
		"CDC_RELAY_SUORCE_PORT: unknown variable; did you mean CDC_RELAY_SOURCE_PORT?",
		"CDC_RELAY_ADMIN_LISTEN: admin.listen: ",
		`CDC_RELAY_SOURCE_PORT: source.port: "hunter" is not a whole number`,
		"CDC_RELAY_OUTBOX_TABLE: given twice",
		"CDC_RELAY_OUTBOX_3_TABLE: unknown variable",
		"CDC_RELAY_SOURCE_URL: source.url: is not a valid connection URL",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%s", want, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("shows the secret:\n%s", err)
	}
}

func TestOverrides_WinOverTheEnvironment(t *testing.T) {
	c, err := Parse("", nil, []string{"CDC_RELAY_LOG_LEVEL=warn"}, map[string]string{"log.level": "debug", "outbox[0].topic": "t"})
	if err != nil || c.Log.Level != "debug" || c.Outbox[0].Topic != "t" {
		t.Errorf("%v %+v", err, c)
	}
	if _, err = Parse("", nil, nil, map[string]string{"log.levle": "debug"}); err == nil || !strings.Contains(err.Error(), "did you mean log.level?") {
		t.Error(err)
	}
}

func TestOutbox_Shape(t *testing.T) {
	debezium := OutboxColumns{ID: "id", Key: "aggregateid", Type: "type", Payload: "payload"}
	for name, tc := range map[string]struct {
		text  string
		cols  OutboxColumns
		topic string
	}{
		"nothing given":    {"{table: x}", debezium, "outbox.event.{aggregatetype}"},
		"own, three lines": {"{table: x, topic: orders, columns: {id: event_id, key: order_id}}", OutboxColumns{ID: "event_id", Key: "order_id", Payload: "payload"}, "orders"},
		"own, topic column": {"{columns: {topic: topic, key: partition_key, id: idempotency_key}}",
			OutboxColumns{ID: "idempotency_key", Key: "partition_key", Payload: "payload", Topic: "topic"}, ""},
		"own, with type":          {"{topic: o, columns: {key: k, type: kind}}", OutboxColumns{ID: "id", Key: "k", Type: "kind", Payload: "payload"}, "o"},
		"own, no key":             {"{topic: o, columns: {key: ''}}", OutboxColumns{ID: "id", Payload: "payload"}, "o"},
		"default, fixed topic":    {"{topic: o}", debezium, "o"},
		"default, renamed":        {"{columns: {payload: body}}", OutboxColumns{ID: "id", Key: "aggregateid", Type: "type", Payload: "body"}, "outbox.event.{aggregatetype}"},
		"default, other prefix":   {"{topic: 'x.{aggregatetype}', columns: {payload: body}}", OutboxColumns{ID: "id", Key: "aggregateid", Type: "type", Payload: "body"}, "x.{aggregatetype}"},
		"default, plus timestamp": {"{topic: o, columns: {timestamp: at}}", OutboxColumns{ID: "id", Key: "aggregateid", Type: "type", Payload: "payload", Timestamp: "at"}, "o"},
	} {
		t.Run(name, func(t *testing.T) {
			c := mustParse(t, "outbox: ["+tc.text+"]")
			if o := c.Outbox[0]; o.Columns != tc.cols || o.Topic != tc.topic {
				t.Errorf("got %+v %q\nwant %+v %q", o.Columns, o.Topic, tc.cols, tc.topic)
			}
		})
	}
	_, err := parse(t, "outbox: [{topic: o, columns: {id: event_id}}]")
	if err == nil || !strings.Contains(err.Error(), "outbox[0].columns.key: name the column with the record key") {
		t.Error("a table of its own shape without a word about its key:", err)
	}
}

func TestOutbox_Route(t *testing.T) {
	c := mustParse(t, `outbox: [{table: '"my.schema"."a""b"', headers: {z: h1, a: h2}}]`)
	r := c.Tables()[0]
	if r.Schema != "my.schema" || r.Name != `a"b` || len(r.Headers) != 2 || r.Headers[0].Column != "a" || r.TypeHeader != "eventType" || !r.Position {
		t.Errorf("%+v", r)
	}
}

func TestMessages_AreOffWithoutAPrefix(t *testing.T) {
	if m := Default().LogicalMessages(); m != nil {
		t.Errorf("%+v", m)
	}
	c := mustParse(t, "outbox: []\nmessages: {prefix: outbox, topic: '{topic}'}\ncheckpoint: {topic: marks}")
	want := route.Messages{Prefix: "outbox", Topic: "{topic}", Reserved: "marks", IDHeader: "id", TypeHeader: "eventType", Position: true, Layout: route.Layout{Format: route.FormatRaw}}
	if m := c.LogicalMessages(); m == nil || *m != want || len(c.Tables()) != 0 {
		t.Errorf("%+v, %d tables", m, len(c.Tables()))
	}
	c = mustParse(t, "", "CDC_RELAY_MESSAGES_PREFIX=my outbox", "CDC_RELAY_MESSAGES_POSITION_HEADERS=false")
	if m := c.LogicalMessages(); m == nil || m.Prefix != "my outbox" || m.Position || m.Topic != "outbox.event.{aggregatetype}" || len(c.Tables()) != 1 {
		t.Errorf("%+v", m)
	}
	var b bytes.Buffer
	if err := Print(&b, c); err != nil || !strings.Contains(b.String(), `prefix: "my outbox"`) {
		t.Errorf("%v\n%s", err, b.String())
	}
	if again := mustParse(t, b.String()); !reflect.DeepEqual(again, c) {
		t.Errorf("got %+v\nwant %+v", again, c)
	}
}

func TestDecode_AnchorsAndMergeKeys(t *testing.T) {
	c := mustParse(t, `
outbox:
  - &base
    table: a
    topic: t
    columns: &cols {id: i, key: k}
  - <<: *base
    table: b
  - table: c
    topic: &long |-
      multi
    columns: *cols
`)
	if len(c.Outbox) != 3 || c.Outbox[1].Table != "b" || c.Outbox[1].Topic != "t" || c.Outbox[1].Columns.Key != "k" ||
		c.Outbox[2].Topic != "multi" || c.Outbox[2].Columns.ID != "i" {
		t.Errorf("%+v", c.Outbox)
	}
}

func TestDecode_ForgivesWhatYAMLMakesOfText(t *testing.T) {
	c := mustParse(t, "sink: null\ncheckpoint: {store: file}\nkafka:\n  brokers: [kafka-1.example.com:9092, \"b:1\", c:2]\n")
	if c.Sink != "null" || !reflect.DeepEqual(c.Kafka.Brokers, []string{"kafka-1.example.com:9092", "b:1", "c:2"}) {
		t.Errorf("%q %q", c.Sink, c.Kafka.Brokers)
	}
	if _, err := parse(t, "kafka: {brokers: [a: 1]}"); err == nil {
		t.Error("a mapping passes for text")
	}
}

func TestBytes(t *testing.T) {
	for in, want := range map[string]Bytes{
		"0": 0, "1": 1, "64MiB": 64 << 20, "900KiB": 900 << 10, "1.5GiB": 3 << 29, "2 kB": 2000, "1gib": 1 << 30, "7B": 7,
	} {
		got, err := ParseBytes(in)
		if err != nil || got != want {
			t.Errorf("%s: %d, %v", in, got, err)
		}
		if again, err := ParseBytes(got.String()); err != nil || again != got {
			t.Errorf("%s: %s does not read back: %v", in, got, err)
		}
	}
	for _, in := range []string{"", "x", "MiB", "1.5", "64Mib2", "99999999999GiB", "12 parsecs", "NaNMiB"} {
		if got, err := ParseBytes(in); err == nil {
			t.Errorf("%q: %d", in, got)
		}
	}
}

func TestRetention_OfPartitions(t *testing.T) {
	c := mustParse(t, "retention: {mode: drop_partitions, column: at}")
	if r := c.Retention; !r.On() || !r.DropsPartitions() || r.PartitionInterval != 24*time.Hour || r.PartitionAhead != 3 || r.PartitionName != "{table}_{from}" {
		t.Errorf("%+v", r)
	}
	if r := mustParse(t, "retention: {mode: drop_partitions, column: at, partition_interval: 0s}").Retention; r.PartitionInterval != 0 {
		t.Errorf("%+v", r)
	}
	_, err := parse(t, "retention: {mode: drop_partitions, partition_interval: 1500ms, partition_ahead: 0, partition_name: '{table}'}\nsink: null\ncheckpoint: {store: file}\n")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"retention.column: needed with retention.mode: drop_partitions", "retention.partition_interval: 1.5s", "retention.partition_ahead: 0",
		"retention.partition_name: \"{table}\" must have {from}", "drop_partitions with sink: null"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%s", want, err)
		}
	}
}

func TestFormats(t *testing.T) {
	c := mustParse(t, "outbox: [{format: cloudevents, source: /shop, content_type: application/avro, columns: {aggregate: agg}, headers: {tenant: tenant, id2: id2}}, {table: b, format: json}, {table: c}]\n"+
		"messages: {prefix: p, format: cloudevents, source: /m}")
	tables := c.Tables()
	if a := tables[0]; a.Format != route.FormatCloudEvents || a.Source != "/shop" || a.ContentType != "application/avro" || a.Aggregate != "agg" || a.IDHeaderName() != "ce_id" {
		t.Errorf("%+v", a)
	}
	if tables[1].Format != route.FormatJSON || tables[2].Format != route.FormatRaw || c.LogicalMessages().Source != "/m" {
		t.Errorf("%+v, %+v", tables[1:], c.LogicalMessages())
	}
	var b bytes.Buffer
	if err := Print(&b, c); err != nil {
		t.Fatal(err)
	}
	if again := mustParse(t, b.String()); !reflect.DeepEqual(again, c) {
		t.Errorf("got %+v\nwant %+v", again, c)
	}
	const ce = "format: cloudevents, source: /s"
	for text, want := range map[string][]string{
		"outbox: [{format: avro}]":                                           {"outbox[0]", `format "avro" is not known`},
		"outbox: [{format: cloudevents}]":                                    {"outbox[0]", "needs a source"},
		"outbox: [{format: json, source: /s}]":                               {"outbox[0]", "of the format cloudevents alone"},
		"outbox: [{" + ce + ", columns: {type: ''}}]":                        {"outbox[0]", "no column is mapped as type"},
		"outbox: [{" + ce + ", id_header: id}]":                              {"outbox[0].id_header", "given with the format cloudevents", "ce_id"},
		"outbox: [{" + ce + ", type_header: kind}]":                          {"outbox[0].type_header", "given with the format cloudevents", "ce_type"},
		"outbox: [{" + ce + ", headers: {a: Trace-Id}}]":                     {"outbox[0]", "made of a-z and 0-9"},
		"outbox: [{" + ce + ", headers: {a: subject}}]":                      {"outbox[0]", "that the relay itself sets"},
		"outbox: [{" + ce + ", headers: {a: x, b: x}}]":                      {"outbox[0].headers.b", `"ce_x" is also`},
		"outbox: [{headers: {a: id}}]":                                       {"outbox[0].headers.a", `"id" is also`},
		"messages: {prefix: p, format: avro}":                                {"messages", `format "avro" is not known`},
		"messages: {prefix: p, format: cloudevents}":                         {"messages", "needs a source"},
		"messages: {prefix: p, " + ce + ", id_header: id}":                   {"messages.id_header", "given with the format cloudevents"},
		"messages: {prefix: p, " + ce + ", type_header: t}":                  {"messages.type_header", "given with the format cloudevents"},
		"outbox: [{" + ce + ", content_type: application/cloudevents+json}]": {"outbox[0]", "holds a whole event"},
	} {
		_, err := parse(t, text)
		for _, part := range want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v; want %q", text, err, part)
			}
		}
	}
	// Under another prefix than the relay's own, these names are free.
	for _, text := range []string{"headers: {a: lsn}", "headers: {a: eventtype}"} {
		mustParse(t, "outbox: [{"+ce+", "+text+"}]")
	}
	if _, err := parse(t, "", "CDC_RELAY_MESSAGES_PREFIX=p", "CDC_RELAY_MESSAGES_FORMAT=cloudevents", "CDC_RELAY_MESSAGES_SOURCE=/s", "CDC_RELAY_MESSAGES_ID_HEADER=id"); err == nil || !strings.Contains(err.Error(), "given with the format") {
		t.Errorf("an id header from the environment: %v", err)
	}
}
