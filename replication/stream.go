package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// minStatusGap bounds how often a status answers the server: one that is told
// to stop sends thousands of keepalives a second that all ask for a reply.
const minStatusGap = 10 * time.Millisecond

// writeTimeout is how long the 34 bytes of a status may take to leave.
const writeTimeout = 10 * time.Second

// ErrInterrupted is returned by Next after Interrupt. Next can be called again.
var ErrInterrupted = errInterrupted

// ErrSilent is returned when the server has said nothing for SilenceTimeout
// although it was asked to.
var ErrSilent = errors.New("the server has not answered; the network or the server hangs")

// ErrEnded is returned when the server ended the stream by itself.
var ErrEnded = errors.New("the server ended the stream")

// Message is what Next returns: WAL data, or a keepalive (Data is nil).
type Message struct {
	// WALStart is the position of the data; zero for a Relation message.
	WALStart pglogrepl.LSN
	// WALEnd: all WAL below it was decoded, and sent if it was to be sent. It is a
	// position to confirm only in a keepalive, outside of a transaction, and only
	// behind everything that was received before.
	WALEnd pglogrepl.LSN
	// Data is one message of the output plugin; valid until the next call. Within a
	// transaction they come in the order in which they were written.
	Data []byte
}

// Stream is a running replication stream. Next and Finish belong to one
// goroutine; Confirm, Interrupt and Close to any. It has one goroutine of its
// own, which writes standby status and ends with Close or Finish.
type Stream struct {
	cfg    Config
	pg     *pgconn.PgConn
	conn   net.Conn
	frames *frameReader

	start       pglogrepl.LSN
	confirmed   atomic.Uint64 // what the next status says
	interrupted atomic.Bool
	interruptMu sync.Mutex // an interrupt is made, and taken, as a whole
	finishing   bool       // there is no Next to interrupt any more; under interruptMu

	// passing is how much of a message that is passed over is not read yet; the
	// reader's only.
	passing int64
	order   order // where logical messages are asked for; the reader's only

	nudge    chan struct{} // capacity 1: a status is wanted now
	writeMu  sync.Mutex    // one writer at a time
	writeErr atomic.Pointer[error]
	ended    error         // how the server ended the stream by itself; the reader's only
	stop     chan struct{} // closed once, by shut
	stopOnce sync.Once
	writer   sync.WaitGroup
}

func newStream(c *Conn, start pglogrepl.LSN) *Stream {
	s := &Stream{
		cfg: c.cfg, pg: c.pg, conn: c.pg.Conn(), frames: c.frames, start: start,
		nudge: make(chan struct{}, 1), stop: make(chan struct{}), order: order{limit: c.cfg.MaxMessageBytes},
	}
	s.confirmed.Store(uint64(start))
	s.frames.before = s.beforeRead
	s.writer.Add(1)
	go func() {
		defer s.writer.Done()
		s.writeStatusLoop()
	}()
	return s
}

// beforeRead sets the deadline of a read that may block. Interrupt stores its
// flag before it moves the deadline, and this moves the deadline before it looks
// at the flag, so an interrupt is never missed.
func (s *Stream) beforeRead() error {
	if s.cfg.BeforeRead != nil {
		s.cfg.BeforeRead()
	}
	if err := s.conn.SetReadDeadline(time.Now().Add(s.cfg.SilenceTimeout)); err != nil {
		return err
	}
	if s.interrupted.Load() {
		return errInterrupted
	}
	return nil
}

// Interrupt makes a Next that waits, or the next one that would, return
// ErrInterrupted, once. It does nothing to Finish.
func (s *Stream) Interrupt() {
	s.interruptMu.Lock()
	defer s.interruptMu.Unlock()
	if s.finishing {
		return
	}
	s.interrupted.Store(true)
	_ = s.conn.SetReadDeadline(time.Unix(1, 0))
}

// Next returns the next message. It blocks until there is one, the connection
// fails, the server is silent for too long, or Interrupt is called.
func (s *Stream) Next() (Message, error) {
	if s.cfg.MessagePrefix == "" {
		return s.read()
	}
	return s.order.next(s.read)
}

// read returns the next message as it comes.
func (s *Stream) read() (Message, error) {
	for {
		typ, body, err := s.next()
		if err != nil {
			return Message{}, s.readError(err)
		}
		switch typ {
		case 'd':
			m, ok, err := s.copyData(body)
			if err != nil || ok {
				return m, err
			}
		case 'N':
			s.notice(body)
		case 'E':
			s.ended = serverError(body)
			return Message{}, s.ended
		case 'S', 'A': // ParameterStatus, NotificationResponse
		case 'c', 'C', 'Z':
			s.ended = ErrEnded
			return Message{}, s.ended
		default:
			return Message{}, fmt.Errorf("the server sent a message of the unexpected type %q while streaming", typ)
		}
	}
}

// next is the next message that is not passed over.
func (s *Stream) next() (byte, []byte, error) {
	for {
		if s.passing > 0 {
			var err error
			if s.passing, err = s.frames.discard(s.passing); err != nil {
				return 0, nil, err
			}
		}
		typ, body, err := s.frames.next(s.cfg.MaxMessageBytes)
		if err == nil || s.cfg.MessagePrefix == "" {
			return typ, body, err
		}
		var big *FrameTooLargeError
		if !errors.As(err, &big) {
			return 0, nil, err
		}
		foreign, ferr := s.foreignMessage()
		switch {
		case ferr != nil:
			return 0, nil, ferr
		case !foreign:
			return 0, nil, err
		}
		s.passing = big.Size + 1
	}
}

// foreignMessage tells whether a message that is too large to be read is a logical
// one with another prefix. Any role can write one of any size, and it must not
// end the stream of those who wait for others.
func (s *Stream) foreignMessage() (bool, error) {
	const head = msgHeader + xlogHeader + 1 + 1 + 8 // 'M', flags, LSN
	prefix := s.cfg.MessagePrefix + "\x00"
	b, err := s.frames.peek(head + len(prefix))
	if err != nil {
		return false, err
	}
	logical := b[0] == 'd' && b[msgHeader] == 'w' && b[msgHeader+xlogHeader] == 'M'
	return logical && string(b[head:]) != prefix, nil
}

// readError gives a failed read its cause: an interrupt, silence, or, when the
// status could not be written, why.
func (s *Stream) readError(err error) error {
	switch {
	case (errors.Is(err, errInterrupted) || errors.Is(err, os.ErrDeadlineExceeded)) && s.takeInterrupt():
		return ErrInterrupted
	case s.writeErr.Load() != nil:
		return *s.writeErr.Load()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no byte for %s: %w", s.cfg.SilenceTimeout, ErrSilent)
	default:
		return fmt.Errorf("read the replication stream: %w", err)
	}
}

// takeInterrupt ends an interrupt, if there is one. One that has not moved the
// deadline yet is waited for: it would end a later read, as if for silence.
func (s *Stream) takeInterrupt() bool {
	s.interruptMu.Lock()
	defer s.interruptMu.Unlock()
	return s.interrupted.Swap(false)
}

// copyData decodes the replication messages of the PostgreSQL documentation's
// "Streaming Replication Protocol".
func (s *Stream) copyData(b []byte) (Message, bool, error) {
	if len(b) == 0 {
		return Message{}, false, errors.New("the server sent an empty replication message")
	}
	switch b[0] {
	case 'w':
		if len(b) < xlogHeader {
			return Message{}, false, fmt.Errorf("the server sent WAL data of %d bytes, shorter than its header", len(b))
		}
		return Message{
			WALStart: pglogrepl.LSN(binary.BigEndian.Uint64(b[1:])),
			WALEnd:   pglogrepl.LSN(binary.BigEndian.Uint64(b[9:])),
			Data:     b[xlogHeader:],
		}, true, nil
	case 'k':
		if len(b) < 18 {
			return Message{}, false, fmt.Errorf("the server sent a keepalive of %d bytes, shorter than 18", len(b))
		}
		if b[17] != 0 {
			s.wake()
		}
		return Message{WALEnd: pglogrepl.LSN(binary.BigEndian.Uint64(b[1:]))}, true, nil
	default:
		return Message{}, false, fmt.Errorf("the server sent a replication message of the unknown type %q", b[0])
	}
}

func (s *Stream) notice(body []byte) {
	var m pgproto3.NoticeResponse
	if m.Decode(body) != nil || s.cfg.OnNotice == nil {
		return
	}
	s.cfg.OnNotice((*pgconn.Notice)(pgconn.ErrorResponseToPgError((*pgproto3.ErrorResponse)(&m))))
}

func serverError(body []byte) error {
	var m pgproto3.ErrorResponse
	if err := m.Decode(body); err != nil {
		return fmt.Errorf("read the server's error: %w", err)
	}
	return fmt.Errorf("the server ended the stream: %w", pgconn.ErrorResponseToPgError(&m))
}

// Start is the position that the stream was started at.
func (s *Stream) Start() pglogrepl.LSN { return s.start }

// Confirm tells the server that everything before lsn is published for good. The
// status leaves soon after; a lower position than before is ignored, since the
// server cannot go back. The caller guarantees that lsn was received on this
// stream: the server believes any value, and skips what lies below it.
func (s *Stream) Confirm(lsn pglogrepl.LSN) {
	for {
		old := s.confirmed.Load()
		if uint64(lsn) <= old {
			return
		}
		if s.confirmed.CompareAndSwap(old, uint64(lsn)) {
			s.wake()
			return
		}
	}
}

// Confirmed is the highest position given to Confirm, or the start.
func (s *Stream) Confirmed() pglogrepl.LSN { return pglogrepl.LSN(s.confirmed.Load()) }

func (s *Stream) wake() {
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// writeStatusLoop sends the status when it is nudged and on a timer, and asks
// for a reply often enough that a silent network is found in time. It never
// waits for the reader.
func (s *Stream) writeStatusLoop() {
	interval := min(s.cfg.StatusInterval, s.cfg.SilenceTimeout/4)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var asked time.Time
	for {
		select {
		case <-s.stop:
			return
		case <-s.nudge:
		case <-tick.C:
		}
		now := time.Now()
		ask := now.Sub(asked) >= s.cfg.SilenceTimeout/4
		if ask {
			asked = now
		}
		if err := s.writeStatus(ask); err != nil {
			err = fmt.Errorf("send the standby status: %w", err)
			s.writeErr.CompareAndSwap(nil, &err)
			s.conn.Close() // wakes the reader
			return
		}
		select {
		case <-s.stop:
			return
		case <-time.After(minStatusGap):
		}
	}
}

// Failed returns why the status could not be written, or nil. The reader may be
// waiting for something else than the connection, and would not see it.
func (s *Stream) Failed() error {
	if e := s.writeErr.Load(); e != nil {
		return *e
	}
	return nil
}

func (s *Stream) writeStatus(ask bool) error {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	b := appendStatus(make([]byte, 0, 39), s.Confirmed(), time.Now(), ask)
	return s.write(b)
}

func (s *Stream) write(b []byte) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := s.conn.Write(b)
	return err
}

// pgEpoch is PostgreSQL's time zero, in microseconds of Unix time.
const pgEpoch = 946684800 * 1_000_000

// appendStatus appends a CopyData message with a standby status update. The
// positions written, flushed and applied are the same one, and never zero: a
// server takes a flush position of zero for "unknown", but believes any other.
func appendStatus(b []byte, lsn pglogrepl.LSN, now time.Time, ask bool) []byte {
	b = append(b, 'd', 0, 0, 0, 38, 'r')
	for range 3 {
		b = binary.BigEndian.AppendUint64(b, uint64(lsn))
	}
	b = binary.BigEndian.AppendUint64(b, uint64(now.UnixMicro()-pgEpoch))
	if ask {
		return append(b, 1)
	}
	return append(b, 0)
}

// Finish sends the last status and ends the stream in order: CopyDone, and the
// server's answer, so that when it returns nil the server has the confirmed
// position. The connection is closed in any case. No Next may be running.
func (s *Stream) Finish(ctx context.Context) error {
	defer s.conn.Close()
	stop := context.AfterFunc(ctx, func() { s.conn.Close() }) // also frees a writer that is stuck
	defer stop()
	s.interruptMu.Lock()
	s.finishing = true
	s.interruptMu.Unlock()
	s.shut()
	s.writer.Wait()
	if err := errors.Join(s.Failed(), s.ended); err != nil {
		return fmt.Errorf("the last position cannot be confirmed: %w", err) // the server reads no status any more
	}
	if err := s.writeStatus(false); err != nil {
		return fmt.Errorf("send the last standby status: %w", err)
	}
	if err := s.write([]byte{'c', 0, 0, 0, 4}); err != nil { // CopyDone
		return fmt.Errorf("end the stream: %w", err)
	}
	s.frames.before = func() error { return s.conn.SetReadDeadline(time.Now().Add(s.cfg.SilenceTimeout)) }
	if err := s.awaitReady(); err != nil {
		return fmt.Errorf("wait for the server's answer to the end of the stream: %w", err)
	}
	return s.write([]byte{'X', 0, 0, 0, 4}) // Terminate
}

// awaitReady reads, and drops, everything up to ReadyForQuery. What is dropped
// was not confirmed, so it comes again.
func (s *Stream) awaitReady() error {
	if _, err := s.frames.discard(s.passing); err != nil {
		return err
	}
	for {
		typ, body, err := s.frames.next(s.cfg.MaxMessageBytes)
		var big *FrameTooLargeError
		if errors.As(err, &big) {
			_, err = s.frames.discard(big.Size + 1)
		}
		if err != nil {
			return err
		}
		switch typ {
		case 'E':
			return serverError(body)
		case 'Z':
			return nil
		}
	}
}

func (s *Stream) shut() { s.stopOnce.Do(func() { close(s.stop) }) }

// Close drops the connection at once, from any goroutine, and waits for the
// status writer. What was not confirmed comes again. Closing twice is safe.
func (s *Stream) Close() {
	s.shut()
	s.conn.Close()
	s.writer.Wait()
}
