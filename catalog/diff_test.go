package catalog

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/checkpoint"
)

func TestCompare_TellsABrokenStreamFromAnExpectedChange(t *testing.T) {
	pub := checkpoint.Identity{OID: 1, Name: "p", Def: "insert=true", Version: "700"}
	was := []checkpoint.Identity{{OID: 10, Name: "a.t", Version: "50"}, {OID: 20, Name: "a.part"}, {OID: 21, Name: "a.part1", Root: 20}}
	for _, c := range []struct {
		name   string
		pub    checkpoint.Identity
		now    []checkpoint.Identity
		text   string
		broken bool
	}{
		{"same", pub, was, "", false},
		{"publication gone", checkpoint.Identity{Name: "p"}, nil,
			`publication "p" is missing; table a.t is not published any more; table a.part is not published any more; partition a.part1 was detached or dropped`, true},
		{"publication again", checkpoint.Identity{OID: 2, Name: "p", Def: "insert=true"}, was, `publication "p" was dropped and created again`, true},
		{"publication altered", checkpoint.Identity{OID: 1, Name: "p", Def: "insert=false"}, was,
			`publication "p" was changed from (insert=true) to (insert=false)`, true},
		{"publication altered and altered back", checkpoint.Identity{OID: 1, Name: "p", Def: "insert=true", Version: "701"}, was,
			`publication "p" was altered, and is as it was (insert=true)`, true},
		{"table taken out and put in", pub, []checkpoint.Identity{{OID: 10, Name: "a.t", Version: "51"}, was[1], was[2]}, "a.t was not published for a while", true},
		{"version not known", pub, []checkpoint.Identity{{OID: 10, Name: "a.t"}, was[1], {OID: 21, Name: "a.part1", Root: 20, Version: "9"}}, "", false},
		{"table again", pub, []checkpoint.Identity{{OID: 11, Name: "a.t"}, was[1], was[2]}, "table a.t was dropped and created again", true},
		{"table renamed", pub, []checkpoint.Identity{was[1], was[2]}, "table a.t is not published any more", true},
		{"table added", pub, append([]checkpoint.Identity{{OID: 30, Name: "a.new"}}, was...), "table a.new was added", false},
		{"partition attached", pub, append(was[:3:3], checkpoint.Identity{OID: 22, Name: "a.part2", Root: 20}), "partition a.part2 was attached", false},
		{"partition detached", pub, was[:2], "partition a.part1 was detached or dropped", false},
	} {
		d := Compare(pub, was, Identities{Publication: c.pub, Relations: c.now})
		if d.String() != c.text || d.Broken() != c.broken || d.Empty() != (c.text == "") {
			t.Errorf("%s: got %q broken=%t", c.name, d, d.Broken())
		}
	}
}
