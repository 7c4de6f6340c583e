package route

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestBody_CutsMembersAsTheyStand(t *testing.T) {
	for content, want := range map[string]map[member]string{
		`{}`:                               {},
		" \t\r\n{ \n} ":                    {},
		`{"id":"a"}`:                       {memberID: `"a"`},
		`{"id" : 7 , "payload" : null }`:   {memberID: `7`, memberPayload: `null`},
		`{"payload": {"b":1,  "a": [ ] }}`: {memberPayload: `{"b":1,  "a": [ ] }`},
		`{"payload":[{"}":"]"},"\"}]",[]],"type":"t"}`: {memberPayload: `[{"}":"]"},"\"}]",[]]`, memberType: `"t"`},
		`{"payload":"\\","id":"\\\""}`:                 {memberPayload: `"\\"`, memberID: `"\\\""`},
		`{"payload":-1.5e+10,"id":true}`:               {memberPayload: `-1.5e+10`, memberID: `true`},
		`{"\u0069d":"x","headers":{}}`:                 {memberID: `"x"`, memberHeaders: `{}`},
		"{\"payload\":{\"a\":1,\"a\":2}\n}":            {memberPayload: `{"a":1,"a":2}`}, // the payload is the writer's affair
	} {
		var b body
		if reason := b.parse([]byte(content)); reason != "" {
			t.Errorf("%s: %s", content, reason)
			continue
		}
		for m := range members {
			if got := string(b[m]); got != want[m] {
				t.Errorf("%s: %s is %q, want %q", content, m, got, want[m])
			}
		}
	}
}

func TestBody_RefusesWhatItDoesNotKnow(t *testing.T) {
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	for content, want := range map[string]string{
		``:                                   `its body is empty`,
		`{`:                                  `its body is not JSON from byte 1 on`,
		`{"id":"secret"`:                     `its body is not JSON from byte 14 on`,
		`{"id":secret}`:                      `its body is not JSON from byte 7 on`,
		`{"id":"a"} x`:                       `its body is not JSON from byte 12 on`,
		`{"id":01}`:                          `its body is not JSON from byte 8 on`,
		`{'id':1}`:                           `its body is not JSON from byte 2 on`,
		`{"id":1,}`:                          `its body is not JSON from byte 9 on`,
		"{\"id\":\"a\nb\"}":                  `its body is not JSON from byte 9 on`,
		"\ufeff{}":                           `its body is not JSON from byte 1 on`,
		`{"payload":` + deep + `}`:           `its body is not JSON from byte 10011 on`,
		"{\"id\":\"\xff\"}":                  `its body is not UTF-8 from byte 8 on`,
		"{\"payload\":{\"a\":\"\xc3\"}}":     `its body is not UTF-8 from byte 18 on`,
		"{\"id\":\"\xed\xa0\x80\"}":          `its body is not UTF-8 from byte 8 on`,
		`[]`:                                 `its body is JSON, but no object`,
		`"secret"`:                           `its body is JSON, but no object`,
		`null`:                               `its body is JSON, but no object`,
		`{"secret":1}`:                       `its body has a member, at byte 2, that is not known; known are ` + knownMembers,
		`{"id":"a", "ID":"b"}`:               `its body has a member, at byte 12, that is not known; known are ` + knownMembers,
		`{"":1}`:                             `its body has a member, at byte 2, that is not known; known are ` + knownMembers,
		`{"id\ud800":1}`:                     `its body has a member, at byte 2, that is not known; known are ` + knownMembers,
		`{"id":"a","id":"b"}`:                `its body has "id" twice, again at byte 11`,
		`{"id":"a","type":null,"i\u0064":1}`: `its body has "id" twice, again at byte 23`,
		`{"payload":null,"payload":1}`:       `its body has "payload" twice, again at byte 17`,
	} {
		var b body
		if reason := b.parse([]byte(content)); reason != want {
			t.Errorf("%.60q: got %q, want %q", content, reason, want)
		}
	}
	if want := "id, aggregatetype, aggregateid, type, topic, payload, headers, partition and timestamp"; knownMembers != want {
		t.Error(knownMembers)
	}
}

func TestAppendUnquoted_NoHalfOfAPair(t *testing.T) {
	for lit, want := range map[string]string{
		`""`: "", `"a"`: "a", `"\"\\\/\b\f\n\r\t"`: "\"\\/\b\f\n\r\t", `"\u0000"`: "\x00", `"\u00e9\u20AC"`: "é€",
		`"x\ud83d\ude00y"`: "x😀y", `"\uD83D\uDE00"`: "😀", `"\ufffd"`: "\ufffd", `"é"`: "é",
	} {
		if got, ok := appendUnquoted([]byte("<"), []byte(lit)); !ok || string(got) != "<"+want {
			t.Errorf("%s: got %q %v", lit, got, ok)
		}
	}
	for _, lit := range []string{`"\ud83d"`, `"\ude00"`, `"\ud83d\ud83d"`, `"\ud83dx"`, `"\ud83d\n"`, `"\ud83d\u0041"`, `"\ude00\ud83d"`} {
		if got, ok := appendUnquoted(nil, []byte(lit)); ok {
			t.Errorf("%s: got %q", lit, got)
		}
	}
}

// FuzzBody asks that members are what encoding/json reads, that only what must be
// refused is, and that a reason shows nothing of the content.
func FuzzBody(f *testing.F) {
	for _, s := range []string{
		`{"id":"a","aggregatetype":"order","aggregateid":7,"type":"T","payload":{"a":[1,"}"]},"headers":{"x":"y"},"partition":1,"timestamp":1}`,
		` { "id" : "\ud83d\ude00" , "payload" : "a\\\"" , "topic":null} `, `{"id":1,"id":2}`, `{"x":1}`, `[1]`, `{"payload":"\ud83d"}`, "{\"id\":\"\xff\"}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		var b body
		before := bytes.Clone(content)
		reason := b.parse(content)
		if !bytes.Equal(content, before) {
			t.Fatal("the content was changed")
		}
		names, values, object := decodeObject(content)
		seen := map[string]bool{}
		bad := !object || !utf8.Valid(content)
		for _, n := range names {
			bad = bad || seen[n] || memberByName([]byte(n)) == members
			seen[n] = true
		}
		if bad != (reason != "") {
			t.Fatalf("reason %q; it must be refused: %v", reason, bad)
		}
		if reason != "" {
			return
		}
		for i, n := range names {
			got := b[memberByName([]byte(n))]
			if !bytes.Equal(got, values[i]) {
				t.Fatalf("%s is %q, encoding/json has %q", n, got, values[i])
			}
			if isString(got) {
				agreeOnText(t, got)
			}
		}
		for m := range members {
			if b[m] != nil && !seen[m.String()] {
				t.Fatalf("%s is %q and is not there", m, b[m])
			}
		}
	})
}

// agreeOnText compares a string with what encoding/json makes of it, which puts
// U+FFFD in place of half a pair.
func agreeOnText(t *testing.T, lit []byte) {
	t.Helper()
	var want string
	if err := json.Unmarshal(lit, &want); err != nil {
		t.Fatal(err)
	}
	got, ok := appendUnquoted(nil, lit)
	switch {
	case ok && string(got) != want:
		t.Fatalf("%s is %q, encoding/json has %q", lit, got, want)
	case !ok && !strings.Contains(want, "\ufffd"):
		t.Fatalf("%s is refused", lit)
	}
	if plain, ok := unescaped(lit); ok && string(plain) != want {
		t.Fatalf("%s is %q without escapes, encoding/json has %q", lit, plain, want)
	}
}

// decodeObject reads an object member by member, duplicates too.
func decodeObject(content []byte) (names []string, values []json.RawMessage, ok bool) {
	if !json.Valid(content) {
		return nil, nil, false
	}
	d := json.NewDecoder(bytes.NewReader(content))
	if tok, err := d.Token(); err != nil || tok != json.Delim('{') {
		return nil, nil, false
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, nil, false
		}
		var v json.RawMessage
		if d.Decode(&v) != nil {
			return nil, nil, false
		}
		names, values = append(names, name.(string)), append(values, v)
	}
	return names, values, true
}
