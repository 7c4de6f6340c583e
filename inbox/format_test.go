package inbox

import (
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

const envelopeHead = `{"id":"7","type":"Made","aggregate":"order","key":"k","time":"2026-01-31T12:00:00.123456Z",`

var made = time.Date(2026, 1, 31, 12, 0, 0, 123456000, time.UTC)

func TestReadEnvelope_EveryPayload(t *testing.T) {
	for name, c := range map[string]struct{ value, payload string }{
		"json":           {envelopeHead + `"payload": {"b" : 1.10, "a":1e400, "a": "\u00e9"} }`, `{"b" : 1.10, "a":1e400, "a": "\u00e9"}`},
		"json null":      {envelopeHead + `"payload":null}`, "null"},
		"text":           {envelopeHead + `"payload":"a\n\"é"}`, `"a\n\"é"`},
		"empty text":     {envelopeHead + `"payload":""}`, `""`},
		"bytea":          {envelopeHead + `"payload_encoding":"base64","payload":"AP8="}`, "\x00\xff"},
		"empty bytea":    {envelopeHead + `"payload_encoding":"base64","payload":""}`, ""},
		"unknown member": {envelopeHead + `"later":[1],"payload":1}`, "1"},
	} {
		e, err := ReadEnvelope(Record{ID: "7", Value: []byte(c.value)})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if string(e.Payload) != c.payload || e.Payload == nil || e.ID != "7" || e.Type != "Made" || e.Aggregate != "order" || string(e.Key) != "k" || !e.Time.Equal(made) {
			t.Errorf("%s: %+v, payload %q", name, e, e.Payload)
		}
	}
	e, err := ReadEnvelope(Record{ID: "7", Value: []byte(`{"id":"7","type":null,"aggregate":null,"key":null,"time":"2026-01-31T12:00:00Z","payload":1}`)})
	if err != nil || e.Type != "" || e.Aggregate != "" || e.Key != nil {
		t.Errorf("without type, aggregate and key: %+v, %v", e, err)
	}
	e, err = ReadEnvelope(Record{ID: "7", Key: []byte("k"), Time: made})
	if err != nil || e.ID != "7" || string(e.Key) != "k" || !e.Time.Equal(made) || e.Payload != nil {
		t.Errorf("a tombstone: %+v, %v", e, err)
	}
}

func TestReadEnvelope_Refuses(t *testing.T) {
	for value, want := range map[string]string{
		"":           "no JSON object",
		"s3cret":     "no JSON object",
		`["s3cret"]`: "no JSON object",
		`{"id":7,"time":"2026-01-31T12:00:00Z","payload":"s3cret"}`:        "no JSON object",
		envelopeHead + `"payload":"s3cret"}x`:                              "no JSON object",
		envelopeHead + `"payload":"s3cret`:                                 "no JSON object",
		`{"time":"2026-01-31T12:00:00Z","payload":"s3cret"}`:               "no id",
		`{"id":"","time":"2026-01-31T12:00:00Z","payload":"s3cret"}`:       "no id",
		`{"id":"s3cret","time":"2026-01-31T12:00:00Z","payload":1}`:        "not the one in its header",
		`{"id":"7","time":"s3cret","payload":1}`:                           "none of RFC 3339",
		`{"id":"7","payload":"s3cret"}`:                                    "none of RFC 3339",
		envelopeHead + `"x":"s3cret"}`:                                     "no payload",
		envelopeHead + `"payload_encoding":"base64","payload":"s3cret"}`:   "base64 and is not",
		envelopeHead + `"payload_encoding":"base64","payload":["s3cret"]}`: "base64 and is no string",
		envelopeHead + `"payload_encoding":"s3cret","payload":"x"}`:        "only base64 is",
	} {
		refused(t, value, want, func(r Record) (Envelope, error) { r.ID, r.Value = "7", []byte(value); return ReadEnvelope(r) })
	}
}

// refused wants an error that is permanent, names the place and shows no payload.
func refused(t *testing.T, what, want string, read func(Record) (Envelope, error)) {
	t.Helper()
	e, err := read(Record{Topic: "orders", Partition: 3, Offset: 99})
	if err == nil || !permanent(err) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "orders/3/99") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%s: %v; want a permanent error with %q", what, err, want)
	}
	if err != nil && reasonOf(err) != err.Error() {
		t.Errorf("%s: the dead letter would show %q", what, reasonOf(err))
	}
	if e.ID != "" || e.Payload != nil {
		t.Errorf("%s: %+v beside an error", what, e)
	}
}

func cloudEvent(value []byte, pairs ...string) Record {
	r := Record{ID: "7", Topic: "orders", Partition: 3, Offset: 99, Key: []byte("k"), Value: value}
	for i := 0; i < len(pairs); i += 2 {
		r.Headers = append(r.Headers, kafka.Header{Key: pairs[i], Value: []byte(pairs[i+1])})
	}
	return r
}

func TestReadCloudEvent(t *testing.T) {
	required := []string{"ce_id", "7", "ce_specversion", "1.0", "ce_source", "/shop", "ce_type", "Made"}
	e, err := ReadCloudEvent(cloudEvent([]byte("\x00\xff"), append(required, "ce_time", "2026-01-31T14:00:00.123456+02:00", "ce_aggregatetype", "order", "content-type", "application/octet-stream")...))
	if err != nil || e.ID != "7" || e.Type != "Made" || e.Source != "/shop" || e.Aggregate != "order" || string(e.Key) != "k" ||
		string(e.Payload) != "\x00\xff" || e.ContentType != "application/octet-stream" || !e.Time.Equal(made) {
		t.Errorf("%+v, %v", e, err)
	}
	for _, value := range [][]byte{nil, {}} {
		e, err = ReadCloudEvent(cloudEvent(value, required...))
		if err != nil || (e.Payload == nil) != (value == nil) || len(e.Payload) != 0 || !e.Time.IsZero() || e.Aggregate != "" || e.ContentType != "" {
			t.Errorf("value %v: %+v, %v", value, e, err)
		}
	}
	for name, c := range map[string]struct {
		pairs []string
		want  string
	}{
		"nothing":    {nil, "ce_specversion is not 1.0"},
		"another":    {append([]string{"ce_specversion", "s3cret"}, required[:2]...), "ce_specversion is not 1.0"},
		"no id":      {required[2:], "no ce_id"},
		"no source":  {append(append([]string{}, required[:4]...), required[6:]...), "no ce_source"},
		"no type":    {required[:6], "no ce_type"},
		"time":       {append(append([]string{}, required...), "ce_time", "s3cret"), "none of RFC 3339"},
		"structured": {append(append([]string{}, required...), "content-type", "application/CloudEvents+json"), "structured content mode"},
	} {
		refused(t, name, c.want, func(Record) (Envelope, error) { return ReadCloudEvent(cloudEvent([]byte("s3cret"), c.pairs...)) })
	}
}
