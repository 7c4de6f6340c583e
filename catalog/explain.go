package catalog

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/fault"
)

// Explain wraps an error of the PostgreSQL side into a *fault.Error with its
// class and, where a person must act, what happened and what to do. It returns
// nil for nil and an error that is explained already as it is.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	var explained *fault.Error
	if errors.As(err, &explained) {
		return err
	}
	class, code := Classify(err)
	what, fix := sentence(code)
	if what == "" && class == fault.Stop {
		what = "PostgreSQL refuses"
		fix = "see the server's message; trying again cannot help"
	}
	var ce *pgconn.ConnectError
	if errors.As(err, &ce) {
		if away(code) {
			fix = "start it, or correct source.host and source.port"
		}
		err = &unreached{err: err, text: attempts(ce)}
	}
	return &fault.Error{Class: class, What: what, Fix: fix, Err: withoutData(err)}
}

// away reports whether nothing answered as PostgreSQL does.
func away(code string) bool {
	switch code {
	case CodeRefused, CodeReset, CodeEOF, CodeTimeout, CodeUnreachable, CodeNetwork, CodeDNS:
		return true
	}
	return false
}

// unreached is a failure to connect, told once: each address that was tried and
// what came of it, on one line.
type unreached struct {
	err  error
	text string
}

func (u *unreached) Error() string { return u.text }
func (u *unreached) Unwrap() error { return u.err }

// attempts leaves out what was tried twice with the same result, as with and
// without TLS.
func attempts(ce *pgconn.ConnectError) string {
	var told []string
	for line := range strings.Lines(ce.Unwrap().Error()) {
		line = strings.Replace(strings.TrimSpace(line), ": dial error: ", ": ", 1)
		if line != "" && !slices.Contains(told, line) {
			told = append(told, line)
		}
	}
	return strings.Join(told, "; ")
}

// sentence says what a code means here and what to do about it.
func sentence(code string) (what, fix string) {
	switch code {
	case "28P01":
		return "PostgreSQL rejects the password",
			"set source.password, source.password_file or PGPASSWORD to the role's password"
	case "28000":
		return "PostgreSQL does not let this role in",
			"allow the role, database, address and TLS mode in pg_hba.conf, and check that the role exists and has LOGIN"
	case "3D000":
		return "the database does not exist", "correct source.database"
	case "42501":
		return "a privilege is missing",
			"grant what the message names: SELECT on a table, say; to read a slot it is ALTER ROLE ... REPLICATION"
	case "42704":
		return "a publication or slot that the stream needs does not exist at this point of the WAL",
			"if the publication was created after the slot, or dropped since, rows in between cannot be decoded: " +
				"see which of the two is missing with `cdc-relay check`"
	case "22P05", "22021":
		return "a row cannot be converted to UTF-8, so that the server cannot send it",
			"cdc-relay recover, on a stopped relay, finds it, skips it on record and publishes the other rows; a replay goes around it (--to, then --from)"
	case "XX000":
		return "the server cannot send what is in the WAL at this position",
			"a value larger than about 500 MB, or damage; the server's log says more. For the first, cdc-relay recover skips it on record; a replay goes around it (--to, then --from)"
	case "54000":
		return "a row is larger than the server can send",
			"cdc-relay recover, on a stopped relay, finds it, skips it on record and publishes the other rows; a replay goes around it (--to, then --from)"
	case "55000":
		return "the server cannot do this in its present state",
			"a slot whose wal_status is lost cannot be read again (see `cdc-relay status`); wal_level must be logical"
	case "58P01", "58P02":
		return "the server lacks a file: WAL that the slot needs, or the output plugin pgoutput",
			"see `cdc-relay check`; WAL that is gone cannot be streamed again"
	case "25006":
		return "the server is read-only", "connect to the primary"
	case CodeTLS:
		return "TLS with PostgreSQL fails",
			"check source.sslmode, source.sslrootcert, source.sslcert and source.sslkey against the server's certificate"
	case CodeTLSRefused:
		return "PostgreSQL does not offer TLS", "turn on ssl on the server, or choose another source.sslmode"
	case CodeConfig:
		return "the connection settings of the source cannot be used", "correct source.url or the keys beside it"
	case "57P01", "57P02", "57P03":
		return "PostgreSQL is stopping, starting, or ended this connection", ""
	case "53300":
		return "PostgreSQL has no free connection", ""
	case "55006":
		return "the slot is in use", ""
	}
	if away(code) {
		return "PostgreSQL cannot be reached", ""
	}
	return "", ""
}

// withoutData hides the server's message where it may quote a row's value.
func withoutData(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && len(pgErr.Code) == 5 && (pgErr.Code[:2] == "22" || pgErr.Code[:2] == "23") {
		return &redacted{err: err, code: pgErr.Code}
	}
	return err
}

// redacted is an error whose text is only its SQLSTATE.
type redacted struct {
	err  error
	code string
}

func (r *redacted) Error() string { return fmt.Sprintf("SQLSTATE %s", r.code) }
func (r *redacted) Unwrap() error { return r.err }
