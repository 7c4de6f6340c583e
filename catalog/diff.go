package catalog

import (
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/checkpoint"
)

// Diff is how the objects that a stream depends on differ from those that its
// mark recorded.
type Diff struct {
	// Publication says how the publication differs; "" when it does not.
	Publication string
	// Replaced tables are still published, but are not the same: dropped and
	// created again.
	Replaced []checkpoint.Identity
	// Changed tables are published in another way: with another row filter or column
	// list.
	Changed []checkpoint.Identity
	// Missing tables are not published any more.
	Missing []checkpoint.Identity
	// Added tables are published and were not recorded.
	Added []checkpoint.Identity
	// Detached partitions are not covered any more: detached, or dropped.
	Detached []checkpoint.Identity
	// Interrupted tables and partitions are published as before, but were not for a
	// while: taken out and put in again, detached and attached again.
	Interrupted []checkpoint.Identity
	// Attached partitions are new; rows that were in them before are not sent.
	Attached []checkpoint.Identity
}

// Broken tells whether rows that should have been sent may not have been; an
// added table and an attached or detached partition alone do not break a stream.
func (d Diff) Broken() bool {
	return d.Publication != "" || len(d.Replaced) > 0 || len(d.Changed) > 0 || len(d.Missing) > 0 || len(d.Interrupted) > 0
}

// Empty tells whether nothing differs.
func (d Diff) Empty() bool {
	return !d.Broken() && len(d.Added) == 0 && len(d.Detached) == 0 && len(d.Attached) == 0
}

// String names the differences for a person.
func (d Diff) String() string {
	var parts []string
	if d.Publication != "" {
		parts = append(parts, d.Publication)
	}
	for _, group := range []struct {
		ids  []checkpoint.Identity
		what string
	}{
		{d.Replaced, "table %s was dropped and created again"},
		{d.Changed, "table %s is published in another way"},
		{d.Missing, "table %s is not published any more"},
		{d.Interrupted, "%s was not published for a while"},
		{d.Added, "table %s was added"},
		{d.Detached, "partition %s was detached or dropped"},
		{d.Attached, "partition %s was attached"},
	} {
		for _, id := range group.ids {
			parts = append(parts, fmt.Sprintf(group.what, id.Name))
		}
	}
	return strings.Join(parts, "; ")
}

// Compare tells how now differs from what a mark recorded. It is pure.
func Compare(publication checkpoint.Identity, relations []checkpoint.Identity, now Identities) Diff {
	d := Diff{Publication: comparePublication(publication, now.Publication)}
	byOID := make(map[uint32]checkpoint.Identity, len(now.Relations))
	roots := make(map[string]checkpoint.Identity)
	for _, id := range now.Relations {
		byOID[id.OID] = id
		if id.Root == 0 {
			roots[id.Name] = id
		}
	}
	known := make(map[uint32]bool, len(relations))
	knownRoots := make(map[string]bool)
	for _, old := range relations {
		known[old.OID] = true
		if old.Root != 0 {
			switch id, ok := byOID[old.OID]; {
			case !ok || id.Root != old.Root:
				d.Detached = append(d.Detached, old)
			case id.Interrupted(old):
				d.Interrupted = append(d.Interrupted, id)
			}
			continue
		}
		knownRoots[old.Name] = true
		switch id, ok := roots[old.Name]; {
		case !ok:
			d.Missing = append(d.Missing, old)
		case id.OID != old.OID:
			d.Replaced = append(d.Replaced, id)
		case id.Def != old.Def:
			d.Changed = append(d.Changed, id)
		case id.Interrupted(old):
			d.Interrupted = append(d.Interrupted, id)
		}
	}
	for _, id := range now.Relations {
		switch {
		case known[id.OID]:
		case id.Root != 0:
			d.Attached = append(d.Attached, id)
		case !knownRoots[id.Name]:
			d.Added = append(d.Added, id)
		}
	}
	return d
}

func comparePublication(old, now checkpoint.Identity) string {
	switch {
	case now.OID == 0:
		return fmt.Sprintf("publication %q is missing", old.Name)
	case old.Name != now.Name:
		return fmt.Sprintf("the publication was %q and is %q", old.Name, now.Name)
	case old.OID != now.OID:
		return fmt.Sprintf("publication %q was dropped and created again", now.Name)
	case old.Def != now.Def:
		return fmt.Sprintf("publication %q was changed from (%s) to (%s)", now.Name, old.Def, now.Def)
	case now.Interrupted(old):
		return fmt.Sprintf("publication %q was altered, and is as it was (%s)", now.Name, now.Def)
	default:
		return ""
	}
}
