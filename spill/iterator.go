package spill

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// Iterator gives entries in the order of their keys:
//
//	for it.Next() { use(it.Key(), it.Value()) }
//	err := it.Err()
type Iterator struct {
	memory *Sorter // where all fitted in; nil otherwise
	at     int

	heap  []*runReader // the smallest key first
	begun bool

	key, value []byte
	err        error
}

// Next goes to the next entry; false at the end and after an error.
func (it *Iterator) Next() bool {
	if it.memory != nil {
		if it.at == len(it.memory.index) {
			return false
		}
		it.key, it.value, _ = cutEntry(it.memory.entry[it.memory.index[it.at].at:])
		it.at++
		return true
	}
	if it.err != nil || len(it.heap) == 0 {
		return false
	}
	if it.begun && !it.advance() {
		return false
	}
	it.begun = true
	it.key, it.value = it.heap[0].key, it.heap[0].value
	return true
}

// advance takes the entry at the top away, and puts the next one of its run in
// its place.
func (it *Iterator) advance() bool {
	ok, err := it.heap[0].next()
	if err != nil {
		it.err = err
		return false
	}
	if !ok {
		last := len(it.heap) - 1
		it.heap[0] = it.heap[last]
		it.heap = it.heap[:last]
		if last == 0 {
			return false
		}
	}
	it.down(0)
	return true
}

func (it *Iterator) down(i int) {
	h := it.heap
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h); c++ {
			if h[c].before(h[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

// Key is valid until the next Next.
func (it *Iterator) Key() []byte { return it.key }

// Value is valid until the next Next.
func (it *Iterator) Value() []byte { return it.value }

// Err is why Next returned false before the end; nil at the end.
func (it *Iterator) Err() error { return it.err }

// run is where sorted entries lie in the file.
type run struct{ begin, end int64 }

// runReader reads the entries of a run.
type runReader struct {
	r          *bufio.Reader
	buf        []byte
	key, value []byte
	prefix     uint64
}

func newRunReader(f *scratch, r run) *runReader {
	return &runReader{r: bufio.NewReaderSize(io.NewSectionReader(f.f, r.begin, r.end-r.begin), runBuffer)}
}

func (r *runReader) before(o *runReader) bool {
	if r.prefix != o.prefix {
		return r.prefix < o.prefix
	}
	return bytes.Compare(r.key, o.key) < 0
}

// next reads an entry; false at the end of the run.
func (r *runReader) next() (bool, error) {
	k, err := binary.ReadUvarint(r.r)
	if err == io.EOF {
		return false, nil
	}
	var v uint64
	if err == nil {
		v, err = binary.ReadUvarint(r.r)
	}
	if err == nil {
		n := int(k + v)
		if cap(r.buf) < n {
			r.buf = make([]byte, n)
		}
		r.buf = r.buf[:n]
		_, err = io.ReadFull(r.r, r.buf)
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = errDamaged
	}
	if err != nil {
		return false, fmt.Errorf("read sorted entries back: %w", err)
	}
	r.key, r.value = r.buf[:k:k], r.buf[k:]
	r.prefix = prefixOf(r.key)
	return true, nil
}

// scratch is a temporary file, open to this user only.
type scratch struct {
	f    *os.File
	w    *bufio.Writer
	size int64
	name string // while it has one: where an open file cannot be removed
}

func newScratch(dir string) (*scratch, error) {
	f, err := os.CreateTemp(dir, "cdc-relay-*.tmp") // with mode 0600
	if err != nil {
		return nil, fmt.Errorf("make a temporary file: %w", err)
	}
	s := &scratch{f: f, w: bufio.NewWriterSize(f, runBuffer)}
	if err := os.Remove(f.Name()); err != nil {
		s.name = f.Name()
	}
	return s, nil
}

func (s *scratch) write(b []byte) error {
	n, err := s.w.Write(b)
	s.size += int64(n)
	return s.failed(err)
}

func (s *scratch) flush() error { return s.failed(s.w.Flush()) }

func (s *scratch) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("write to a temporary file, after %d MiB: %w", s.size>>20, err)
}

func (s *scratch) close() error {
	err := s.f.Close()
	if s.name != "" {
		err = errors.Join(err, os.Remove(s.name))
		s.name = ""
	}
	return err
}
