package netproxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
)

// PostgresProxy is a Proxy that knows PostgreSQL's frames, without TLS: it can hold a COMMIT, its answer, and the
// confirmation of a transaction by a logical receiver.
type PostgresProxy struct {
	*Proxy
	fromClient, fromServer holds[pgMessage]
}

// NewPostgres starts a proxy on a free port; connections fail until SetTarget.
func NewPostgres() (*PostgresProxy, error) {
	p := &PostgresProxy{Proxy: &Proxy{}}
	p.pipe = p.pipePostgres
	return p, p.listen()
}

// HoldCommits keeps from the server each COMMIT of a transaction that has inserted a row.
func (p *PostgresProxy) HoldCommits() *Hold {
	return p.fromClient.add(func(m pgMessage) bool { return m.commit })
}

// HoldCommitAnswers keeps from the client the answer to such a COMMIT: the server has committed.
func (p *PostgresProxy) HoldCommitAnswers() *Hold {
	return p.fromServer.add(func(m pgMessage) bool { return m.commit })
}

// HoldConfirms keeps from the server each status of a pgoutput receiver that confirms a transaction which came over the
// same connection. A status that only repeats, or moves over WAL without a transaction for the receiver, passes.
func (p *PostgresProxy) HoldConfirms() *Hold {
	return p.fromClient.add(func(m pgMessage) bool { return m.confirm })
}

// pgMessage says what a message is, as far as one can be held.
type pgMessage struct{ commit, confirm bool }

// pgConn is the state of one proxied connection.
type pgConn struct {
	mu       sync.Mutex
	inserted bool     // a row, since the last end of a transaction
	walsends bool     // the server sends WAL
	ends     []uint64 // LSNs behind the transactions that were sent and not confirmed, ascending
}

func (p *PostgresProxy) pipePostgres(client, server net.Conn) {
	c := &pgConn{}
	dead := make(chan struct{})
	var once sync.Once
	end := func() {
		once.Do(func() {
			close(dead)
			client.Close()
			server.Close()
		})
	}
	var wg sync.WaitGroup
	startup := true
	toServer := readFrames(&wg, readAhead{client, bufio.NewReaderSize(client, 64<<10)}, func(r io.Reader) ([]byte, error) {
		first := startup
		startup = false
		return readPostgres(r, first)
	}, dead)
	toClient := readFrames(&wg, readAhead{server, bufio.NewReaderSize(server, 64<<10)}, func(r io.Reader) ([]byte, error) {
		return readPostgres(r, false)
	}, dead)
	wg.Add(1)
	go func() { // ends with the connection
		defer wg.Done()
		defer end()
		first := true
		for frame := range toServer.next {
			m := pgMessage{}
			if !first {
				m = c.fromClient(frame)
			}
			first = false
			if !p.fromClient.await(m, toServer.gone, dead) || !p.write(server, frame, client, false) {
				return
			}
			c.passed(frame, m)
		}
	}()
	for frame := range toClient.next {
		m := c.fromServer(frame)
		if !p.fromServer.await(m, toClient.gone, dead) || !p.write(client, frame, server, true) {
			break
		}
	}
	end()
	wg.Wait()
}

// readAhead is a connection that is read through a buffer.
type readAhead struct {
	net.Conn
	r *bufio.Reader
}

func (c readAhead) Read(b []byte) (int, error) { return c.r.Read(b) }

func (p *PostgresProxy) write(to net.Conn, frame []byte, from net.Conn, fromServer bool) bool {
	if !p.pass(fromServer, func() bool { return p.alive(from) }) {
		return false
	}
	_, err := to.Write(frame)
	return err == nil
}

// readPostgres reads one message; the client's first has no type in front.
func readPostgres(r io.Reader, first bool) ([]byte, error) {
	head := make([]byte, 5)
	if first {
		head = head[:4]
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[len(head)-4:]))
	if n < 4 || n > maxFrame {
		return nil, fmt.Errorf("a message of %d bytes is not PostgreSQL's", n)
	}
	frame := make([]byte, len(head)+n-4)
	copy(frame, head)
	_, err := io.ReadFull(r, frame[len(head):])
	return frame, err
}

func (c *pgConn) fromClient(frame []byte) (m pgMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body := frame[5:]
	switch frame[0] {
	case 'Q':
		query, _, _ := bytes.Cut(body, []byte{0})
		m.commit = c.inserted && strings.EqualFold(strings.TrimSpace(string(query)), "commit")
	case 'd':
		flushed, ok := standbyFlush(body)
		m.confirm = ok && c.walsends && len(c.ends) > 0 && flushed >= c.ends[0]
	}
	return m
}

// passed notes what the server now knows.
func (c *pgConn) passed(frame []byte, m pgMessage) {
	if !m.confirm {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	flushed, _ := standbyFlush(frame[5:])
	for len(c.ends) > 0 && c.ends[0] <= flushed {
		c.ends = c.ends[1:]
	}
}

// standbyFlush reads the flush position of a standby status update.
func standbyFlush(body []byte) (uint64, bool) {
	if len(body) < 34 || body[0] != 'r' {
		return 0, false
	}
	return binary.BigEndian.Uint64(body[9:]), true
}

func (c *pgConn) fromServer(frame []byte) (m pgMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body := frame[5:]
	switch frame[0] {
	case 'C': // CommandComplete
		tag := strings.TrimRight(string(body), "\x00")
		switch tag {
		case "COMMIT":
			m.commit, c.inserted = c.inserted, false
		case "ROLLBACK", "BEGIN":
			c.inserted = false
		default:
			if n, ok := strings.CutPrefix(tag, "INSERT 0 "); ok {
				rows, err := strconv.Atoi(n)
				c.inserted = c.inserted || err == nil && rows > 0
			}
		}
	case 'W': // CopyBothResponse
		c.walsends = true
	case 'd':
		// XLogData with pgoutput's Commit: 'w', three times eight bytes, 'C', flags, the commit's LSN, the LSN behind it.
		if c.walsends && len(body) >= 25+18 && body[0] == 'w' && body[25] == 'C' {
			c.ends = append(c.ends, binary.BigEndian.Uint64(body[35:]))
		}
	}
	return m
}
