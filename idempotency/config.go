package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Config says whose keys are kept, how long and where.
type Config struct {
	// Client names who sent a request, by what was authenticated: a tenant, an account.
	// Required. An error is answered 401, and not shown.
	Client func(*http.Request) (string, error)
	// Optional lets requests without a key through, in a transaction and with no
	// protection against repetition. By default they are answered 400.
	Optional bool

	Expiry         time.Duration // of a key, from its first request; 0: 24 h
	MaxBodyBytes   int64         // of a request; 0: 1 MiB
	MaxAnswerBytes int           // of an answer's body; a larger one is rolled back and answered 500; 0: 1 MiB
	// FinishTimeout bounds storing the answer and the commit, which go on when the client
	// has gone away; 0: 10 s.
	FinishTimeout time.Duration
	// KeepHeaders are stored with an answer. nil: Content-Type, Content-Language,
	// Content-Encoding, Location, ETag, Last-Modified and Link. Set-Cookie does not belong
	// there.
	KeepHeaders []string

	Schema string // of the table; "" : public
	Table  string // "" : idempotency_keys
	// Docs is the URL of a page about the problems for the clients; the type of a problem is
	// Docs#code. "" : about:blank.
	Docs string
	// Observe hears of each request once, after it was answered. nil: errors go to
	// slog.Default.
	Observe func(*http.Request, Result)
}

// Outcome is what became of a request.
type Outcome string

// Outcomes. Conflicts are InFlight and Reused.
const (
	First       Outcome = "first"       // the handler ran, and its answer is kept
	Replayed    Outcome = "replayed"    // the first answer was told again
	NotKept     Outcome = "not_kept"    // the handler answered 5xx, 408, 425 or 429: rolled back
	Failed      Outcome = "failed"      // the handler failed or panicked: rolled back
	WithoutKey  Outcome = "without_key" // the handler ran; keys are optional
	InFlight    Outcome = "in_flight"   // 409
	Reused      Outcome = "reused"      // 422
	Rejected    Outcome = "rejected"    // 400, 401 or 413: no key, no client, no body
	AnswerLost  Outcome = "answer_lost" // 500: an earlier handler ended the transaction itself
	Unavailable Outcome = "unavailable" // 503: the database; the handler did not run, or its commit was not confirmed
)

// Result is what Config.Observe is told.
type Result struct {
	Route   string
	Outcome Outcome
	Err     error // why; nil where nothing went wrong. It may hold what the handler put into it
}

// ErrNotYours is what a lent transaction answers to Commit and Rollback.
var ErrNotYours = errors.New("the transaction of a request is ended by the middleware: return nil to commit, an error to roll back")

// ErrAnswerTooLarge is what Write returns to a handler whose answer is above
// Config.MaxAnswerBytes; everything is rolled back.
var ErrAnswerTooLarge = errors.New("the answer is above Config.MaxAnswerBytes, and could not be told again: answer with a reference, or raise the limit")

// Handler answers a request within tx, which is begun and ended by the middleware. See
// the package's table for what becomes of its writes. It must not use w or tx after it
// has returned.
type Handler[Tx any] func(w http.ResponseWriter, r *http.Request, tx Tx) error

// Keys is the middleware. Its methods may be called by several goroutines.
type Keys[Tx any] struct {
	cfg   Config
	sql   statements
	begin func(context.Context) (lent[Tx], error)
	lend  func(Tx) lent[Tx]
}

// ForPGX returns the middleware for pgx. begin is (*pgxpool.Pool).Begin, or what
// begins a transaction with other options; READ COMMITTED is the level that is meant.
func ForPGX(begin func(context.Context) (pgx.Tx, error), c Config) (*Keys[pgx.Tx], error) {
	return newKeys(c, begin, func(tx pgx.Tx) lent[pgx.Tx] { return lent[pgx.Tx]{lentTx{tx}, pgxStore{tx}} })
}

// ForSQL returns the middleware for database/sql with any driver of PostgreSQL. begin
// calls (*sql.DB).BeginTx with the context it is given, which lives as long as the
// transaction.
func ForSQL(begin func(context.Context) (*sql.Tx, error), c Config) (*Keys[*sql.Tx], error) {
	return newKeys(c, begin, func(tx *sql.Tx) lent[*sql.Tx] { return lent[*sql.Tx]{tx, sqlStore{tx}} })
}

func newKeys[Tx any](c Config, begin func(context.Context) (Tx, error), lend func(Tx) lent[Tx]) (*Keys[Tx], error) {
	var problems []error
	check := func(ok bool, problem string) {
		if !ok {
			problems = append(problems, errors.New("idempotency: "+problem))
		}
	}
	check(begin != nil, "begin is nil; give what begins a transaction")
	check(c.Client != nil, "Config.Client is nil; name the client by what was authenticated, or one name for all if there is only one")
	check(c.Expiry >= 0 && c.MaxBodyBytes >= 0 && c.MaxAnswerBytes >= 0 && c.FinishTimeout >= 0, "a limit of Config is negative")
	check(!strings.ContainsRune(c.Schema+c.Table, 0), "Config.Schema or Config.Table holds a zero byte")
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	return &Keys[Tx]{cfg: c, sql: compile(c.Schema, c.Table), lend: lend,
		begin: func(ctx context.Context) (lent[Tx], error) {
			tx, err := begin(ctx)
			if err != nil {
				return lent[Tx]{}, fmt.Errorf("begin the transaction of a request: %w", err)
			}
			return lend(tx), nil
		}}, nil
}

func (c Config) withDefaults() Config {
	if c.Expiry == 0 {
		c.Expiry = 24 * time.Hour
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = 1 << 20
	}
	if c.MaxAnswerBytes == 0 {
		c.MaxAnswerBytes = 1 << 20
	}
	if c.FinishTimeout == 0 {
		c.FinishTimeout = 10 * time.Second
	}
	if c.KeepHeaders == nil {
		c.KeepHeaders = []string{"Content-Type", "Content-Language", "Content-Encoding", "Location", "ETag", "Last-Modified", "Link"}
	}
	if c.Schema == "" {
		c.Schema = "public"
	}
	if c.Table == "" {
		c.Table = "idempotency_keys"
	}
	if c.Observe == nil {
		c.Observe = func(r *http.Request, result Result) {
			if result.Err != nil {
				slog.ErrorContext(r.Context(), "request failed", "route", result.Route, "outcome", string(result.Outcome), "error", result.Err)
			}
		}
	}
	return c
}
