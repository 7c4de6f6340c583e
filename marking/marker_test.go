package marking

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/route"
)

func TestMarker_MarksWhatPrecedesALockedRow(t *testing.T) {
	server, err := pgserver.Start(t.Context(), pgserver.Options{Version: os.Getenv("CDC_RELAY_TEST_PG_VERSION")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	if err := server.Exec(t.Context(), "postgres", "CREATE TABLE o (id int PRIMARY KEY, s text)", "INSERT INTO o SELECT n FROM generate_series(0, 99) n"); err != nil {
		t.Fatal(err)
	}
	other, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	if _, err := other.Exec(t.Context(), "BEGIN; SELECT FROM o WHERE id = 60 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("another server")
	m := NewMarker(Config{
		Settings:   Settings{Column: "s", Value: "d", BatchRows: 100, LockTimeout: 20 * time.Millisecond},
		Tables:     []route.Table{{Schema: "public", Name: "o", ID: "id"}},
		Connect:    func() (*pgx.ConnConfig, error) { return pgx.ParseConfig(server.DSN("postgres")) },
		SameServer: func(catalog.Server) error { return refused },
	})
	defer m.Close(context.Background())
	if _, _, err := m.Mark(t.Context(), []Row{{ID: "1"}}); !errors.Is(err, refused) {
		t.Fatalf("on another server: %v", err)
	}
	refused = nil
	var rows []Row
	for i := range 100 {
		rows = append(rows, Row{ID: fmt.Sprint(i)})
	}
	locked := 0
	for locked < 40 && len(rows) > 0 {
		done, changed, err := m.Mark(t.Context(), rows)
		switch {
		case catalog.IsLocked(err) && done == 0:
			locked++
		case err != nil || changed != int64(done):
			t.Fatalf("%d of %d marked: %v", changed, done, err)
		}
		rows = rows[done:]
	}
	if len(rows) != 40 || m.Batch() != 1 {
		t.Fatalf("%d rows are left, in batches of %d; want those from the locked one on, one by one", len(rows), m.Batch())
	}
	if _, err := other.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	for updates := 0; len(rows) > 0; updates++ {
		done, _, err := m.Mark(t.Context(), rows)
		if err != nil || updates > 10 {
			t.Fatalf("%d updates, %v", updates, err)
		}
		rows = rows[done:]
	}
}
