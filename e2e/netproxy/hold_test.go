package netproxy

import (
	"io"
	"net"
	"testing"
	"time"
)

// serve takes one connection and gives it to f.
func serve(t *testing.T, f func(net.Conn)) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener, or f
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		f(c)
	}()
	return l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

func await(t *testing.T, h *Hold) {
	t.Helper()
	select {
	case <-h.Reached():
	case <-time.After(10 * time.Second):
		t.Fatal("the hold was not reached")
	}
}

func TestHold_KeepsAnAnswerUntilRelease(t *testing.T) {
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.SetTarget(serve(t, func(c net.Conn) { _, _ = io.Copy(c, c) }))
	h := p.HoldAnswers()
	c := dial(t, p.Addr())
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	await(t, h)
	if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1)
	if n, err := c.Read(buf); n != 0 || err == nil {
		t.Fatal("the answer passed a hold")
	}
	h.Release()
	h.Release() // twice is safe
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, buf); err != nil || buf[0] != 'x' {
		t.Fatalf("%q, %v", buf, err)
	}
}

// commitOf is a simple query as pgx sends it.
func commitOf(text string) []byte {
	frame := append([]byte{'Q', 0, 0, 0, byte(4 + len(text) + 1)}, text...)
	return append(frame, 0)
}

// A COMMIT that is held when its client dies reaches nobody, also when the hold is released afterwards; one that is released
// before does.
func TestHold_DeadConnectionsMessageIsDropped(t *testing.T) {
	const startup = "\x00\x00\x00\x08\x00\x03\x00\x00"
	const inserted = "C\x00\x00\x00\x0fINSERT 0 1\x00"
	for _, alive := range []bool{true, false} {
		got := make(chan string, 1)
		p, err := NewPostgres()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		p.SetTarget(serve(t, func(c net.Conn) {
			head := make([]byte, len(startup))
			_, _ = io.ReadFull(c, head)
			_, _ = io.WriteString(c, inserted)
			var rest []byte
			if alive { // the client closes when it was read
				rest = make([]byte, len(commitOf("SELECT 1"))+len(commitOf("commit")))
				_, _ = io.ReadFull(c, rest)
			} else {
				rest, _ = io.ReadAll(c)
			}
			got <- string(rest)
		}))
		h := p.HoldCommits()
		c := dial(t, p.Addr())
		if _, err := io.WriteString(c, startup); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, len(inserted))); err != nil {
			t.Fatal(err)
		}
		commit := commitOf("commit")
		if _, err := c.Write(append(commitOf("SELECT 1"), commit...)); err != nil {
			t.Fatal(err)
		}
		await(t, h)
		want := string(commitOf("SELECT 1"))
		if alive {
			want += string(commit)
			h.Release()
		} else {
			c.Close()
			p.Abandon()
			h.Release()
		}
		if rest := <-got; rest != want {
			t.Errorf("alive=%t: the server got %q, not %q", alive, rest, want)
		}
	}
}
