package relay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/marking"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected output of the scripts")

// errNothing is what the scripted stream says when its queue is empty.
var errNothing = errors.New("nothing to read")

// world is what survives a crash of the relay: the server's WAL and confirmed
// position, the store, and what was published.
type world struct {
	wal       []replication.Message // all messages, in order
	confirmed pglogrepl.LSN
	store     memoryStore
	out       bytes.Buffer

	// Of the running relay.
	s      *session
	queued []replication.Message
	held   []heldRecord
	tx     pglogrepl.LSN // commit LSN of the transaction in hand
	halted bool          // reading is

	showSeq bool
	marking bool // rows are marked, by the command mark
}

type heldRecord struct {
	id  string
	ack sink.Ack
}

type memoryStore struct {
	mark  checkpoint.Mark
	fails bool
}

func (m *memoryStore) Load(context.Context, string, string) (checkpoint.Mark, bool, error) {
	return m.mark, true, nil
}

func (m *memoryStore) Others(context.Context, string, string) ([]checkpoint.Mark, error) {
	return nil, nil
}

func (m *memoryStore) Save(_ context.Context, mark checkpoint.Mark) error {
	if m.fails {
		return errors.New("the store is away")
	}
	if mark.LSN < m.mark.LSN && mark.Epoch == m.mark.Epoch {
		return checkpoint.ErrStale
	}
	m.mark = mark
	return nil
}

func (m *memoryStore) Close() error { return nil }

// The world plays the stream.

func (w *world) Next() (replication.Message, error) {
	if len(w.queued) == 0 {
		return replication.Message{}, errNothing
	}
	m := w.queued[0]
	w.queued = w.queued[1:]
	return m, nil
}

func (w *world) Confirm(lsn pglogrepl.LSN)        { w.confirmed = max(w.confirmed, lsn) }
func (w *world) Confirmed() pglogrepl.LSN         { return w.confirmed }
func (w *world) Interrupt()                       {}
func (w *world) Failed() error                    { return nil }
func (w *world) Finish(ctx context.Context) error { return nil }
func (w *world) Close()                           {}

// scriptSink holds every record until the script acks it.
type scriptSink struct{ *world }

func (k scriptSink) Publish(_ context.Context, rec *sink.Record, ack sink.Ack) error {
	w := k.world
	fmt.Fprintf(&w.out, "published %s to %s key=%s value=%s", rec.ID, rec.Topic, rec.Key, rec.Value)
	if w.showSeq {
		fmt.Fprintf(&w.out, " seq=%d", rec.Seq)
	}
	fmt.Fprintln(&w.out)
	w.held = append(w.held, heldRecord{string(rec.ID), ack})
	return nil
}
func (scriptSink) Flush()                      {}
func (scriptSink) Drain(context.Context) error { return nil }
func (scriptSink) Abort(context.Context) error { return nil }
func (scriptSink) Failed() <-chan struct{}     { return nil }
func (scriptSink) Err() error                  { return nil }
func (scriptSink) Lanes() []sink.LaneStatus    { return nil }
func (scriptSink) Stats() sink.Stats           { return sink.Stats{} }
func (scriptSink) Close() error                { return nil }

var scriptTables = []route.Table{{
	Schema: "public", Name: "outbox", ID: "id", Key: "aggregateid", Payload: "payload",
	Topic: "orders", IDHeader: "id",
}}

var scriptMessages = route.Messages{Prefix: "outbox", Topic: "{aggregatetype}", IDHeader: "id", TypeHeader: "type"}

func (w *world) start(t *testing.T) {
	r := New(Config{Slot: "s", MaxAheadTx: 1 << 20, MaxAheadWAL: 1 << 40, Tables: scriptTables, Messages: &scriptMessages}, Deps{Log: zap.NewNop(), Store: &w.store})
	if err := r.compile(); err != nil {
		t.Fatal(err)
	}
	r.sink = scriptSink{w}
	w.held, w.halted = nil, false
	w.s = &session{
		r: r, log: zap.NewNop(), sink: r.sink, stream: w, dec: decoder.New(), router: r.router, messages: r.messageRouter,
		tracker: checkpoint.NewTracker(w.confirmed), nudge: make(chan struct{}, 1), mark: w.store.mark,
		plan: preflight.Plan{Start: w.confirmed, Mark: w.store.mark},
	}
	if w.marking {
		w.s.marks = &marks{queue: marking.NewQueue(1 << 20), nudge: make(chan struct{}, 1)}
	}
	w.s.received.Store(uint64(w.confirmed))
	w.s.durable.Store(uint64(w.store.mark.LSN))
	w.s.checked.Store(&checkedIdentities{Identities: catalog.Identities{}})
	// The server skips every transaction whose commit record lies before the
	// confirmed position.
	w.queued = nil
	skip := false
	for _, m := range w.wal {
		if m.Data == nil {
			continue
		}
		if m.Data[0] == 'B' {
			skip = pglogrepl.LSN(binary.BigEndian.Uint64(m.Data[1:])) < w.confirmed
		}
		if !skip || m.Data[0] == 'R' {
			w.queued = append(w.queued, m)
		}
		if m.Data[0] == 'C' {
			skip = false
		}
	}
}

func (w *world) send(data []byte) {
	m := replication.Message{Data: data}
	w.wal = append(w.wal, m)
	w.queued = append(w.queued, m)
}

// queue has the server send what a line of a script says.
func (w *world) queue(t *testing.T, line string) {
	f := strings.Fields(line)
	switch f[0] {
	case "message", "nontransactional":
		f = strings.SplitN(line, " ", 3)
		w.send(frameMessage(f[0] == "message", f[1], f[2]))
	case "begin":
		w.tx = parseLSN(t, f[1])
		w.send(frameBegin(w.tx))
	case "row":
		w.send(frameRow(f[1:]...))
	case "commit":
		w.send(frameCommit(w.tx, parseLSN(t, f[1])))
	}
}

func parseLSN(t *testing.T, hex string) pglogrepl.LSN {
	v, err := strconv.ParseUint(hex, 16, 64)
	if err != nil {
		t.Fatalf("%q: %v", hex, err)
	}
	return pglogrepl.LSN(v)
}

// step runs one command of a script.
func (w *world) step(t *testing.T, line string) error {
	f := strings.Fields(line)
	switch f[0] {
	case "begin", "row", "message", "nontransactional", "commit":
		w.queue(t, line)
	case "show":
		w.showSeq = f[1] == "seq"
	case "keepalive":
		w.queued = append(w.queued, replication.Message{WALEnd: parseLSN(t, f[1])})
	case "ack":
		for _, id := range f[1:] {
			i := slices.IndexFunc(w.held, func(h heldRecord) bool { return h.id == id })
			if i < 0 {
				return fmt.Errorf("no record %s is in flight", id)
			}
			h := w.held[i]
			w.held = slices.Delete(w.held, i, i+1)
			h.ack.To.Done([]sink.Acked{{Tx: h.ack.Tx, N: 1}})
		}
		return nil
	case "marking":
		w.marking = true
		w.start(t)
	case "mark": // what is acked
		q := w.s.marks.queue
		due := q.Due(w.s.tracker.Watermark(), w.s.tracker.Settled, 100)
		for _, row := range due {
			fmt.Fprintf(&w.out, "marked %s\n", row.ID)
		}
		q.Marked(len(due))
		return nil
	case "store":
		w.store.fails = f[1] == "away"
	case "save":
		var saved time.Time
		_, err := w.s.commitOnce(context.Background(), &saved)
		return err
	case "server": // went back to a confirmed position, as a crash of PostgreSQL 15 does
		w.confirmed = parseLSN(t, f[1])
		return nil
	case "crash":
		w.s = nil
	case "restart":
		w.start(t)
	default:
		t.Fatalf("unknown command %q", line)
	}
	if w.s == nil || w.halted {
		return nil
	}
	return w.receive()
}

// receive reads until nothing is left, or until reading is halted: then it would
// wait for a person.
func (w *world) receive() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	core, _ := observer.New(zap.ErrorLevel)
	w.s.log = zap.New(core, zap.Hooks(func(zapcore.Entry) error {
		cancel()
		return nil
	}))
	err := w.s.receive(context.Background(), ctx)
	if h := w.s.readHalt.Load(); h != nil {
		w.halted = true
		return fmt.Errorf("halted at id=%q lsn=%X seq=%d: %w", h.ID, uint64(h.LSN), h.Seq, h.Reason)
	}
	if errors.Is(err, errNothing) {
		return nil
	}
	return err
}

// TestScripts_PublishedWatermarkConfirmed plays testdata/*.txt: lines of
// commands, and below each the world's answer, indented.
func TestScripts_PublishedWatermarkConfirmed(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts found", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { playScript(t, file) })
	}
}

func playScript(t *testing.T, file string) {
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{confirmed: 0x100, store: memoryStore{mark: checkpoint.Mark{Slot: "s", Epoch: 1, LSN: 0x100}}}
	w.start(t)
	w.send(frameRelation())
	var got bytes.Buffer
	sc := bufio.NewScanner(bytes.NewReader(want))
	for sc.Scan() {
		line := sc.Text()
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&got, line)
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := w.step(t, line); err != nil {
			fmt.Fprintf(&w.out, "error: %v\n", err)
		}
		for l := range strings.Lines(w.out.String()) {
			fmt.Fprint(&got, "  ", l)
		}
		w.out.Reset()
		if w.s != nil {
			fmt.Fprintf(&got, "  watermark=%X mark=%X confirmed=%X\n", uint64(w.s.tracker.Watermark()), uint64(w.store.mark.LSN), uint64(w.confirmed))
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("the script's answers differ; got:\n%s", got.String())
	}
}

// Frames as in "Logical Replication Message Formats" of the PostgreSQL manual.

func frameBegin(lsn pglogrepl.LSN) []byte {
	b := binary.BigEndian.AppendUint64([]byte{'B'}, uint64(lsn))
	b = binary.BigEndian.AppendUint64(b, 0)
	return binary.BigEndian.AppendUint32(b, 7)
}

func frameCommit(lsn, end pglogrepl.LSN) []byte {
	b := binary.BigEndian.AppendUint64([]byte{'C', 0}, uint64(lsn))
	b = binary.BigEndian.AppendUint64(b, uint64(end))
	return binary.BigEndian.AppendUint64(b, 0)
}

func frameMessage(transactional bool, prefix, content string) []byte {
	b := []byte{'M', 0}
	if transactional {
		b[1] = 1
	}
	b = binary.BigEndian.AppendUint64(b, 0x1F0)
	b = append(append(b, prefix...), 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(content)))
	return append(b, content...)
}

func frameRelation() []byte {
	b := binary.BigEndian.AppendUint32([]byte{'R'}, 16384)
	b = append(b, "public\x00outbox\x00d"...)
	b = binary.BigEndian.AppendUint16(b, 3)
	for _, c := range []string{"id", "aggregateid", "payload"} {
		b = append(append(append(b, 0), c...), 0)
		b = binary.BigEndian.AppendUint32(b, 25)
		b = binary.BigEndian.AppendUint32(b, 0xffffffff)
	}
	return b
}

// frameRow makes an insert; "-" is NULL, missing values are the id.
func frameRow(values ...string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{'I'}, 16384)
	b = append(b, 'N')
	b = binary.BigEndian.AppendUint16(b, 3)
	for i := range 3 {
		v := values[0]
		if i < len(values) {
			v = values[i]
		}
		if v == "-" {
			b = append(b, 'n')
			continue
		}
		b = binary.BigEndian.AppendUint32(append(b, 't'), uint32(len(v)))
		b = append(b, v...)
	}
	return b
}
