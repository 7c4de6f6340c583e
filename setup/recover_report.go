package setup

import (
	"context"
	"fmt"
	"slices"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/preflight"
)

// report says what is known, what may be missing, what nobody can know, and what
// would be done.
func (v *recovery) report(ctx context.Context) {
	line := func(name, format string, args ...any) { v.say("%-14s %s", name+":", fmt.Sprintf(format, args...)) }
	line("trouble", "%s", v.what)
	v.reportState(line)
	v.reportRows(ctx, line)
	v.reportMissing(line)
	v.reportWay(line)
}

func (v *recovery) reportState(line func(name, format string, args ...any)) {
	if m := v.was; m.LSN == 0 {
		line("mark", "none")
	} else {
		line("mark", "%s, epoch %d, timeline %d, saved %s, of the cluster with the system identifier %s",
			m.LSN, m.Epoch, m.Timeline, m.SavedAt.UTC().Format("2006-01-02 15:04:05Z"), m.SystemID)
	}
	for _, g := range v.was.Gaps {
		line("open gap", "%s", describe(g))
	}
	if s := v.slot; v.exists {
		line("slot", "%s at %s, wal_status %s %s", v.Slot, s.Confirmed, s.WALStatus, s.InvalidationReason)
	} else {
		line("slot", "%s does not exist", v.Slot)
	}
	if v.there {
		line("history slot", "%s at %s, wal_status %s", v.history.Name, v.history.Confirmed, v.history.WALStatus)
	}
	line("server", "at %s, timeline %d, system identifier %s, database %s", v.server.CurrentLSN, v.server.Timeline, v.server.SystemID, v.server.Database)
}

// reportRows tells what each table retains. That it cannot be read is told here, and
// stops what is done later.
func (v *recovery) reportRows(ctx context.Context, line func(name, format string, args ...any)) {
	for _, t := range v.run.Tables {
		switch r, err := v.db.Retained(ctx, t, v.Times[t]); {
		case err != nil:
			line("table", "%s: not known: %v", t, catalog.Explain(err))
		case r.Oldest != "":
			line("table", "%s retains %s, %s from %s to %s", t, count(int(r.Rows), "row"), v.Times[t], r.Oldest, r.Newest)
		default:
			line("table", "%s retains %s", t, count(int(r.Rows), "row"))
		}
	}
}

func (v *recovery) reportMissing(line func(name, format string, args ...any)) {
	end := v.server.CurrentLSN
	if v.keep {
		end = v.slot.Confirmed
	}
	if from := v.from(); from != 0 {
		line("may be missing", "events committed from %s to %s", from, end)
	} else {
		line("may be missing", "events committed up to %s; from where on is not known, since the mark's position says nothing of this server's WAL", end)
	}
	if v.trouble == preflight.WentBack || v.trouble == preflight.OlderTimeline {
		line("may be extra", "events up to %s were published, and may be gone from this database", v.was.LSN)
	}
	line("cannot be known", "which rows were deleted from the tables before they were published: they do not come back")
	if v.Messages != "" {
		line("cannot be known", "logical messages of that range, which are in no table; a gap of them stays on record unless --closes-gaps is given")
	}
}

func (v *recovery) reportWay(line func(name, format string, args ...any)) {
	if v.trouble == preflight.OlderTimeline {
		line("mind", "this may be an old primary, or a standby that was promoted by mistake: make sure that it is the server that is written to")
	}
	if v.holdsAll() {
		line("better", "history slot %s still has all of that, also what was deleted: cdc-relay recover --from %s loses nothing", v.history.Name, v.from())
	}
	rows := "every row of "
	if v.Where != "" {
		rows = "the rows for which " + brief(v.Where) + " is true of "
	}
	rows += tableList(v.RecoverOptions.Tables) + ", also what was published already (with the same id)"
	if len(v.RecoverOptions.Tables) == 0 {
		rows = "nothing, since no table is configured, and logical messages are in none"
	}
	var steps []string
	switch {
	case v.keep:
		steps = append(steps, fmt.Sprintf("keep slot %s, which can be read from %s on", v.Slot, v.slot.Confirmed))
	case v.exists:
		steps = append(steps, fmt.Sprintf("drop slot %s", v.Slot), "make it anew with a snapshot")
	default:
		steps = append(steps, fmt.Sprintf("make slot %s anew with a snapshot", v.Slot))
	}
	if v.stale {
		steps = slices.Insert(steps, 1, fmt.Sprintf("drop history slot %s, which cannot be trusted here, and make it anew", v.history.Name))
	}
	steps = append(steps, "publish "+rows, "save the mark from which run goes on")
	for i, s := range steps {
		line(fmt.Sprintf("step %d", i+1), "%s", s)
	}
	if v.exists && !v.keep && v.slot.Failover && !v.Failover {
		line("mind", "the slot is a failover slot, and the new one will be none: set source.failover: true first if that is wanted")
	}
}
