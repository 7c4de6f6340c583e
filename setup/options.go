// Package setup makes what a relay needs before it runs: publication, slot and
// first mark; with the rows that are there already where that is asked for
// (Backfill); takes over a slot deliberately where mark and slot disagree
// (Adopt); and finds the way back when the slot cannot be trusted (Recover).
// Nothing else creates or moves a slot. All may be repeated: what a crash
// left half done is finished, or begun again, by the next run.
package setup

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/replication"
)

// DefaultSlotTimeout bounds the creation of a slot, which waits for every
// transaction that is open in any database.
const DefaultSlotTimeout = 30 * time.Second

// lockTimeout is how long another run is waited for.
const lockTimeout = 2 * time.Second

// DefaultTable is the table that the migrations make.
var DefaultTable = catalog.TableName{Schema: "public", Name: "outbox"}

// Options of Setup and Adopt.
type Options struct {
	// Connect returns the settings of an ordinary connection to the database.
	Connect         func() (*pgx.ConnConfig, error)
	ApplicationName string
	Slot            string
	Publication     string
	Tables          []catalog.TableName
	// Messages is the prefix of the logical messages that are published; "" for none.
	// With it there may be no table.
	Messages string
	// Store keeps the mark. The caller closes it. Not used by a dry run.
	Store checkpoint.Store
	// Out hears each step, for a person.
	Out io.Writer
	// Now is the clock of the mark; nil takes time.Now.
	Now func() time.Time

	// CreateTable makes DefaultTable where it is configured and missing.
	CreateTable bool
	// ExistingSlot takes a slot that somebody made for this relay.
	ExistingSlot bool
	// Marking is how the relay marks published rows, for each of Tables; nil when it
	// does not.
	Marking []catalog.Marking
	// Failover makes the slot with FAILOVER (17 and newer).
	Failover bool
	// History is the name of the history slot, made as a copy of Slot; "" for none.
	History string
	// SlotTimeout bounds the creation of the slot; zero takes DefaultSlotTimeout.
	SlotTimeout time.Duration
	// Topics are made by CreateTopic, which changes nothing for one that exists, and
	// tells whether it made it and how many partitions it has.
	Topics      []Topic
	CreateTopic func(context.Context, Topic) (made bool, partitions int, err error)
	// Of a dry run: the topic of the marks, "" when they are kept elsewhere, and the
	// flags with which the relay is called again.
	MarkTopic string
	Flags     string
	// DryRun writes to Out the SQL that does all this, and does nothing: neither
	// the database nor the store is asked.
	DryRun bool

	// Of Adopt: the position to go on from.
	LSN pglogrepl.LSN
	// Yes answers the question of Adopt.
	Yes bool
	// Confirm asks a person; nil refuses unless Yes.
	Confirm func(question string) (bool, error)

	// Stream is how Adopt and Recover look at the WAL, but for the connection's settings;
	// nil: they do not.
	Stream *replication.Config
	// Replicate opens the replication connection on which Backfill makes a slot.
	Replicate func(context.Context, *pgx.ConnConfig) (Exporter, error)

	open func(context.Context, *pgx.ConnConfig, string) (source, error) // tests
}

// Topic to make.
type Topic struct {
	Name        string
	Partitions  int
	Replication int // -1: the broker's default
}

// source is the part of catalog.Session that setup works with.
type source interface {
	Close(context.Context)
	PID() uint32
	Terminate(context.Context, uint32) error
	Cancel(context.Context, uint32) error
	TryLock(context.Context, string) (bool, error)
	Server(context.Context) (catalog.Server, error)
	Slot(context.Context, string) (catalog.Slot, bool, error)
	Publication(context.Context, string) (catalog.Publication, bool, error)
	MarkedTable(context.Context, catalog.Marking) (catalog.MarkedTable, error)
	MayFollowSlot(ctx context.Context, publication, slot string) (bool, error)
	Table(ctx context.Context, schema, name string) (catalog.Table, bool, error)
	RelationExists(context.Context, uint32) (bool, error)
	Detached(ctx context.Context, systemID, slot string) ([]catalog.Detached, error)
	Identities(context.Context, string, []catalog.TableName) (catalog.Identities, error)
	Exec(context.Context, string) error
	Blockers(context.Context) ([]catalog.Blocker, error)
	CreateSlot(ctx context.Context, name string, failover bool, timeout time.Duration) (pglogrepl.LSN, error)
	DropSlot(context.Context, string) error
	AdvanceSlot(context.Context, string, pglogrepl.LSN) (pglogrepl.LSN, error)
	CopySlot(ctx context.Context, from, to string) (pglogrepl.LSN, error)
	Retained(ctx context.Context, t catalog.TableName, column string) (catalog.Retained, error)
	WrittenLSN(context.Context) (pglogrepl.LSN, error)
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

func (o *Options) validate() error {
	switch {
	case !slotName.MatchString(o.Slot):
		return fault.Stopped("use 1 to 63 lower case letters, digits and underscores", "%q is no name for a slot", o.Slot)
	case o.History != "" && (!slotName.MatchString(o.History) || o.History == o.Slot):
		return fault.Stopped("use 1 to 63 lower case letters, digits and underscores, and not the name of the slot itself",
			"%q is no name for the history slot", o.History)
	case o.Publication == "" || len(o.Publication) > 63:
		return fault.Stopped("use 1 to 63 bytes", "%q is no name for a publication", o.Publication)
	case len(o.Tables) == 0 && o.Messages == "":
		return fault.Stopped("configure one under outbox", "no outbox table is configured")
	}
	return nil
}

// run is one Setup or Adopt: what it was asked and what it has found out.
type run struct {
	Options
	command string // what to run again: setup, adopt, backfill or recover
	// skipReason is that of the gap up to LSN.
	skipReason string
	creator    uint32 // process id of the server that creates the slot
	cfg        *pgx.ConnConfig
	db         source
	server     catalog.Server
	slot       catalog.Slot
	exists     bool // the slot does
	mark       checkpoint.Mark
	marked     bool // there is a mark that is not withdrawn; it may be an intent
	// checked is where the server was before the identities were read.
	checked lsn
	pub     catalog.Publication
	tables  []catalog.Table
}

// begin connects, keeps other runs out, and reads the server, the slot and then
// the mark: in this order, so that an old mark is never seen with a newer slot.
// The caller closes r.db.
func begin(ctx context.Context, o Options) (*run, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	r := &run{Options: o, command: "setup"}
	if r.Now == nil {
		r.Now = time.Now
	}
	if r.SlotTimeout <= 0 {
		r.SlotTimeout = DefaultSlotTimeout
	}
	if r.Out == nil {
		r.Out = io.Discard
	}
	if r.open == nil {
		r.open = func(ctx context.Context, cfg *pgx.ConnConfig, name string) (source, error) {
			return catalog.Open(ctx, cfg, name)
		}
	}
	var err error
	if r.cfg, err = r.Connect(); err != nil {
		return nil, err
	}
	if r.db, err = r.open(ctx, r.cfg, r.ApplicationName); err != nil {
		return nil, catalog.Explain(err)
	}
	r.creator = r.db.PID()
	if err := r.look(ctx); err != nil {
		r.db.Close(ctx)
		return nil, catalog.Explain(err)
	}
	return r, nil
}

func (r *run) look(ctx context.Context) error {
	if err := r.lock(ctx); err != nil {
		return err
	}
	var err error
	if r.server, err = r.db.Server(ctx); err != nil {
		return err
	}
	if err := r.checkServer(); err != nil {
		return err
	}
	if r.slot, r.exists, err = r.db.Slot(ctx, r.Slot); err != nil {
		return err
	}
	if r.mark, r.marked, err = r.Store.Load(ctx, r.server.SystemID, r.Slot); err != nil {
		return elsewhere(err, "the mark of slot %q cannot be loaded", r.Slot)
	}
	// Neither intent nor position: an intent that was withdrawn.
	r.marked = r.marked && (r.mark.Intent || r.mark.LSN != 0)
	// A relay may be running: the server's position must not be older than its mark.
	r.server, err = r.db.Server(ctx)
	return err
}

// lock keeps other runs out, for the life of the session. One that has just ended
// may hold it for a moment longer, until its backend is gone.
func (r *run) lock(ctx context.Context) error {
	for deadline := time.Now().Add(lockTimeout); ; {
		alone, err := r.db.TryLock(ctx, "cdc-relay setup "+r.Slot)
		if err != nil || alone {
			return err
		}
		if time.Now().After(deadline) {
			return fault.Stopped("wait until it ends", "another setup, adopt, backfill or recovery of slot %q is running", r.Slot)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(cleanupPause):
		}
	}
}

// say tells a person about a step.
func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.Out, format+"\n", args...)
}

// save makes m durable, as the next epoch when raise is set.
func (r *run) save(ctx context.Context, m checkpoint.Mark, raise bool) error {
	m.SystemID, m.Slot = r.server.SystemID, r.Slot
	m.Epoch = r.mark.Epoch
	if raise {
		m.Epoch++
	}
	m.Timeline = r.server.Timeline
	m.SavedAt = r.Now().UTC()
	if err := r.Store.Save(ctx, m); err != nil {
		return elsewhere(err, "the mark of slot %q cannot be saved; the next setup or adopt goes on from here", r.Slot)
	}
	r.mark = m
	return nil
}

// elsewhere wraps an error that is not PostgreSQL's, so that it is not explained
// as one.
func elsewhere(err error, format string, args ...any) error {
	return &fault.Error{Class: fault.ClassOf(err), What: fmt.Sprintf(format, args...), Err: err}
}

// applyMigrations is the only step that needs a connection of its own.
func (r *run) applyMigrations(ctx context.Context) error {
	applied, err := migrations.Apply(ctx, r.cfg, r.ApplicationName)
	if err != nil {
		return err
	}
	for _, name := range applied {
		r.say("applied migration %s", name)
	}
	return nil
}
