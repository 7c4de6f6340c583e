package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// effectsVerdict compares what was answered, written and sent.
type effectsVerdict struct {
	orders, invoices int
	mails            sent
	// missing and twice count orders, effects and markers; each must be there once.
	missing, twice int
	letters        int              // dead letters
	copies         int              // records beyond one per order
	duplicates     map[string]int64 // that the inbox dropped, by role
}

func (v effectsVerdict) ok() bool {
	return v.missing == 0 && v.twice == 0 && v.letters == 0 && v.orders == v.invoices && v.orders == v.mails.total
}

// judge takes everything by the id of the order: the answers that clients have, the
// rows, the records and the mails.
func (p *path) judge(t testing.TB, c *clients) effectsVerdict {
	t.Helper()
	v := effectsVerdict{mails: p.sent(t), duplicates: map[string]int64{}}
	rows := p.counts(t, "SELECT id FROM orders")
	v.orders = len(rows)
	answered, events := map[string]int{}, map[string]int{}
	for id, n := range c.answered {
		answered[fmt.Sprint(id)] = n
	}
	records := 0
	p.k.Each(t, func(r *e2e.Record) { records++; events[string(r.Key)]++ }, eventTopic)
	v.copies = records - len(events)
	invoices := p.counts(t, "SELECT order_id FROM invoices")
	for _, n := range invoices {
		v.invoices += n
	}
	once := map[string]map[string]int{"answer": answered, "invoice": invoices, "mail": v.mails.byOrder,
		"event in the outbox": p.counts(t, "SELECT aggregateid FROM outbox"),
		"key":                 p.counts(t, "SELECT convert_from(body, 'UTF8')::jsonb->>'order' FROM idempotency_keys"),
		"marker of billing":   p.counts(t, "SELECT aggregateid FROM inbox JOIN outbox ON event_id = outbox.id::text WHERE consumer = 'billing'"),
		"marker of mail":      p.counts(t, "SELECT aggregateid FROM inbox JOIN outbox ON event_id = outbox.id::text WHERE consumer = 'mail'"),
	}
	for what, of := range once {
		v.compare(t, what, rows, of)
	}
	for id := range rows {
		if events[id] == 0 {
			v.missing++
			t.Errorf("order %s has no record", id)
		}
	}
	for _, role := range []string{"bill", "mail"} {
		v.duplicates[role] = logged(t, p.roles, role, "duplicates")
	}
	for _, n := range p.counts(t, "SELECT event_id FROM inbox_dead_letters") {
		v.letters += n
	}
	return v
}

// compare counts what is not there once per order.
func (v *effectsVerdict) compare(t testing.TB, what string, orders, of map[string]int) {
	t.Helper()
	missing, twice, foreign := []string{}, []string{}, []string{}
	for id := range orders {
		switch n := of[id]; {
		case n == 0:
			missing = append(missing, id)
		case n > 1:
			twice = append(twice, id)
		}
	}
	for id := range of {
		if orders[id] == 0 {
			foreign = append(foreign, id)
		}
	}
	v.missing += len(missing) + len(foreign) // an answer without an order is an order that is missing
	v.twice += len(twice)
	for problem, ids := range map[string][]string{"%d orders have no %s, such as %v": missing, "%d orders have more than one %s, such as %v": twice, "%d orders are not there that have %s, such as %v": foreign} {
		if len(ids) > 0 {
			t.Errorf(problem, len(ids), what, ids[:min(5, len(ids))])
		}
	}
}

// counts runs a query of one column, and tells how often each value came.
func (p *path) counts(t testing.TB, query string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, value := range strings.Fields(p.pg.Query(t, "SELECT string_agg(v::text, ' ') FROM ("+query+") AS q(v)")) {
		counts[value]++
	}
	return counts
}

// serverIsClean waits until the server holds nothing for what was killed: no open
// transaction, and no WAL; it returns what is left.
func (p *path) serverIsClean(t testing.TB) (left string) {
	t.Helper()
	p.pg.Exec(t, "CHECKPOINT") // logs the running transactions, from which a slot's restart_lsn moves on
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(500 * time.Millisecond) {
		switch {
		case p.pg.Query(t, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND state_change < now() - interval '2 s'") != "0":
			left = "a session is idle in a transaction: " + p.pg.Query(t, "SELECT string_agg(left(query, 100), '; ') FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")
		case p.pg.Query(t, "SELECT pg_current_wal_insert_lsn() - min(restart_lsn) < 1 << 20 FROM pg_replication_slots") != "true":
			left = "a slot keeps WAL: " + p.pg.Query(t, "SELECT string_agg(slot_name || ' ' || (pg_current_wal_insert_lsn() - restart_lsn), '; ') FROM pg_replication_slots")
		default:
			return ""
		}
		if time.Now().After(deadline) {
			return left
		}
	}
}
