package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
)

// procedure is the commands of the recovery in the page, in order.
func procedure(t *testing.T) (lines []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/inbox.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n### Recovery\n")
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(text, -1) {
		for _, line := range strings.Split(strings.TrimSpace(block[1]), "\n") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func TestRecovery_CommandsOfThePage(t *testing.T) {
	w := newWorld(t, kafkaserver.Options{})
	w.set(true, "a", "x", "t", "y1", "y2", "killed", "gone")
	stop := w.consume()
	for _, e := range []struct{ id, key string }{{"a", "k"}, {"b", "k"}, {"x", "x"}, {"t", "t"}, {"y1", "y"}, {"y2", "y"}} {
		w.produce(e.id, e.key)
	}
	w.waitFor("the dead letters", func() bool { return w.in("open") == 5 && w.offset("orders") == 6 })
	early := w.early.Load()
	w.must(w.pg.Exec(t.Context(), "shop", "UPDATE inbox_dead_letters SET failed_at = failed_at - interval '10 minutes' WHERE event_id = 'y2'")) // as if y1 had failed again since
	if _, code := w.shell(`cdc-inbox redrive 1 --actor ann --note "too soon"`); code != exitFailure || w.end("billing.retry") != 0 {
		t.Error("a letter with later records was redriven")
	}
	if out, code := w.shell(`cdc-inbox redrive 5 --actor ann --note "out of order"`); code != exitFailure || !strings.Contains(out, "earlier") {
		t.Error("a letter with earlier ones was redriven")
	}
	w.set(false, "a", "x", "t", "y1", "y2", "killed", "gone") // the cause is mended

	want := map[string]string{ // what a command of the page must print
		"cdc-inbox list --owner billing":             "orders/0/0",
		"cdc-inbox show 1":                           "shown with --payload",
		"cdc-inbox show 1 --payload":                 "secret of a",
		"cdc-inbox list --older-than 1h --json":      "",
		"cdc-inbox list --owner billing --state any": "discarded",
	}
	lines := procedure(t)
	for _, line := range lines {
		if strings.HasPrefix(line, "cdc-inbox list --owner billing --state redriven") {
			w.waitFor("what was redriven", func() bool { return w.in("redriven") == 0 })
		}
		out, code := w.shell(line)
		if code != exitOK || !strings.Contains(out, want[line]) || strings.Contains(out, "secret of") && !strings.Contains(line, "--payload") {
			t.Errorf("%s: exit code %d\n%s", line, code, out)
		}
		delete(want, line)
	}
	if len(want) > 0 || len(lines) < 10 {
		t.Errorf("the page has lost %v", want)
	}
	w.waitFor("the effects", func() bool { return w.in("done") == 4 })
	w.mu.Lock()
	order := strings.Join(w.order, " ")
	w.mu.Unlock()
	if !strings.HasSuffix(order, "y1 y2") {
		t.Errorf("a key was handled in another order: %s", order)
	}
	discarded := w.count("SELECT count(*) FROM inbox_dead_letter_actions WHERE dead_letter_id = 3 AND action = 'discard' AND actor = 'ann' AND note = 'a test order'")
	redriven := w.count("SELECT count(*) FROM inbox_dead_letter_actions WHERE action = 'redrive' AND actor = 'ann'")

	again := w.killedBetweenSendAndRecord(stop)
	gone := w.lostRecord()

	invoices, twice := w.count("SELECT count(*) FROM invoices"), w.count("SELECT count(*) FROM (SELECT FROM invoices GROUP BY order_id HAVING count(*) > 1) x")
	w.result(early == 0 && discarded == 1 && redriven == 4 && again == 1 && gone && invoices == 6 && twice == 0 && !t.Failed(),
		"commands=%d letters=7 redriven=%d discarded=%d offset_before_letter=%d killed_between_send_and_record=1 skipped_copies=%d lost_told=%v invoices=%d twice=%d pg=%s",
		len(lines), redriven, discarded, early, again, gone, invoices, twice, w.pg.Version())
}

// killedBetweenSendAndRecord kills a redrive when its record is sent, and its action
// is not yet recorded. It returns how many copies were skipped when it was done again.
func (w *world) killedBetweenSendAndRecord(stop func()) int64 {
	w.t.Helper()
	w.set(true, "killed")
	w.produce("killed", "z")
	w.waitFor("the letter", func() bool { return w.in("open") == 1 && w.offset("orders") == 7 })
	stop()
	id := w.count("SELECT id FROM inbox_dead_letters WHERE state = 'open'")
	ctx := context.Background()
	tx, err := w.pool.Begin(ctx)
	w.must(err)
	_, err = tx.Exec(ctx, "LOCK TABLE inbox_dead_letter_actions IN SHARE MODE")
	w.must(err)
	before := w.end("billing.retry")
	cmd := exec.Command("cdc-inbox", "redrive", fmt.Sprint(id), "--actor", "ann", "--note", "it is mended")
	for _, kv := range w.env {
		if dirs, ok := strings.CutPrefix(kv, "PATH="); ok {
			cmd.Path = strings.Split(dirs, ":")[0] + "/cdc-inbox"
		}
	}
	cmd.Err, cmd.Env = nil, w.env
	w.must(cmd.Start())
	w.waitFor("the record to be sent", func() bool { return w.end("billing.retry") == before+1 })
	w.must(cmd.Process.Kill())
	_ = cmd.Wait()
	w.must(tx.Rollback(ctx))
	w.waitFor("the server to roll back", func() bool {
		return w.count("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cdc-inbox'") == 0
	})
	if w.in("open") != 1 || w.count("SELECT count(*) FROM inbox_dead_letter_actions WHERE dead_letter_id = $1", id) != 0 {
		w.t.Error("what was not committed is there")
	}
	if _, code := w.shell(fmt.Sprintf(`cdc-inbox redrive %d --actor ann --note "again"`, id)); code != exitOK || w.end("billing.retry") != before+2 {
		w.t.Error("it was not redriven again")
	}
	w.set(false, "killed")
	skipped := w.duplicates.Load()
	w.consume()
	w.waitFor("both copies", func() bool { return w.offset("billing.retry") == before+2 && w.in("done") == 5 })
	return w.duplicates.Load() - skipped
}

// lostRecord tells whether show, redrive and discard tell of a record that its topic
// has lost.
func (w *world) lostRecord() bool {
	w.t.Helper()
	w.set(true, "gone")
	w.produce("gone", "g")
	w.waitFor("the letter", func() bool { return w.in("open") == 1 && w.offset("orders") == 8 })
	id := w.count("SELECT id FROM inbox_dead_letters WHERE state = 'open'")
	_, err := w.kafka.DeleteTopics(context.Background(), &kafka.DeleteTopicsRequest{Topics: []string{"billing.dead"}})
	w.must(err)
	w.waitFor("the topic to go", func() bool { return w.end("billing.dead") == -1 })
	w.topic("billing.dead")
	told := true
	for line, want := range map[string]int{
		fmt.Sprintf(`cdc-inbox redrive %d --actor ann --note "try"`, id): exitFailure,
		fmt.Sprintf(`cdc-inbox show %d`, id):                             exitFailure,
		fmt.Sprintf(`cdc-inbox redrive %d --dry-run`, id):                exitFailure,
	} {
		out, code := w.shell(line)
		told = told && code == want && strings.Contains(out, "does not hold the record any more")
	}
	if _, code := w.shell(fmt.Sprintf(`cdc-inbox discard %d --actor ann --reason "invoiced by hand"`, id)); code != exitOK {
		told = false
	}
	return told && w.in("open") == 0
}

func TestUsage_IsTold(t *testing.T) {
	for line, says := range map[string]string{
		"redrive":                             "give ids",
		"redrive 1 --all --owner x --note n":  "give ids",
		"redrive --all --note n":              "belong together",
		"redrive 1 --owner x --note n":        "belong together",
		"redrive 1 --actor a":                 "--note is missing",
		"redrive one --note n":                `"one" is not the id`,
		"discard --note n":                    "give the ids",
		"list --state closed":                 "--state is",
		"list billing":                        "takes no argument",
		"show":                                "the id of one letter",
		"frob":                                "unknown command",
		"list --frob":                         "unknown flag",
		"list":                                "DATABASE_URL",
		"list --database postgres://u:pw@h/d": "holds a password",
		"show 1 --database postgres://u@h/d":  "no brokers",
		"show 1 --database postgres://u@h/d --brokers h:1 --tls-ca-file x": "TLS is not switched on",
	} {
		var out, errs strings.Builder
		a := &app{in: strings.NewReader(""), out: &out, err: &errs, getenv: func(string) string { return "" }}
		if code := a.main(strings.Fields(line)); code != exitUsage || !strings.Contains(errs.String(), says) || strings.Contains(errs.String(), "pw") {
			t.Errorf("%s: exit code %d\n%s", line, code, errs.String())
		}
	}
	var out, errs strings.Builder
	for answer, says := range map[string]string{"": "give --yes", "no\n": "nothing was done"} {
		a := &app{in: strings.NewReader(answer), out: &out, err: &errs, getenv: func(string) string { return "" }}
		if code := a.main([]string{"discard", "1", "2", "--actor", "a", "--note", "n"}); code != exitFailure || !strings.Contains(errs.String(), says) {
			t.Errorf("the answer %q: exit code %d\n%s", answer, code, errs.String())
		}
	}
	const secret = "s3cret-Pass"
	for _, dsn := range []string{"postgres://u:" + secret + "@h:x/d", "postgres://u:" + secret + "%zz@h/d", "host=h password='" + secret} {
		var out, errs strings.Builder
		a := &app{in: strings.NewReader(""), out: &out, err: &errs, getenv: func(name string) string {
			if name == "DATABASE_URL" {
				return dsn
			}
			return ""
		}}
		if code := a.main([]string{"list"}); code != exitUsage || strings.Contains(out.String()+errs.String(), secret) {
			t.Errorf("%d %s", code, errs.String())
		}
		a.err, errs = &errs, strings.Builder{}
		if a.main([]string{"list", "--help"}); strings.Contains(out.String()+errs.String(), secret) {
			t.Error("help shows the password")
		}
	}
}
