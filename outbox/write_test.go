package outbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	traceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	id1         = "0190b3e4-7c4a-7000-8000-0000000000a1"
	id2         = "0190b3e4-7c4a-7000-8000-0000000000a2"
)

func placed(aggregateID string) outbox.Event {
	return outbox.Event{AggregateType: "order", AggregateID: aggregateID, Type: "OrderPlaced", Payload: []byte(`{"order": 1}`)}
}

func withID(e outbox.Event, id string) outbox.Event { e.ID = id; return e }

func keyed(e outbox.Event, key string) outbox.Event { e.IdempotencyKey = key; return e }

// Whatever the driver, the relay publishes what was written, and nothing of a
// transaction that was rolled back.
func TestWrite_IsWhatTheRelayPublishes(t *testing.T) {
	e := newEnv(t)
	o := e.outbox(outbox.Config{})
	for name, begin := range e.drivers() {
		t.Run(name, func(t *testing.T) {
			lost := begin()
			if _, err := lost.writeBatch(o, placed("lost")); err != nil {
				t.Fatal(err)
			}
			lost.rollback()
			null := placed("2")
			null.Payload = nil
			refs := e.commitOf(begin, o, withID(placed("1"), strings.ToUpper(id1)), null, keyed(placed(`ö'"\ `), name))
			if refs[0].ID != id1 || refs[2].ID != outbox.KeyID(name) || refs[2].Duplicate {
				t.Errorf("refs %+v", refs)
			}
			same(t, e.published(relay()),
				`outbox.event.order 1={"order": 1} id:`+id1+` eventType:OrderPlaced`,
				`outbox.event.order 2=null id:`+refs[1].ID+` eventType:OrderPlaced`,
				`outbox.event.order ö'"\ ={"order": 1} id:`+outbox.KeyID(name)+` eventType:OrderPlaced`)
			e.must(server.Exec(t.Context(), e.db, "TRUNCATE outbox"))
		})
	}
}

// Every column that the relay can map, in a table of another shape.
func TestWrite_FollowsTheShapeOfTheTable(t *testing.T) {
	e := newEnv(t, `CREATE SCHEMA "the shop"`, `CREATE TABLE "the shop"."out""box" (n bigserial, event_id text PRIMARY KEY, kind text,
		subject text, what text, body bytea, topic text, key text, tenant text, traceparent text)`)
	o := e.outbox(outbox.Config{Table: outbox.Table{Schema: "the shop", Name: `out"box`, TextID: true, Payload: outbox.Bytea,
		Columns: outbox.Columns{ID: "event_id", AggregateType: "kind", AggregateID: "subject", Type: "what", Payload: "body", Topic: "topic", Key: "key"},
		Headers: map[string]string{"x-tenant": "tenant", "traceparent": "traceparent"}},
	})
	c := relay(func(o *config.Outbox) {
		o.Table, o.Topic = `"the shop"."out""box"`, ""
		o.Columns = config.OutboxColumns{ID: "event_id", Key: "key", Type: "what", Payload: "body", Topic: "topic"}
		o.Headers = map[string]string{"tenant": "x-tenant", "traceparent": "traceparent"}
	})
	for name, begin := range e.drivers() {
		t.Run(name, func(t *testing.T) {
			ev := outbox.Event{AggregateType: "any kind!", AggregateID: "1", Type: "t", Topic: "orders.v1", Key: "k", ID: name,
				Payload: []byte("\x00\xff"), Headers: map[string]string{"x-tenant": "a", "traceparent": traceParent}}
			other := ev
			other.ID, other.Headers, other.Payload = "other "+name, nil, []byte{}
			e.commitOf(begin, o, ev, other)
			same(t, e.published(c), "orders.v1 k=\x00\xff id:"+name+" eventType:t x-tenant:a traceparent:"+traceParent,
				"orders.v1 k= id:other "+name+" eventType:t x-tenant:null traceparent:null")
		})
	}
}

func TestWrite_TakesTheTraceFromTheContext(t *testing.T) {
	e := newEnv(t, outbox.Schema, outbox.TraceColumn)
	table := outbox.Table{Headers: map[string]string{"traceparent": "traceparent"}}
	o := e.outbox(outbox.Config{Table: table})
	with := relay(func(o *config.Outbox) { o.Headers = map[string]string{"traceparent": "traceparent"} })
	for value, want := range map[string]string{
		traceParent: traceParent, "": "null", "nonsense": "null", traceParent + "x": "null",
		"cc" + traceParent[2:] + "-more": "cc" + traceParent[2:] + "-more", "ff" + traceParent[2:]: "null",
		strings.ToUpper(traceParent): "null",
	} {
		tx, err := e.connect().Begin(t.Context())
		e.must(err)
		ctx := outbox.ContextWithTraceParent(t.Context(), value)
		ref, err := o.Write(ctx, tx, placed("1"))
		e.must(err)
		own := placed("2")
		own.Headers = map[string]string{"traceparent": "the event's own"}
		own.ID = id2
		_, err = o.Write(ctx, tx, own)
		e.must(err)
		// A table without the column takes the event all the same.
		_, err = outbox.Write(ctx, tx, withID(placed("3"), id1))
		e.must(err)
		e.must(tx.Commit(t.Context()))
		const record = `outbox.event.order %s={"order": 1} id:%s eventType:OrderPlaced traceparent:%s`
		same(t, e.published(with), fmt.Sprintf(record, "1", ref.ID, want), fmt.Sprintf(record, "2", id2, "the event's own"),
			fmt.Sprintf(record, "3", id1, "null"))
		e.must(server.Exec(t.Context(), e.db, "TRUNCATE outbox"))
	}
}

// A batch is published in its order, however it is cut into statements.
func TestWriteBatch_KeepsTheOrder(t *testing.T) {
	e := newEnv(t)
	o := e.outbox(outbox.Config{})
	for name, begin := range e.drivers() {
		var events []outbox.Event
		for i := range 150 {
			ev := placed(fmt.Sprint(i))
			if i > 130 && i%3 != 0 {
				ev.IdempotencyKey = fmt.Sprint(name, i)
			}
			events = append(events, ev)
		}
		refs := e.commitOf(begin, o, events...)
		var want []string
		for i, ref := range refs {
			want = append(want, fmt.Sprintf(`outbox.event.order %d={"order": 1} id:%s eventType:OrderPlaced`, i, ref.ID))
		}
		same(t, e.published(relay()), want...)
	}
	if refs := e.commitOf(e.beginSQL, o); len(refs) != 0 {
		t.Errorf("no events gave %v", refs)
	}
}

func TestWrite_EphemeralRowIsPublishedAndGone(t *testing.T) {
	e := newEnv(t)
	o := e.outbox(outbox.Config{Mode: outbox.Ephemeral})
	for name, begin := range e.drivers() {
		t.Run(name, func(t *testing.T) {
			events := []outbox.Event{withID(placed("0"), id1)}
			for i := range 4 {
				events = append(events, placed(fmt.Sprint(i+1)))
			}
			for range 2 { // also the same id once more: nothing stays
				refs := e.commitOf(begin, o, events...)
				var want []string
				for i, ref := range refs {
					want = append(want, fmt.Sprintf(`outbox.event.order %d={"order": 1} id:%s eventType:OrderPlaced`, i, ref.ID))
				}
				same(t, e.published(relay()), want...)
				if n := e.count("SELECT count(*) FROM outbox"); n != 0 {
					t.Errorf("%d rows stayed", n)
				}
			}
		})
	}
}

func TestWrite_MessageIsWhatTheRelayPublishes(t *testing.T) {
	e := newEnv(t)
	o := e.outbox(outbox.Config{Mode: outbox.Message, Messages: outbox.Messages{Prefix: "shop"}})
	byTopic := e.outbox(outbox.Config{Mode: outbox.Message, Messages: outbox.Messages{Prefix: "shop", Topic: true, Reserved: []string{"id"}}})
	topics := relayOfMessages()
	topics.Messages.Topic = "{topic}"
	topics.Messages.TypeHeader = "kind"
	for name, begin := range e.drivers() {
		t.Run(name, func(t *testing.T) {
			lost := begin()
			if _, err := lost.writeBatch(o, placed("lost")); err != nil {
				t.Fatal(err)
			}
			lost.rollback()
			full := placed("\"1\"\n")
			full.ID, full.Headers = "any id", map[string]string{"b": "<ü\">", "a": ""}
			refs := e.commitOf(begin, o, full, placed("2"))
			same(t, e.published(relayOfMessages()),
				"outbox.event.order \"1\"\n={\"order\": 1} id:any id eventType:OrderPlaced a: b:<ü\">",
				"outbox.event.order 2={\"order\": 1} id:"+refs[1].ID+" eventType:OrderPlaced")
			e.commitOf(begin, byTopic, outbox.Event{Topic: "orders", Key: "k", Type: "t", ID: id1, Headers: map[string]string{"eventType": "free"}})
			same(t, e.published(topics), "orders k=null id:"+id1+" kind:t eventType:free")
		})
	}
}

// The value is the payload, byte for byte, whatever JSON it is or is not.
func TestWrite_MessageKeepsThePayloadsBytes(t *testing.T) {
	e := newEnv(t)
	o := e.outbox(outbox.Config{Mode: outbox.Message, Messages: outbox.Messages{Prefix: "shop"}})
	payloads := []string{`{"b":1,  "a":[] ,"a":1.50e1}`, `[1, "\u0000\ud800", 2]`, `"a string"`, `null`, `true`, `-1.50`, ` {"a":1}`, "[1]\n",
		"", "plain", "{not JSON}", "[", "a\x00b", "<\u2028&\U0001F600>", `{"a":1} {"b":2}`, `\`}
	var events []outbox.Event
	var want []string
	for _, p := range payloads {
		ev := withID(placed("1"), "i")
		ev.Payload = []byte(p)
		events = append(events, ev)
		want = append(want, "outbox.event.order 1="+p+" id:i eventType:OrderPlaced")
	}
	e.commitOf(e.beginSQL, o, events...)
	same(t, e.published(relayOfMessages()), want...)
}

func TestWrite_SaysWhatTheTableRefused(t *testing.T) {
	e := newEnv(t, outbox.Schema,
		`CREATE TABLE deaf (LIKE outbox INCLUDING DEFAULTS)`, `CREATE RULE deaf AS ON INSERT TO deaf DO INSTEAD NOTHING`,
		`CREATE TABLE repeating (LIKE outbox INCLUDING DEFAULTS)`)
	standard := e.outbox(outbox.Config{})
	deaf := e.outbox(outbox.Config{Table: outbox.Table{Name: "deaf"}})
	repeating := e.outbox(outbox.Config{Table: outbox.Table{Name: "repeating"}})
	missing := e.outbox(outbox.Config{Table: outbox.Table{Name: "missing"}})
	e.commitOf(e.beginSQL, standard, withID(placed("1"), id1))
	for name, begin := range e.drivers() {
		for _, c := range []struct {
			o     *outbox.Outbox
			event outbox.Event
			want  error
		}{
			{standard, withID(placed("other"), id1), outbox.ErrDuplicate},
			{deaf, placed("1"), outbox.ErrNotWritten},
			{repeating, keyed(placed("1"), "k"), outbox.ErrNoUniqueID},
			{missing, placed("1"), nil},
		} {
			tx := begin()
			refs, err := tx.writeBatch(c.o, placed("before"), c.event)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || errors.Is(err, outbox.ErrRefused) || refs != nil {
				t.Errorf("%s: got %v, %v; want %v", name, refs, err, c.want)
			}
			tx.rollback()
		}
	}
	same(t, e.published(relay()), `outbox.event.order 1={"order": 1} id:`+id1+` eventType:OrderPlaced`)
}

func TestSchema_IsTheTableOfSetup(t *testing.T) {
	const shape = `SELECT string_agg(format('%s %s %s %s', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)), ', ' ORDER BY a.attnum)
		|| ' ' || (SELECT string_agg(pg_get_constraintdef(c.oid), ',' ORDER BY c.conname) FROM pg_constraint c WHERE c.conrelid = 'public.outbox'::regclass AND c.contype <> 'n')
		FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE a.attrelid = 'public.outbox'::regclass AND a.attnum > 0`
	var shapes []string
	for _, ddl := range []string{outbox.Schema, migrations.SQL()} {
		e := newEnv(t, ddl)
		var s string
		e.must(e.conn.QueryRow(t.Context(), shape).Scan(&s))
		shapes = append(shapes, s)
	}
	if shapes[0] != shapes[1] || !strings.Contains(shapes[0], "PRIMARY KEY (id)") {
		t.Errorf("Schema makes\n%s\nand setup\n%s", shapes[0], shapes[1])
	}
}

// The transaction is the caller's, also as a savepoint of it.
func TestWrite_RollsBackWithASavepoint(t *testing.T) {
	e := newEnv(t)
	outer, err := e.connect().Begin(t.Context())
	e.must(err)
	_, err = outbox.Write(t.Context(), outer, withID(placed("kept"), id1))
	e.must(err)
	inner, err := outer.Begin(t.Context())
	e.must(err)
	_, err = outbox.Write(t.Context(), inner, placed("lost"))
	e.must(err)
	e.must(inner.Rollback(t.Context()))
	e.must(outer.Commit(t.Context()))
	same(t, e.published(relay()), `outbox.event.order kept={"order": 1} id:`+id1+` eventType:OrderPlaced`)
	if _, err := outbox.Write(t.Context(), outer, placed("late")); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("after the commit: %v", err)
	}
}

func TestID_IsOfVersion7AndOfNow(t *testing.T) {
	e := newEnv(t)
	before := time.Now().UnixMilli()
	refs := e.commitOf(e.beginSQL, e.outbox(outbox.Config{}), placed("1"), placed("2"))
	for _, ref := range refs {
		var ms int64
		if _, err := fmt.Sscanf(strings.ReplaceAll(ref.ID, "-", "")[:12], "%x", &ms); err != nil || ms < before || ms > time.Now().UnixMilli() ||
			len(ref.ID) != 36 || ref.ID[14] != '7' || !strings.ContainsRune("89ab", rune(ref.ID[19])) {
			t.Errorf("id %s, %d ms: %v", ref.ID, ms, err)
		}
	}
	if refs[0].ID == refs[1].ID {
		t.Error("twice the same id")
	}
}
