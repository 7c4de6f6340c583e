package catalog

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
)

// Server is what the server says about itself.
type Server struct {
	VersionNum int           // server_version_num, as 150018
	Version    string        // server_version, for a person
	SystemID   string        // of the cluster, decimal
	Timeline   int32         // that it writes; in recovery, of its last restart point
	Database   string        // connected to
	StartedAt  time.Time     // pg_postmaster_start_time
	InRecovery bool          // a standby
	CurrentLSN pglogrepl.LSN // written; in recovery, replayed
	Encoding   string        // of the database
	WALLevel   string

	SynchronousStandbyNames string
	MaxSlotWALKeepSize      int64         // MB; -1: no limit
	IdleSlotTimeout         time.Duration // zero: off, or a server before 18
	WalSenderTimeout        time.Duration // zero: off

	MaxReplicationSlots, ReplicationSlots int // limit, in use
	MaxWALSenders, WALSenders             int // limit, in use

	Role Role
}

// Role is the role of the session.
type Role struct {
	Name      string
	Superuser bool
	// Replication is true when the role may use replication slots: by attribute,
	// as superuser, or as a member of rds_replication on Amazon RDS.
	Replication bool
	// CreateInDatabase is the privilege that CREATE PUBLICATION needs, beside
	// owning the tables.
	CreateInDatabase bool
	ReadAllStats     bool // sees other sessions in pg_stat_activity
}

const serverQuery = `SELECT
	current_setting('server_version'),
	(SELECT system_identifier::text FROM pg_control_system()),
	CASE WHEN pg_is_in_recovery()
		THEN lpad(to_hex((SELECT timeline_id FROM pg_control_checkpoint())), 8, '0')
		ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,
	current_database()::text,
	pg_postmaster_start_time(),
	pg_is_in_recovery(),
	CASE WHEN pg_is_in_recovery()
		THEN coalesce(pg_last_wal_replay_lsn(), '0/0') ELSE pg_current_wal_lsn() END::text,
	current_setting('server_encoding'),
	current_setting('wal_level'),
	current_setting('synchronous_standby_names'),
	(SELECT setting::int8 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
	coalesce((SELECT setting::int8 * CASE unit WHEN 'min' THEN 60000 WHEN 's' THEN 1000 ELSE 1 END
		FROM pg_settings WHERE name = 'idle_replication_slot_timeout'), 0),
	(SELECT setting::int8 FROM pg_settings WHERE name = 'wal_sender_timeout'),
	current_setting('max_replication_slots')::int,
	(SELECT count(*)::int FROM pg_replication_slots),
	current_setting('max_wal_senders')::int,
	(SELECT count(*)::int FROM pg_stat_replication),
	current_user::text,
	r.rolsuper,
	r.rolsuper OR r.rolreplication OR EXISTS (SELECT FROM pg_roles m
		WHERE m.rolname = 'rds_replication' AND pg_has_role(current_user, m.oid, 'MEMBER')),
	has_database_privilege(current_database(), 'CREATE'),
	pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
FROM pg_roles r WHERE r.rolname = current_user`

// Server reads what the server says about itself.
func (s *Session) Server(ctx context.Context) (Server, error) {
	v := Server{VersionNum: s.version}
	var timeline, lsn string
	var idleMS, senderMS int64
	err := s.conn.QueryRow(ctx, serverQuery).Scan(&v.Version, &v.SystemID, &timeline, &v.Database,
		&v.StartedAt, &v.InRecovery, &lsn, &v.Encoding, &v.WALLevel, &v.SynchronousStandbyNames,
		&v.MaxSlotWALKeepSize, &idleMS, &senderMS,
		&v.MaxReplicationSlots, &v.ReplicationSlots, &v.MaxWALSenders, &v.WALSenders,
		&v.Role.Name, &v.Role.Superuser, &v.Role.Replication, &v.Role.CreateInDatabase, &v.Role.ReadAllStats)
	if err != nil {
		return Server{}, fmt.Errorf("read the server's state: %w", err)
	}
	v.IdleSlotTimeout = time.Duration(idleMS) * time.Millisecond
	v.WalSenderTimeout = time.Duration(senderMS) * time.Millisecond
	tl, err := strconv.ParseUint(timeline, 16, 32)
	if err != nil {
		return Server{}, fmt.Errorf("read the server's timeline %q: %w", timeline, err)
	}
	v.Timeline = int32(tl)
	if v.CurrentLSN, err = pglogrepl.ParseLSN(lsn); err != nil {
		return Server{}, fmt.Errorf("read the server's position %q: %w", lsn, err)
	}
	return v, nil
}
