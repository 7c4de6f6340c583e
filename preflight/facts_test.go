package preflight_test

import (
	"time"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/preflight"
)

const (
	atConfirmed = 0xA0  // the slot
	atMark      = 0xB0  // the mark
	atChecked   = 0xC0  // identities found in order
	atEnd       = 0x100 // the server's WAL
	rootOID     = 10
	leafOID     = 11
	otherLeaf   = 12
)

var postmasterStart = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func wanted() preflight.Want {
	return preflight.Want{
		Slot: "relay", Publication: "pub", ApplicationName: "cdc-relay",
		Tables:  []catalog.TableName{outbox},
		Columns: tableColumns(),
	}
}

var outbox = catalog.TableName{Schema: "public", Name: "outbox"}

func tableColumns() map[catalog.TableName][]string {
	return map[catalog.TableName][]string{outbox: {"id", "aggregateid", "payload"}}
}

func relations() []checkpoint.Identity {
	return []checkpoint.Identity{
		{OID: rootOID, Name: "public.outbox"},
		{OID: leafOID, Name: "public.outbox_1", Root: rootOID},
		{OID: otherLeaf, Name: "public.outbox_2", Root: rootOID},
	}
}

func published() checkpoint.Identity {
	return checkpoint.Identity{OID: 99, Name: "pub", Def: "insert=true via_root=true all_tables=false"}
}

// healthy are facts that nothing is wrong with: the slot a little behind its
// mark, the mark behind the server.
func healthy() preflight.Facts {
	return preflight.Facts{
		Server: catalog.Server{
			VersionNum: 150018, SystemID: "7001", Timeline: 1, Database: "shop", StartedAt: postmasterStart,
			CurrentLSN: atEnd, WALLevel: "logical",
		},
		SystemID: "7001", Timeline: 1,
		Slot: catalog.Slot{
			Name: "relay", Plugin: "pgoutput", Type: "logical", Database: "shop",
			WALStatus: "reserved", Restart: 0x90, Confirmed: atConfirmed,
		},
		HasSlot: true,
		Mark: checkpoint.Mark{
			SystemID: "7001", Slot: "relay", Epoch: 3, Timeline: 1, LSN: atMark, CheckedLSN: atChecked,
			Publication: published(), Relations: relations(),
		},
		HasMark:        true,
		Publication:    catalog.Publication{OID: 99, Name: "pub", Insert: true, ViaRoot: true},
		HasPublication: true,
		Identities:     catalog.Identities{Publication: published(), Relations: relations()},
		Now:            postmasterStart.Add(time.Hour),
		Gone:           map[uint32]bool{},
		Columns:        tableColumns(),
	}
}

// onNewTimeline are the facts after a failover to a server that received less.
func onNewTimeline(failover bool) preflight.Facts {
	f := healthy()
	f.Timeline, f.Server.Timeline = 2, 2
	f.Server.CurrentLSN = 0xA8 // below the mark
	f.Slot.Failover = failover
	return f
}

// without returns the relations that do not have one of the OIDs.
func without(rels []checkpoint.Identity, oids ...uint32) []checkpoint.Identity {
	var out []checkpoint.Identity
	for _, r := range rels {
		drop := false
		for _, oid := range oids {
			drop = drop || r.OID == oid
		}
		if !drop {
			out = append(out, r)
		}
	}
	return out
}
