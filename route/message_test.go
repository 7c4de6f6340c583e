package route_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

func messages() route.Messages {
	return route.Messages{Prefix: "outbox", Topic: "outbox.event.{aggregatetype}", Reserved: "marks",
		IDHeader: "id", TypeHeader: "eventType", Position: true}
}

func compileMessages(tb testing.TB, m route.Messages) *route.MessageRouter {
	tb.Helper()
	r, err := route.CompileMessages(m)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func message(body string) decoder.LogicalMessage {
	return decoder.LogicalMessage{Transactional: true, LSN: 7, Prefix: []byte("outbox"), Content: []byte(body)}
}

func TestMessages_BecomeRecords(t *testing.T) {
	const at = "@1700000000123"
	const tail = ` lsn:"000000AB000000CD" seq:"3"`
	topic := messages()
	topic.Topic, topic.Position, topic.IDHeader, topic.TypeHeader = "{topic}", false, "event-id", "kind"
	fixed := messages()
	fixed.Topic = "orders"
	mixed := messages()
	mixed.Topic, mixed.Position = "{type}.a_{aggregatetype}-{type}", false
	for name, c := range map[string]struct {
		cfg        route.Messages
		body, want string
	}{
		"everything": {messages(),
			`{"id": "7f", "aggregatetype": "order", "aggregateid": "12", "type": "Created", "payload": {"a": 1,  "b":[]}, "headers": {"x-b": "y", "x-a": null, "n": 7}, "partition": 4, "timestamp": 1700000000999}`,
			`outbox.event.order/4 "12"="{\"a\": 1,  \"b\":[]}" @1700000000999 id:"7f" eventType:"Created" x-b:"y" x-a:null n:"7"` + tail},
		"as little as can be": {messages(), `{"id":"7f","aggregatetype":"order","payload":null}`,
			`outbox.event.order/-1 null=null ` + at + ` id:"7f" eventType:null` + tail},
		"null is not there": {messages(), `{"id":"7f","aggregatetype":"order","payload":1,"aggregateid":null,"type":null,"topic":null,"headers":null,"partition":null,"timestamp":null}`,
			`outbox.event.order/-1 null="1" ` + at + ` id:"7f" eventType:null` + tail},
		"numbers are digits": {messages(), `{"id":12345678901234567890,"aggregatetype":7,"aggregateid":-1,"type":0,"payload":1.50e1}`,
			`outbox.event.7/-1 "-1"="1.50e1" ` + at + ` id:"12345678901234567890" eventType:"0"` + tail},
		"a string is its text": {messages(), `{"id":"7f","aggregatetype":"order","aggregateid":"","type":"","payload":"{\"a\":\t\u00e9\ud83d\ude00\u0000}"}`,
			`outbox.event.order/-1 ""="{\"a\":` + `\té😀\x00}" ` + at + ` id:"7f" eventType:""` + tail},
		"an empty string is an empty value": {messages(), `{"id":"7f","aggregatetype":"order","payload":""}`,
			`outbox.event.order/-1 null="" ` + at + ` id:"7f" eventType:null` + tail},
		"payload true":  {messages(), `{"id":"7f","aggregatetype":"order","payload": true }`, `outbox.event.order/-1 null="true" ` + at + ` id:"7f" eventType:null` + tail},
		"payload array": {messages(), `{"id":"7f","aggregatetype":"order","payload":[ 1, "\u0041" ]}`, `outbox.event.order/-1 null="[ 1, \"\\u0041\" ]" ` + at + ` id:"7f" eventType:null` + tail},
		"escapes everywhere": {messages(), `{"\u0069d":"\u0037f","aggregatetype":"\u006frder","aggregateid":"\n","type":"\/","payload":"\\","headers":{"\u0078":"\ty"}}`,
			`outbox.event.order/-1 "\n"="\\" ` + at + ` id:"7f" eventType:"/" x:"\ty"` + tail},
		"the body names the topic": {topic, `{"id":"7f","topic":"orders.v1","payload":"p"}`, `orders.v1/-1 null="p" ` + at + ` event-id:"7f" kind:null`},
		"fixed topic":              {fixed, `{"id":"7f","payload":"p"}`, `orders/-1 null="p" ` + at + ` id:"7f" eventType:null` + tail},
		"topic of several members": {mixed, `{"id":"7f","aggregatetype":"y","type":"x","payload":"p"}`, `x.a_y-x/-1 null="p" ` + at + ` id:"7f" eventType:"x"`},
		"lsn and seq are free without position_headers": {topic, `{"id":"7f","topic":"t","payload":"p","headers":{"lsn":"1","id":"2"}}`,
			`t/-1 null="p" ` + at + ` event-id:"7f" kind:null lsn:"1" id:"2"`},
		"timestamptz in JSON":   {fixed, `{"id":"7f","payload":"p","timestamp":"2024-05-06T07:08:09.123456+02:00"}`, `orders/-1 null="p" @1714972089123 id:"7f" eventType:null` + tail},
		"timestamp in UTC":      {fixed, `{"id":"7f","payload":"p","timestamp":"1970-01-01T00:00:00Z"}`, `orders/-1 null="p" @0 id:"7f" eventType:null` + tail},
		"the largest partition": {fixed, `{"id":"7f","payload":"p","partition":2147483647}`, `orders/2147483647 null="p" ` + at + ` id:"7f" eventType:null` + tail},
	} {
		t.Run(name, func(t *testing.T) {
			rec := sink.Record{Topic: "old", ID: []byte("old"), Partition: 9}
			if err := compileMessages(t, c.cfg).Route(commit, 3, message(c.body), &rec); err != nil {
				t.Fatal(err)
			}
			if got := show(rec); got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
			if string(rec.ID) == "old" || rec.LSN != commit.CommitLSN || rec.Seq != 3 {
				t.Errorf("named %q %s %d", rec.ID, rec.LSN, rec.Seq)
			}
		})
	}
}

// Each is refused for good, is named by its place, and shows nothing of its
// content but its id.
func TestMessages_PoisonIsNamedWithoutItsContent(t *testing.T) {
	const good = `"id":"7f","aggregatetype":"order","payload":"secret"`
	topic := messages()
	topic.Topic = "{topic}"
	long := strings.Repeat("secret", 50)
	var many []string
	for i := range 1001 {
		many = append(many, fmt.Sprintf(`"secret-%d":null`, i))
	}
	for _, c := range []struct {
		cfg        route.Messages
		body, want string
	}{
		{messages(), `secret`, `cannot be published: its body is not JSON from byte 1 on`},
		{messages(), `{` + good + `,"secret":1}`, `(id "7f"), cannot be published: its body has a member, at byte 55, that is not known`},
		{messages(), `{` + good + `,"id":"8"}`, `its body has "id" twice`},
		{messages(), `{"aggregatetype":"order","payload":"secret"}`, `its body has no "id"`},
		{messages(), `{"id":null,"aggregatetype":"order","payload":"secret"}`, `its body has no "id"`},
		{messages(), `{"id":"","aggregatetype":"order","payload":"secret"}`, `its body has no "id"`},
		{messages(), `{"id":{"secret":1},"aggregatetype":"order","payload":"secret"}`, `"id" is neither a string nor a whole number`},
		{messages(), `{"id":1.5,"aggregatetype":"order","payload":"secret"}`, `"id" is neither a string nor a whole number`},
		{messages(), `{"id":"\ud800","aggregatetype":"order","payload":"secret"}`, `"id" has half of a surrogate pair`},
		{messages(), `{"id":"7f","payload":"secret"}`, `(id "7f"), cannot be published: its body has no "aggregatetype"`},
		{messages(), `{"id":"7f","aggregatetype":"","payload":"secret"}`, `its body has no "aggregatetype", or an empty one`},
		{messages(), `{"id":"7f","aggregatetype":["secret"],"payload":1}`, `"aggregatetype" is neither`},
		{messages(), `{"id":"7f","aggregatetype":"no secret!","payload":1}`, `the topic is made of "aggregatetype" and cannot be one: it has a character at position 16`},
		{messages(), `{"id":"7f","aggregatetype":"` + long + `","payload":1}`, `"aggregatetype" is 300 bytes long`},
		{messages(), `{` + good + `,"topic":"secret"}`, `it names a "topic", and messages.topic has no {topic} in it`},
		{topic, `{` + good + `}`, `its body has no "topic"`},
		{topic, `{` + good + `,"topic":".."}`, `the topic is made of "topic" and cannot be one: it is only dots`},
		{topic, `{` + good + `,"topic":"marks"}`, `its topic "marks" is not for events`},
		{messages(), `{"id":"7f","aggregatetype":"order"}`, `its body has no "payload"; give null`},
		{messages(), `{"id":"7f","aggregatetype":"order","payload":"secret\udc00"}`, `"payload" has half of a surrogate pair`},
		{messages(), `{` + good + `,"aggregateid":{"secret":1}}`, `"aggregateid" is neither`},
		{messages(), `{` + good + `,"type":false}`, `"type" is neither`},
		{messages(), `{` + good + `,"partition":-1}`, `"partition" is not a whole number from 0 to 2147483647`},
		{messages(), `{` + good + `,"partition":2147483648}`, `"partition" is not`},
		{messages(), `{` + good + `,"partition":99999999999999999999}`, `"partition" is not`},
		{messages(), `{` + good + `,"partition":1.0}`, `"partition" is not`},
		{messages(), `{` + good + `,"partition":"1"}`, `"partition" is not`},
		{messages(), `{` + good + `,"timestamp":-1}`, `"timestamp": it is before 1970`},
		{messages(), `{` + good + `,"timestamp":"1969-12-31T23:59:59+00:00"}`, `"timestamp": it is before 1970`},
		{messages(), `{` + good + `,"timestamp":99999999999999999999}`, `"timestamp": it is not a whole number of 64 bits`},
		{messages(), `{` + good + `,"timestamp":1.5}`, `"timestamp" is neither`},
		{messages(), `{` + good + `,"timestamp":"infinity"}`, `"timestamp" is not a time with its zone`},
		{messages(), `{` + good + `,"timestamp":"2024-05-06T07:08:09"}`, `"timestamp" is not a time with its zone`},
		{messages(), `{` + good + `,"headers":["secret"]}`, `"headers" is not an object`},
		{messages(), `{` + good + `,"headers":{"":"secret"}}`, `the name of header 1 of "headers" is empty, or no text`},
		{messages(), `{` + good + `,"headers":{"a":"1","\udc00":"secret"}}`, `the name of header 2 of "headers" is empty, or no text`},
		{messages(), `{` + good + `,"headers":{"secret":"1","secret":"2"}}`, `header 2 of "headers" has the name of an earlier one`},
		{messages(), `{` + good + `,"headers":{"secret":{}}}`, `header 1 of "headers" is neither`},
		{messages(), `{` + good + `,"headers":{` + strings.Join(many, ",") + `}}`, `"headers" has more than 1000 members`},
		{messages(), `{` + good + `,"headers":{"id":"secret"}}`, `"headers" has "id", which the relay itself adds`},
		{messages(), `{` + good + `,"headers":{"eventType":"secret"}}`, `"headers" has "eventType"`},
		{messages(), `{` + good + `,"headers":{"lsn":"secret"}}`, `"headers" has "lsn"`},
		{messages(), `{` + good + `,"headers":{"seq":"secret"}}`, `"headers" has "seq"`},
	} {
		rec := sink.Record{Topic: "old", ID: []byte("old")}
		err := compileMessages(t, c.cfg).Route(commit, 3, message(c.body), &rec)
		var e *fault.Error
		if !errors.As(err, &e) || e.Class != fault.Poison {
			t.Errorf("%s: got %v", c.body, err)
			continue
		}
		for _, want := range []string{c.want, `the message with the prefix "outbox", number 3 in the transaction committed at AB/CD`} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s:\n got %s\nwant %s", c.body, err, want)
			}
		}
		if strings.Contains(err.Error(), "secret") || string(rec.ID) == "old" || rec.Topic == "old" || rec.LSN != commit.CommitLSN || rec.Seq != 3 {
			t.Errorf("%s: it is named %q %q %s %d: %v", c.body, rec.ID, rec.Topic, rec.LSN, rec.Seq, err)
		}
	}
}

func TestMessages_MatchTheWholePrefix(t *testing.T) {
	r := compileMessages(t, messages())
	for prefix, want := range map[string]bool{"outbox": true, "outbox2": false, "Outbox": false, "": false, "outbo": false, "my outbox": false} {
		if got := r.Matches([]byte(prefix)); got != want {
			t.Errorf("%q: %v", prefix, got)
		}
	}
}

func TestMessages_OneRouterForMany(t *testing.T) {
	r := compileMessages(t, messages())
	var rec sink.Record
	for i := range 5000 {
		body := fmt.Sprintf(`{"id":"\u0069%d","aggregatetype":"t%d","payload":"\n%d","headers":{"h%d":"\t"}}`, i, i, i, i)
		if err := r.Route(commit, 0, message(body), &rec); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`outbox.event.t%d/-1 null="\n%d" @1700000000123 id:"i%d" eventType:null h%d:"\t" lsn:"000000AB000000CD" seq:"0"`, i, i, i, i)
		if got := show(rec); got != want {
			t.Fatalf("\n got %s\nwant %s", got, want)
		}
	}
}

func TestCompileMessages_ReportsEveryProblem(t *testing.T) {
	_, err := route.CompileMessages(route.Messages{Topic: "{payload}", IDHeader: "seq", Position: true})
	for _, want := range []string{"the prefix is empty", "{payload} cannot be part of it", "a header's name is empty", `header "seq" is produced twice`} {
		if err == nil || fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	m := messages()
	for _, topic := range []string{"", "{", "{}", "no topic!", "{id}", "marks", ".."} {
		m.Topic = topic
		if _, err := route.CompileMessages(m); err == nil {
			t.Errorf("%q is taken for a topic", topic)
		}
	}
}

// FuzzMessage asks of any body that it is refused, or is a record that can be
// written.
func FuzzMessage(f *testing.F) {
	f.Add(`{"id":"a","aggregatetype":"order","aggregateid":7,"type":"T","payload":{"a":[1,"}"]},"headers":{"x":"y"},"partition":1,"timestamp":"2024-05-06T07:08:09Z"}`)
	f.Add(`{"id":"\u0061","aggregatetype":"o","payload":"\ud83d\ude00"}`)
	r := compileMessages(f, messages())
	f.Fuzz(func(t *testing.T, body string) {
		var rec sink.Record
		if err := r.Route(commit, 1, message(body), &rec); err != nil {
			if fault.ClassOf(err) != fault.Poison {
				t.Fatal(err)
			}
			return
		}
		if len(rec.ID) == 0 || !strings.HasPrefix(rec.Topic, "outbox.event.") || len(rec.Topic) > 249 || rec.Partition < -1 || rec.Timestamp < 0 || len(rec.Headers) < 4 {
			t.Fatal(show(rec))
		}
		seen := map[string]bool{}
		for _, h := range rec.Headers {
			if seen[h.Key] {
				t.Fatal(show(rec))
			}
			seen[h.Key] = true
		}
	})
}

func BenchmarkMessage(b *testing.B) {
	r := compileMessages(b, messages())
	m := message(`{"id": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "type": "OrderCreated", "payload": {"x": "` + strings.Repeat("x", 300) +
		`"}, "aggregateid": "12345", "aggregatetype": "order"}`)
	var rec sink.Record
	b.ReportAllocs()
	b.SetBytes(int64(len(m.Content)))
	for b.Loop() {
		if err := r.Route(commit, 1, m, &rec); err != nil {
			b.Fatal(err)
		}
	}
}
