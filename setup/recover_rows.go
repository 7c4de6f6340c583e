package setup

import (
	"context"

	"github.com/cdc-relay/cdc-relay/catalog"
)

// noRows are those where no table is configured, and logical messages alone are
// published.
type noRows struct{}

func (noRows) Check(context.Context, []catalog.Table, catalog.Publication) error { return nil }
func (noRows) Import(context.Context, string) error                              { return nil }
func (noRows) Count(context.Context) (int64, error)                              { return 0, nil }
func (noRows) Publish(context.Context, lsn, lsn) error                           { return nil }
func (noRows) Unreadable(context.Context) ([]catalog.UnreadableRow, error)       { return nil, nil }

func (v *recovery) openRows() (Rows, func(context.Context), error) {
	if len(v.RecoverOptions.Tables) == 0 {
		return noRows{}, func(context.Context) {}, nil
	}
	return v.OpenRows()
}

func (v *recovery) openReadable(where string) (ReadableRows, func(context.Context), error) {
	if len(v.RecoverOptions.Tables) == 0 {
		return noRows{}, func(context.Context) {}, nil
	}
	return v.OpenReadable(where)
}
