package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/check"
)

// cli runs the command line in an empty directory and environment.
func cli(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{env: env, in: strings.NewReader(""), out: &out, err: &errs, exit: func(int) { t.Error("left at once") }}
	code = a.main(args)
	return code, out.String(), errs.String()
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCLI_ExitCodes(t *testing.T) {
	broken := file(t, "source:\n  hots: x\nsink: kafak\n")
	away := file(t, "source: {url: 'postgres://u:hunter2@127.0.0.1:1/d?sslmode=disable'}\nkafka: {brokers: ['127.0.0.1:1']}\nadmin: {listen: ''}\n")
	nowhere := file(t, "source: {host: 127.0.0.1, port: 1}\nkafka: {brokers: ['127.0.0.1:1']}\nadmin: {listen: ''}\n")
	alone := file(t, "source: {host: 127.0.0.1, port: 1, database: d}\nkafka: {brokers: ['127.0.0.1:1']}\nadmin: {listen: ''}\noutbox: []\nmessages: {prefix: outbox}\n")
	noCA := file(t, "source: {database: d}\nkafka: {tls: {enabled: true, ca_file: "+broken+"}}\n")
	for _, tc := range []struct {
		args   []string
		env    []string
		code   int
		stdout string
		stderr string
	}{
		{args: nil, code: 0, stdout: "Exit codes:"},
		{args: []string{"--help"}, code: 0, stdout: "Available Commands:"},
		{args: []string{"bogus"}, code: 2, stderr: `unknown command "bogus"`},
		{args: []string{"setpu"}, code: 2, stderr: "did you mean setup?"},
		{args: []string{"run", "--bogus"}, code: 2, stderr: "unknown flag: --bogus; see cdc-relay run --help"},
		{args: []string{"run", "extra"}, code: 2, stderr: "takes no argument"},
		{args: []string{"check", "--timeout", "x"}, code: 2, stderr: "invalid argument"},
		{args: []string{"check", "--timeout", "-1s"}, code: 2, stderr: "--timeout must be longer than 0"},
		{args: []string{"backfill"}, code: 2, stderr: "one of --all, --where and --give-up"},
		{args: []string{"backfill", "--all", "--where", "true"}, code: 2, stderr: "one of --all, --where and --give-up"},
		{args: []string{"backfill", "--where", " "}, code: 2, stderr: "--where is empty"},
		{args: []string{"backfill", "--all", "--closes-gaps"}, code: 2, stderr: "--closes-gaps goes with --where"},
		{args: []string{"backfill", "--all", "--config", nowhere, "--set", "source.database=d"}, code: 2, stderr: "name one with --order-by"},
		{args: []string{"backfill", "--all", "--table", "nope", "--config", nowhere, "--set", "source.database=d"}, code: 2, stderr: "the configuration has the tables public.outbox"},
		{args: []string{"backfill", "--all", "-c", alone}, code: 2, stderr: "no outbox table is configured, so that there are no rows to publish"},
		{args: []string{"verify", "-c", alone}, code: 2, stderr: "no outbox table is configured, so that there are no rows to compare"},
		{args: []string{"verify", "-c", alone, "--source", "history", "--since", "1h"}, code: 2, stderr: "of the history take --from and --to"},
		{args: []string{"verify", "-c", alone, "--from", "0/10"}, code: 2, stderr: "go with --source history"},
		{args: []string{"verify", "-c", alone, "--yes"}, code: 2, stderr: "--dry-run and --yes go with --repair"},
		{args: []string{"verify", "-c", alone, "--repair", "--json"}, code: 2, stderr: "--repair --json cannot ask"},
		{args: []string{"verify", "-c", alone, "--source", "wal"}, code: 2, stderr: "--source is table or history"},
		{args: []string{"replay", "--source", "table", "-c", alone, "--dry-run"}, code: 2, stderr: "needs an outbox table, and none is configured"},
		{args: []string{"replay", "--source", "table", "-c", nowhere, "--set", "source.database=d", "--dry-run", "--from", "2026-01-01T00:00Z"}, code: 2, stderr: "no column mapped as outbox[].columns.timestamp"},
		{args: []string{"replay", "--from", "0/10", "--to", "9999-01-01T00:00Z"}, code: 2, stderr: "is in the future"},
		{args: []string{"replay", "--from", "0/10", "--topic", "again.{", "-c", away, "--dry-run"}, code: 2, stderr: "--topic again.{ cannot be used"},
		{args: []string{"replay", "--from", "0/10", "--topic", "again.{nope}", "-c", alone, "--dry-run"}, code: 2, stderr: "--topic again.{nope} cannot be used"},
		{args: []string{"replay"}, code: 2, stderr: "--from takes the position"},
		{args: []string{"config", "bogus"}, code: 2, stderr: `unknown command "bogus"`},
		{args: []string{"config", "example"}, code: 0, stdout: "max_in_flight_bytes: 64MiB"},
		{args: []string{"config", "print", "--set", "log.level=debug"}, code: 0, stdout: `level: "debug"`},
		{args: []string{"config", "print", "--set", "log.level"}, code: 2, stderr: "--set takes key=value"},
		{args: []string{"config", "print", "--set", "log.levle=x"}, code: 2, stderr: "did you mean log.level?"},
		{args: []string{"config", "print"}, env: []string{"CDC_RELAY_LOG_LEVEL=warn"}, code: 0, stdout: `level: "warn"`},
		{args: []string{"config", "print"}, env: []string{"CDC_RELAY_LOG_LEVLE=warn"}, code: 2, stderr: "did you mean CDC_RELAY_LOG_LEVEL?"},
		{args: []string{"config", "print"}, env: []string{"CDC_RELAY_CONFIG=" + broken}, code: 2, stderr: "relay.yaml:2:3: source.hots: unknown key"},
		{args: []string{"config", "print", "--config", "/no/such/file"}, code: 2, stderr: "/no/such/file"},
		{args: []string{"config", "print", "-c", away}, code: 0, stdout: "postgres://u:***@127.0.0.1:1/d"},
		{args: []string{"version"}, code: 0, stdout: "cdc-relay "},
		{args: []string{"completion", "bash"}, code: 0, stdout: "__start_cdc-relay"},
		{args: []string{"run", "-c", broken}, code: 2, stderr: "2 problems"},
		{args: []string{"run", "-c", noCA, "--set", "log.format=console"}, code: 2, stderr: "relay.yaml"},
		{args: []string{"run", "-c", nowhere}, code: 2, stderr: "source.database: is not set; set it, source.url or PGDATABASE"},
		{args: []string{"check", "-c", nowhere}, code: 2, stderr: "source.database: is not set"},
		{args: []string{"status", "-c", nowhere}, code: 2, stderr: "source.database: is not set"},
		{args: []string{"setup", "-c", nowhere}, code: 2, stderr: "source.database: is not set"},
		{args: []string{"adopt", "-c", nowhere, "--lsn", "0/10"}, code: 2, stderr: "source.database: is not set"},
		{args: []string{"config", "print", "-c", nowhere}, code: 0, stdout: `database: ""`},
		{args: []string{"setup", "-c", nowhere, "--dry-run"}, code: 0, stdout: "-- Run in database DATABASE,"},
		{args: []string{"setup", "-c", broken}, code: 2, stderr: "2 problems"},
		{args: []string{"setup", "-c", away}, code: 1, stderr: "127.0.0.1:1"},
		{args: []string{"setup", "-c", away, "--slot-timeout", "0s"}, code: 2, stderr: "--slot-timeout"},
		{args: []string{"setup", "-c", away, "--dry-run"}, code: 0, stdout: "CREATE PUBLICATION"},
		{args: []string{"setup", "-c", away, "--dry-run", "--create-topics", "--set", "kafka.topics.names=orders"}, code: 0,
			stdout: "Then `cdc-relay setup --config " + away + " --existing-slot --create-topics` saves"},
		{args: []string{"setup", "-c", away, "--dry-run", "--create-topics", "--set", "kafka.topics.names=orders"}, code: 0,
			stdout: "--   cdc-relay-marks: 1 partition, cleanup.policy=compact (the marks)\n--   orders: 6 partitions\n"},
		{args: []string{"adopt", "--help"}, code: 0, stdout: "SELECT confirmed_flush_lsn FROM pg_replication_slots"},
		{args: []string{"adopt", "-c", away}, code: 2, stderr: "--lsn takes a position"},
		{args: []string{"adopt", "-c", away, "--lsn", "0/0"}, code: 2, stderr: "--lsn takes a position"},
		{args: []string{"adopt", "-c", away, "--lsn", "0/16B374800"}, code: 2, stderr: "--lsn takes a position"}, // a digit too many
		{args: []string{"adopt", "-c", away, "--lsn", "0/10"}, code: 1, stderr: "127.0.0.1:1"},
		{args: []string{"replay", "-c", away}, code: 2, stderr: "--from takes the position or the time"},
		{args: []string{"replay", "-c", away, "--from", "noon"}, code: 2, stderr: "nor a time with its zone"},
		{args: []string{"replay", "-c", away, "--from", "0/20", "--to", "0/20"}, code: 2, stderr: "the range is empty"},
		{args: []string{"replay", "-c", away, "--from", "0/20", "--topic", "cdc-relay-marks"}, code: 2, stderr: "holds the marks"},
		{args: []string{"replay", "-c", away, "--from", "0/20", "--dry-run"}, code: 1, stderr: "127.0.0.1:1"},
		{args: []string{"check", "-c", away, "--timeout", "2s"}, code: 1, stdout: "FAIL  database"},
		{args: []string{"verify", "-c", nowhere}, code: 2, stderr: "source.database: is not set"},
		{args: []string{"verify", "-c", away}, code: 1, stderr: "127.0.0.1:1"},
		{args: []string{"verify", "-c", away, "--wait", "0s"}, code: 2, stderr: "--wait must be longer than 0"},
		{args: []string{"verify", "-c", away, "--since", "yesterday"}, code: 2, stderr: "--since takes a time, as 2026-01-31T18:00:00Z"},
		{args: []string{"verify", "-c", away, "--since", "24h"}, code: 2, stderr: "public.outbox has no column mapped as outbox[].columns.timestamp"},
		{args: []string{"verify", "-c", away, "--since", "24h", "--until", "2020-01-01", "--set", "outbox[0].columns.timestamp=at"}, code: 2,
			stderr: "must be later than --since"},
		{args: []string{"verify", "-c", away, "--set", "sink=null", "--set", "checkpoint.store=file"}, code: 2, stderr: "nothing is published that could be verified"},
		{args: []string{"status", "-c", away, "--timeout", "2s"}, code: 1, stdout: "problem"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			t.Chdir(t.TempDir())
			code, stdout, stderr := cli(t, tc.env, tc.args...)
			if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", code, tc.code, stdout, stderr)
			}
			if strings.Contains(stdout+stderr, "hunter2") {
				t.Errorf("shows the secret:\n%s\n%s", stdout, stderr)
			}
			if code == 2 && (stdout != "" || strings.Count(stderr, "cdc-relay: ") != 1) {
				t.Errorf("an error is printed once, to standard error:\nstdout: %s\nstderr: %s", stdout, stderr)
			}
		})
	}
}

func TestCLI_FindsTheFileInTheDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile(defaultFile, []byte("log: {level: error}"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := cli(t, nil, "config", "print")
	if code != 0 || !strings.Contains(stdout, `level: "error"`) {
		t.Errorf("%d %s %s", code, stdout, stderr)
	}
}

func TestCLI_EveryCommandHasHelpWithExamples(t *testing.T) {
	a := &app{}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if !cmd.Hidden && (cmd.Short == "" || cmd.Example == "") {
			t.Errorf("%s has no help or no example", cmd.CommandPath())
		}
		if cmd.Runnable() && cmd.Args == nil {
			t.Errorf("%s takes any argument", cmd.CommandPath())
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(a.root())
}

func TestCLI_CheckNeverHangs(t *testing.T) {
	t.Chdir(t.TempDir())
	// Addresses that swallow what is sent.
	silent := listenSilently(t)
	start := time.Now()
	code, stdout, _ := cli(t, []string{"CDC_RELAY_SOURCE_URL=postgres://u@" + silent + "/d?sslmode=disable",
		"CDC_RELAY_KAFKA_BROKERS=" + silent}, "check", "--json", "--timeout", "500ms")
	if took := time.Since(start); code != 1 || took > 10*time.Second {
		t.Errorf("exit code %d after %s", code, took)
	}
	var got struct {
		OK      bool
		Results []check.Result
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || got.OK {
		t.Fatalf("%v: %s", err, stdout)
	}
	status := make(map[string]check.Status)
	for _, r := range got.Results {
		status[r.Name] = r.Status
	}
	if status["database"] != check.Fail || status["brokers"] != check.Fail || status["slot"] != check.Skip || status["topics"] != check.Skip {
		t.Errorf("%v", got.Results)
	}
}

func TestDialable(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:9": "127.0.0.1:9", ":9": "localhost:9", "0.0.0.0:9": "localhost:9", "[::]:9": "localhost:9",
		"[::1]:9": "[::1]:9", "": "", "x:0": "", "host:9": "host:9",
	} {
		if got := dialable(listen); got != want {
			t.Errorf("%s: %s", listen, got)
		}
	}
}

// TestCLI_EveryHelpTellsTheExitCodes, and once.
func TestCLI_EveryHelpTellsTheExitCodes(t *testing.T) {
	var all func(cmd *cobra.Command)
	all = func(cmd *cobra.Command) {
		if n := strings.Count(cmd.Long, exitCodes); n != 1 {
			t.Errorf("the help of %s tells the exit codes %d times", cmd.CommandPath(), n)
		}
		for _, c := range cmd.Commands() {
			all(c)
		}
	}
	all((&app{}).root())
}
