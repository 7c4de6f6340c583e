package route

import (
	"bytes"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/decoder"
)

func TestParseTimestamp_PostgresForms(t *testing.T) {
	for text, want := range map[string]time.Time{
		"1970-01-01 00:00:00+00":           time.Unix(0, 0),
		"2024-02-29 12:34:56.789":          time.Date(2024, 2, 29, 12, 34, 56, 789e6, time.UTC),
		"2024-02-29":                       time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC),
		"2024-05-06 07:08:09.1234+05:30":   time.Date(2024, 5, 6, 1, 38, 9, 123e6, time.UTC),
		"2024-05-06 07:08:09-03":           time.Date(2024, 5, 6, 10, 8, 9, 0, time.UTC),
		"1890-01-01 00:00:00+00:19:32":     time.Date(1889, 12, 31, 23, 40, 28, 0, time.UTC),
		"1969-12-31 23:59:59.999999+00":    time.UnixMilli(-1),
		"294276-12-31 23:59:59.999999":     time.Date(294276, 12, 31, 23, 59, 59, 999e6, time.UTC),
		"5874897-12-31":                    time.Date(5874897, 12, 31, 0, 0, 0, 0, time.UTC),
		"0001-01-01 00:00:00":              time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC),
		"0001-12-31 23:59:59 BC":           time.Date(0, 12, 31, 23, 59, 59, 0, time.UTC),
		"0044-03-15 BC":                    time.Date(-43, 3, 15, 0, 0, 0, 0, time.UTC),
		"4713-01-01 00:00:00.000001+00 BC": time.Date(-4712, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		ms, reason := parseTimestamp([]byte(text))
		if reason != "" || ms != want.UnixMilli() {
			t.Errorf("%q: got %d %q, want %d", text, ms, reason, want.UnixMilli())
		}
	}
	for text, want := range map[string]string{
		"infinity": reasonInfinite, "-infinity": reasonInfinite, "": reasonNotTime, "2024": reasonNotTime, "2024-02-30": reasonNotTime,
		"2023-02-29": reasonNotTime, "1900-02-29": reasonNotTime, "2024-13-01": reasonNotTime, "2024-00-01": reasonNotTime, "2024-01-00": reasonNotTime,
		"2024-1-01": reasonNotTime, "0000-01-01": reasonNotTime, "0000-01-01 BC": reasonNotTime, "2024-01-01 ": reasonNotTime,
		"2024-01-01 24:00:00": reasonNotTime, "2024-01-01 00:60:00": reasonNotTime, "2024-01-01 00:00": reasonNotTime,
		"2024-01-01 00:00:00.": reasonNotTime, "2024-01-01 00:00:00.1234567": reasonNotTime, "2024-01-01 00:00:00+": reasonNotTime,
		"2024-01-01 00:00:00+00:": reasonNotTime, "2024-01-01 00:00:00 BCE": reasonNotTime, "2024-01-01 00:00:00 AD": reasonNotTime,
		"2024-01-01T00:00:00": reasonNotTime, "01/02/2024 00:00:00": reasonNotTime, "12345678-01-01": reasonNotTime, " 2024-01-01": reasonNotTime,
		"2024-01-01 00:00:00+24": reasonNotTime, "Mon May 06 07:08:09 2024": reasonNotTime,
	} {
		if ms, reason := parseTimestamp([]byte(text)); reason != want || ms != 0 {
			t.Errorf("%q: got %d %q, want %q", text, ms, reason, want)
		}
	}
}

const layout = "2006-01-02 15:04:05.999999-07:00"

func TestParseTimestamp_AgreesWithTime(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	first, last := time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC).UnixMicro(), time.Date(9999, 12, 30, 0, 0, 0, 0, time.UTC).UnixMicro()
	for range 20_000 {
		micros := first + rng.Int64N(last-first)
		zone := time.FixedZone("", (rng.IntN(24*60)-12*60)*60)
		want := time.UnixMicro(micros)
		text := want.In(zone).Format(layout)
		if ms, reason := parseTimestamp([]byte(text)); reason != "" || ms != want.UnixMilli() {
			t.Fatalf("%q: got %d %q, want %d", text, ms, reason, want.UnixMilli())
		}
	}
}

// FuzzTimestamp asks that what is accepted is what time.Parse says, wherever
// that can read it.
func FuzzTimestamp(f *testing.F) {
	for _, s := range []string{
		"2024-02-29 12:34:56.789+02", "0044-03-15 BC", "infinity", "294276-12-31 23:59:59.999999", "1890-01-01 00:00:00+00:19:32", "2024-02-29",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ms, reason := parseTimestamp([]byte(s))
		var want time.Time
		var err error
		for _, l := range []string{"2006-01-02", "2006-01-02 15:04:05", "2006-01-02 15:04:05-07", "2006-01-02 15:04:05-07:00", "2006-01-02 15:04:05-07:00:00"} {
			if want, err = time.Parse(l, s); err == nil {
				break
			}
		}
		switch {
		case err == nil && reason == "" && ms != want.UnixMilli():
			t.Fatalf("got %d, time.Parse %d", ms, want.UnixMilli())
		case err != nil && reason == "" && !strings.HasSuffix(s, " BC") && strings.IndexByte(s, '-') == 4:
			t.Fatalf("accepted as %d, time.Parse: %v", ms, err)
		case reason != "" && ms != 0:
			t.Fatalf("%d came with %q", ms, reason)
		}
	})
}

func TestParseInt_AgreesWithStrconv(t *testing.T) {
	for _, s := range []string{
		"0", "-0", "7", "-7", "", "-", "+1", "1 ", "1.0", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
		"-9223372036854775809", "92233720368547758070", "00012", "١",
	} {
		want, err := strconv.ParseInt(s, 10, 64)
		got, ok := parseInt([]byte(s))
		if s == "+1" { // PostgreSQL never prints it
			err = strconv.ErrSyntax
		}
		if ok != (err == nil) || ok && got != want {
			t.Errorf("%q: got %d %v, want %d %v", s, got, ok, want, err)
		}
	}
}

func TestRecordTime_ByType(t *testing.T) {
	for _, c := range []struct {
		text   string
		oid    uint32
		want   int64
		reason string
	}{
		{"1700000000123", oidInt8, 1700000000123, ""},
		{"0", oidInt4, 0, ""},
		{"9223372036854775807", oidInt8, math.MaxInt64, ""},
		{"-1", oidInt8, 0, reasonBefore},
		{"9223372036854775808", oidInt8, 0, reasonNotInt},
		{"2024-01-01", oidInt8, 0, reasonNotInt},
		{"1700000000123", oidTimestamp, 0, reasonNotTime},
		{"1970-01-02", oidDate, 86_400_000, ""},
		{"1970-01-01 00:00:00+01", oidTimestampTZ, 0, reasonBefore},
	} {
		if got, reason := recordTime([]byte(c.text), c.oid); got != c.want || reason != c.reason {
			t.Errorf("%q as %d: got %d %q, want %d %q", c.text, c.oid, got, reason, c.want, c.reason)
		}
	}
}

func FuzzBytea(f *testing.F) {
	for _, s := range []string{`\x`, `\x00ff`, `\xAbCd`, `\x0`, `abc`, `\\x00`, ``} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		prefix := []byte("before")
		out, ok := appendBytea(bytes.Clone(prefix), text)
		if !bytes.HasPrefix(out, prefix) {
			t.Fatal("what was there before is gone")
		}
		want, err := hex.DecodeString(strings.TrimPrefix(string(text), `\x`))
		if wantOK := err == nil && bytes.HasPrefix(text, []byte(`\x`)); ok != wantOK {
			t.Fatalf("accepted %v, want %v", ok, wantOK)
		}
		if ok && !bytes.Equal(out[len(prefix):], want) || !ok && len(out) != len(prefix) {
			t.Fatalf("got %q, want %q", out, want)
		}
		if round := `\x` + hex.EncodeToString(want); ok && !strings.EqualFold(round, string(text)) {
			t.Fatalf("%q came back as %q", text, round)
		}
	})
}

func TestInterner_IsBounded(t *testing.T) {
	var in interner
	for i := range 3 * internLimit {
		name := strconv.Itoa(i)
		if got, reason := in.intern([]byte(name)); got != name || reason != "" {
			t.Fatalf("%q: got %q %q", name, got, reason)
		}
		if len(in.names) > internLimit {
			t.Fatalf("%d names are kept", len(in.names))
		}
	}
}

func TestRouter_LetsALargeBufferGo(t *testing.T) {
	var r Router
	b := &binding{bytea: []int{0}}
	for _, size := range []int{8 << 20, 100} {
		r.reserve(b, []decoder.Value{{Kind: decoder.Text, Data: make([]byte, size)}})
	}
	if cap(r.buf) > keepBuffer {
		t.Errorf("%d bytes are kept for rows of 100", cap(r.buf))
	}
}
