package inbox

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// CloudEventIDHeader is the Config.IDHeader for records in the relay's format cloudevents.
// Records in the formats raw and json carry the id in the header id.
const CloudEventIDHeader = "ce_id"

// Envelope is an event in one of the relay's formats.
type Envelope struct {
	ID        string
	Type      string // "" : none
	Aggregate string // "" : none
	Key       []byte // nil: none
	Time      time.Time
	// Payload of the format json is JSON as it stands in the record, without the white space around it: a
	// text is a string in quotes. That of a bytea, and that of a CloudEvent, are the bytes
	// themselves. nil: the event has none.
	Payload []byte
	// ContentType of a CloudEvent; "" in an envelope.
	ContentType string
	Source      string // of a CloudEvent
}

// ReadEnvelope reads a record in the relay's format json. Of a record without a value, by
// which a compacted topic forgets a key, it returns what the record itself says: id, key and time.
// Its errors are [Permanent] and show nothing of the record but where it is.
func ReadEnvelope(r Record) (Envelope, error) {
	if r.Value == nil {
		return Envelope{ID: r.ID, Key: r.Key, Time: r.Time}, nil
	}
	var e struct {
		ID        *string         `json:"id"`
		Type      string          `json:"type"`
		Aggregate string          `json:"aggregate"`
		Key       *string         `json:"key"`
		Time      string          `json:"time"`
		Encoding  string          `json:"payload_encoding"`
		Payload   json.RawMessage `json:"payload"`
	}
	if json.Unmarshal(r.Value, &e) != nil {
		return Envelope{}, unread(r, "its value is no JSON object with the members of an envelope")
	}
	at, err := time.Parse(time.RFC3339, e.Time)
	switch {
	case e.ID == nil || *e.ID == "":
		return Envelope{}, unread(r, "it has no id")
	case r.ID != "" && *e.ID != r.ID:
		return Envelope{}, unread(r, "the id in its value is not the one in its header")
	case err != nil:
		return Envelope{}, unread(r, "its time is none of RFC 3339")
	case e.Payload == nil:
		return Envelope{}, unread(r, "it has no payload")
	}
	out := Envelope{ID: *e.ID, Type: e.Type, Aggregate: e.Aggregate, Time: at, Payload: e.Payload}
	if e.Key != nil {
		out.Key = []byte(*e.Key)
	}
	switch e.Encoding {
	case "":
	case "base64":
		var text string
		if json.Unmarshal(e.Payload, &text) != nil {
			return Envelope{}, unread(r, "its payload is said to be base64 and is no string")
		}
		if out.Payload, err = base64.StdEncoding.DecodeString(text); err != nil {
			return Envelope{}, unread(r, "its payload is said to be base64 and is not")
		}
	default:
		return Envelope{}, unread(r, "the encoding of its payload is not known; only base64 is")
	}
	return out, nil
}

// ReadCloudEvent reads a record that is a CloudEvent 1.0 in the binary content mode, the relay's
// format cloudevents. Its errors are [Permanent] and show nothing of the record but where
// it is.
func ReadCloudEvent(r Record) (Envelope, error) {
	content := string(r.Header("content-type"))
	if strings.HasPrefix(strings.ToLower(content), "application/cloudevents") {
		return Envelope{}, unread(r, "it is in the structured content mode, which the relay does not write")
	}
	text := func(name string) string { return string(r.Header("ce_" + name)) }
	if text("specversion") != "1.0" {
		return Envelope{}, unread(r, "its ce_specversion is not 1.0")
	}
	for _, name := range []string{"id", "source", "type"} {
		if text(name) == "" {
			return Envelope{}, unread(r, "it has no ce_"+name)
		}
	}
	out := Envelope{ID: text("id"), Type: text("type"), Aggregate: text("aggregatetype"), Key: r.Key,
		Payload: r.Value, ContentType: content, Source: text("source")}
	if at := text("time"); at != "" {
		var err error
		if out.Time, err = time.Parse(time.RFC3339, at); err != nil {
			return Envelope{}, unread(r, "its ce_time is none of RFC 3339")
		}
	}
	return out, nil
}

func unread(r Record, reason string) error {
	return Permanent(fmt.Sprintf("the event at %s/%d/%d cannot be read: %s", r.Topic, r.Partition, r.Offset, reason), nil)
}
