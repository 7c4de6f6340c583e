package broker

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/fault"
)

// A port that speaks something else is named, without believing its text to be
// the length of anything.
func TestCluster_StrangersAreRecognised(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"HTTP":          {"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request", errNotKafka.Error()},
		"SSH":           {"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", errNotKafka.Error()},
		"SMTP":          {"220 mail.example.com ESMTP Postfix (Debian/GNU)\r\n", errNotKafka.Error()},
		"Redis":         {"-ERR unknown command\r\n-ERR unknown command\r\n", errNotKafka.Error()},
		"PostgreSQL":    {"E\x00\x00\x00\x4cSFATAL\x00VFATAL\x00C08P01\x00Minvalid length of startup packet\x00\x00", errNotKafka.Error()},
		"TLS alert":     {"\x15\x03\x01\x00\x02\x02\x46", errSpeaksTLS.Error()},
		"endless":       {"\x7f\xff\xff\xff\x00\x00\x00\x01", errNotKafka.Error()},
		"negative":      {"\xff\xff\xff\xff\x00\x00\x00\x01", errNotKafka.Error()},
		"other request": {"\x00\x00\x00\x0a\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00", errNotKafka.Error()},
		"short":         {"\x00\x00\x00", "closed the connection"},
		"cut off":       {"\x00\x00\x00\x0a\x00\x00\x00\x01\x00\x00", "closed the connection"},
		"nothing":       {"", "closed the connection"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, err := Open(Config{Brokers: []string{stranger(t, c.text)}, DialTimeout: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer cluster.Close()
			began := time.Now()
			err = cluster.Ping(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
			if want := c.says == errSpeaksTLS.Error(); (fault.ClassOf(err) == fault.Stop) != want {
				t.Errorf("class %s", fault.ClassOf(err))
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("after %s", took)
			}
		})
	}
}

// stranger answers whatever is sent with text, and hangs up.
func stranger(t *testing.T, text string) (address string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				_, _ = conn.Read(make([]byte, 1024))
				_, _ = conn.Write([]byte(text))
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return ln.Addr().String()
}

// What a broker says later is looked at too.
func TestAnswerConn_LengthsAreChecked(t *testing.T) {
	first := "\x00\x00\x00\x06\x00\x00\x00\x01\x00\x00"
	for name, c := range map[string]struct {
		later string
		err   error
	}{
		"good":      {"\x00\x00\x00\x05\x00\x00\x00\x02\x07", io.EOF},
		"empty":     {"\x00\x00\x00\x00\x00\x00\x00\x01\x07", io.EOF},
		"negative":  {"\xff\xff\xff\xf0\x00\x00\x00\x02", errNotKafka},
		"endless":   {"\x7f\xff\xff\xff\x00\x00\x00\x02", errNotKafka},
		"cut off":   {"\x00\x00\x00\x05\x00", io.EOF},
		"cut short": {"\x00\x00", io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := net.Pipe()
			go func() {
				_, _ = far.Write([]byte(first + c.later))
				far.Close()
			}()
			got, err := io.ReadAll(&answerConn{Conn: near, first: true})
			if err == nil {
				err = io.EOF
			}
			if !errors.Is(err, c.err) {
				t.Errorf("ended with %v, want %v", err, c.err)
			}
			if errors.Is(err, io.EOF) && string(got) != first+c.later {
				t.Errorf("handed out %q", got)
			}
		})
	}
}
