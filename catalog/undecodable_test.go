package catalog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestUndecodable_TellsCertainFromPerhaps(t *testing.T) {
	for name, c := range map[string]struct {
		err              error
		perhaps, certain bool
	}{
		"bytes":           {&pgconn.PgError{Code: "22021"}, true, true},
		"character":       {&pgconn.PgError{Code: "22P05"}, true, true},
		"publication":     {&pgconn.PgError{Code: "42704"}, true, true},
		"message's limit": {&pgconn.PgError{Code: "54000"}, true, true},
		"allocation":      {&pgconn.PgError{Code: "XX000", Message: "invalid memory alloc request size 1100000003"}, true, true},
		"damage":          {&pgconn.PgError{Code: "XX001"}, true, false},
		"unknown":         {&pgconn.PgError{Code: "XX000", Message: "cache lookup failed"}, true, false},
		"memory":          {&pgconn.PgError{Code: "53200", File: "mcxt.c"}, true, false},
		"shutdown":        {&pgconn.PgError{Code: "57P01"}, false, false},
		"slot in use":     {&pgconn.PgError{Code: "55006"}, false, false},
		"WAL removed":     {&pgconn.PgError{Code: "58P01"}, false, false},
		"privilege":       {&pgconn.PgError{Code: "42501"}, false, false},
		"network":         {fmt.Errorf("unexpected EOF"), false, false},
		"nothing":         {nil, false, false},
	} {
		if c.err != nil {
			c.err = fmt.Errorf("the server ended the stream: %w", c.err)
		}
		if perhaps, certain := Undecodable(c.err); perhaps != c.perhaps || certain != c.certain {
			t.Errorf("%s: perhaps %t, certain %t", name, perhaps, certain)
		}
	}
}

func TestDecodedLSN_IsTheLastOfTheContext(t *testing.T) {
	for where, want := range map[string]string{
		`slot "s", output plugin "pgoutput", in the change callback, associated LSN 0/1924CE8`: "0/1924CE8",
		"Slot »s«, Ausgabeplugin »pgoutput«, im Callback change, zugehörige LSN AB/1":          "AB/1",
		"": "0/0",
		`slot "s", output plugin "pgoutput", in the startup callback`: "0/0",
	} {
		if got := DecodedLSN(fmt.Errorf("x: %w", &pgconn.PgError{Code: "22021", Where: where})); got.String() != want {
			t.Errorf("%q: %s", where, got)
		}
	}
}

func TestDecodingFault_ShowsNoValue(t *testing.T) {
	for _, code := range []string{"22021", "22P05", "22P02", "23505"} {
		err := fmt.Errorf("x: %w", &pgconn.PgError{Code: code, Message: "byte sequence 0xde 0xad", Detail: "secret"})
		if said := DecodingFault(err); strings.Contains(said, "0xde") || strings.Contains(said, "secret") || !strings.Contains(said, code) {
			t.Errorf("%s: %s", code, said)
		}
	}
}
