// Package marking sets a column of the rows that are published, for systems that
// read it. The queue remembers which rows those are, and is pure; the marker updates
// them.
package marking

import (
	"sync"

	"github.com/jackc/pglogrepl"
)

// rowBytes is what a row takes in the queue beside its id.
const rowBytes = 64

// Row is a row that is to be marked, known by its id.
type Row struct {
	Table int // index in Config.Tables
	ID    string
}

// Queue holds the rows that are published, or on their way, and not marked yet, in
// WAL order. Add and Commit are called from one goroutine, Due and Marked from one
// other; the rest from any.
//
// A row must be counted as not acknowledged before it is added, and a transaction be
// committed here before it is where acknowledgements are counted: then neither a
// watermark nor a moment with nothing in flight is behind a row that is not here.
type Queue struct {
	max int64 // bytes

	mu sync.Mutex
	// Invariant: rows are those of txs, in this order, and behind them open ones of a
	// transaction whose end is not known yet.
	rows     []Row
	txs      []marked
	open     int
	bytes    int64
	position pglogrepl.LSN // all rows of transactions up to here are marked
}

// marked is a transaction of which rows are not marked yet.
type marked struct {
	end  pglogrepl.LSN
	rows int
}

// NewQueue returns an empty queue that is full at max bytes.
func NewQueue(max int64) *Queue { return &Queue{max: max} }

// Add adds a row of the transaction that is being received, and copies the id.
func (q *Queue) Add(table int, id []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rows = append(q.rows, Row{Table: table, ID: string(id)})
	q.open++
	q.bytes += rowBytes + int64(len(id))
}

// Commit says where the transaction of the rows that were added since the last one
// ends.
func (q *Queue) Commit(end pglogrepl.LSN) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open > 0 {
		q.txs = append(q.txs, marked{end: end, rows: q.open})
		q.open = 0
	}
}

// Full tells that no further row should be added. A single one that is larger than
// all the room is.
func (q *Queue) Full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes >= q.max
}

// Due returns up to n of the first rows that are acknowledged: those of transactions
// up to the watermark. When the queue is full it would wait for ever for the end of a
// transaction that does not fit; so rows of the one that is being received are due
// then, too, once settled says that nothing at all is in flight. They stay in the
// queue until Marked, and are valid until then.
func (q *Queue) Due(watermark pglogrepl.LSN, settled func() bool, n int) []Row {
	q.mu.Lock()
	defer q.mu.Unlock()
	due := 0
	for _, tx := range q.txs {
		if tx.end > watermark || due >= n {
			return q.rows[:min(due, n)]
		}
		due += tx.rows
	}
	if q.open > 0 && q.bytes >= q.max && settled() {
		due += q.open
	}
	return q.rows[:min(due, n)]
}

// Marked takes the first n rows out.
func (q *Queue) Marked(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range q.rows[:n] {
		q.bytes -= rowBytes + int64(len(r.ID))
	}
	clear(q.rows[:n])
	if q.rows = q.rows[n:]; len(q.rows) == 0 {
		q.rows = nil
	}
	for n > 0 && len(q.txs) > 0 {
		tx := &q.txs[0]
		of := min(n, tx.rows)
		tx.rows -= of
		n -= of
		if tx.rows > 0 {
			return
		}
		q.position = max(q.position, tx.end)
		if q.txs = q.txs[1:]; len(q.txs) == 0 {
			q.txs = nil
		}
	}
	q.open -= n
}

// Position is the highest position up to which all rows are marked that are in
// transactions up to the watermark: what may be saved and confirmed. It never
// decreases. The watermark must be read before.
func (q *Queue) Position(watermark pglogrepl.LSN) pglogrepl.LSN {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.txs) == 0 || q.txs[0].end > watermark {
		q.position = max(q.position, watermark)
	}
	return q.position
}

// Held returns how many rows there are, and how many bytes they take.
func (q *Queue) Held() (rows int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.rows), q.bytes
}
