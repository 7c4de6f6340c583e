package replication

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/fault"
)

func TestConn_IdentifiesAndStartsQuoted(t *testing.T) {
	srv := &fakeServer{}
	c := connectTo(t, serve(t, srv, (*fakeServer).drain), nil)
	sys, err := c.Identify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := (System{ID: "7001", Timeline: 3, XLogPos: 0x1_00000020, Database: "d"}); sys != want {
		t.Errorf("%+v, want %+v", sys, want)
	}
	if c.PID() != 42 {
		t.Errorf("PID %d", c.PID())
	}
	s, err := c.Start(t.Context(), `a"b`, `we"ird'pub`, startLSN)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	want := `START_REPLICATION SLOT "a""b" LOGICAL 1/10 (proto_version '1', publication_names '"we""ird''pub"')`
	if srv.query != want {
		t.Errorf("query %s, want %s", srv.query, want)
	}
}

func TestConn_ForcedSettingsBeatThoseOfTheDSN(t *testing.T) {
	srv := &fakeServer{}
	pc := serve(t, srv, nil)
	pc.RuntimeParams = map[string]string{
		"TimeZone": "Asia/Tokyo", "DateStyle": "German", "datestyle": "SQL", "Application_Name": "x",
		"options": "-c bytea_output=escape", "search_path": "app",
	}
	c := connectTo(t, pc, func(cfg *Config) {
		cfg.RuntimeParams = map[string]string{"wal_sender_timeout": "5s", "client_encoding": "LATIN1"}
	})
	c.Close()
	c.Close() // twice is safe
	want := map[string]string{"user": "u", "database": "d", "application_name": "cdc-relay", "search_path": "app", "wal_sender_timeout": "5s"}
	for k, v := range forced {
		want[k] = v
	}
	for k, v := range want {
		if srv.startup[k] != v {
			t.Errorf("%s = %q, want %q", k, srv.startup[k], v)
		}
	}
	if len(srv.startup) != len(want) {
		t.Errorf("startup parameters %v, want no others than %v", srv.startup, want)
	}
	if len(pc.RuntimeParams) != 6 {
		t.Error("the caller's settings were changed")
	}
}

func TestConn_ServerLooksForItsClientBeforeItIsGivenUp(t *testing.T) {
	srv := &fakeServer{}
	connectTo(t, serve(t, srv, nil), func(c *Config) { c.SilenceTimeout = 15 * time.Second }).Close()
	if got := srv.startup["wal_sender_timeout"]; got != "15000ms" {
		t.Errorf("wal_sender_timeout %q", got)
	}
}

func TestConn_StartRefusesAnUnknownPosition(t *testing.T) {
	c := connectTo(t, serve(t, &fakeServer{}, nil), nil)
	if _, err := c.Start(t.Context(), "relay", "pub", 0); fault.ClassOf(err) != fault.Stop {
		t.Error(err)
	}
}

func TestConn_StartShowsTheServersError(t *testing.T) {
	srv := &fakeServer{refuse: &pgproto3.ErrorResponse{Severity: "ERROR", Code: "55006", Message: "slot is active"}}
	_, err := connectTo(t, serve(t, srv, nil), nil).Start(t.Context(), "relay", "pub", startLSN)
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "55006" || !strings.Contains(err.Error(), `"relay"`) {
		t.Error(err)
	}
}
