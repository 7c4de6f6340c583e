package kafka

import (
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go/compress"

	"github.com/cdc-relay/cdc-relay/sink"
)

// parseCodec turns the configured name into a codec.
func parseCodec(name string) (compress.Compression, error) {
	switch name {
	case "", "none":
		return compress.None, nil
	case "gzip":
		return compress.Gzip, nil
	case "snappy":
		return compress.Snappy, nil
	case "lz4":
		return compress.Lz4, nil
	case "zstd":
		return compress.Zstd, nil
	default:
		return compress.None, fmt.Errorf("compression %q is not one of none, gzip, snappy, lz4, zstd", name)
	}
}

// packer compresses batches, one at a time. Each sending goroutine has its own,
// so that the memory of codecs is bounded by the number of those.
type packer struct {
	codec compress.Compression
	zstd  *zstd.Encoder
	// scratch is the request's, kept for the next one; at most some 80 KiB.
	scratch []byte
	acked   []sink.Acked // of the batch that is told
}

// zstdWindow bounds what an encoder keeps; a batch is rarely larger.
const zstdWindow = 1 << 20

// pack compresses e's batch into dst, within its capacity. It returns nil when
// that does not make the batch smaller: it is then better sent as it is.
func (p *packer) pack(e *encoder, dst []byte, id producer) ([]byte, error) {
	limit := min(cap(dst), len(e.buf)-1)
	if p.codec == compress.None || limit <= headerSize {
		return nil, nil
	}
	out := &boundedBuffer{b: dst[:headerSize:limit]}
	err := p.write(out, e.records())
	if errors.Is(err, errNotSmaller) || out.full {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("compress a batch of %d records with %s: %w", e.count, p.codec, err)
	}
	e.header(out.b, int16(p.codec), id)
	return out.b, nil
}

func (p *packer) write(out io.Writer, records []byte) error {
	var w io.WriteCloser
	if p.codec == compress.Zstd {
		if err := p.openZstd(out); err != nil {
			return err
		}
		w = p.zstd
	} else {
		w = p.codec.Codec().NewWriter(out)
	}
	_, err := w.Write(records)
	return errors.Join(err, w.Close())
}

func (p *packer) openZstd(out io.Writer) (err error) {
	if p.zstd != nil {
		p.zstd.Reset(out)
		return nil
	}
	p.zstd, err = zstd.NewWriter(out,
		zstd.WithEncoderLevel(zstd.SpeedDefault),
		zstd.WithEncoderConcurrency(1),
		zstd.WithLowerEncoderMem(true),
		zstd.WithWindowSize(zstdWindow))
	return err
}

var errNotSmaller = errors.New("the compressed form is not smaller")

// boundedBuffer appends to b within its capacity.
type boundedBuffer struct {
	b    []byte
	full bool
}

func (w *boundedBuffer) Write(p []byte) (int, error) {
	if len(p) > cap(w.b)-len(w.b) {
		w.full = true
		return 0, errNotSmaller
	}
	w.b = append(w.b, p...)
	return len(p), nil
}
