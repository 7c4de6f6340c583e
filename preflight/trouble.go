package preflight

import (
	"fmt"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
)

// Trouble is in what way slot and mark do not agree.
type Trouble uint8

const (
	// Agree: they do.
	Agree Trouble = iota
	// Gone: there is a mark, and no slot.
	Gone
	// Invalid: the server has given up the slot's WAL.
	Invalid
	// Beyond: the slot is beyond the end of WAL, and would skip everything up to there.
	Beyond
	// Ahead: the slot was moved past its mark, or made anew.
	Ahead
	// WentBack: the mark is beyond the end of WAL, on the same timeline.
	WentBack
	// OlderTimeline: the server is on an older timeline than the mark.
	OlderTimeline
	// NewerTimeline: the server is on a newer one, and the slot did not follow.
	NewerTimeline
	// OtherCluster: there is no mark of this cluster, but one of a slot of this name
	// on another, as after pg_upgrade.
	OtherCluster
	// Unmarked: there is a slot, and no mark of any cluster.
	Unmarked
)

// Usable tells that the slot can be read on from where it stands, although events
// before that may never have been published.
func (t Trouble) Usable() bool { return t == Ahead || t == WentBack || t == Unmarked }

// Disagreement is the error for a trouble from which cdc-relay recover is the way
// out.
type Disagreement struct {
	Trouble Trouble
	told    *fault.Error
}

// Error and Unwrap are those of the error for a person.
func (d *Disagreement) Error() string { return d.told.Error() }
func (d *Disagreement) Unwrap() error { return d.told }

func disagree(t Trouble, fix, format string, args ...any) error {
	return &Disagreement{t, fault.Stopped(fix, format, args...)}
}

// Disagrees returns the first contradiction between server, slot and mark, nil
// when there is none. It is a *Disagreement, or an error that says what has to be
// mended first.
func Disagrees(w Want, f Facts) error {
	f.HasMark = f.HasMark && !f.Mark.Withdrawn()
	for _, check := range []func(Want, Facts) error{checkSlot, checkSlotAndMark, checkPositions} {
		if err := check(w, f); err != nil {
			return err
		}
	}
	return nil
}

// Recover is the way out of a slot that is gone or must go, beside its mark.
const Recover = "run cdc-relay recover, which shows what may be missing, asks, makes the slot anew and publishes the rows that are still in the table"

// recoverKept is the way out where the slot goes on from where it stands.
const recoverKept = "run cdc-relay recover, which publishes the rows that are still in the table and goes on from there"

// anew is how a slot of the wrong make is replaced once it was dropped.
func anew(f Facts) string {
	if f.HasMark {
		return Recover
	}
	return "run cdc-relay setup"
}

// Recovering is the error for a slot whose recovery has not ended.
func Recovering(slot string, b checkpoint.Backfill) error {
	rows := "rows that were committed after " + b.Replaces.LSN.String()
	if b.Replaces.LSN == 0 { // nothing was known
		rows = "rows that are in the tables"
	}
	return fault.Stopped("wait for it if it still runs; else run cdc-relay recover again, which starts over, or cdc-relay recover --give-up, which records the gap",
		"a recovery of slot %q was begun at %s and has not finished: %s may not be published yet",
		slot, b.Begun.UTC().Format("2006-01-02 15:04:05Z"), rows)
}

// Elsewhere names the marks of other clusters, for a person; "" without any.
func Elsewhere(marks []checkpoint.Mark) string {
	text := ""
	for _, m := range marks {
		if text != "" {
			text += "; "
		}
		if m.Recovering() {
			m = *m.Backfill.Replaces
		}
		text += fmt.Sprintf("of the cluster with the system identifier %s, published up to %s, saved %s", m.SystemID, m.LSN, m.SavedAt.UTC().Format("2006-01-02 15:04:05Z"))
	}
	return text
}

// checkElsewhere is for a cluster without a mark of its own.
func checkElsewhere(w Want, f Facts) error {
	marks := Elsewhere(f.Elsewhere)
	if f.HasMark || marks == "" {
		return nil
	}
	const cause = "if this database is one of those, after pg_upgrade or a dump and restore, events of it may never have been published"
	if f.HasSlot {
		return disagree(OtherCluster,
			fmt.Sprintf("%s; if nothing was written between the end of the old one and the slot's position, cdc-relay adopt --lsn %s. For another database, and a slot made by hand that was never used, cdc-relay setup --existing-slot", recoverKept, f.Slot.Confirmed),
			"slot %q exists (confirmed up to %s) on the cluster with the system identifier %s, without a mark of what was published from it; there is a mark of a slot of this name %s: %s",
			w.Slot, f.Slot.Confirmed, f.SystemID, marks, cause)
	}
	return disagree(OtherCluster, Recover+". For another database run cdc-relay setup",
		"slot %q does not exist on the cluster with the system identifier %s, nor a mark of it; there is a mark of a slot of this name %s: %s",
		w.Slot, f.SystemID, marks, cause)
}
