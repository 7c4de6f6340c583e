package backfill

import (
	"context"
	"encoding/hex"
	"strings"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/sink"
)

// Batch is rows of one table, by their ids.
type Batch struct {
	Table int      // index into Config.Tables
	IDs   [][]byte // as the header carries them: of a bytea the bytes themselves
	// Wanted chooses among the rows that are found, once they are routed.
	Wanted func(*sink.Record) (bool, error)
	// Poison hears of a row that cannot be routed; it is left out.
	Poison func(id []byte, err error) error
}

// PublishIDs publishes the rows of the snapshot with certain ids, and returns when
// all of them are acknowledged. next returns batch after batch, false behind the
// last: when it is called, every row of the batch before was read. An id without a
// row is passed over. total is how many ids there are, for the progress.
func (r *Rows) PublishIDs(ctx context.Context, below, snapshot pglogrepl.LSN, total int64, next func() (Batch, bool, error)) error {
	at := r.at(below, snapshot)
	r.cfg.Progress.Begin(total)
	defer r.cfg.Progress.End()
	return r.withSink(ctx, func(ctx context.Context, sk sink.Sink) error {
		for {
			b, ok, err := next()
			if err != nil || !ok {
				return err
			}
			s := r.sources[b.Table]
			s.query.Where = r.hasID(b.Table, b.IDs)
			at.poison = b.Poison
			at.wanted = func(_ decoder.Row, rec *sink.Record) (bool, error) { return b.Wanted(rec) }
			if err := r.table(ctx, sk, s, at); err != nil {
				return err
			}
		}
	})
}

// hasID is a condition for the rows with these ids, by which an index of the id can
// be used.
func (r *Rows) hasID(table int, ids [][]byte) string {
	const oidBytea = 17
	id, bytea := r.cfg.Tables[table].ID, false
	for _, c := range r.sources[table].relation.Columns {
		bytea = bytea || c.Name == id && c.TypeOID == oidBytea
	}
	list := make([]string, len(ids))
	for i, b := range ids {
		text := string(b)
		if bytea {
			text = `\x` + hex.EncodeToString(b)
		}
		list[i] = catalog.Literal(text)
	}
	return catalog.Ident(id) + " IN (" + strings.Join(list, ", ") + ")"
}
