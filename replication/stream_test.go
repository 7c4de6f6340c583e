package replication

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// next returns a message's position and data; keepalives too.
func next(t *testing.T, s *Stream) Message {
	t.Helper()
	m, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestStream_DeliversWhatCameWithTheAnswerToStart(t *testing.T) {
	srv := &fakeServer{first: bytes.Join([][]byte{xlog(0x10, []byte("one")), keepalive(0x20, 0), xlog(0x30, []byte{})}, nil)}
	s := startStream(t, serve(t, srv, func(f *fakeServer) {
		f.write(xlog(0x40, []byte("later")))
		f.drain()
	}), nil)
	for _, want := range []Message{
		{0x10, 0x11, []byte("one")}, {0, 0x20, nil}, {0x30, 0x31, []byte{}}, {0x40, 0x41, []byte("later")},
	} {
		m := next(t, s)
		if m.WALStart != want.WALStart || m.WALEnd != want.WALEnd || !bytes.Equal(m.Data, want.Data) || (m.Data == nil) != (want.Data == nil) {
			t.Errorf("%+v, want %+v", m, want)
		}
	}
	if s.Start() != startLSN || s.Confirmed() != startLSN {
		t.Errorf("start %s, confirmed %s", s.Start(), s.Confirmed())
	}
}

// Who puts work off until nothing is left to be returned hears it before each wait,
// also when what is left is not for Next's caller.
func TestStream_TellsBeforeItReads(t *testing.T) {
	returned, told := 0, 0 // told: how much had been returned when it was told last
	srv := &fakeServer{first: bytes.Join([][]byte{xlog(0x10, []byte("one")), xlog(0x20, []byte("two")), encode(&pgproto3.ParameterStatus{Name: "a", Value: "b"})}, nil)}
	more := make(chan struct{})
	var once sync.Once
	s := startStream(t, serve(t, srv, func(f *fakeServer) {
		<-more
		f.write(xlog(0x40, []byte("later")))
		f.drain()
	}), func(c *Config) {
		c.BeforeRead = func() {
			if told = returned; told == 2 {
				once.Do(func() { close(more) })
			}
		}
	})
	within(t, 10*time.Second, "Next", func() {
		for range 3 {
			next(t, s)
			returned++
		}
	})
	if told != 2 {
		t.Fatalf("told last when %d messages had been returned", told)
	}
}

func TestAppendStatus_FieldByField(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 891_000, time.UTC)
	for _, ask := range []bool{false, true} {
		b := appendStatus(nil, 0x0102030405060708, now, ask)
		if len(b) != 39 || b[0] != 'd' || binary.BigEndian.Uint32(b[1:]) != 38 || b[5] != 'r' {
			t.Fatalf("frame % x", b)
		}
		for i := range 3 {
			if got := binary.BigEndian.Uint64(b[6+8*i:]); got != 0x0102030405060708 {
				t.Errorf("position %d: %#x", i, got)
			}
		}
		if got, want := binary.BigEndian.Uint64(b[30:]), uint64(now.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds()); got != want {
			t.Errorf("time %d, want %d", got, want)
		}
		if (b[38] == 1) != ask {
			t.Errorf("reply flag %d", b[38])
		}
	}
}

func TestStream_StatusFlowsWhileNobodyReads(t *testing.T) {
	const interval = 20 * time.Millisecond
	done := make(chan []status, 1)
	s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) {
		var all []status
		for len(all) < 10 {
			st, ok := f.status()
			if !ok {
				break
			}
			all = append(all, st)
		}
		done <- all
		f.drain()
	}), func(c *Config) { c.StatusInterval, c.SilenceTimeout = interval, 400*time.Millisecond })
	_ = s // nobody calls Next
	select {
	case all := <-done:
		asks := 0
		for _, st := range all {
			if st.write != startLSN || st.flush != startLSN || st.apply != startLSN {
				t.Errorf("status %+v, want the start three times", st)
			}
			if d := time.Since(st.sent); d < 0 || d > 10*time.Second {
				t.Errorf("sent %s ago", d)
			}
			if st.ask {
				asks++
			}
		}
		if len(all) != 10 || !all[0].ask || asks < 2 {
			t.Errorf("%d status, %d of which ask for a reply", len(all), asks)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("no status")
	}
}

func TestStream_ConfirmGoesOutSoonAndNeverBack(t *testing.T) {
	got := make(chan status, 1000)
	s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) {
		defer close(got)
		for {
			st, ok := f.status()
			if !ok {
				return
			}
			got <- st
		}
	}), nil)
	await := func(want pglogrepl.LSN) {
		t.Helper()
		for {
			select {
			case st := <-got:
				if st.write != st.flush || st.flush != st.apply || st.flush == 0 || st.flush > want {
					t.Fatalf("status %+v, confirmed %s", st, want)
				}
				if st.flush == want {
					return
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("%s did not leave", want)
			}
		}
	}
	s.Confirm(startLSN + 5)
	await(startLSN + 5)
	s.Confirm(0)
	s.Confirm(startLSN + 3)
	if s.Confirmed() != startLSN+5 {
		t.Fatalf("confirmed went back to %s", s.Confirmed())
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 500 {
				s.Confirm(startLSN + pglogrepl.LSN(6+8*k+i))
			}
		})
	}
	wg.Wait()
	last := startLSN + 6 + 8*499 + 7
	if s.Confirmed() != last {
		t.Fatalf("confirmed %s, want %s", s.Confirmed(), last)
	}
	await(last)
	s.Close()
	for st := range got {
		if st.flush != last {
			t.Errorf("status went back to %s", st.flush)
		}
	}
}

func TestStream_AnswersAKeepaliveButNotAFlood(t *testing.T) {
	const flood = 10_000
	answered := make(chan time.Duration, 1)
	count := make(chan int, 1)
	s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) {
		asked := time.Now()
		f.write(keepalive(1, 1))
		if _, ok := f.status(); !ok {
			return
		}
		answered <- time.Since(asked)
		for i := range flood {
			f.write(keepalive(pglogrepl.LSN(i+2), 1))
		}
		n := 0
		for {
			if _, ok := f.status(); !ok {
				break
			}
			n++
		}
		count <- n
	}), nil)
	next(t, s)
	began := time.Now()
	for range flood {
		next(t, s)
	}
	if d := <-answered; d > time.Second {
		t.Errorf("answered after %s", d)
	}
	end := time.Now().Add(time.Second) // one that was asked for last leaves after the gap
	for len(s.nudge) > 0 && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
	}
	s.Close()
	most := 3 + int(time.Since(began)/minStatusGap)
	if n := <-count; n < 1 || n > most {
		t.Errorf("%d keepalives were answered by %d status, want at most %d", flood, n, most)
	}
}

func TestStream_SilenceIsFoundInTime(t *testing.T) {
	const silence = 150 * time.Millisecond
	s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) {
		f.write(keepalive(7, 0))
		f.drain() // reads and says nothing
	}), func(c *Config) { c.SilenceTimeout = silence })
	next(t, s)
	began := time.Now()
	_, err := s.Next()
	if !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), "150ms") {
		t.Fatal(err)
	}
	if d := time.Since(began); d < silence/2 || d > 10*silence {
		t.Errorf("found after %s", d)
	}
}

func TestStream_SlowServerThatAnswersIsNotSilent(t *testing.T) {
	const silence = time.Second
	s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) {
		for range 6 { // says something only when asked
			for {
				st, ok := f.status()
				if !ok {
					return
				}
				if st.ask {
					break
				}
			}
			f.write(keepalive(9, 0))
		}
		f.drain()
	}), func(c *Config) { c.SilenceTimeout = silence })
	for range 6 {
		next(t, s)
	}
}

func TestStream_InterruptReturnsOnceAndLosesNothing(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%t", secure), func(t *testing.T) {
			go1, go2 := make(chan struct{}), make(chan struct{})
			frame := xlog(0x20, bytes.Repeat([]byte("abc"), 1000))
			srv := &fakeServer{}
			if secure {
				srv.tls = selfSigned(t)
			}
			pc := serve(t, srv, func(f *fakeServer) {
				<-go1
				f.wire.gate = go2 // with TLS the cut is within a record
				f.write(frame)
				f.wire.gate = nil
				f.write(append(xlog(0x30, []byte("x")), xlog(0x40, []byte("y"))...))
				f.drain()
			})
			if secure {
				pc.TLSConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the test's own certificate
			}
			s := startStream(t, pc, nil)
			interrupted := func(what string) {
				t.Helper()
				within(t, 5*time.Second, what, func() {
					if m, err := s.Next(); !errors.Is(err, ErrInterrupted) {
						t.Errorf("%s: %+v, %v", what, m, err)
					}
				})
			}
			s.Interrupt()
			s.Interrupt()
			interrupted("interrupt before Next")

			var wg sync.WaitGroup
			wg.Go(func() {
				close(go1)
				time.Sleep(50 * time.Millisecond) // so that Next waits within the frame; right in any case
				s.Interrupt()
			})
			interrupted("interrupt within a frame")
			wg.Wait()
			close(go2)
			if m := next(t, s); m.WALStart != 0x20 || !bytes.Equal(m.Data, frame[msgHeader+xlogHeader:]) {
				t.Fatalf("the frame was damaged: %s, %d bytes", m.WALStart, len(m.Data))
			}
			if m := next(t, s); m.WALStart != 0x30 {
				t.Fatalf("%+v", m)
			}
			s.Interrupt() // 0x40 may be buffered: then it comes first
			m, err := s.Next()
			if err == nil && m.WALStart == 0x40 {
				interrupted("interrupt with buffered data")
			} else if !errors.Is(err, ErrInterrupted) {
				t.Fatalf("%+v, %v", m, err)
			} else if m := next(t, s); m.WALStart != 0x40 {
				t.Fatalf("%+v", m)
			}
		})
	}
}

// TestStream_InterruptsNeverLookLikeSilence interrupts from several goroutines
// while messages come in.
func TestStream_InterruptsNeverLookLikeSilence(t *testing.T) {
	const messages, data = 3000, "0123456789"
	s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) {
		for i := range messages {
			b := xlog(pglogrepl.LSN(i+1), []byte(data))
			f.write(b[:20])
			f.write(b[20:])
		}
		f.drain()
	}), nil)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					s.Interrupt()
					time.Sleep(20 * time.Microsecond)
				}
			}
		})
	}
	defer wg.Wait()
	defer close(stop)
	for i := 0; i < messages; {
		m, err := s.Next()
		if errors.Is(err, ErrInterrupted) {
			continue
		}
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		i++
		if m.WALStart != pglogrepl.LSN(i) || string(m.Data) != data {
			t.Fatalf("message %d: %s %q", i, m.WALStart, m.Data)
		}
	}
}

func TestStream_TooLargeRowNamesItsLSN(t *testing.T) {
	s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) {
		f.write(xlog(0xABC, make([]byte, 5000)))
		f.drain()
	}), func(c *Config) { c.MaxMessageBytes = 4000 })
	_, err := s.Next()
	var big *FrameTooLargeError
	if !errors.As(err, &big) || big.LSN != 0xABC || big.Limit != 4000 {
		t.Fatal(err)
	}
}

// A logical message that nobody asked for does not end the stream, whatever its
// size, also when reading it is interrupted in the middle.
func TestStream_PassesOverALargeMessageOfAnotherPrefix(t *testing.T) {
	message := func(prefix string, n int) []byte {
		b := append([]byte{'M', 1}, make([]byte, 8)...)
		b = append(append(b, prefix...), 0)
		b = binary.BigEndian.AppendUint32(b, uint32(n))
		return append(b, make([]byte, n)...)
	}
	more := make(chan struct{})
	foreign := xlog(0x20, message("outbox2", 1<<20))
	srv := &fakeServer{}
	s := startStream(t, serve(t, srv, func(f *fakeServer) {
		f.write(xlog(0x10, message("other", 100)))
		f.write(xlog(0x18, message("other", 5000)))
		f.write(foreign[:1<<19])
		<-more
		f.write(foreign[1<<19:])
		f.write(xlog(0x30, []byte("row")))
		f.write(xlog(0x40, message("outbox", 5000)))
		f.drain()
	}), func(c *Config) { c.MaxMessageBytes, c.MessagePrefix = 4000, "outbox" })
	if !strings.Contains(srv.query, "messages 'true'") {
		t.Errorf("%s", srv.query)
	}
	if m := next(t, s); m.WALStart != 0x10 { // a small one is the caller's to look at
		t.Fatalf("%+v", m)
	}
	s.Interrupt()
	if _, err := s.Next(); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	close(more)
	if m := next(t, s); m.WALStart != 0x30 || string(m.Data) != "row" {
		t.Fatalf("%+v", m)
	}
	_, err := s.Next()
	var big *FrameTooLargeError
	if !errors.As(err, &big) || big.LSN != 0x40 {
		t.Fatal(err)
	}
}

// What is left of a message that is passed over is not taken for another one when
// the stream ends.
func TestStream_FinishesWithinAMessageThatIsPassedOver(t *testing.T) {
	big := xlog(0x20, append(append([]byte{'M', 1, 0, 0, 0, 0, 0, 0, 0, 0}, "other\x00"...), make([]byte, 1<<20)...))
	s := startStream(t, serve(t, &fakeServer{first: big[:100]}, func(f *fakeServer) {
		for {
			typ, _, err := f.read()
			if err != nil {
				return
			}
			if typ == 'c' {
				f.write(big[100:])
				f.end()
				f.drain()
			}
		}
	}), func(c *Config) { c.MaxMessageBytes, c.MessagePrefix = 4000, "outbox" })
	s.Interrupt() // before the first read: what came with the answer is there
	if _, err := s.Next(); !errors.Is(err, ErrInterrupted) || s.passing != int64(len(big)-100) {
		t.Fatalf("%v, %d bytes are to be passed over", err, s.passing)
	}
	if err := s.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestStream_ServerErrorsAndEndsAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		send []byte
		want func(error) bool
	}{
		"error": {encode(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P01", Message: "terminating connection"}), func(err error) bool {
			var e *pgconn.PgError
			return errors.As(err, &e) && e.Code == "57P01" && e.Message == "terminating connection"
		}},
		"end":             {encode(&pgproto3.CopyDone{}), func(err error) bool { return errors.Is(err, ErrEnded) }},
		"shutdown":        {encode(&pgproto3.CommandComplete{CommandTag: []byte("COPY 0")}), func(err error) bool { return errors.Is(err, ErrEnded) }},
		"unknown type":    {[]byte{'?', 0, 0, 0, 4}, func(err error) bool { return strings.Contains(err.Error(), "unexpected type") }},
		"unknown message": {[]byte{'d', 0, 0, 0, 5, '?'}, func(err error) bool { return strings.Contains(err.Error(), "unknown type") }},
		"empty message":   {[]byte{'d', 0, 0, 0, 4}, func(err error) bool { return strings.Contains(err.Error(), "empty") }},
		"short WAL data":  {[]byte{'d', 0, 0, 0, 6, 'w', 1}, func(err error) bool { return strings.Contains(err.Error(), "shorter than its header") }},
		"short keepalive": {[]byte{'d', 0, 0, 0, 6, 'k', 1}, func(err error) bool { return strings.Contains(err.Error(), "shorter than 18") }},
		"bad length":      {[]byte{'d', 0, 0, 0, 3}, func(err error) bool { return strings.Contains(err.Error(), "impossible length") }},
		"broken error":    {[]byte{'E', 0, 0, 0, 6, 'C', 'x'}, func(err error) bool { return err != nil }},
		"plain EOF":       {nil, func(err error) bool { return err != nil && !errors.Is(err, ErrSilent) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) { f.write(c.send) }), nil)
			within(t, 5*time.Second, "Next", func() {
				if _, err := s.Next(); err == nil || !c.want(err) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

func TestStream_NoticesAreHeardAndOthersSkipped(t *testing.T) {
	var heard []string
	s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) {
		f.write(encode(
			&pgproto3.NoticeResponse{Severity: "WARNING", SeverityUnlocalized: "WARNING", Code: "55000", Message: "skipped loading publication"},
			&pgproto3.ParameterStatus{Name: "x", Value: "y"},
			&pgproto3.NotificationResponse{Channel: "c"}))
		f.write([]byte{'N', 0, 0, 0, 5, 'x'}) // broken
		f.write(xlog(5, []byte("row")))
		f.drain()
	}), func(c *Config) {
		c.OnNotice = func(n *pgconn.Notice) { heard = append(heard, n.SeverityUnlocalized+" "+n.Code+" "+n.Message) }
	})
	if m := next(t, s); m.WALStart != 5 {
		t.Errorf("%+v", m)
	}
	if len(heard) != 1 || heard[0] != "WARNING 55000 skipped loading publication" {
		t.Errorf("heard %q", heard)
	}
}
