package e2e_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// rows that cannot be routed halt reading: the process stays, says which row and
// why, publishes what was before and confirms nothing after. adopt gives the row
// up, on record.
func (b *badInput) rows() int {
	r := b.another("rows")
	r.pg.Exec(b.t, `CREATE TABLE outbox (id text, k text, payload text, topic text, part int, at timestamptz)`)
	r.outboxYAML = "outbox:\n  - table: outbox\n    columns: {id: id, key: k, topic: topic, partition: part, timestamp: at}\n"
	r.setup(b.t)
	cases := []struct{ name, id, topic, part, at, column string }{
		{"no id", "NULL", "'" + r.topic + "'", "0", "now()", `column \"id\"`},
		{"no topic", "'rows/1'", "NULL", "0", "now()", `column \"topic\"`},
		{"illegal topic", "'rows/2'", "'no topic!'", "0", "now()", `column \"topic\"`},
		{"negative partition", "'rows/3'", "'" + r.topic + "'", "-1", "now()", `column \"part\"`},
		{"infinite time", "'rows/4'", "'" + r.topic + "'", "0", "'infinity'", `column \"at\"`},
	}
	insert := func(id, topic, part, at string) {
		r.pg.Exec(b.t, fmt.Sprintf("INSERT INTO outbox VALUES (%s, 'k', '%s', %s, %s, %s)", id, secretPayload, topic, part, at))
	}
	for i, c := range cases {
		good := fmt.Sprintf("'rows/good-%d'", i)
		insert(good, "'"+r.topic+"'", "0", "now()")
		low := mustLSN(b.t, r.pg.Query(b.t, "SELECT pg_current_wal_insert_lsn()"))
		insert(c.id, c.topic, c.part, c.at)
		insert(strings.Replace(good, "good", "after", 1), "'"+r.topic+"'", "0", "now()")
		relay := r.start(b.t)
		relay.WaitNotReady(b.t, 20*time.Second, c.column)
		_, body := relay.Ready()
		b.says(c.name, body, "a record can never be written", "public.outbox", strings.Trim(c.id, "'NUL"), "To fix it: ", "cdc-relay adopt --lsn ")
		b.hold(!strings.Contains(relay.Metrics(b.t), "cdc_relay_oldest_unpublished_age_seconds 0\n"), "%s: nothing waits, by the metrics", c.name)
		e2e.Eventually(b.t, 20*time.Second, "the row before to be published", func() bool { return b.count(strings.Trim(good, "'")) > 0 })
		time.Sleep(1500 * time.Millisecond) // a status interval and more
		confirmed := mustLSN(b.t, r.confirmed(b.t))
		b.hold(confirmed <= low, "%s: confirmed %s, past %s where the bad row begins", c.name, confirmed, low)
		b.hold(b.count(strings.Trim(strings.Replace(good, "good", "after", 1), "'")) == 0, "%s: the row after it was published", c.name)
		b.hold(relay.Alive(), "%s: the relay ended", c.name)
		b.stopsHalted(c.name, relay)
		at := r.pg.Query(b.t, "SELECT pg_current_wal_lsn()")
		code, stdout, stderr := r.command(b.t, "adopt", "--lsn", at, "--yes")
		b.hold(code == 0, "%s: adopt ended with %d", c.name, code)
		b.says(c.name, stdout+stderr, "skipped by adopt")
	}
	insert("'rows/last'", "'"+r.topic+"'", "0", "now()")
	b.works("after bad rows", r)
	b.hold(b.count("rows/last") == 1, "the last row came %d times", b.count("rows/last"))
	return len(cases)
}

// stopsHalted stops a halted relay: at once, with exit code 1, and it says what
// will be published again.
func (b *badInput) stopsHalted(what string, relay *e2e.Relay) {
	b.t.Helper()
	began := time.Now()
	code := relay.Terminate(b.t, 30*time.Second)
	b.hold(code == 1 && time.Since(began) < 3*time.Second, "%s: a halted relay ended with %d, %v after SIGTERM", what, code, time.Since(began))
	said := lastLine(relay.Log())
	b.says(what, said, "halted", "published again")
	b.hold(lsnInText.MatchString(said), "%s: does not say from where: %s", what, said)
	b.said = append(b.said, relay.Log())
}

// refusedRecord is larger than the topic takes: its partition halts, the other
// goes on, nothing is confirmed past it, and the larger topic takes it.
func (b *badInput) refusedRecord() int {
	r := b.another("refused")
	r.pg.Exec(b.t, `CREATE TABLE outbox (id text, k text, payload text, part int)`)
	r.outboxYAML = fmt.Sprintf("outbox:\n  - table: outbox\n    topic: %s\n    columns: {id: id, key: k, partition: part}\n", r.topic)
	r.setup(b.t)
	put := func(id string, part, size int) {
		r.pg.Exec(b.t, fmt.Sprintf("INSERT INTO outbox VALUES ('%s', 'k', rpad('%s', %d, 'x'), %d)", id, secretPayload, size, part))
	}
	relay := r.startReady(b.t)
	put("refused/before", 0, 100)
	r.waitCaughtUp(b.t, 30*time.Second)
	low := mustLSN(b.t, r.pg.Query(b.t, "SELECT pg_current_wal_insert_lsn()"))
	put("refused/large", 0, 300_000)
	put("refused/behind", 0, 100)
	for i := range 5 {
		put(fmt.Sprintf("refused/other-%d", i), 1, 100)
	}
	relay.WaitNotReady(b.t, 20*time.Second, "refused/large")
	_, body := relay.Ready()
	b.says("record too large", body, r.topic, "a record can never be written", "refused/large", "max.message.bytes of the topic was 100000",
		"alone in its batch it has 300", "To fix it: raise max.message.bytes", "cdc-relay adopt --lsn ")
	e2e.Eventually(b.t, 20*time.Second, "the other partition to go on", func() bool { return b.count("refused/other-4") == 1 })
	time.Sleep(1500 * time.Millisecond)
	confirmed := mustLSN(b.t, r.confirmed(b.t))
	b.hold(confirmed <= low, "confirmed %s, past %s where the refused record begins", confirmed, low)
	b.hold(b.count("refused/behind") == 0, "a record passed the refused one")
	b.stopsHalted("record too large", relay)
	confirmed = mustLSN(b.t, r.confirmed(b.t))
	b.hold(confirmed <= low, "the stop confirmed %s, past %s where the refused record begins", confirmed, low)

	b.setTopic(b.t, "max.message.bytes", "1000000")
	b.works("a topic that takes it", r)
	var order []string
	for _, rec := range b.k.Consume(b.t, b.topic) {
		if id, _ := rec.Header("id"); rec.Partition == 0 && strings.HasPrefix(id, "refused/") {
			order = append(order, strings.TrimPrefix(id, "refused/"))
		}
	}
	got := strings.Join(order, " ")
	b.hold(got == "before large behind", "the partition has %s", got)
	b.hold(b.count("refused/other-0") == 2, "the other partition's records came %d times, want a copy of each", b.count("refused/other-0"))
	return 1
}

// tooLargeToRead is a row over relay.max_row_bytes: the relay ends, names its
// position, and goes on with a higher limit.
func (b *badInput) tooLargeToRead() int {
	r := b.another("large")
	r.pg.Exec(b.t, outboxTable)
	r.setup(b.t)
	r.relayYAML = "  max_row_bytes: 64KiB\n"
	r.pg.Exec(b.t, "INSERT INTO outbox (id, aggregateid, payload) VALUES ('large/before', 'k', 'x')")
	low := r.pg.Query(b.t, "SELECT pg_current_wal_insert_lsn()")
	r.pg.Exec(b.t, "INSERT INTO outbox (id, aggregateid, payload) VALUES ('large/row', 'k', rpad('"+secretPayload+"', 200000, 'x'))")
	high := r.pg.Query(b.t, "SELECT pg_current_wal_insert_lsn()")
	relay := b.ends("row too large to read", r, "too large", "relay.max_row_bytes")
	b.hold(namesLSN(relay.Log(), low, high), "no position between %s and %s: %s", low, high, lastLine(relay.Log()))
	b.hold(mustLSN(b.t, r.confirmed(b.t)) <= mustLSN(b.t, low), "confirmed past the row that was not read")
	b.hold(b.count("large/before") == 1, "the row before came %d times", b.count("large/before"))
	r.relayYAML = "  max_row_bytes: 1MiB\n"
	b.works("a higher limit", r)
	b.hold(b.count("large/row") == 1 && b.count("large/before") == 1, "the rows came %d and %d times", b.count("large/before"), b.count("large/row"))
	return 1
}
