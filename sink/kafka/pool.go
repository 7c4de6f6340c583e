package kafka

// Sizes of batch buffers, in bytes: powers of two from smallClass to
// coarseClass, then multiples of coarseClass. Few sizes, so that a buffer that
// was used once fits again, and fine enough that a large record wastes little.
const (
	smallClass  = 4 << 10
	coarseClass = 128 << 10
)

// classOf rounds n up to the size of a buffer.
func classOf(n int) int {
	if n > coarseClass {
		return (n + coarseClass - 1) / coarseClass * coarseClass
	}
	c := smallClass
	for c < n {
		c *= 2
	}
	return c
}

// pool keeps batch buffers for reuse and counts all memory of records: what is
// in use and what is kept. It is guarded by the sink's mutex.
type pool struct {
	used int64 // bytes of buffers, notes, runs and reservations in use
	kept int64 // bytes of empty buffers
	free map[int][][]byte
	// batches are empty ones, whose small slices are reused; a constant few.
	batches []*batch
}

// Bounds of what is kept with an empty batch, and of how many.
const (
	keepBatches   = 16
	keepRuns      = 2048
	keepNoteBytes = 32 << 10
)

func newPool() pool { return pool{free: make(map[int][][]byte)} }

// total is all memory that the pool answers for.
func (p *pool) total() int64 { return p.used + p.kept }

// has tells that a buffer of this class is kept.
func (p *pool) has(class int) bool { return len(p.free[class]) > 0 }

// take returns an empty buffer with at least class bytes of capacity. The caller
// counts it as used.
func (p *pool) take(class int) []byte {
	l := p.free[class]
	if len(l) == 0 {
		return make([]byte, 0, class)
	}
	b := l[len(l)-1]
	l[len(l)-1] = nil
	p.free[class] = l[:len(l)-1]
	p.kept -= int64(cap(b))
	return b[:0]
}

// give keeps a buffer for reuse. Nobody may hold it any more.
func (p *pool) give(b []byte) {
	if cap(b) == 0 {
		return
	}
	p.free[cap(b)] = append(p.free[cap(b)], b[:0])
	p.kept += int64(cap(b))
}

// trim lets go of empty buffers, but one of class spare, until n bytes are freed
// or none is left.
func (p *pool) trim(n int64, spare int) {
	if n <= 0 {
		return
	}
	for class, l := range p.free {
		stay := 0
		if class == spare {
			stay = 1
		}
		for len(l) > stay && n > 0 {
			b := l[len(l)-1]
			l[len(l)-1] = nil
			l = l[:len(l)-1]
			p.kept -= int64(cap(b))
			n -= int64(cap(b))
		}
		if len(l) == 0 {
			delete(p.free, class)
		} else {
			p.free[class] = l
		}
		if n <= 0 {
			return
		}
	}
}

// batch returns an empty batch without a buffer.
func (p *pool) batch() *batch {
	if n := len(p.batches); n > 0 {
		b := p.batches[n-1]
		p.batches[n-1] = nil
		p.batches = p.batches[:n-1]
		return b
	}
	return new(batch)
}

// recount brings what is counted for b in line with what it takes.
func (p *pool) recount(b *batch, factor int64) {
	c := b.cost(factor)
	if b.packed != nil {
		// The copy was made: it takes the place of its reservation.
		c += int64(cap(b.packed)) - (factor-1)*int64(cap(b.enc.buf))
	}
	p.used += c - b.counted
	b.counted = c
}

// release takes back all that b holds. Nobody may hold b or its bytes any more.
func (p *pool) release(b *batch) {
	p.used -= b.counted
	p.give(b.enc.buf)
	p.give(b.packed)
	runs, notes := b.runs, b.notes
	clear(runs) // forget the ackers
	*b = batch{}
	if len(p.batches) < keepBatches {
		if cap(runs) <= keepRuns {
			b.runs = runs[:0]
		}
		if cap(notes) <= keepNoteBytes {
			b.notes = notes[:0]
		}
		p.batches = append(p.batches, b)
	}
}
