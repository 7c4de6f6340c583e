package preflight_test

import (
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
)

func lsn(v uint64) pglogrepl.LSN { return pglogrepl.LSN(v) }

func TestChanged_TellsExpectedFromBroken(t *testing.T) {
	root := checkpoint.Identity{OID: rootOID, Name: "public.outbox"}
	leaf := checkpoint.Identity{OID: leafOID, Name: "public.outbox_1", Root: rootOID}
	second := checkpoint.Identity{OID: 50, Name: "public.audit"}
	rels := func(r ...checkpoint.Identity) []checkpoint.Identity { return r }
	for _, c := range []struct {
		name string
		was  []checkpoint.Identity
		now  []checkpoint.Identity
		gone map[uint32]bool
		want string // "" : expected
	}{
		{name: "same", was: rels(root, leaf), now: rels(root, leaf)},
		{name: "table taken out and put in again", was: rels(versioned(root, "1"), leaf), now: rels(versioned(root, "2"), leaf), want: "public.outbox was taken out"},
		{name: "partition detached and attached again", was: rels(root, versioned(leaf, "1")), now: rels(root, versioned(leaf, "2")), want: "public.outbox_1 was taken out"},
		{name: "row filter added", was: rels(versioned(root, "1"), leaf), now: rels(checkpoint.Identity{OID: rootOID, Name: "public.outbox", Def: "filter=x", Version: "2"}, leaf),
			want: `is published by "pub" in another way (it was: every row, all columns; it is: filter=x)`},
		{name: "versions not known before", was: rels(root, leaf), now: rels(versioned(root, "1"), versioned(leaf, "1"))},
		{name: "partition attached", was: rels(root), now: rels(root, leaf)},
		{name: "partition dropped", was: rels(root, leaf), now: rels(root), gone: map[uint32]bool{leafOID: true}},
		{name: "partition renamed", was: rels(root, leaf), now: rels(root, checkpoint.Identity{OID: leafOID, Name: "public.old", Root: rootOID})},
		{name: "table added", was: rels(root), now: rels(root, second)},
		{name: "partition detached", was: rels(root, leaf), now: rels(root), want: "partition public.outbox_1 was detached from public.outbox"},
		{name: "partition is a table of its own now", was: rels(root, leaf), now: rels(root, checkpoint.Identity{OID: leafOID, Name: "public.outbox_1"}), want: "was detached"},
		{name: "partition moved to another table", was: rels(root, leaf, second), now: rels(root, second, checkpoint.Identity{OID: leafOID, Name: "public.outbox_1", Root: 50}), want: "was detached from public.outbox"},
		{name: "partition replaced under its name", was: rels(root, leaf), now: rels(root, checkpoint.Identity{OID: 60, Name: "public.outbox_1", Root: rootOID}), want: "was detached"},
		{name: "table recreated and published", was: rels(root), now: rels(checkpoint.Identity{OID: 20, Name: "public.outbox"}), gone: map[uint32]bool{rootOID: true}, want: "created again (it had the OID 10, it has 20)"},
		{name: "table exchanged for another", was: rels(root), now: rels(checkpoint.Identity{OID: 20, Name: "public.outbox"}), want: "created again"},
		{name: "partitioned table recreated", was: rels(root, leaf), now: rels(checkpoint.Identity{OID: 20, Name: "public.outbox"}), gone: map[uint32]bool{rootOID: true, leafOID: true}, want: "table public.outbox was dropped and created again"},
		{name: "table dropped", was: rels(root), gone: map[uint32]bool{rootOID: true}, want: "a new table of its name are not sent"},
		{name: "table left the publication or was renamed", was: rels(root), want: "has left publication"},
		{name: "table renamed and configured so", was: rels(root), now: rels(checkpoint.Identity{OID: rootOID, Name: "public.events"}), want: "renamed to public.events"},
		{name: "table became a partition", was: rels(second, root), now: rels(second, checkpoint.Identity{OID: rootOID, Name: "public.outbox", Root: 50}), want: "table public.outbox has left"},
		{name: "second table broken, first in order", was: rels(root, second), now: rels(root), want: "table public.audit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := preflight.Changed(published(), c.was, catalog.Identities{Publication: published(), Relations: c.now}, c.gone, 0xC0, 0x100)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil {
				t.Fatal("accepted")
			}
			if fault.ClassOf(err) != fault.Stop {
				t.Errorf("class %s", fault.ClassOf(err))
			}
			for _, want := range []string{c.want, "from 0/C0 to 0/100", "adopt"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the sentence does not say %q: %s", want, err)
				}
			}
		})
	}
}

func versioned(id checkpoint.Identity, version string) checkpoint.Identity {
	id.Version = version
	return id
}

func TestChanged_IgnoresAnUnknownPublication(t *testing.T) {
	if err := preflight.Changed(checkpoint.Identity{}, nil, catalog.Identities{Publication: published()}, nil, 1, 2); err != nil {
		t.Error(err)
	}
	now := catalog.Identities{Publication: checkpoint.Identity{Name: "pub"}}
	if err := preflight.Changed(published(), nil, now, nil, 1, 2); err == nil || !strings.Contains(err.Error(), "was dropped") {
		t.Errorf("a dropped publication: %v", err)
	}
}

func TestDecide_IgnoresTablesThatAreNotConfiguredAnyMore(t *testing.T) {
	f := healthy()
	f.Mark.Relations = append(relations(),
		checkpoint.Identity{OID: 50, Name: "public.audit"}, checkpoint.Identity{OID: 51, Name: "public.audit_1", Root: 50})
	p, err := preflight.Decide(wanted(), f, preflight.Known{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Mark.Relations) != 3 || p.SaveFirst {
		t.Errorf("plan %+v", p)
	}
}

func TestMatchesSynchronous_ReadsTheServersGrammar(t *testing.T) {
	const app = "cdc-relay"
	for names, want := range map[string]bool{
		"":                              false,
		"*":                             true,
		` "*" `:                         true,
		"standby1":                      false,
		`"cdc-relay"`:                   true,
		`"CDC-Relay"`:                   true,
		`a, "cdc-relay"`:                true,
		"a,\n\t\"cdc-relay\" , b":       true,
		"a\r\n,\f*\v":                   true,
		`FIRST 1 ("cdc-relay")`:         true,
		`first 2 (a, b, "cdc-relay")`:   true,
		`ANY 1 (a, *)`:                  true,
		`any 1(a,"cdc-relay")`:          true,
		`2 (a, "cdc-relay")`:            true,
		`2(a, b)`:                       false,
		`"cdc-relay2", "xcdc-relay"`:    false,
		`"cdc relay"`:                   false,
		`"a, cdc-relay"`:                false,
		`"a(b", "cdc-relay"`:            true,
		`ANY 1 ("x)", "cdc-relay" ) `:   true,
		`"say ""cdc-relay"""`:           false,
		`ANY 1 ("FIRST 1 (cdc-relay)")`: false,
		`first, "cdc-relay"`:            true,
	} {
		if got := preflight.MatchesSynchronous(names, app); got != want {
			t.Errorf("%q: %t, want %t", names, got, want)
		}
	}
	if !preflight.MatchesSynchronous(`any 1 ("say ""hi""")`, `say "hi"`) {
		t.Error("doubled quotes are not read")
	}
	if preflight.MatchesSynchronous("", "") || preflight.MatchesSynchronous("a", "") {
		t.Error("an empty name matches")
	}
}
