package checkpoint

import (
	"fmt"
	"slices"
	"strings"
)

// Before tells that m is below o in (epoch, LSN).
func (m Mark) Before(o Mark) bool {
	if m.Epoch != o.Epoch {
		return m.Epoch < o.Epoch
	}
	return m.LSN < o.LSN
}

// Withdrawn tells that m is neither a position nor an intent: setup took its intent
// back, and it is as if there were no mark.
func (m Mark) Withdrawn() bool { return m.LSN == 0 && !m.Intent }

// Recovering tells that a recovery of the slot was begun and has not ended.
func (m Mark) Recovering() bool { return m.Intent && m.Backfill != nil && m.Backfill.Replaces != nil }

// Key names m's slot on its cluster, in every store. A system id is decimal, so
// that the first slash ends it.
func (m Mark) Key() string { return Key(m.SystemID, m.Slot) }

// Key is the key under which a slot's marks are kept.
func Key(systemID, slot string) string { return systemID + "/" + slot }

// Guard holds the highest mark that a store has saved or loaded for each key. It
// is for the use of stores, by one goroutine at a time.
type Guard map[string]Mark

// Check refuses, with ErrStale, a mark below the highest that is known, and one
// without a key.
func (g Guard) Check(m Mark) error {
	if m.SystemID == "" || m.Slot == "" {
		return fmt.Errorf("save mark %s: it names no system id or no slot", m.LSN)
	}
	if high, ok := g[m.Key()]; ok && m.Before(high) {
		return fmt.Errorf("save mark %s of epoch %d for slot %s, after %s of epoch %d: %w", m.LSN, m.Epoch, m.Slot, high.LSN, high.Epoch, ErrStale)
	}
	return nil
}

// Raise notes a mark that was saved or loaded.
func (g Guard) Raise(m Mark) {
	if high, ok := g[m.Key()]; !ok || !m.Before(high) {
		g[m.Key()] = m
	}
}

// OtherClusters returns, of marks by their keys, those of the slot on clusters other
// than systemID that were not withdrawn, by system id. It is for the use of stores.
func OtherClusters(marks map[string]Mark, systemID, slot string) []Mark {
	var others []Mark
	for _, m := range marks {
		if m.Slot == slot && m.SystemID != systemID && !m.Withdrawn() {
			others = append(others, m)
		}
	}
	slices.SortFunc(others, func(a, b Mark) int { return strings.Compare(a.SystemID, b.SystemID) })
	return others
}

// CoverKey is the name under which the gaps of a slot that a backfill has covered
// are kept, beside its mark. They are a Mark of their own, since the mark belongs
// to the relay that runs: that one closes them at its next start. No slot can
// have such a name.
func CoverKey(slot string) string { return slot + "/backfill" }

// Same tells that two are one gap, found once.
func (g Gap) Same(o Gap) bool {
	return g.From == o.From && g.To == o.To && g.Table == o.Table && g.Reason == o.Reason && g.Found.Equal(o.Found)
}

// OfRows returns the gaps that may hold rows of a table.
func OfRows(gaps []Gap) []Gap {
	var rows []Gap
	for _, g := range gaps {
		if g.Table != LogicalMessages {
			rows = append(rows, g)
		}
	}
	return rows
}

// Uncovered returns the gaps that are not among those covered.
func Uncovered(gaps, covered []Gap) []Gap {
	var open []Gap
	for _, g := range gaps {
		if !slices.ContainsFunc(covered, g.Same) {
			open = append(open, g)
		}
	}
	return open
}
