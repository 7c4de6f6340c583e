package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// written returns a position at or after the commit record of every transaction
// that is visible by now, and the server's clock. It is the insert position: with
// synchronous_commit = off a row is visible before its commit record is written.
func written(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) (lsn pglogrepl.LSN, at time.Time, err error) {
	var text string
	var segment, block int64
	err = q.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text, clock_timestamp(),
		(SELECT setting::int8 FROM pg_settings WHERE name = 'wal_segment_size'),
		(SELECT setting::int8 FROM pg_settings WHERE name = 'wal_block_size')`).Scan(&text, &at, &segment, &block)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("read the server's insert position: %w", err)
	}
	insert, err := pglogrepl.ParseLSN(text)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("read the server's insert position %q: %w", text, err)
	}
	return endOfRecords(insert, uint64(segment), uint64(block)), at, nil
}

// endOfRecords is where the last record before an insert position ends. They
// differ where that is the beginning of a page: the position is then behind the
// page's header, and nothing is ever flushed or confirmed up to there before more
// is written. Sizes are those of xlog_internal.h: SizeOfXLogLongPHD on the first
// page of a segment, SizeOfXLogShortPHD on the others.
func endOfRecords(insert pglogrepl.LSN, segment, page uint64) pglogrepl.LSN {
	const header, firstHeader = 24, 40
	at := uint64(insert)
	switch {
	case segment > 0 && at%segment == firstHeader:
		return insert - firstHeader
	case page > 0 && at%page == header:
		return insert - header
	}
	return insert
}
