package relay

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/replication"
)

// walsender is a PostgreSQL that sends transactions of generated rows for ever,
// as fast as they are read. It makes the bytes once, and changes only their
// positions from one round to the next, so that nearly all CPU is the reader's.
type walsender struct {
	perTx int
	round []byte  // frames of some transactions
	lsns  []lsnAt // the positions in round
	size  int     // bytes of a row, with its share of the transaction's frames
	wg    sync.WaitGroup
}

// lsnAt is an LSN within a round: offset bytes from its start is the LSN that is
// plus more than the round's first.
type lsnAt struct{ offset, plus int }

const (
	benchStart = 1 << 32 // where the stream begins
	benchTxWAL = 64      // bytes of WAL that a transaction takes, for the sender
)

// newWalsender generates rows of 300 bytes, of 64 aggregates.
func newWalsender(perTx int) *walsender {
	w := &walsender{perTx: perTx}
	payload := `{"order": "` + strings.Repeat("x", 286) + `"}`
	const atLeast = 1000 // rows of a round
	txs := max(1, atLeast/perTx)
	for tx := range txs {
		commit, end := tx*benchTxWAL+16, (tx+1)*benchTxWAL
		w.lsn(w.frame(frameBegin(0), commit)+1, commit)
		for i := range perTx {
			n := tx*perTx + i
			w.frame(frameOutbox(fmt.Sprintf("a0eebc99-9c0b-4ef8-bb6d-%012d", n), "order", fmt.Sprintf("order-%d", n%64), "OrderCreated", payload), commit)
		}
		at := w.frame(frameCommit(0, 0), end)
		w.lsn(at+2, commit)
		w.lsn(at+10, end)
	}
	w.size = len(w.round) / (txs * perTx)
	return w
}

// frame appends data as an XLogData message whose WAL ends at plus, and returns
// where data begins.
func (w *walsender) frame(data []byte, plus int) int {
	b := append(w.round, 'd')
	b = binary.BigEndian.AppendUint32(b, uint32(4+25+len(data)))
	b = append(b, 'w')
	w.lsn(len(b), plus)
	w.lsn(len(b)+8, plus)
	b = append(b, make([]byte, 24)...)
	w.round = append(b, data...)
	return len(b)
}

func (w *walsender) lsn(offset, plus int) { w.lsns = append(w.lsns, lsnAt{offset, plus}) }

// start starts the server, and a stream of it.
func (w *walsender) start(tb testing.TB) *replication.Stream {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	w.wg.Go(func() { w.serve(tb, ln) })
	tb.Cleanup(func() {
		ln.Close()
		w.wg.Wait()
	})
	pc, err := pgconn.ParseConfig(fmt.Sprintf("host=127.0.0.1 port=%d user=u dbname=d sslmode=disable", ln.Addr().(*net.TCPAddr).Port))
	if err != nil {
		tb.Fatal(err)
	}
	conn, err := replication.Connect(tb.Context(), replication.Config{
		Postgres: pc, ApplicationName: "cdc-relay", StatusInterval: time.Second, SilenceTimeout: time.Minute, MaxMessageBytes: 64 << 20,
	})
	if err != nil {
		tb.Fatal(err)
	}
	st, err := conn.Start(tb.Context(), "relay", "pub", benchStart)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(st.Close)
	return st
}

func (w *walsender) serve(tb testing.TB, ln net.Listener) {
	conn, err := ln.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	b := pgproto3.NewBackend(conn, conn)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		tb.Errorf("walsender: %v", err)
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 42, SecretKey: []byte{1, 2, 3, 4}})
	for streaming := false; !streaming; {
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if err := b.Flush(); err != nil {
			return
		}
		m, err := b.Receive()
		if err != nil {
			return
		}
		if q, ok := m.(*pgproto3.Query); ok && strings.HasPrefix(q.String, "START_REPLICATION") {
			b.Send(&pgproto3.CopyBothResponse{})
			streaming = true
		} else {
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 0")})
		}
	}
	if b.Flush() != nil {
		return
	}
	w.wg.Go(func() { _, _ = io.Copy(io.Discard, conn) }) // statuses; ends with the connection
	w.send(conn)
}

// send writes rounds until the connection ends.
func (w *walsender) send(conn net.Conn) {
	relation := &walsender{}
	relation.frame(frameOutboxRelation(), 0)
	if _, err := conn.Write(relation.round); err != nil {
		return
	}
	for lsn := uint64(benchStart); ; lsn += uint64(w.lsns[len(w.lsns)-1].plus) {
		for _, l := range w.lsns {
			binary.BigEndian.PutUint64(w.round[l.offset:], lsn+uint64(l.plus))
		}
		if _, err := conn.Write(w.round); err != nil {
			return
		}
	}
}

func frameOutboxRelation() []byte {
	b := binary.BigEndian.AppendUint32([]byte{'R'}, 16384)
	b = append(b, "public\x00outbox\x00d\x00\x05"...)
	for _, c := range []struct {
		name string
		oid  uint32
	}{{"id", 2950}, {"aggregatetype", 25}, {"aggregateid", 25}, {"type", 25}, {"payload", 114}} {
		b = append(append(append(b, 0), c.name...), 0)
		b = binary.BigEndian.AppendUint32(b, c.oid)
		b = binary.BigEndian.AppendUint32(b, 0xffffffff)
	}
	return b
}

func frameOutbox(values ...string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{'I'}, 16384)
	b = append(b, 'N')
	b = binary.BigEndian.AppendUint16(b, uint16(len(values)))
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(append(b, 't'), uint32(len(v)))
		b = append(b, v...)
	}
	return b
}
