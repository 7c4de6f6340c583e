package outbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// What is refused never reaches the database: there is none, a statement would be a
// panic.
func TestRefuse_BeforeTheDatabaseIsTouched(t *testing.T) {
	message := outbox.Config{Mode: outbox.Message, Messages: outbox.Messages{Prefix: "shop"}}
	headers := outbox.Config{Table: outbox.Table{Headers: map[string]string{"a": "a", "b": "b"}}}
	topics := outbox.Config{Table: outbox.Table{Columns: outbox.Columns{ID: "id", Payload: "payload", Topic: "topic", Type: "type"}}}
	small := headers
	small.Limits = outbox.Limits{PayloadBytes: 12, Headers: 1, HeaderBytes: 5}
	text := outbox.Config{Table: outbox.Table{Payload: outbox.Text}}
	long := strings.Repeat("x", 1001)
	for name, c := range map[string]struct {
		cfg    outbox.Config
		change func(*outbox.Event)
		field  string
		want   error
	}{
		"no aggregate type":          {outbox.Config{}, func(e *outbox.Event) { e.AggregateType = "" }, "AggregateType", outbox.ErrEmpty},
		"no aggregate id":            {outbox.Config{}, func(e *outbox.Event) { e.AggregateID = "" }, "AggregateID", outbox.ErrEmpty},
		"no type":                    {outbox.Config{}, func(e *outbox.Event) { e.Type = "" }, "Type", outbox.ErrEmpty},
		"aggregate type no topic":    {outbox.Config{}, func(e *outbox.Event) { e.AggregateType = "order placed" }, "AggregateType", outbox.ErrTopic},
		"aggregate type too long":    {outbox.Config{}, func(e *outbox.Event) { e.AggregateType = long[:201] }, "AggregateType", outbox.ErrTopic},
		"no column for the topic":    {outbox.Config{}, func(e *outbox.Event) { e.Topic = "orders" }, "Topic", outbox.ErrNoPlace},
		"no column for the key":      {outbox.Config{}, func(e *outbox.Event) { e.Key = "k" }, "Key", outbox.ErrNoPlace},
		"no column for the header":   {outbox.Config{}, func(e *outbox.Event) { e.Headers = map[string]string{"a": "b"} }, "Headers", outbox.ErrNoPlace},
		"zero byte":                  {outbox.Config{}, func(e *outbox.Event) { e.AggregateID = "a\x00" }, "AggregateID", outbox.ErrText},
		"not UTF-8":                  {outbox.Config{}, func(e *outbox.Event) { e.Type = "a\xff" }, "Type", outbox.ErrText},
		"key not UTF-8":              {outbox.Config{}, func(e *outbox.Event) { e.IdempotencyKey = "a\xff" }, "IdempotencyKey", outbox.ErrText},
		"aggregate id too long":      {outbox.Config{}, func(e *outbox.Event) { e.AggregateID = long }, "AggregateID", outbox.ErrTooLarge},
		"key too long":               {outbox.Config{}, func(e *outbox.Event) { e.IdempotencyKey = long }, "IdempotencyKey", outbox.ErrTooLarge},
		"id no UUID":                 {outbox.Config{}, func(e *outbox.Event) { e.ID = "42" }, "ID", outbox.ErrID},
		"id nearly a UUID":           {outbox.Config{}, func(e *outbox.Event) { e.ID = id1[:35] + "g" }, "ID", outbox.ErrID},
		"id without dashes":          {outbox.Config{}, func(e *outbox.Event) { e.ID = strings.ReplaceAll(id1, "-", "0") }, "ID", outbox.ErrID},
		"id and key":                 {outbox.Config{}, func(e *outbox.Event) { e.ID, e.IdempotencyKey = id1, "k" }, "ID", outbox.ErrNoPlace},
		"payload no JSON":            {outbox.Config{}, func(e *outbox.Event) { e.Payload = []byte("{") }, "Payload", outbox.ErrJSON},
		"payload empty":              {outbox.Config{}, func(e *outbox.Event) { e.Payload = []byte{} }, "Payload", outbox.ErrJSON},
		"payload not UTF-8":          {outbox.Config{}, func(e *outbox.Event) { e.Payload = []byte("\"\xff\"") }, "Payload", outbox.ErrText},
		"payload with a zero byte":   {text, func(e *outbox.Event) { e.Payload = []byte("a\x00") }, "Payload", outbox.ErrText},
		"payload above the default":  {outbox.Config{}, func(e *outbox.Event) { e.Payload = []byte(`"` + strings.Repeat("x", 999_999) + `"`) }, "Payload", outbox.ErrTooLarge},
		"payload longer in jsonb":    {outbox.Config{}, func(e *outbox.Event) { e.Payload = []byte(`[1e131071` + strings.Repeat(`,1e131071`, 7) + `]`) }, "Payload", outbox.ErrTooLarge},
		"payload above the limit":    {small, func(e *outbox.Event) { e.Payload = []byte(`"0123456789a"`) }, "Payload", outbox.ErrTooLarge},
		"too many headers":           {small, func(e *outbox.Event) { e.Headers = map[string]string{"a": "", "b": ""} }, "Headers", outbox.ErrTooLarge},
		"headers too large":          {small, func(e *outbox.Event) { e.Headers = map[string]string{"a": "12345"} }, "Headers", outbox.ErrTooLarge},
		"header not UTF-8":           {headers, func(e *outbox.Event) { e.Headers = map[string]string{"a": "\xff"} }, "Headers", outbox.ErrText},
		"no topic":                   {topics, func(e *outbox.Event) { *e = outbox.Event{Type: "t"} }, "Topic", outbox.ErrEmpty},
		"topic no topic":             {topics, func(e *outbox.Event) { *e = outbox.Event{Type: "t", Topic: "a/b"} }, "Topic", outbox.ErrTopic},
		"topic of dots":              {topics, func(e *outbox.Event) { *e = outbox.Event{Type: "t", Topic: ".."} }, "Topic", outbox.ErrTopic},
		"topic too long":             {topics, func(e *outbox.Event) { *e = outbox.Event{Type: "t", Topic: long[:250]} }, "Topic", outbox.ErrTopic},
		"no column for the type":     {topics, func(e *outbox.Event) { e.Topic = "t" }, "AggregateType", outbox.ErrNoPlace},
		"message: reserved header":   {message, func(e *outbox.Event) { e.Headers = map[string]string{"lsn": "1"} }, "Headers", outbox.ErrReserved},
		"message: header no name":    {message, func(e *outbox.Event) { e.Headers = map[string]string{"": "1"} }, "Headers", outbox.ErrEmpty},
		"message: no key":            {message, func(e *outbox.Event) { e.AggregateID = "" }, "AggregateID", outbox.ErrEmpty},
		"message: two keys":          {message, func(e *outbox.Event) { e.Key = "other" }, "Key", outbox.ErrNoPlace},
		"message: a topic":           {message, func(e *outbox.Event) { e.Topic = "orders" }, "Topic", outbox.ErrNoPlace},
		"message: no aggregate type": {message, func(e *outbox.Event) { e.AggregateType = "" }, "AggregateType", outbox.ErrEmpty},
		"message: no type":           {message, func(e *outbox.Event) { e.Type = "" }, "Type", outbox.ErrEmpty},
		"message: not UTF-8":         {message, func(e *outbox.Event) { e.Payload = []byte("\xff") }, "Payload", outbox.ErrText},
		"message: idempotency key":   {message, func(e *outbox.Event) { e.IdempotencyKey = "k" }, "IdempotencyKey", outbox.ErrKeyWithoutRow},
		"ephemeral: idempotency key": {outbox.Config{Mode: outbox.Ephemeral}, func(e *outbox.Event) { e.IdempotencyKey = "k" }, "IdempotencyKey", outbox.ErrKeyWithoutRow},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := outbox.New(c.cfg)
			if err != nil {
				t.Fatal(err)
			}
			good := placed("secret")
			if c.cfg.Table.Columns.Topic != "" {
				good = outbox.Event{Type: "t", Topic: "orders"}
			}
			bad := placed("secret")
			c.change(&bad)
			_, err = o.WriteBatch(t.Context(), pgx.Tx(nil), []outbox.Event{good, bad})
			var r *outbox.Refusal
			if !errors.Is(err, c.want) || !errors.Is(err, outbox.ErrRefused) || !errors.As(err, &r) || r.Event != 1 || r.Field != c.field {
				t.Errorf("got %v, want %s: %v", err, c.field, c.want)
			}
			if _, other := o.WriteBatchSQL(t.Context(), nil, []outbox.Event{good, bad}); fmt.Sprint(other) != fmt.Sprint(err) {
				t.Errorf("database/sql: %v", other)
			}
			if err != nil && (strings.Contains(err.Error(), "secret") || len(err.Error()) > 400) {
				t.Errorf("it shows what the event holds: %v", err)
			}
		})
	}
}

func TestNew_ReportsEveryProblem(t *testing.T) {
	for name, c := range map[string]struct {
		cfg   outbox.Config
		words []string
	}{
		"columns": {outbox.Config{Table: outbox.Table{Name: strings.Repeat("x", 64), Columns: outbox.Columns{Key: "a", Topic: "a"}, Headers: map[string]string{"h": ""}, Payload: 9}},
			[]string{"needs ID and Payload", `"a" is used twice`, "xxx", "Table.Payload 9"}},
		"rows and messages": {outbox.Config{Messages: outbox.Messages{Prefix: "p"}}, []string{"Messages is given"}},
		"messages and rows": {outbox.Config{Mode: outbox.Message, Table: outbox.Table{Name: "x"}}, []string{"Table is given", "messages.prefix"}},
		"mode":              {outbox.Config{Mode: 9}, []string{"Mode 9"}},
	} {
		_, err := outbox.New(c.cfg)
		for _, word := range c.words {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: no %q in %v", name, word, err)
			}
		}
	}
}

// What is refused for jsonb is what PostgreSQL refuses, and no more: its error would
// abort the caller's transaction.
func TestRefuse_AgreesWithPostgreSQLAboutJSON(t *testing.T) {
	e := newEnv(t, outbox.Schema, `CREATE TABLE json_outbox (LIKE outbox INCLUDING DEFAULTS)`, `ALTER TABLE json_outbox ALTER payload TYPE json USING NULL`)
	payloads := []string{`{}`, `"\u0000"`, `"\\u0000"`, `"\\\u0000"`, `{"\u0000":1}`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ude00"`, `"\ud83dx"`, `"\ud83d\n"`,
		`"\ud83d\u0041"`, `"\ud83d\ud83d\ude00"`, `"\ud83d\ude00\ude00"`, `"\uD83D\uDE00\u00e9"`, `"\ud83d\\ude00"`, `1 2`, `tru`, ` 1 `, "\"a\tb\"", `01`, `{"a":}`, `[1,]`, ``, `"`, `-`, `1e5`, `NaN`,
		`1e131071`, `-1e131071`, `1e131072`, `12e131070`, `12.5e131071`, `0.1e131072`, `0.01e131073`, `0.01e131074`, `1e-16383`, `1e-16384`, `1.5e-16382`, `1.5e-16383`, `{"1e999999":"1e999999"}`,
		`0e999999`, `0.0e-5`, `0e-16383`, `0e-16384`, `[1,2.5e3,{"a":1E+140000}]`, `1e99999999999999999999`, `1e-99999999999999999999`, strings.Repeat("1", 131_073), "0." + strings.Repeat("1", 16_384), "1" + strings.Repeat("0", 131_071),
		strings.Repeat("[", 9000) + strings.Repeat("]", 9000), strings.Repeat("{\"a\":", 9000) + "1" + strings.Repeat("}", 9000)}
	for _, p := range payloads {
		for _, kind := range []outbox.PayloadType{outbox.JSONB, outbox.JSON} {
			_, err := e.conn.Exec(t.Context(), "SELECT $1::text::"+[]string{"jsonb", "json"}[kind], p)
			o := e.outbox(outbox.Config{Table: outbox.Table{Payload: kind, Name: []string{"outbox", "json_outbox"}[kind]}})
			ev := placed("1")
			ev.Payload = []byte(p)
			tx := e.beginSQL()
			_, ours := tx.writeBatch(o, ev)
			tx.rollback()
			if (err == nil) != (ours == nil) || ours != nil && !errors.Is(ours, outbox.ErrJSON) {
				t.Errorf("%.40s as %d: PostgreSQL says %v, we say %v", p, kind, err, ours)
			}
		}
	}
}
