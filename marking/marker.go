package marking

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/route"
)

const (
	connectTimeout   = 15 * time.Second
	statementTimeout = 30 * time.Second // the server's
	answerTimeout    = statementTimeout + 5*time.Second
)

// Settings say how rows are marked. The zero value marks none.
type Settings struct {
	Column      string // of each table; "" marks no row
	Value       string // as text
	BatchRows   int    // of one UPDATE
	LockTimeout time.Duration
	MaxBytes    int64 // of a Queue
}

// On tells whether rows are marked.
func (s Settings) On() bool { return s.Column != "" }

// Of returns how rows of the tables are marked.
func (s Settings) Of(tables []route.Table) []catalog.Marking {
	var of []catalog.Marking
	for _, t := range tables {
		of = append(of, catalog.Marking{Table: catalog.TableName{Schema: t.Schema, Name: t.Name}, ID: t.ID, Column: s.Column, Value: s.Value})
	}
	return of
}

// Config of a Marker.
type Config struct {
	Settings
	Tables          []route.Table
	Connect         func() (*pgx.ConnConfig, error)
	ApplicationName string
	// SameServer refuses a server on which the rows are not those that are published;
	// nil takes any.
	SameServer func(catalog.Server) error
}

// Marker marks rows, over a session of its own that it opens when it needs one. It
// is used by one goroutine.
type Marker struct {
	cfg    Config
	db     *catalog.Session
	tables []catalog.MarkedTable
	size   int // of the next UPDATE; smaller after somebody held a lock
}

// NewMarker returns a marker that has not connected.
func NewMarker(cfg Config) *Marker { return &Marker{cfg: cfg, size: cfg.BatchRows} }

// Open connects, and finds out whether the rows of every table can be marked, unless
// that was done. Errors of class fault.Stop wait for a person; all may pass.
func (m *Marker) Open(ctx context.Context) error {
	if m.db != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	cfg, err := m.cfg.Connect()
	if err != nil {
		return err
	}
	db, err := catalog.Open(ctx, cfg, m.cfg.ApplicationName+" (mark)")
	if err != nil {
		return catalog.Explain(fmt.Errorf("connect to the database: %w", err))
	}
	m.tables = m.tables[:0]
	if err := m.prepare(ctx, db); err != nil {
		db.Close(ctx)
		return catalog.Explain(err)
	}
	m.db = db
	return nil
}

func (m *Marker) prepare(ctx context.Context, db *catalog.Session) error {
	if err := db.BeginMarking(ctx, m.cfg.LockTimeout, statementTimeout); err != nil {
		return err
	}
	if m.cfg.SameServer != nil {
		server, err := db.Server(ctx)
		if err != nil {
			return err
		}
		if err := m.cfg.SameServer(server); err != nil {
			return err
		}
	}
	for _, of := range m.cfg.Of(m.cfg.Tables) {
		t, err := db.MarkedTable(ctx, of)
		if err != nil {
			return err
		}
		m.tables = append(m.tables, t)
	}
	return nil
}

// Close ends the session. The marker may be used again.
func (m *Marker) Close(ctx context.Context) {
	if m.db != nil {
		m.db.Close(ctx)
		m.db = nil
	}
}

// Batch is how many rows Mark takes at most.
func (m *Marker) Batch() int { return m.size }

// Mark marks up to Batch of the first rows, all of them or none is what it says:
// done is how many of rows are marked now, and changed how many were not before.
//
// A lock that somebody holds fails the UPDATE, and the next one takes half as many
// rows, down to one: so what precedes a locked row is marked, and no more is held up
// than has to be.
func (m *Marker) Mark(ctx context.Context, rows []Row) (done int, changed int64, err error) {
	if err := m.Open(ctx); err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	rows = rows[:min(len(rows), m.size)]
	byTable := make([][]string, len(m.tables))
	for _, r := range rows {
		byTable[r.Table] = append(byTable[r.Table], r.ID)
	}
	for i, ids := range byTable {
		if len(ids) == 0 {
			continue
		}
		n, err := m.db.MarkRows(ctx, m.tables[i], ids)
		if catalog.IsLocked(err) {
			m.size = max(1, m.size/2)
			return 0, changed, err
		}
		if err != nil {
			m.Close(ctx) // what is wrong is looked for again
			return 0, changed, err
		}
		changed += n
	}
	m.size = min(m.cfg.BatchRows, 2*m.size)
	return len(rows), changed, nil
}
