package preflight

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
)

// Changed compares what the stream depended on with what there is now: a table
// that was dropped and created again, or a partition that was detached, has left
// the publication without a word. An attached partition, a dropped one (nobody
// can have inserted into it afterwards), one that retention detached (nobody can
// insert into it) and a table that is new in the configuration are expected. gone
// holds the second and the third. from and to bound the WAL in doubt.
func Changed(pub checkpoint.Identity, rels []checkpoint.Identity, now catalog.Identities, gone map[uint32]bool, from, to pglogrepl.LSN) error {
	doubt := fmt.Sprintf("rows inserted from %s to %s may not have been sent; they are still in the table", from, to)
	const published = "run cdc-relay adopt, which records the gap, and publish the rows in doubt from the table (cdc-relay backfill), which closes it"
	fix := "make the publication whole, then " + published
	if pub.OID != 0 {
		switch {
		case now.Publication.OID == 0:
			return fault.Stopped(fix, "publication %q was dropped; %s", pub.Name, doubt)
		case now.Publication.Name != pub.Name:
			return fault.Stopped("set source.publication back, or run cdc-relay adopt, which records the gap",
				"the publication was %q and is %q now, which may not have existed all the time; %s", pub.Name, now.Publication.Name, doubt)
		case now.Publication.OID != pub.OID:
			return fault.Stopped(fix, "publication %q was dropped and created again; %s", pub.Name, doubt)
		case now.Publication.Def != pub.Def:
			return fault.Stopped(fix, "publication %q was changed (it was: %s; it is: %s); %s", pub.Name, pub.Def, now.Publication.Def, doubt)
		case now.Publication.Interrupted(pub):
			return fault.Stopped(published, "publication %q was altered, and is now as it was (%s), but may not have published inserts for a while; %s", pub.Name, pub.Def, doubt)
		}
	}
	byOID := map[uint32]checkpoint.Identity{}
	roots := map[string]checkpoint.Identity{}
	for _, r := range now.Relations {
		byOID[r.OID] = r
		if r.Root == 0 {
			roots[r.Name] = r
		}
	}
	for _, was := range rels {
		is, ok := byOID[was.OID]
		switch {
		case ok && was.Root == 0 && is.Root == 0 && is.Name != was.Name:
			return fault.Stopped(published, "table %s was renamed to %s, and the configuration followed; rows inserted under the old name, from %s to %s, may not be sent; they are still in the table",
				was.Name, is.Name, from, to)
		case ok && is.Root == was.Root && is.Def != was.Def:
			return fault.Stopped(fix, "table %s is published by %q in another way (it was: %s; it is: %s); %s",
				was.Name, pub.Name, cmp.Or(was.Def, everyRow), cmp.Or(is.Def, everyRow), doubt)
		case ok && is.Root == was.Root && is.Interrupted(was):
			return fault.Stopped(published, "%s was taken out of what publication %q publishes, and put in again; %s", was.Name, pub.Name, doubt)
		case ok && is.Root == was.Root:
			continue
		}
		if root, here := byOID[was.Root]; was.Root != 0 {
			if here && !gone[was.OID] {
				return fault.Stopped(fix, "partition %s was detached from %s, and what was inserted into it then was not published by %q; %s", was.Name, root.Name, pub.Name, doubt)
			}
			continue // dropped, or its root is reported
		}
		if is, ok := roots[was.Name]; ok {
			return fault.Stopped(fix, "table %s was dropped and created again (it had the OID %d, it has %d); %s", was.Name, was.OID, is.OID, doubt)
		}
		if gone[was.OID] {
			return fault.Stopped(fix, "table %s was dropped; its rows are published as far as they were streamed, and the rest when streaming goes on; rows inserted from %s to %s into a new table of its name are not sent", was.Name, from, to)
		}
		return fault.Stopped(fix, "table %s has left publication %q or was renamed; %s", was.Name, pub.Name, doubt)
	}
	return nil
}

const everyRow = "every row, all columns"

// MatchesSynchronous tells whether synchronous_standby_names can match an
// application name: by its name, without regard to case, or by a star. Its
// grammar is that of PostgreSQL's syncrep_gram.y: a plain list, or a list in
// parentheses after FIRST n, ANY n or n.
func MatchesSynchronous(names, application string) bool {
	for _, n := range synchronousNames(names) {
		if n == "*" || strings.EqualFold(n, application) {
			return true
		}
	}
	return false
}

func synchronousNames(s string) []string {
	list := s
	if i := strings.IndexByte(s, '('); i >= 0 && !strings.Contains(s[:i], `"`) && !strings.Contains(s[:i], ",") {
		list = strings.TrimSuffix(strings.TrimSpace(s[i+1:]), ")")
	}
	var out []string
	var cur strings.Builder
	quoted := false
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == '"' && quoted && i+1 < len(list) && list[i+1] == '"':
			cur.WriteByte('"')
			i++
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			out = append(out, cur.String())
			cur.Reset()
		case strings.IndexByte(" \t\n\r\f\v", c) >= 0 && !quoted:
		default:
			cur.WriteByte(c)
		}
	}
	if cur.Len() > 0 {
		out = append(out, cur.String())
	}
	return out
}
