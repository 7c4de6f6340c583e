package replication

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
)

// SlotSpec says how CreateSlot makes a logical slot of pgoutput.
type SlotSpec struct {
	Name      string
	Temporary bool // gone with the connection
	Failover  bool // 17 and newer
}

// Exported is a slot that was made, and the snapshot of the database at the
// position where it begins: what is visible in it is what committed before that
// position, and what the slot streams is the rest.
type Exported struct {
	LSN pglogrepl.LSN
	// Snapshot is the name for SET TRANSACTION SNAPSHOT. It lives until the next
	// command on this connection, or its end; a transaction that has imported it goes
	// on.
	Snapshot string
}

// CreateSlot makes a slot and exports the snapshot of its beginning. The server
// waits for every transaction that is open in any database; no time-out of its own
// bounds that (see PID, for pg_cancel_backend: it then removes what it had begun).
func (c *Conn) CreateSlot(ctx context.Context, spec SlotSpec) (Exported, error) {
	major, err := strconv.Atoi(leadingDigits(c.pg.ParameterStatus("server_version")))
	if err != nil {
		return Exported{}, fmt.Errorf("create slot %q: the server's version %q is not understood", spec.Name, c.pg.ParameterStatus("server_version"))
	}
	results, err := c.pg.Exec(ctx, createSlotCommand(major, spec)).ReadAll()
	if err != nil {
		return Exported{}, fmt.Errorf("create slot %q: %w", spec.Name, err)
	}
	// slot_name, consistent_point, snapshot_name, output_plugin
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) < 3 {
		return Exported{}, fmt.Errorf("create slot %q: %w", spec.Name, errors.New("the server's answer has not the form that is documented"))
	}
	row := results[0].Rows[0]
	lsn, err := pglogrepl.ParseLSN(string(row[1]))
	if err != nil || len(row[2]) == 0 {
		return Exported{}, fmt.Errorf("create slot %q: the server answers with the position %q and the snapshot %q", spec.Name, row[1], row[2])
	}
	return Exported{LSN: lsn, Snapshot: string(row[2])}, nil
}

// createSlotCommand writes the command as the server's version knows it:
// parentheses came with 15, FAILOVER with 17.
func createSlotCommand(major int, spec SlotSpec) string {
	var b strings.Builder
	b.WriteString("CREATE_REPLICATION_SLOT " + quoteIdent(spec.Name))
	if spec.Temporary {
		b.WriteString(" TEMPORARY")
	}
	b.WriteString(" LOGICAL pgoutput")
	switch {
	case major < 15:
		b.WriteString(" EXPORT_SNAPSHOT")
	case major >= 17 && spec.Failover:
		b.WriteString(" (SNAPSHOT 'export', FAILOVER true)")
	default:
		b.WriteString(" (SNAPSHOT 'export')")
	}
	return b.String()
}

func leadingDigits(s string) string {
	end := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		return s
	}
	return s[:end]
}
