package catalog

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// Undecodable tells whether an error by which the server ended a stream is about
// what it decodes: perhaps, when it may heal, and does not if it comes again and
// again at one place; certain, when every attempt will end in the same way, since
// what is in the WAL does not change. It is pure.
func Undecodable(err error) (perhaps, certain bool) {
	var e *pgconn.PgError
	if !errors.As(err, &e) || len(e.Code) != 5 {
		return false, false
	}
	switch {
	case e.Code == "42704", // no publication at that point of the WAL, until PostgreSQL 17
		e.Code == "54000",  // the row does not fit into one message
		e.Code[:2] == "22", // a value that has no form in UTF-8
		neverAllocated(e):  // a value too large for one allocation
		return true, true
	case e.Code[:2] == "XX", // damage, or what nobody thought of
		e.Code == "53200": // out of memory
		return true, false
	}
	return false, false
}

// neverAllocated tells an allocation beyond what the server's memory contexts ever
// give out, from one that failed now.
func neverAllocated(e *pgconn.PgError) bool {
	return e.Code == "XX000" && (e.File == "mcxt.c" || strings.Contains(e.Message, "invalid memory alloc request size"))
}

var lsnInContext = regexp.MustCompile(`\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b`)

// DecodedLSN returns the position of the change at which the output plugin failed,
// by the context of the server's error; zero when it names none.
func DecodedLSN(err error) pglogrepl.LSN {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return 0
	}
	all := lsnInContext.FindAllString(e.Where, -1)
	if len(all) == 0 {
		return 0
	}
	lsn, err := pglogrepl.ParseLSN(all[len(all)-1])
	if err != nil {
		return 0
	}
	return lsn
}

// DecodingFault says in words why the server cannot decode: its own, unless they
// may quote a value.
func DecodingFault(err error) string {
	code := SQLState(err)
	var e *pgconn.PgError
	switch {
	case code == "22P05" || code == "22021":
		return fmt.Sprintf("a text in it has no form in UTF-8 (SQLSTATE %s)", code)
	case code == "42704":
		return "the publication did not exist at that point of the WAL (SQLSTATE 42704)"
	case code == "54000":
		return "a row in it is larger than the server can send (SQLSTATE 54000)"
	case len(code) == 5 && (code[:2] == "22" || code[:2] == "23"):
		return fmt.Sprintf("a value in it cannot be printed (SQLSTATE %s)", code)
	case errors.As(err, &e) && neverAllocated(e):
		return fmt.Sprintf("a value in it is larger than the server can print (SQLSTATE XX000: %s)", e.Message)
	case errors.As(err, &e):
		return fmt.Sprintf("the server says: %s (SQLSTATE %s)", e.Message, e.Code)
	case err != nil:
		return err.Error()
	}
	return ""
}
