// Package spill owns entries that are too many for memory: it takes them in any
// order and gives them back sorted by key. What does not fit goes, in sorted
// runs, to a temporary file that has no name any more when the first byte is
// written, so that nothing stays behind, however the process ends.
package spill

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

const (
	// fanIn is how many runs are merged at once; each has a buffer of runBuffer.
	fanIn     = 64
	runBuffer = 128 << 10
	// leastMemory keeps runs from becoming tiny.
	leastMemory = 64 << 10
	// checkEvery entries a merge looks whether it is to stop.
	checkEvery = 1 << 14
)

// Sorter takes entries, then gives an Iterator over them. It is used by one
// goroutine at a time.
type Sorter struct {
	dir   string
	entry []byte // the entries in memory, each as appendEntry writes it
	index []ref  // where each begins
	file  *scratch
	runs  []run
	count int64
}

// ref is an entry in memory: where it begins, and the first bytes of its key, by
// which most comparisons end.
type ref struct {
	prefix uint64
	at     int
}

// New returns a sorter that uses about memory bytes, and as much again for the
// buffers of the merge at most, and writes the rest into dir ("" is the system's
// directory for temporary files).
func New(dir string, memory int) *Sorter {
	memory = max(memory, leastMemory)
	const refSize = 16
	return &Sorter{
		dir:   dir,
		entry: make([]byte, 0, memory/4*3),
		index: make([]ref, 0, memory/4/refSize),
	}
}

// Add takes a copy of an entry. Entries with equal keys may come out in any
// order.
func (s *Sorter) Add(key, value []byte) error {
	size := 2*binary.MaxVarintLen64 + len(key) + len(value)
	if len(s.index) == cap(s.index) || len(s.index) > 0 && len(s.entry)+size > cap(s.entry) {
		if err := s.flush(); err != nil {
			return err
		}
	}
	s.index = append(s.index, ref{prefixOf(key), len(s.entry)})
	s.entry = appendEntry(s.entry, key, value)
	s.count++
	return nil
}

// Len is how many entries were added.
func (s *Sorter) Len() int64 { return s.count }

// Spilled is how many bytes were written to the temporary file.
func (s *Sorter) Spilled() int64 {
	if s.file == nil {
		return 0
	}
	return s.file.size
}

// Close gives memory and disk back. Closing twice is safe.
func (s *Sorter) Close() error {
	s.entry, s.index, s.runs = nil, nil, nil
	if s.file == nil {
		return nil
	}
	err := s.file.close()
	s.file = nil
	return err
}

// sort orders what is in memory.
func (s *Sorter) sort() {
	slices.SortFunc(s.index, func(a, b ref) int {
		if c := cmp.Compare(a.prefix, b.prefix); c != 0 {
			return c
		}
		return bytes.Compare(s.key(a), s.key(b))
	})
}

func (s *Sorter) key(r ref) []byte {
	key, _, _ := cutEntry(s.entry[r.at:])
	return key
}

// flush writes what is in memory as a run.
func (s *Sorter) flush() error {
	s.sort()
	if s.file == nil {
		file, err := newScratch(s.dir)
		if err != nil {
			return err
		}
		s.file = file
	}
	begin := s.file.size
	for _, r := range s.index {
		_, _, n := cutEntry(s.entry[r.at:])
		if err := s.file.write(s.entry[r.at : r.at+n]); err != nil {
			return err
		}
	}
	s.runs = append(s.runs, run{begin, s.file.size})
	s.index = s.index[:0]
	s.entry = s.entry[:0]
	return nil
}

// Sort returns the entries in the order of their keys. Nothing may be added any
// more; the iterator is valid until Close.
func (s *Sorter) Sort(ctx context.Context) (*Iterator, error) {
	if len(s.runs) == 0 {
		s.sort()
		return &Iterator{memory: s}, nil
	}
	if len(s.index) > 0 {
		if err := s.flush(); err != nil {
			return nil, err
		}
	}
	s.entry, s.index = nil, nil
	for len(s.runs) > fanIn {
		if err := s.mergeOnce(ctx); err != nil {
			return nil, err
		}
	}
	return s.merge(s.runs)
}

// mergeOnce makes one run of each fanIn, in a file of its own.
func (s *Sorter) mergeOnce(ctx context.Context) (err error) {
	next, err := newScratch(s.dir)
	if err != nil {
		return err
	}
	var merged []run
	for group := range slices.Chunk(s.runs, fanIn) {
		begin := next.size
		if err := s.copyMerged(ctx, group, next); err != nil {
			return errors.Join(err, next.close())
		}
		merged = append(merged, run{begin, next.size})
	}
	old := s.file
	s.file, s.runs = next, merged
	return old.close()
}

func (s *Sorter) copyMerged(ctx context.Context, group []run, to *scratch) error {
	it, err := s.merge(group)
	if err != nil {
		return err
	}
	var buf []byte
	for n := 0; it.Next(); n++ {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		buf = appendEntry(buf[:0], it.Key(), it.Value())
		if err := to.write(buf); err != nil {
			return err
		}
	}
	return it.Err()
}

func (s *Sorter) merge(runs []run) (*Iterator, error) {
	if err := s.file.flush(); err != nil {
		return nil, err
	}
	it := &Iterator{}
	for _, r := range runs {
		rd := newRunReader(s.file, r)
		ok, err := rd.next()
		if err != nil {
			return nil, err
		}
		if ok {
			it.heap = append(it.heap, rd)
		}
	}
	for i := len(it.heap)/2 - 1; i >= 0; i-- {
		it.down(i)
	}
	return it, nil
}

// prefixOf is the first eight bytes of key as a number that sorts like them; a
// shorter key is as if it ended in zero bytes.
func prefixOf(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

// appendEntry appends the lengths of key and value, and both.
func appendEntry(dst, key, value []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(key)))
	dst = binary.AppendUvarint(dst, uint64(len(value)))
	dst = append(dst, key...)
	return append(dst, value...)
}

// cutEntry reads an entry that appendEntry wrote, and its length.
func cutEntry(b []byte) (key, value []byte, n int) {
	k, nk := binary.Uvarint(b)
	v, nv := binary.Uvarint(b[nk:])
	n = nk + nv
	key = b[n : n+int(k)]
	n += int(k)
	return key, b[n : n+int(v)], n + int(v)
}

// errDamaged is a temporary file that does not hold what was written.
var errDamaged = fmt.Errorf("the temporary file does not hold what was written into it")
