package setup

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// dryRun writes the SQL of a whole setup, for a DBA to run, and then what is left
// to the relay. It asks neither the database nor Kafka.
func dryRun(o Options) error {
	if err := o.validate(); err != nil {
		return err
	}
	user, database := "cdc_relay", "DATABASE"
	if o.Connect != nil {
		if cfg, err := o.Connect(); err == nil {
			user, database = cmp.Or(cfg.User, user), cmp.Or(cfg.Database, database)
		}
	}
	var b strings.Builder
	number := 0
	step := func(format string, args ...any) {
		number++
		fmt.Fprintf(&b, "-- %d. "+format+"\n", append([]any{number}, args...)...)
	}
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }

	line("-- Run in database %s, not in one transaction: the slot comes after the", database)
	line("-- publication is committed. Needs wal_level = logical (else: ALTER SYSTEM SET")
	line("-- wal_level = logical; and a restart), and a free entry in max_replication_slots")
	line("-- and max_wal_senders.")
	line("")
	if len(o.Marking) == 0 {
		step("The relay's role. It needs nothing else to run, no SELECT, unless with retention: cdc-relay check tells.")
	} else {
		step("The relay's role, and what it needs to mark published rows.")
	}
	line("-- CREATE ROLE %s LOGIN REPLICATION PASSWORD '...';", catalog.Ident(user))
	line("-- GRANT CONNECT ON DATABASE %s TO %s;", catalog.Ident(database), catalog.Ident(user))
	for _, m := range o.Marking {
		line("-- %s;", m.GrantSQL(user))
	}
	line("-- On Amazon RDS, instead of REPLICATION: GRANT rds_replication TO %s;", catalog.Ident(user))
	line("")
	if o.CreateTable && slices.Contains(o.Tables, DefaultTable) {
		step("The outbox table, where it does not exist. Writers need:")
		line("-- GRANT INSERT ON %s TO ...;", DefaultTable.SQL())
		line("%s", strings.TrimSpace(migrations.SQL()))
		line("")
	}
	step("The publication, before the slot.")
	line("%s;", catalog.CreatePublicationSQL(o.Publication, o.Tables))
	line("")
	step("The slot. This waits for transactions that are open in any database.")
	if o.Failover {
		line("SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot(%s, '%s', failover => true);",
			catalog.Literal(o.Slot), catalog.Plugin)
	} else {
		line("%s;", catalog.CreateSlotSQL(0, o.Slot, false))
	}
	line("")
	if o.History != "" {
		step("The history slot, where that one stands.")
		line("%s;", catalog.CopySlotSQL(o.Slot, o.History))
		line("")
	}
	again := "cdc-relay setup" + o.Flags + " --existing-slot"
	if len(o.Topics) == 0 {
		step("Then `%s` saves the first mark.", again)
	} else {
		step("Then `%s --create-topics` saves the first mark, and makes", again)
		line("-- these topics of Kafka where they do not exist:")
		if o.MarkTopic != "" {
			line("--   %s: 1 partition, cleanup.policy=compact (the marks)", o.MarkTopic)
		}
		for _, t := range o.Topics {
			line("--   %s: %s", t.Name, count(t.Partitions, "partition"))
		}
	}
	if o.Messages != "" {
		line("")
		step("Logical messages with the prefix %q are published. Every role may emit", o.Messages)
		line("-- one, unless a superuser revokes that, in this database. From PostgreSQL 17 on")
		line("-- both functions have a further argument, boolean.")
		line("-- REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text),")
		line("--   pg_catalog.pg_logical_emit_message(boolean, text, bytea) FROM PUBLIC;")
		line("-- GRANT EXECUTE ON FUNCTION ... TO ...;")
	}
	_, err := fmt.Fprint(o.Out, b.String())
	return err
}
