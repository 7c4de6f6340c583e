package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/backfill"
	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/progress"
	"github.com/cdc-relay/cdc-relay/route"
)

// DefaultMemory is what the entries may take before they are spilled.
const DefaultMemory = 32 << 20

// Options says what to compare.
type Options struct {
	Tables []route.Table
	// History is read in place of the tables; nil reads those.
	History History
	// Rows publishes what is missing in the tables; nil when nothing is repaired.
	Rows *backfill.Rows
	// Repair keeps what is missing for Repair.
	Repair bool
	// Topics are read as well, beside those that rows of the tables go to: only there
	// are records found of which every row is gone.
	Topics      []string
	Slot        string
	Publication string
	// Since and Until bound the time of the rows, by the mapped timestamp column; a
	// zero time is no limit. Since is included, Until is not.
	Since, Until time.Time
	// Wait is how long the relay may take to get past the snapshot.
	Wait            time.Duration
	TempDir         string // "" : the system's
	Memory          int    // 0: DefaultMemory
	ApplicationName string

	Connect func() (*pgx.ConnConfig, error)
	Cluster *broker.Cluster
	// Gaps returns the open gaps of the slot's mark. It may be nil.
	Gaps func(ctx context.Context, systemID string) ([]checkpoint.Gap, error)
	// Halted returns why the running relay will not go on; "" when nothing is known.
	Halted func(ctx context.Context) string
	// Found is told every finding: unroutable rows first, the others ordered by topic
	// and id. What is in it is valid until it returns.
	Found    func(Finding) error
	Progress *progress.Reporter
}

// Validate reports what cannot be meant.
func (o Options) Validate() error {
	if len(o.Tables) == 0 && o.History == nil {
		return fmt.Errorf("no outbox table is configured, so that there are no rows to compare; the logical messages that are published are compared by --source history, " +
			"which needs a history (history.max_bytes or history.max_age)")
	}
	if o.Since.IsZero() && o.Until.IsZero() {
		return nil
	}
	if !o.Since.IsZero() && !o.Until.IsZero() && !o.Since.Before(o.Until) {
		return fmt.Errorf("--until (%s) must be later than --since (%s)", o.Until.Format(time.RFC3339), o.Since.Format(time.RFC3339))
	}
	for _, t := range o.Tables {
		if t.Timestamp == "" {
			return fmt.Errorf("--since and --until need a timestamp of each row, and outbox table %s has no column mapped as outbox[].columns.timestamp; "+
				"without them the whole table is compared", t)
		}
	}
	return nil
}
