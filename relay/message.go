package relay

import (
	"context"

	"github.com/jackc/pglogrepl"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/sink"
)

// message publishes a logical message as insert does a row, and takes its place
// in the same order. One with another prefix is as if it were not there: it
// counts in no ordinal, and a transaction with nothing else is an empty one.
func (s *session) message(ctx context.Context, tx *transaction, m decoder.LogicalMessage, rec *sink.Record) error {
	if s.messages == nil || !s.messages.Matches(m.Prefix) {
		return nil
	}
	if !m.Transactional {
		s.r.ignoreMessage(m.LSN)
		return nil
	}
	if !tx.open {
		return fault.Stopped("report this with the server's version", "a transactional message came outside of a transaction after %s", s.receivedLSN())
	}
	seq := tx.seq
	tx.seq++
	s.r.messages.Add(1)
	if err := s.messages.Route(tx.Tx, seq, m, rec); err != nil {
		return s.unroutable(ctx, rec, err)
	}
	return s.publish(ctx, tx, rec, nil)
}

// messagePrefix is that of the messages to ask for; "" for none.
func (r *Relay) messagePrefix() string {
	if r.cfg.Messages == nil {
		return ""
	}
	return r.cfg.Messages.Prefix
}

// ignoreMessage counts a message that is not transactional: it is in the WAL at
// once, whatever becomes of its transaction, so that it may tell of what was
// rolled back. It warns of the first one.
func (r *Relay) ignoreMessage(lsn pglogrepl.LSN) {
	if r.ignoredMessages.Add(1) == 1 {
		r.log.Warn("a logical message is not transactional and is not published, nor are others like it: they survive a rollback; "+
			"emit them with pg_logical_emit_message(true, ...)", zap.Stringer("lsn", lsn), zap.String("prefix", r.messagePrefix()))
	}
}
