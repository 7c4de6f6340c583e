package setup

import (
	"context"
	"fmt"
	"slices"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
)

// from is up to where everything was published, by the mark from before; zero where
// that says nothing of this server's WAL.
func (v *recovery) from() lsn {
	if v.was.SystemID != v.server.SystemID || v.was.Timeline != v.server.Timeline || v.was.LSN > v.server.CurrentLSN {
		return 0
	}
	return v.was.LSN
}

// moved is a gap of the mark from before in this server's WAL, of which all up to to
// is meant when the positions of both say nothing of each other.
func (v *recovery) moved(g checkpoint.Gap, to lsn) checkpoint.Gap {
	if v.from() == 0 {
		g.Reason = fmt.Sprintf("%s (up to %s of timeline %d of the cluster %s)", g.Reason, g.To, v.was.Timeline, v.was.SystemID)
		g.From, g.To = 0, to
	}
	return g
}

// left are the gaps that stay when the rows are published and the slot goes on at
// to.
func (v *recovery) left(ctx context.Context, f *backfill, to lsn) ([]checkpoint.Gap, error) {
	var gaps []checkpoint.Gap
	messages := v.Messages != "" && !v.ClosesGaps
	for _, g := range v.was.Gaps {
		switch {
		case g.Table == checkpoint.LogicalMessages && messages:
			gaps = append(gaps, v.moved(g, to))
		case g.Table == "" && messages && f.whyUnread(g) == "":
			g.Table = checkpoint.LogicalMessages // the rows of it were read
			gaps = append(gaps, v.moved(g, to))
		case f.whyUnread(g) != "":
			gaps = append(gaps, v.moved(g, to))
		default:
			v.say("gap closed: %s", describe(g))
		}
	}
	add := func(g checkpoint.Gap) {
		g.From, g.Found = v.from(), v.Now().UTC()
		if known := slices.ContainsFunc(gaps, func(k checkpoint.Gap) bool {
			return k.From <= g.From && k.To >= g.To && k.Table == g.Table
		}); g.From < g.To && !known {
			gaps = append(gaps, g)
		}
	}
	if messages {
		add(checkpoint.Gap{To: to, Table: checkpoint.LogicalMessages, Reason: "logical messages are in no table, from which they could be published again"})
	}
	for _, d := range f.detached {
		published := d.LSN <= v.from() || d.Epoch == v.was.Epoch && d.LSN <= v.was.LSN
		if !published {
			add(checkpoint.Gap{To: to, Table: d.Parent.String(), Reason: "rows of partition " + d.TableName.String() + ", which the relay detached before it had published them, were not read"})
			v.say("gap: %s", detachedRows(d))
		}
	}
	if v.was.SystemID != v.server.SystemID {
		return gaps, nil
	}
	d := catalog.Compare(v.was.Publication, v.was.Relations, catalog.Identities{Publication: v.mark.Publication, Relations: v.mark.Relations})
	for _, id := range d.Detached {
		exists, err := v.db.RelationExists(ctx, id.OID)
		if err != nil {
			return nil, err
		}
		if exists {
			add(checkpoint.Gap{To: max(to, v.mark.CheckedLSN), Table: id.Name, Reason: "the partition was detached; rows of it are not in the table any more"})
		}
	}
	return gaps, nil
}
