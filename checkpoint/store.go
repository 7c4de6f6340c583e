// Package checkpoint knows how far everything has been published: Tracker turns
// acks into a watermark, and a Store keeps the durable mark that the slot may
// be confirmed up to. Invariant: acked >= durable mark >= confirmed.
package checkpoint

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pglogrepl"
)

// Mark is the durable record of how far a slot has been published. It is kept
// outside the source database, so that a restored or failed over database
// cannot take it back with it.
type Mark struct {
	SystemID string        `json:"system_id"` // of the server's cluster, decimal
	Slot     string        `json:"slot"`
	Epoch    uint64        `json:"epoch"`    // raised by setup, adopt, recover, an accepted change of timeline and a table that was added
	Timeline int32         `json:"timeline"` // of the server when the mark was saved
	LSN      pglogrepl.LSN `json:"lsn"`      // end of the fully acked prefix; zero while only an intent
	SavedAt  time.Time     `json:"saved_at"`
	// Intent is set while setup has announced the slot and not yet created it, and
	// all the time that a backfill that makes the slot has not ended.
	Intent bool `json:"intent,omitempty"`
	// Backfill is that of an intent; nil for setup's.
	Backfill *Backfill `json:"backfill,omitempty"`
	// CheckedLSN is where the server's WAL ended when the identities were last found
	// in order; zero means at LSN. Rows inserted later may be in doubt.
	CheckedLSN pglogrepl.LSN `json:"checked_lsn,omitempty"`
	// Relations are the identities that the stream depends on; a change found
	// later means that rows may not have been sent.
	Publication Identity   `json:"publication"`
	Relations   []Identity `json:"relations,omitempty"`
	Gaps        []Gap      `json:"gaps,omitempty"`
}

// Identity names a catalog object so that one dropped and created again under
// the same name is told apart.
type Identity struct {
	OID  uint32 `json:"oid"`
	Name string `json:"name"`           // schema-qualified for a relation
	Root uint32 `json:"root,omitempty"` // OID of the partitioned table that a partition belongs to
	Def  string `json:"def,omitempty"`  // publication: what it publishes; relation: how it is published; in a canonical form
	// Version tells a change that was undone: of a publication its settings, of a
	// table its membership, of a partition its attachment. Empty means unknown.
	Version string `json:"version,omitempty"`
}

// Backfill is one that was begun and has not ended: its slot may exist, and rows
// from before it may not be published.
type Backfill struct {
	Begun time.Time `json:"begun"`
	// LSN is where its slot begins; zero as long as none was seen to be made.
	LSN   pglogrepl.LSN `json:"lsn,omitempty"`
	Where string        `json:"where,omitempty"` // its predicate; "" means every row
	// Replaces is the mark from before a recovery, which must be known until that
	// has ended; nil for a backfill of a slot that had none. It may be of another
	// cluster.
	Replaces *Mark `json:"replaces,omitempty"`
	// Old is where the slot stood that a recovery drops; zero when there was none.
	Old pglogrepl.LSN `json:"old,omitempty"`
	// Kept tells that a recovery goes on with the slot that is there, at LSN.
	Kept bool `json:"kept,omitempty"`
}

// Gap is a range of WAL, or of rows, that may never have been published.
type Gap struct {
	From   pglogrepl.LSN `json:"from"` // zero: since ever
	To     pglogrepl.LSN `json:"to"`
	Table  string        `json:"table,omitempty"` // "" means every outbox table, and the logical messages
	Reason string        `json:"reason"`
	Found  time.Time     `json:"found"`
}

// LogicalMessages stands in a gap for the table: logical messages alone are
// missing, which are in no table. No table has such a name.
const LogicalMessages = "logical messages"

// Store keeps marks. One goroutine calls it at a time.
type Store interface {
	// Load returns the mark with the highest (epoch, LSN) of the slot, and false
	// when there is none. systemID and slot are the key: a slot of the same name
	// on another cluster has another mark.
	Load(ctx context.Context, systemID, slot string) (Mark, bool, error)
	// Others returns what Load would of a slot of that name on every other cluster, by
	// system id, without marks that were withdrawn.
	Others(ctx context.Context, systemID, slot string) ([]Mark, error)
	// Save returns when m is durable. It refuses, with ErrStale, a mark whose
	// (epoch, LSN) is below the highest that this store saved or loaded for the
	// key; saving the same again is allowed.
	Save(ctx context.Context, m Mark) error
	// Close releases connections. Closing twice is safe.
	Close() error
}

// ErrStale is returned by Save for a mark that would go back within its epoch.
var ErrStale = errors.New("mark would go back")

// Interrupted tells whether id, once found as was, has changed since although it
// looks the same.
func (id Identity) Interrupted(was Identity) bool {
	return id.Version != was.Version && id.Version != "" && was.Version != ""
}
