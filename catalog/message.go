package catalog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// MessageEmitters tells who may call pg_logical_emit_message in the session's
// database.
type MessageEmitters struct {
	Public bool     // every role
	Revoke []string // the statements that would change that; a superuser's
}

// MessageEmitters reads the privileges of pg_logical_emit_message, which are those
// of its database.
func (s *Session) MessageEmitters(ctx context.Context) (MessageEmitters, error) {
	rows, err := s.conn.Query(ctx, `SELECT format('REVOKE EXECUTE ON FUNCTION pg_catalog.%s(%s) FROM PUBLIC',
			p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid))
		FROM pg_catalog.pg_proc p
		WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = 'pg_logical_emit_message'
			AND has_function_privilege('public', p.oid, 'EXECUTE')
		ORDER BY 1`)
	if err != nil {
		return MessageEmitters{}, fmt.Errorf("read who may emit logical messages: %w", err)
	}
	e := MessageEmitters{}
	if e.Revoke, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return MessageEmitters{}, fmt.Errorf("read who may emit logical messages: %w", err)
	}
	e.Public = len(e.Revoke) > 0
	return e, nil
}
