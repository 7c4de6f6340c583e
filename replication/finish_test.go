package replication

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

func TestStream_FinishConfirmsAndEndsInOrder(t *testing.T) {
	var said []string
	var last pglogrepl.LSN
	ended := make(chan struct{})
	s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) {
		defer close(ended)
		for {
			typ, b, err := f.read()
			if err != nil {
				said = append(said, "EOF")
				return
			}
			if len(said) == 0 || said[len(said)-1] != string(typ) {
				said = append(said, string(typ))
			}
			switch typ {
			case 'd':
				last = pglogrepl.LSN(uint64(b[9])<<56 | uint64(b[10])<<48 | uint64(b[11])<<40 | uint64(b[12])<<32 |
					uint64(b[13])<<24 | uint64(b[14])<<16 | uint64(b[15])<<8 | uint64(b[16]))
			case 'c':
				// What was under way when the client ended, one row above the limit, a
				// notice, then the answer.
				f.write(xlog(0x50, []byte("not confirmed")))
				f.write(xlog(0x60, make([]byte, 3*frameBuffer)))
				f.write(keepalive(0x70, 1))
				f.write(encode(&pgproto3.NoticeResponse{Code: "00000"}))
				f.end()
			}
		}
	}), func(c *Config) { c.MaxMessageBytes = 2 * frameBuffer })
	s.Confirm(startLSN + 77)
	if err := s.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-ended
	if last != startLSN+77 {
		t.Errorf("the last status said %s", last)
	}
	if want := []string{"d", "c", "X", "EOF"}; !slices.Equal(said, want) {
		t.Errorf("the client said %q, want %q", said, want)
	}
	s.Close()
	s.Close()
}

func TestStream_FinishEndsWithItsContext(t *testing.T) {
	for name, script := range map[string]func(*fakeServer){
		"server reads and never answers": func(f *fakeServer) {
			for {
				if _, _, err := f.read(); err != nil {
					return
				}
			}
		},
		"server talks and never ends": func(f *fakeServer) {
			for {
				if _, err := f.conn.Write(keepalive(1, 1)); err != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startStream(t, serve(t, &fakeServer{}, script), nil)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			within(t, 5*time.Second, "Finish", func() {
				if err := s.Finish(ctx); err == nil {
					t.Error("nil without the server's answer")
				}
			})
		})
	}
}

// A stop may be asked for when the stream is being ended already.
func TestStream_FinishIsNotInterrupted(t *testing.T) {
	asked, interrupted := make(chan struct{}), make(chan struct{})
	s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) {
		for {
			typ, _, err := f.read()
			if err != nil {
				return
			}
			if typ == 'c' {
				close(asked)
				<-interrupted
				f.end()
			}
		}
	}), nil)
	go func() {
		defer close(interrupted)
		<-asked
		for range 20 { // while Finish comes to read, and while it reads
			s.Interrupt()
			time.Sleep(time.Millisecond)
		}
	}()
	if err := s.Finish(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStream_FinishFindsSilence(t *testing.T) {
	s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) {
		for {
			if _, _, err := f.read(); err != nil {
				return
			}
		}
	}), func(c *Config) { c.SilenceTimeout = 100 * time.Millisecond })
	within(t, 5*time.Second, "Finish", func() {
		if err := s.Finish(context.Background()); err == nil || !strings.Contains(err.Error(), "answer to the end") {
			t.Error(err)
		}
	})
}

func TestStream_FinishShowsTheServersError(t *testing.T) {
	s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) {
		f.write(encode(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P01", Message: "shutting down"}))
		f.drain()
	}), nil)
	var e *pgconn.PgError
	if err := s.Finish(t.Context()); !errors.As(err, &e) || e.Code != "57P01" {
		t.Error(err)
	}
}

func TestStream_FinishAfterTheConnectionFailed(t *testing.T) {
	s := startStream(t, serve(t, &fakeServer{}, nil), func(c *Config) { c.StatusInterval = 5 * time.Millisecond })
	end := time.Now().Add(5 * time.Second)
	for s.Failed() == nil && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
	}
	if err := s.Failed(); err == nil || !strings.Contains(err.Error(), "standby status") {
		t.Fatal(err)
	}
	if err := s.Finish(t.Context()); !errors.Is(err, s.Failed()) {
		t.Error(err)
	}
	if _, err := s.Next(); err == nil {
		t.Error("Next goes on")
	}
}

func TestStream_CloseWakesTheReader(t *testing.T) {
	s := startStream(t, serve(t, &fakeServer{}, (*fakeServer).drain), nil)
	got := make(chan error, 1)
	go func() {
		_, err := s.Next()
		got <- err
	}()
	time.Sleep(10 * time.Millisecond) // so that Next waits; right in any case
	s.Close()
	select {
	case err := <-got:
		if err == nil || errors.Is(err, ErrSilent) || errors.Is(err, ErrInterrupted) {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("Next still waits")
	}
}

func TestStream_FinishAfterTheServersErrorClaimsNothing(t *testing.T) {
	s := startStream(t, serve(t, &fakeServer{}, func(f *fakeServer) {
		f.write(encode(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "22021", Message: "invalid byte sequence"}))
		f.write(encode(&pgproto3.ReadyForQuery{TxStatus: 'I'})) // of the error, not of the end that Finish asks for
	}), nil)
	within(t, 5*time.Second, "Finish", func() {
		if _, err := s.Next(); err == nil {
			t.Fatal("no error")
		}
		s.Confirm(1 << 40)
		if err := s.Finish(t.Context()); err == nil {
			t.Error("Finish takes the answer to the error for the answer to the last status")
		}
	})
}
