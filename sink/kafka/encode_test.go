package kafka

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"testing"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/sink"
)

var codecs = []compress.Compression{compress.None, compress.Gzip, compress.Snappy, compress.Lz4, compress.Zstd}

// encodeAll encodes recs into one batch, with room made as the sink makes it.
func encodeAll(t testing.TB, recs []sink.Record, codec compress.Compression, p producer) []byte {
	t.Helper()
	var e encoder
	e.reset(make([]byte, 0, headerSize))
	for i := range recs {
		tail := tailSize(&recs[i])
		size := e.recordSize(recs[i].Timestamp, tail)
		if free := cap(e.buf) - len(e.buf); free < size {
			e.move(make([]byte, 0, len(e.buf)+size))
		}
		before, room := len(e.buf), cap(e.buf)
		e.append(&recs[i], tail)
		if len(e.buf)-before != size {
			t.Fatalf("record %d took %d bytes, recordSize said %d", i, len(e.buf)-before, size)
		}
		if cap(e.buf) != room {
			t.Fatalf("record %d grew the buffer", i)
		}
	}
	pk := packer{codec: codec}
	out, err := pk.pack(&e, make([]byte, 0, len(e.buf)), p)
	if err != nil {
		t.Fatal(err)
	}
	if out == nil {
		e.seal(p)
		out = e.buf
	}
	return out
}

func samples() []sink.Record {
	big := make([]byte, 5<<20)
	for i := range big {
		big[i] = byte(i * 7)
	}
	return []sink.Record{
		{Key: []byte("k"), Value: []byte("v"), Timestamp: 1_700_000_000_000},
		{Key: nil, Value: []byte("null key"), Timestamp: 1_700_000_000_005},
		{Key: []byte("null value"), Value: nil, Timestamp: 1_600_000_000_000},
		{Key: []byte{}, Value: []byte{}, Timestamp: 1_700_000_000_001},
		{Timestamp: 0},
		{Key: []byte("headers"), Value: bytes.Repeat([]byte("json "), 300), Timestamp: 1_700_000_100_000, Headers: []sink.Header{
			{Key: "id", Value: []byte("8e0f")}, {Key: "null", Value: nil}, {Key: "empty", Value: []byte{}}, {Key: "", Value: []byte("x")}}},
		{Key: []byte("big"), Value: big, Timestamp: 1_700_000_000_002},
		{Key: []byte("last"), Value: []byte("after big"), Timestamp: -5},
	}
}

func sameBytes(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

func compareRecord(t testing.TB, i int, want *sink.Record, ts int64, key, value []byte, headers []sink.Header) {
	t.Helper()
	if ts != want.Timestamp || !sameBytes(key, want.Key) || !sameBytes(value, want.Value) || len(headers) != len(want.Headers) {
		t.Fatalf("record %d: time %d want %d; key %d/%v want %d/%v; value %d/%v want %d/%v; %d headers want %d", i, ts, want.Timestamp,
			len(key), key == nil, len(want.Key), want.Key == nil, len(value), value == nil, len(want.Value), want.Value == nil, len(headers), len(want.Headers))
	}
	for j, h := range headers {
		if h.Key != want.Headers[j].Key || !sameBytes(h.Value, want.Headers[j].Value) {
			t.Fatalf("record %d: header %d is %q=%q, want %q=%q", i, j, h.Key, h.Value, want.Headers[j].Key, want.Headers[j].Value)
		}
	}
}

func TestEncoder_ReadBackByKafkaGo(t *testing.T) {
	for _, codec := range codecs {
		t.Run(codec.String(), func(t *testing.T) {
			want := samples()
			raw := encodeAll(t, want, codec, producer{id: 1<<40 + 5, epoch: 300, sequence: math.MaxInt32 - 2})
			framed := append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)
			var rs protocol.RecordSet
			if _, err := rs.ReadFrom(bytes.NewReader(framed)); err != nil {
				t.Fatal(err)
			}
			if rs.Attributes.Compression() != codec {
				t.Fatalf("codec %v, want %v", rs.Attributes.Compression(), codec)
			}
			stream := rs.Records.(*protocol.RecordStream)
			if len(stream.Records) != 1 {
				t.Fatalf("%d batches", len(stream.Records))
			}
			if b := stream.Records[0].(*protocol.RecordBatch); b.ProducerID != 1<<40+5 || b.ProducerEpoch != 300 || b.BaseSequence != math.MaxInt32-2 {
				t.Fatalf("producer %d/%d/%d", b.ProducerID, b.ProducerEpoch, b.BaseSequence)
			}
			for i := range want {
				r, err := rs.Records.ReadRecord()
				if err != nil {
					t.Fatal(err)
				}
				key, _ := protocol.ReadAll(r.Key)
				value, _ := protocol.ReadAll(r.Value)
				var hs []sink.Header
				for _, h := range r.Headers {
					hs = append(hs, sink.Header{Key: h.Key, Value: h.Value})
				}
				ts := r.Time.UnixMilli()
				compareRecord(t, i, &want[i], ts, key, value, hs)
				if r.Offset != int64(i) {
					t.Fatalf("offset %d, want %d", r.Offset, i)
				}
			}
			if _, err := rs.Records.ReadRecord(); err != io.EOF {
				t.Fatalf("after the last record: %v", err)
			}
		})
	}
}

func TestEncoder_ReadBackByFranzGo(t *testing.T) {
	for _, codec := range codecs {
		t.Run(codec.String(), func(t *testing.T) {
			want := samples()
			id := producer{id: 77, epoch: 3, sequence: 1234}
			raw := encodeAll(t, want, codec, id)
			var b kmsg.RecordBatch
			if err := b.ReadFrom(raw); err != nil {
				t.Fatal(err)
			}
			if got := crc32.Checksum(raw[atAttributes:], crc32.MakeTable(crc32.Castagnoli)); uint32(b.CRC) != got {
				t.Fatalf("crc %x, want %x", b.CRC, got)
			}
			if b.Length != int32(len(raw)-12) || b.Magic != 2 || b.NumRecords != int32(len(want)) || b.LastOffsetDelta != int32(len(want)-1) {
				t.Fatalf("header %+v", b)
			}
			if b.ProducerID != 77 || b.ProducerEpoch != 3 || b.FirstSequence != 1234 {
				t.Fatalf("producer %d/%d/%d", b.ProducerID, b.ProducerEpoch, b.FirstSequence)
			}
			if b.FirstTimestamp != want[0].Timestamp || b.MaxTimestamp != 1_700_000_100_000 {
				t.Fatalf("timestamps %d, %d", b.FirstTimestamp, b.MaxTimestamp)
			}
			checkRecords(t, want, b, unpack(t, codec, b.Records))
			// In another name all the rest stays, but the checksum.
			again := bytes.Clone(raw)
			stamp(again, producer{id: 78, epoch: 0, sequence: 0})
			if fresh := encodeAll(t, want, codec, producer{id: 78, epoch: 0, sequence: 0}); !bytes.Equal(again, fresh) {
				t.Fatal("stamped anew, the batch differs from one that was made so")
			}
		})
	}
}

func unpack(t testing.TB, codec compress.Compression, b []byte) []byte {
	t.Helper()
	if codec == compress.None {
		return b
	}
	r := codec.Codec().NewReader(bytes.NewReader(b))
	defer r.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func checkRecords(t testing.TB, want []sink.Record, b kmsg.RecordBatch, raw []byte) {
	t.Helper()
	for i := range want {
		n, vn := binary.Varint(raw)
		if vn <= 0 || int(n)+vn > len(raw) {
			t.Fatalf("record %d is cut off", i)
		}
		var r kmsg.Record
		if err := r.ReadFrom(raw[:vn+int(n)]); err != nil {
			t.Fatal(err)
		}
		raw = raw[vn+int(n):]
		var hs []sink.Header
		for _, h := range r.Headers {
			hs = append(hs, sink.Header{Key: h.Key, Value: h.Value})
		}
		if r.OffsetDelta != int32(i) {
			t.Fatalf("record %d has offset delta %d", i, r.OffsetDelta)
		}
		compareRecord(t, i, &want[i], b.FirstTimestamp+r.TimestampDelta64, r.Key, r.Value, hs)
	}
	if len(raw) != 0 {
		t.Fatalf("%d bytes after the last record", len(raw))
	}
}

func TestEncoder_IncompressibleIsSentPlain(t *testing.T) {
	raw := encodeAll(t, []sink.Record{{Value: []byte("x")}}, compress.Gzip, noProducer)
	if raw[atAttributes+1] != 0 {
		t.Fatalf("attributes %x: a batch that grew was sent compressed", raw[atAttributes:atAttributes+2])
	}
}

func TestEncoder_NoAllocationPerRecord(t *testing.T) {
	rec := sample300()
	var e encoder
	e.reset(make([]byte, 0, 1<<20))
	n := testing.AllocsPerRun(1000, func() {
		e.append(&rec, tailSize(&rec))
	})
	if n != 0 {
		t.Fatalf("%v allocations per record", n)
	}
}

func sample300() sink.Record {
	return sink.Record{Key: []byte("order-1234"), Value: bytes.Repeat([]byte("{\"a\":1}"), 43), Timestamp: 1_700_000_000_000,
		Headers: []sink.Header{{Key: "id", Value: []byte("8e0f2a76-1111-2222-3333-444455556666")}, {Key: "lsn", Value: []byte("0000000001A2B3C4")}, {Key: "seq", Value: []byte("0")}}}
}

func FuzzBatch(f *testing.F) {
	f.Add([]byte("key"), []byte("value"), "id", []byte("h"), int64(1700000000000), int64(-5), uint8(3), uint8(0))
	f.Add([]byte{}, []byte{}, "", []byte{}, int64(math.MinInt64/4), int64(math.MaxInt64/4), uint8(9), uint8(0xff))
	f.Add([]byte("k"), bytes.Repeat([]byte("abc"), 100), "h", []byte(nil), int64(0), int64(1), uint8(200), uint8(0x12))
	f.Fuzz(func(t *testing.T, key, value []byte, hkey string, hvalue []byte, ts, step int64, count, flags uint8) {
		if flags&1 != 0 {
			key = nil
		}
		if flags&2 != 0 {
			value = nil
		}
		if flags&4 != 0 {
			hvalue = nil
		}
		codec := codecs[int(flags>>4)%len(codecs)]
		recs := make([]sink.Record, int(count)+1)
		for i := range recs {
			recs[i] = sink.Record{Key: key, Value: value, Timestamp: ts + int64(i)*step}
			if flags&8 == 0 {
				recs[i].Headers = make([]sink.Header, i%4)
				for j := range recs[i].Headers {
					recs[i].Headers[j] = sink.Header{Key: hkey, Value: hvalue}
				}
			}
		}
		raw := encodeAll(t, recs, codec, noProducer)
		if raw[atAttributes+1]&7 == 0 {
			codec = compress.None
		}
		var b kmsg.RecordBatch
		if err := b.ReadFrom(raw); err != nil {
			t.Fatal(err)
		}
		plain := unpack(t, codec, b.Records)
		checkRecords(t, recs, b, plain)
		checkWalk(t, recs, plain)
	})
}

// checkWalk reads the records back with the reader that splitting uses, and
// then reads every cut of them, which must err and not panic.
func checkWalk(t *testing.T, want []sink.Record, plain []byte) {
	e := encoder{baseTime: want[0].Timestamp}
	rest := plain
	for i := range want {
		r, next, err := e.next(rest)
		if err != nil {
			t.Fatal(err)
		}
		var rec sink.Record
		if err := r.decode(&rec); err != nil {
			t.Fatal(err)
		}
		compareRecord(t, i, &want[i], rec.Timestamp, rec.Key, rec.Value, rec.Headers)
		rest = next
	}
	for cut := 0; cut < min(len(plain), 64); cut++ {
		if r, _, err := e.next(plain[:cut]); err == nil {
			_ = r.decode(new(sink.Record))
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, codec := range codecs {
		b.Run(fmt.Sprint(codec), func(b *testing.B) {
			b.ReportAllocs()
			rec := sample300()
			buf, dst := make([]byte, 0, 1<<20), make([]byte, 0, 1<<20)
			pk := packer{codec: codec}
			var e encoder
			e.reset(buf)
			tail := tailSize(&rec)
			b.SetBytes(int64(tail))
			for b.Loop() {
				if len(e.buf)+e.recordSize(rec.Timestamp, tail) > 900<<10 {
					out, err := pk.pack(&e, dst, noProducer)
					if err != nil {
						b.Fatal(err)
					}
					if out == nil {
						e.seal(noProducer)
					}
					e.reset(buf)
				}
				e.append(&rec, tailSize(&rec))
			}
		})
	}
}
