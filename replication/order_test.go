package replication

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
)

// play gives the messages of a script to an order, and returns in which order they
// come out: kind and name, as "I:a" at a position. "!" is an interrupt, "k" a
// keepalive. The buffer that messages are read into is used again, as a
// connection's is.
func play(t *testing.T, limit int64, script string) string {
	t.Helper()
	o := order{limit: limit}
	in := strings.Fields(script)
	buf := make([]byte, 64)
	read := func() (Message, error) {
		if len(in) == 0 {
			return Message{}, io.EOF
		}
		s := in[0]
		in = in[1:]
		switch s {
		case "!":
			return Message{}, errInterrupted
		case "k":
			return Message{WALEnd: 99}, nil
		}
		data, at, _ := strings.Cut(s, "@")
		var lsn int
		if _, err := fmt.Sscan(at, &lsn); err != nil {
			t.Fatal(err)
		}
		n := copy(buf, data)
		return Message{WALStart: pglogrepl.LSN(lsn), Data: buf[:n:n]}, nil
	}
	var out []string
	for {
		m, err := o.next(read)
		switch {
		case errors.Is(err, errInterrupted):
			out = append(out, "!")
		case err != nil:
			return strings.Join(out, " ")
		case m.Data == nil:
			out = append(out, "k")
		default:
			out = append(out, fmt.Sprintf("%s@%d", m.Data, m.WALStart))
		}
	}
}

func TestOrder_AMessageComesBeforeTheRowsBehindIt(t *testing.T) {
	for in, want := range map[string]string{
		"B@9 I:a@1 M:m@1 C@9":                             "B@9 M:m@1 I:a@1 C@9",
		"B@9 M:m@1 I:a@1 C@9":                             "B@9 M:m@1 I:a@1 C@9",
		"B@9 R@0 I:a@1 I:b@1 M:m@1 I:c@1 C@9":             "B@9 R@0 M:m@1 I:a@1 I:b@1 I:c@1 C@9",
		"B@9 I:a@1 I:b@2 M:m@3 I:c@4 C@9":                 "B@9 I:a@1 I:b@2 M:m@3 I:c@4 C@9",
		"B@9 I:a@1 M:m@2 I:b@2 M:n@3 C@9":                 "B@9 I:a@1 M:m@2 I:b@2 M:n@3 C@9",
		"B@9 I:a@1 I:b@2 M:m@2 I:c@3 M:n@3 C@9 B@19 C@19": "B@9 I:a@1 M:m@2 I:b@2 M:n@3 I:c@3 C@9 B@19 C@19",
		"B@9 I:a@1 R@0 I:b@1 C@9":                         "B@9 I:a@1 R@0 I:b@1 C@9",
		"B@9 I:a@1 k ! M:m@1 ! I:b@1 ! C@9":               "B@9 k ! M:m@1 ! ! I:a@1 I:b@1 C@9",
		"k M:m@1 k":                                       "k M:m@1 k",
	} {
		if got := play(t, 1000, in); got != want {
			t.Errorf("%s:\n got %s\nwant %s", in, got, want)
		}
	}
}

// What would take too much memory goes out as it came.
func TestOrder_HoldsNoMoreThanTheLimit(t *testing.T) {
	for in, want := range map[string]string{
		"B@9 I:aaaa@1 I:b@1 M:m@1 C@9":            "B@9 I:aaaa@1 M:m@1 I:b@1 C@9",
		"B@9 I:aaaaaaaaaaaaaaa@1 M:m@1 I:b@2 C@9": "B@9 I:aaaaaaaaaaaaaaa@1 M:m@1 I:b@2 C@9",
	} {
		if got := play(t, 8, in); got != want {
			t.Errorf("%s:\n got %s\nwant %s", in, got, want)
		}
	}
}

// TestOrder_LosesNothing merges what savepoints wrote as a server does, with ties
// decided by chance.
func TestOrder_LosesNothing(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 5))
	for range 2000 {
		var written, in []string
		for n, at := 0, 1; n < 12; at++ { // record n begins at n and ends at n+1
			switch rnd.IntN(3) {
			case 0:
				written = append(written, fmt.Sprintf("M:%d@%d", n, at+1))
				n++
			case 1:
				written = append(written, fmt.Sprintf("I:%d@%d", n, at))
				n++
			default: // a COPY
				for range 1 + rnd.IntN(3) {
					written = append(written, fmt.Sprintf("I:%d@%d", n, at))
					n++
				}
			}
		}
		in = append(in, written...)
		for i := len(in) - 2; i >= 0; i-- { // a message may come behind any of the rows with its position
			for j := i; j+1 < len(in) && in[j][0] == 'M' && in[j+1][0] == 'I' && in[j][strings.IndexByte(in[j], '@'):] == in[j+1][strings.IndexByte(in[j+1], '@'):] && rnd.IntN(2) == 0; j++ {
				in[j], in[j+1] = in[j+1], in[j]
			}
		}
		want := "B@0 " + strings.Join(written, " ") + " C@99"
		if got := play(t, 1000, "B@0 "+strings.Join(in, " ")+" C@99"); got != want {
			t.Fatalf("read %v\n got %s\nwant %s", in, got, want)
		}
	}
}
