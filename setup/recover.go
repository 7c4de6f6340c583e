package setup

import (
	"context"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/fault"
)

// RecoverOptions of Recover, beside those of Setup.
type RecoverOptions struct {
	// OpenRows makes what Backfill calls Rows, and how to close them; it is called
	// once something is to be published.
	OpenRows func() (Rows, func(context.Context), error)
	// Tables are read; each is one of Options.Tables.
	Tables []catalog.TableName
	// Times are the columns that tell a row's age, of tables that have one.
	Times map[catalog.TableName]string
	// Where is the predicate, for a person; "" means every row.
	Where string
	// ClosesGaps says that what is left out, or is in no table, was published
	// otherwise, or need not be.
	ClosesGaps bool
	// GiveUp ends one that has not finished, and records what may be missing.
	GiveUp bool
	// SystemID is the cluster that this one was, before an upgrade or a restore; ""
	// takes the only one that the store knows.
	SystemID string
}

// Recover finds the way back when slot and mark do not agree: it says what is
// known, asks, and brings both in order.
func Recover(ctx context.Context, o Options, b RecoverOptions) error {
	r, err := begin(ctx, o)
	if err != nil {
		return err
	}
	defer r.db.Close(ctx)
	r.command = "cdc-relay recover"
	return catalog.Explain((&recovery{run: r, RecoverOptions: b}).do(ctx))
}

type recovery struct {
	*run
	RecoverOptions
}

// do finds out what is the matter, and goes one of the ways. Those which a person
// names come first, since a slot and a mark that agree may need them; each is a
// file of its own.
func (v *recovery) do(ctx context.Context) error {
	if v.GiveUp {
		return v.giveUp(ctx)
	}
	return v.replace(ctx)
}

func (v *recovery) giveUp(context.Context) error {
	return fault.Stopped("", "there is no recovery of slot %q to give up", v.Slot)
}

func (v *recovery) replace(context.Context) error {
	return fault.Stopped("", "the slot cannot be recovered yet")
}
