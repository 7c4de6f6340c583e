package outbox

import "encoding/json"

// body returns the JSON of a logical message, as docs/messages.md of the relay says.
func body(p prepared) []byte {
	b := append([]byte(`{"id":`), quote(p.ID)...)
	member := func(name, value string) {
		if value != "" {
			b = append(append(b, `,"`+name+`":`...), quote(value)...)
		}
	}
	member("aggregatetype", p.AggregateType)
	key := p.AggregateID
	if key == "" {
		key = p.Key
	}
	member("aggregateid", key)
	member("type", p.Type)
	member("topic", p.Topic)
	for i, name := range p.names {
		b = append(b, [2]string{`,"headers":{`, `,`}[min(i, 1)]...)
		b = append(append(append(b, quote(name)...), ':'), quote(p.Headers[name])...)
	}
	if len(p.names) > 0 {
		b = append(b, '}')
	}
	b = append(b, `,"payload":`...)
	return append(append(b, payload(p.Payload)...), '}')
}

// payload returns JSON for which the relay publishes exactly these bytes: an object
// or an array stands for itself. Anything else goes as a string, which stands for its
// text: a string would lose its quotes, null its value, and spaces around would go.
func payload(p []byte) []byte {
	if p == nil {
		return []byte("null")
	}
	if n := len(p); n > 0 && (p[0] == '{' || p[0] == '[') && (p[n-1] == '}' || p[n-1] == ']') && json.Valid(p) {
		return p
	}
	return quote(string(p))
}

// quote returns a JSON string. Its texts are UTF-8.
func quote(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always can be
	}
	return b
}
