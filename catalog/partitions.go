package catalog

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// PartitionedTable is a table that is partitioned by ranges of one column of time.
type PartitionedTable struct {
	TableName
	OID    uint32
	Owner  string
	Column string
	// MayOwn: the role is the owner, or may become it by SET ROLE.
	MayOwn bool
	// MayCreate: the owner may make tables in the schema.
	MayCreate  bool
	Now        time.Time // the server's clock
	Partitions []RangePartition

	columnType uint32 // OID, domains resolved
	tablespace string // "" for the database's
}

// RangePartition is a direct partition of a PartitionedTable.
type RangePartition struct {
	TableName
	OID   uint32
	Owner string
	// Bound is the text of the server; From and To are what it means, zero where it
	// has no limit.
	Bound    string
	From, To time.Time
	Default  bool
	Kind     string // pg_class.relkind
	// Persistence is pg_class.relpersistence.
	Persistence string
	// Attached: it was a table by itself before, and may hold rows that were never
	// published; see born.
	Attached bool
	// Pending: somebody's DETACH CONCURRENTLY has not ended.
	Pending bool
}

// Readable tells whether the bound is one of times.
func (p RangePartition) Readable() bool { return p.Default || !p.From.IsZero() || !p.To.IsZero() }

// ErrNotByTime is returned for a table that has no partitions by time.
type ErrNotByTime struct{ Why string }

func (e *ErrNotByTime) Error() string { return e.Why }

// TimeRange is from From, included, to To, excluded.
type TimeRange struct{ From, To time.Time }

// PartitionedTable reads a table and its partitions. It returns an *ErrNotByTime
// when the table is not partitioned by range of the column alone, or that is no
// time: timestamptz, timestamp or date in UTC, or a bigint of milliseconds since
// 1970.
func (s *Session) PartitionedTable(ctx context.Context, name TableName, column string) (PartitionedTable, error) {
	t := PartitionedTable{TableName: name, Column: column}
	var kind, strategy, key string
	var keys int
	may := "MEMBER"
	if s.version >= 160000 {
		may = "SET"
	}
	err := s.conn.QueryRow(ctx, `SELECT c.oid, c.relkind::text, pg_get_userbyid(c.relowner)::text, pg_has_role(c.relowner, $3),
			has_schema_privilege(c.relowner, c.relnamespace, 'CREATE'), clock_timestamp(),
			coalesce(p.partstrat::text, ''), coalesce(p.partnatts, 0)::int, coalesce(a.attname::text, ''),
			coalesce((WITH RECURSIVE base(oid, up) AS (
				SELECT oid, typbasetype FROM pg_type WHERE oid = a.atttypid
				UNION ALL SELECT t.oid, t.typbasetype FROM base JOIN pg_type t ON t.oid = base.up)
			SELECT oid FROM base WHERE up = 0), 0::oid),
			coalesce((SELECT spcname::text FROM pg_tablespace WHERE oid = c.reltablespace), '')
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		LEFT JOIN pg_partitioned_table p ON p.partrelid = c.oid
		LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = p.partattrs[0] AND a.attnum > 0
		WHERE n.nspname = $1 AND c.relname = $2`, name.Schema, name.Name, may).
		Scan(&t.OID, &kind, &t.Owner, &t.MayOwn, &t.MayCreate, &t.Now, &strategy, &keys, &key, &t.columnType, &t.tablespace)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return t, &ErrNotByTime{fmt.Sprintf("table %s does not exist", name)}
	case err != nil:
		return t, fmt.Errorf("read table %s: %w", name, err)
	case kind != KindPartitioned:
		return t, &ErrNotByTime{fmt.Sprintf("table %s is not partitioned", name)}
	case strategy != "r" || keys != 1 || key != column:
		return t, &ErrNotByTime{fmt.Sprintf("table %s is not partitioned by range of its column %s alone", name, column)}
	case !slices.Contains([]uint32{typeTimestamptz, typeTimestamp, typeDate, typeBigint}, t.columnType):
		return t, &ErrNotByTime{fmt.Sprintf("column %s, by which table %s is partitioned, tells no time; it must be timestamptz, timestamp, date, or bigint for milliseconds", column, name)}
	}
	t.Now = t.Now.UTC()
	t.Partitions, err = s.rangePartitions(ctx, t)
	return t, err
}

func (s *Session) rangePartitions(ctx context.Context, t PartitionedTable) ([]RangePartition, error) {
	rows, err := s.conn.Query(ctx, `SELECT n.nspname::text, c.relname::text, c.oid, pg_get_userbyid(c.relowner)::text,
			coalesce(pg_get_expr(c.relpartbound, c.oid), ''), c.relkind::text, c.relpersistence::text, i.xmin <> a.xmin,
			coalesce((to_jsonb(i)->>'inhdetachpending')::bool, false) -- since 14
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_attribute a ON a.attrelid = i.inhrelid AND a.attname = 'ctid' AND a.attnum < 0
		WHERE i.inhparent = $1::oid ORDER BY c.oid`, t.OID)
	if err != nil {
		return nil, fmt.Errorf("list the partitions of %s: %w", t, err)
	}
	parts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (RangePartition, error) {
		var p RangePartition
		if err := row.Scan(&p.Schema, &p.Name, &p.OID, &p.Owner, &p.Bound, &p.Kind, &p.Persistence, &p.Attached, &p.Pending); err != nil {
			return p, err
		}
		p.Default = p.Bound == "DEFAULT"
		p.From, p.To = parseBound(p.Bound, t.columnType)
		return p, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the partitions of %s: %w", t, err)
	}
	return parts, nil
}

var boundForm = regexp.MustCompile(`^FOR VALUES FROM \(([^()]+)\) TO \(([^()]+)\)$`)

// parseBound reads what pg_get_expr prints of a range of one column. Both times
// are zero when it is not understood, or without any limit.
func parseBound(bound string, columnType uint32) (from, to time.Time) {
	m := boundForm.FindStringSubmatch(bound)
	if m == nil {
		return time.Time{}, time.Time{}
	}
	from, ok := parseLimit(m[1], "MINVALUE", "-infinity", columnType)
	if !ok {
		return time.Time{}, time.Time{}
	}
	to, ok = parseLimit(m[2], "MAXVALUE", "infinity", columnType)
	if !ok {
		return time.Time{}, time.Time{}
	}
	return from, to
}

func parseLimit(text, word, infinity string, columnType uint32) (time.Time, bool) {
	if text == word {
		return time.Time{}, true
	}
	value := strings.TrimSuffix(strings.TrimPrefix(text, "'"), "'")
	if value == infinity {
		return time.Time{}, true
	}
	if columnType == typeBigint {
		ms, err := strconv.ParseInt(value, 10, 64)
		return time.UnixMilli(ms).UTC(), err == nil
	}
	layout := map[uint32]string{typeTimestamptz: "2006-01-02 15:04:05.999999999Z07", typeTimestamp: "2006-01-02 15:04:05.999999999", typeDate: time.DateOnly}[columnType]
	at, err := time.Parse(layout, value)
	return at.UTC(), err == nil
}

// literal writes a time as a bound of the table's column.
func (t PartitionedTable) literal(at time.Time) string {
	switch t.columnType {
	case typeBigint:
		return Literal(strconv.FormatInt(at.UnixMilli(), 10))
	case typeDate:
		return Literal(at.UTC().Format(time.DateOnly))
	case typeTimestamp:
		return Literal(at.UTC().Format("2006-01-02 15:04:05.999999"))
	default:
		return Literal(at.UTC().Format("2006-01-02 15:04:05.999999Z07:00"))
	}
}

// WholeDays tells whether the column has days only, so that no partition can be
// shorter.
func (t PartitionedTable) WholeDays() bool { return t.columnType == typeDate }

// origin is where intervals are counted from: a Monday.
var origin = time.Date(2000, 1, 3, 0, 0, 0, 0, time.UTC)

// Missing returns the ranges without a partition, from the beginning of the
// interval that now is in over the next ahead ones. Each is within one interval,
// which all begin at whole multiples of it since Monday, 2000-01-03, in UTC. It is
// pure.
func (t PartitionedTable) Missing(interval time.Duration, ahead int) []TimeRange {
	begin := t.Now.Add(-(t.Now.Sub(origin) % interval))
	var missing []TimeRange
	for i := range ahead + 1 {
		free := []TimeRange{{begin.Add(time.Duration(i) * interval), begin.Add(time.Duration(i+1) * interval)}}
		for _, p := range t.Partitions {
			free = without(free, p)
		}
		missing = append(missing, free...)
	}
	return missing
}

// without returns what a partition leaves of the ranges.
func without(ranges []TimeRange, p RangePartition) []TimeRange {
	if p.Default || !p.Readable() {
		return ranges
	}
	var left []TimeRange
	for _, r := range ranges {
		overlaps := (p.To.IsZero() || r.From.Before(p.To)) && (p.From.IsZero() || p.From.Before(r.To))
		if !overlaps {
			left = append(left, r)
			continue
		}
		if !p.From.IsZero() && r.From.Before(p.From) {
			left = append(left, TimeRange{r.From, p.From})
		}
		if !p.To.IsZero() && p.To.Before(r.To) {
			left = append(left, TimeRange{p.To, r.To})
		}
	}
	return left
}

// CoveredUntil returns up to when, from now on without a hole, there are
// partitions; now when there is none for it, zero when they have no end. It is
// pure.
func (t PartitionedTable) CoveredUntil() time.Time {
	until := t.Now
	for moved := true; moved; {
		moved = false
		for _, p := range t.Partitions {
			if p.Default || !p.Readable() || !p.From.IsZero() && p.From.After(until) {
				continue
			}
			if p.To.IsZero() {
				return time.Time{}
			}
			if p.To.After(until) {
				until, moved = p.To, true
			}
		}
	}
	return until
}
