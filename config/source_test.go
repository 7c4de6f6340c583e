package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSource_URLWinsOverKeysOverVariables(t *testing.T) {
	t.Setenv("PGHOST", "envhost")
	t.Setenv("PGUSER", "envuser")
	t.Setenv("PGPASSWORD", "envpw")
	t.Setenv("PGDATABASE", "envdb")
	t.Setenv("PGPORT", "1111")
	full := Source{Host: "keyhost", Port: 2222, Database: "key db", User: "key'user", Password: "keypw+% '&", SSLMode: "disable"}
	for _, tc := range []struct {
		url                    string
		src                    Source
		host, user, pw, dbname string
		port                   uint16
	}{
		{"", Source{}, "envhost", "envuser", "envpw", "envdb", 1111},
		{"", full, "keyhost", "key'user", "keypw+% '&", "key db", 2222},
		{"postgres://", full, "keyhost", "key'user", "keypw+% '&", "key db", 2222},
		{"postgres://u:p@h:3/d", full, "h", "u", "p", "d", 3},
		{"postgres://h/d?", full, "h", "key'user", "keypw+% '&", "d", 2222},
		{"postgres://u@h:3?application_name=x", full, "h", "u", "keypw+% '&", "key db", 3},
		{"postgres:///d?host=/tmp&user=q", full, "/tmp", "q", "keypw+% '&", "d", 2222},
		{"host=h password=p", full, "h", "key'user", "p", "key db", 2222},
		{"dbname = 'a b'  port=5", Source{}, "envhost", "envuser", "envpw", "a b", 5},
	} {
		src := tc.src
		src.URL = tc.url
		c, err := src.Connect()
		if err != nil {
			t.Errorf("%q: %v", tc.url, err)
			continue
		}
		if c.Host != tc.host || c.User != tc.user || c.Password != tc.pw || c.Database != tc.dbname || c.Port != tc.port {
			t.Errorf("%q: got %s %s %s %s %d", tc.url, c.Host, c.User, c.Password, c.Database, c.Port)
		}
	}
}

func TestSource_PasswordFileIsReadAtEachConnect(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pw")
	for _, pw := range []string{"one", "two two"} {
		if err := os.WriteFile(file, []byte(pw+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Source{URL: "postgres://u@h/d", PasswordFile: file}.Connect()
		if err != nil || c.Password != pw {
			t.Errorf("%v", err)
		}
	}
}

func TestSource_ErrorsShowNoSecret(t *testing.T) {
	for _, url := range []string{
		"postgres://u:hunter2@h:bad/d", "postgres://u:hun%zzter2@h/d", "postgres://u:/hunter2@h/d?sslmode=x",
		"postgres://u:p@h/d?sslmode=hunter2", "host=h password='hunter2", "hunter2", "password=hunter2 port=x",
		"postgres://h/d?sslrootcert=/no/such/file&password=hunter2",
	} {
		_, err := Source{URL: url}.Connect()
		if err == nil {
			t.Errorf("%q: no error", url)
		} else if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "ter2") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func TestSource_ACommandThatConnectsWantsADatabase(t *testing.T) {
	services := filepath.Join(t.TempDir(), "services")
	if err := os.WriteFile(services, []byte("[shop]\ndbname=d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		src Source
		env [2]string
		ok  bool
	}{
		{src: Source{}, ok: false},
		{src: Source{Host: "h", User: "u"}, ok: false},
		{src: Source{URL: "postgres://u@h"}, ok: false},
		{src: Source{Database: "d"}, ok: true},
		{src: Source{URL: "postgres://u@h/d"}, ok: true},
		{src: Source{URL: "dbname=d"}, ok: true},
		{src: Source{}, env: [2]string{"PGDATABASE", "d"}, ok: true},
		{src: Source{}, env: [2]string{"PGSERVICE", "shop"}, ok: true},
	} {
		for _, name := range []string{"PGDATABASE", "PGSERVICE", "PGHOST", "PGUSER"} {
			t.Setenv(name, "")
			_ = os.Unsetenv(name)
		}
		t.Setenv("PGSERVICEFILE", services)
		if tc.env[0] != "" {
			t.Setenv(tc.env[0], tc.env[1])
		}
		err := tc.src.CheckTarget()
		if (err == nil) != tc.ok || err != nil && !strings.Contains(err.Error(), "source.database: is not set; set it, source.url or PGDATABASE") {
			t.Errorf("%+v %v: %v", tc.src, tc.env, err)
		}
	}
}

func TestSource_AddressesAreThoseThatAreTried(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://u@127.0.0.1:1,db2:2/d":         "127.0.0.1:1 db2:2",
		"postgres://u@h/d?sslmode=prefer":          "h:5432",
		"host=/var/run/postgresql port=7 dbname=d": "/var/run/postgresql/.s.PGSQL.7",
	} {
		got, err := Source{URL: url}.Addresses()
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %v %v", url, got, err)
		}
	}
}

func TestParse_ShowsNothingOfAFileThatIsNoConfiguration(t *testing.T) {
	_, err := Parse("password.txt", []byte("s3cr3t"), nil, nil)
	if err == nil || strings.Contains(err.Error(), "s3cr3t") || !strings.Contains(err.Error(), "must hold keys") {
		t.Errorf("%v", err)
	}
}
