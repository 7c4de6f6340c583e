package decoder_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// capture is what a real server sent for a fixed scenario, with what its SQL
// and test_decoding said about the same.
type capture struct {
	Server       string        `json:"server"`
	Frames       []frame       `json:"frames"`
	Tables       []printed     `json:"tables"`
	Transactions []transaction `json:"transactions"`
}

// frame is one pgoutput message, in hex, with the LSN that the server gave it.
type frame struct {
	LSN  string `json:"lsn"`
	Data string `json:"data"`
}

func (f frame) bytes(tb testing.TB) []byte {
	b, err := hex.DecodeString(f.Data)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// printed is a table as a SELECT printed it, in order of insertion.
type printed struct {
	Name    string      `json:"name"`
	Columns []string    `json:"columns"`
	Rows    [][]*string `json:"rows"`
}

// transaction is what test_decoding told about one.
type transaction struct {
	XID     uint32    `json:"xid"`
	Time    time.Time `json:"time"`
	Inserts int       `json:"inserts"`
}

// captures returns every captured server's stream.
func captures(tb testing.TB) []capture {
	tb.Helper()
	paths, err := filepath.Glob("testdata/capture-*.json")
	if err != nil || len(paths) == 0 {
		tb.Fatalf("no capture in testdata: %v", err)
	}
	var all []capture
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		var c capture
		if err := json.Unmarshal(b, &c); err != nil {
			tb.Fatalf("%s: %v", path, err)
		}
		all = append(all, c)
	}
	return all
}

// seeds returns the captured frames of one message type; all of them for 0.
func seeds(tb testing.TB, kind byte) [][]byte {
	tb.Helper()
	var out [][]byte
	seen := make(map[string]bool)
	for _, c := range captures(tb) {
		for _, f := range c.Frames {
			b := f.bytes(tb)
			if (kind != 0 && b[0] != kind) || seen[f.Data] {
				continue
			}
			seen[f.Data] = true
			out = append(out, b)
		}
	}
	if len(out) == 0 {
		tb.Fatalf("no captured message %q", kind)
	}
	return out
}

// scenario runs between the creation of the slots and the capture; one simple
// query each, so that every line outside a BEGIN is a transaction.
var scenario = []string{
	`INSERT INTO every_type (b) VALUES (NULL)`,
	`INSERT INTO every_type VALUES (DEFAULT, true, -32768, 2147483647, -9223372036854775808, 1.1, 0.1, 12345678901234567890.123456789,
	  'naïve ☃ 𝄞', 'varchar', 'pad', 'n', '\x00ff10', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{"b": 1,  "a": [1.0, null], "a": 2}',
	  '{"b": 1,  "a": [1.0, null], "a": 2}', '<a>1</a>', '2024-02-29', '23:59:59.999999', '12:00:00+05:30', '2024-02-29 12:34:56.789',
	  '2024-02-29 12:34:56.789+02', '1 year 2 days 03:04:05', '{1,NULL,3}', ARRAY['a,b', '"', NULL], '10.0.0.1/8', '[1,10)', 'b101',
	  'happy', (1, 'x,"y'), 'ab', '\xdeadbeef', '2001-02-03 04:05:06+00')`,
	`INSERT INTO every_type (t, ba, j, d, ts, tz) VALUES ('', '', '""', '0044-03-15 BC', '0044-03-15 01:02:03 BC', 'infinity')`,
	`INSERT INTO every_type (t, ba, d, ts, tz) VALUES (repeat('x', 5000), decode(repeat('00ff', 2000), 'hex'), '-infinity', '294276-12-31 23:59:59.999999', '4713-01-01 00:00:00+00 BC')`,
	`COPY events (k, v) FROM STDIN`, // its data is sent by capturing
	`BEGIN; INSERT INTO events (k, v) VALUES ('kept', '1'); SAVEPOINT a; INSERT INTO events (k, v) VALUES ('undone', '2');
	  ROLLBACK TO a; SAVEPOINT b; INSERT INTO events (k, v) VALUES ('released', '3'); RELEASE b; COMMIT`,
	`BEGIN; INSERT INTO events (k, v) VALUES ('rolled back', '4'); ROLLBACK`,
	// Too large for logical_decoding_work_mem: PostgreSQL 18 sends a stream abort.
	`BEGIN; INSERT INTO events (k, v) VALUES ('rolled back', '5'); SAVEPOINT a;
	  INSERT INTO events (k, v) SELECT 'undone', repeat('x', 100) FROM generate_series(1, 3000); ROLLBACK TO a; ROLLBACK`,
	`INSERT INTO events (k, v) SELECT 'k' || i % 3, NULL FROM generate_series(1, 20) i`,
	`ALTER TABLE events ADD COLUMN extra int DEFAULT 7`,
	`INSERT INTO events (k, v) VALUES ('after add', 'x')`,
	`BEGIN; INSERT INTO events (k, v) VALUES ('before drop', 'y'); ALTER TABLE events DROP COLUMN extra; INSERT INTO events (k, v) VALUES ('after drop', 'z'); COMMIT`,
	`INSERT INTO parts VALUES (1, 'low'), (150, 'high')`,
	`CREATE TABLE parts_c (v text, id int NOT NULL); ALTER TABLE parts ATTACH PARTITION parts_c FOR VALUES FROM (200) TO (300)`,
	`INSERT INTO parts VALUES (250, 'attached')`,
	`INSERT INTO "Quoted Schema"."Quoted ""Table""" VALUES (1, 'q')`,
	`SELECT pg_logical_emit_message(true, 'outbox', 'transactional ☃')`,
	`SELECT pg_logical_emit_message(false, 'outbox', 'at once')`,
	`SELECT pg_logical_emit_message(true, '', '')`,
	`INSERT INTO changing VALUES (1, 'a', repeat(md5('1'), 400)), (2, 'b', '')`,
	`UPDATE changing SET v = 'c' WHERE id = 1`,
	`UPDATE changing SET id = 3 WHERE id = 2`,
	`DELETE FROM changing WHERE id = 3`,
	`TRUNCATE changing RESTART IDENTITY CASCADE`,
}

const schema = `
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN short AS text CHECK (length(value) < 5);
CREATE DOMAIN blob AS bytea;
CREATE DOMAIN moment AS timestamptz;
CREATE TABLE every_type (
  id serial PRIMARY KEY, b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric, t text, vc varchar(20), c char(8),
  nm name, ba bytea, u uuid, j json, jb jsonb, x xml, d date, ti time, tiz timetz, ts timestamp, tz timestamptz, iv interval,
  ia int[], ta text[], ip inet, r int4range, bits bit(3), e mood, p pair, dom short, domba blob, domts moment);
CREATE TABLE events (id serial PRIMARY KEY, k text, v text);
CREATE TABLE parts (id int NOT NULL, v text) PARTITION BY RANGE (id);
CREATE TABLE parts_a PARTITION OF parts FOR VALUES FROM (0) TO (100);
CREATE TABLE parts_b PARTITION OF parts FOR VALUES FROM (100) TO (200);
CREATE SCHEMA "Quoted Schema";
CREATE TABLE "Quoted Schema"."Quoted ""Table""" (id int PRIMARY KEY, "Column ☃" text);
CREATE TABLE changing (id int PRIMARY KEY, v text, big text);
ALTER TABLE changing ALTER big SET STORAGE EXTERNAL;
CREATE PUBLICATION captured FOR ALL TABLES WITH (publish_via_partition_root = true);`

// TestCapture_FromServer writes testdata/capture-<major>.json. It runs only
// when CDC_RELAY_CAPTURE is the URL of a maintenance database of a server with
// wal_level=logical, in which it creates and drops a database of its own.
func TestCapture_FromServer(t *testing.T) {
	url := os.Getenv("CDC_RELAY_CAPTURE")
	if url == "" {
		t.Skip("CDC_RELAY_CAPTURE is not set")
	}
	ctx := context.Background()
	admin := connect(t, url, "")
	run(t, admin, `DROP DATABASE IF EXISTS decoder_capture`)
	run(t, admin, `CREATE DATABASE decoder_capture`)
	conn := connect(t, url, "decoder_capture")
	run(t, conn, schema)
	for _, plugin := range []string{"pgoutput", "test_decoding"} {
		run(t, conn, fmt.Sprintf(`SELECT pg_create_logical_replication_slot('capture_%s', '%s')`, plugin, plugin))
	}
	for _, sql := range scenario {
		if !strings.HasPrefix(sql, "COPY") {
			run(t, conn, sql)
			continue
		}
		if _, err := conn.CopyFrom(ctx, strings.NewReader("k\tcopied 1\n\\N\tcopied 2\nk\t\\N\n"), sql); err != nil {
			t.Fatal(err)
		}
	}
	c := capture{Server: conn.ParameterStatus("server_version")}
	for _, row := range run(t, conn, `SELECT lsn, encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('capture_pgoutput',
	  NULL, NULL, 'proto_version', '1', 'publication_names', 'captured', 'messages', 'true')`) {
		c.Frames = append(c.Frames, frame{LSN: *row[0], Data: *row[1]})
	}
	c.Transactions = transactions(t, conn)
	for _, name := range []string{`every_type`, `events`, `parts`, `"Quoted Schema"."Quoted ""Table"""`} {
		p := printed{Name: name}
		for _, row := range run(t, conn, fmt.Sprintf(`SELECT attname FROM pg_attribute WHERE attrelid = '%s'::regclass
		  AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, name)) {
			p.Columns = append(p.Columns, *row[0])
		}
		p.Rows = run(t, conn, `SELECT * FROM `+name+` ORDER BY id`)
		c.Tables = append(c.Tables, p)
	}
	run(t, conn, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name LIKE 'capture_%'`)
	if err := conn.Close(ctx); err != nil {
		t.Fatal(err)
	}
	run(t, admin, `DROP DATABASE decoder_capture`)
	out, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	major, _, _ := strings.Cut(c.Server, ".")
	if err := os.WriteFile("testdata/capture-"+major+".json", append(out, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

func connect(t *testing.T, url, database string) *pgconn.PgConn {
	t.Helper()
	cfg, err := pgconn.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if database != "" {
		cfg.Database = database
	}
	for k, v := range map[string]string{
		"client_encoding": "UTF8", "datestyle": "ISO", "timezone": "UTC", "bytea_output": "hex",
		"intervalstyle": "postgres", "extra_float_digits": "1", "logical_decoding_work_mem": "64kB",
	} {
		cfg.RuntimeParams[k] = v
	}
	conn, err := pgconn.ConnectConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// run returns the rows in the types' output form, nil for NULL.
func run(t *testing.T, conn *pgconn.PgConn, sql string) [][]*string {
	t.Helper()
	results, err := conn.Exec(context.Background(), sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	var out [][]*string
	for _, result := range results {
		for _, row := range result.Rows {
			var texts []*string
			for _, v := range row {
				if v == nil {
					texts = append(texts, nil)
					continue
				}
				s := string(v)
				texts = append(texts, &s)
			}
			out = append(out, texts)
		}
	}
	return out
}

// transactions reads test_decoding's text; those without an insert into a table
// are left out.
func transactions(t *testing.T, conn *pgconn.PgConn) []transaction {
	t.Helper()
	var out []transaction
	var now transaction
	for _, row := range run(t, conn, `SELECT data FROM pg_logical_slot_peek_changes('capture_test_decoding', NULL, NULL,
	  'include-timestamp', 'true', 'skip-empty-xacts', 'true')`) {
		line := *row[0]
		fields := strings.Fields(line)
		switch {
		case fields[0] == "BEGIN":
			xid, err := strconv.ParseUint(fields[1], 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			now = transaction{XID: uint32(xid)}
		case fields[0] == "COMMIT":
			_, at, _ := strings.Cut(line, "(at ")
			stamp, err := time.Parse("2006-01-02 15:04:05.999999-07)", at)
			if err != nil {
				t.Fatal(err)
			}
			now.Time = stamp.UTC()
			if now.Inserts > 0 {
				out = append(out, now)
			}
		case strings.Contains(line, ": INSERT: "):
			now.Inserts++
		}
	}
	return out
}
