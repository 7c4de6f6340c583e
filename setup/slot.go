package setup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
)

type lsn = pglogrepl.LSN

const (
	queryCanceled   = "57014"
	duplicateObject = "42710"
	slotsInUse      = "53400"

	// cleanupTimeout bounds looking after a slot whose creation was given up.
	cleanupTimeout = 10 * time.Second
	cleanupPause   = 50 * time.Millisecond
)

// slotFailed says why the slot could not be created. Where it is certain that
// this run left no slot behind, the intent is withdrawn, so that a slot that
// somebody makes later is not taken for ours.
func (r *run) slotFailed(ctx context.Context, cause error) error {
	if ctx.Err() != nil {
		return r.abandoned(ctx, cause)
	}
	switch catalog.SQLState(cause) {
	case duplicateObject:
		return errors.Join(fault.Stopped("run "+r.command+" again to see what it is",
			"slot %q was made by somebody else during %s", r.Slot, r.command), r.withdraw(ctx))
	case insufficientPrivilege:
		return errors.Join(r.lacks(cause, "create a replication slot", "ALTER ROLE "+r.role()+" REPLICATION"), r.withdraw(ctx))
	case slotsInUse:
		return errors.Join(&fault.Error{Class: fault.Stop, What: "all replication slots are in use", Err: cause,
			Fix: "raise max_replication_slots and restart the server, or drop a slot that is not used"}, r.withdraw(ctx))
	case queryCanceled:
		return r.blocked(ctx, cause)
	default:
		// The server may have made it: the intent stays, the next run of it goes on.
		return fmt.Errorf("create slot %q (%s goes on from here when it is run again, or says what to do): %w", r.Slot, r.command, cause)
	}
}

// withdraw takes the intent back: a mark with neither intent nor position, or, of a
// recovery, the one from before.
func (r *run) withdraw(ctx context.Context) error {
	if r.mark.Recovering() {
		return r.restore(ctx)
	}
	return r.save(ctx, checkpoint.Mark{}, true)
}

// blocked names who holds up the creation of the slot.
func (r *run) blocked(ctx context.Context, cause error) error {
	who, err := r.blockers(ctx)
	if err != nil {
		return err
	}
	if left, err := r.awaitNoSlot(ctx, r.db); err != nil {
		return err
	} else if left {
		return fault.Stopped("run "+r.command+" again, which goes on from there or says what to do", "the creation of slot %q was given up after %s, but the slot is there", r.Slot, r.SlotTimeout)
	}
	if err := r.withdraw(ctx); err != nil {
		return err
	}
	return r.blockedBy(r.Slot, who, cause)
}

func (r *run) blockedBy(slot, who string, cause error) error {
	return &fault.Error{
		Class: fault.Stop,
		What: fmt.Sprintf("slot %q was not created within %s, since that has to wait for transactions that are open in any database%s",
			slot, r.SlotTimeout, who),
		Fix: "end them (commit, roll back, COMMIT PREPARED, or SELECT pg_terminate_backend(pid)) and run " + r.command + " again; no slot was left behind",
		Err: cause,
	}
}

// blockers names the transactions that are open, behind a colon.
func (r *run) blockers(ctx context.Context) (string, error) {
	blockers, err := r.db.Blockers(ctx)
	if err != nil {
		return "", err
	}
	names := make([]string, len(blockers))
	for i, b := range blockers {
		names[i] = b.String()
	}
	if len(names) == 0 {
		return "; they have ended meanwhile", nil
	}
	return ": " + strings.Join(names, "; "), nil
}

// abandoned looks after a creation that was interrupted: the server would go on
// waiting, and make the slot, after the client has gone.
func (r *run) abandoned(ctx context.Context, cause error) error {
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	db, err := r.open(cctx, r.cfg, r.ApplicationName)
	if err != nil {
		return cause // the intent stays
	}
	defer db.Close(cctx)
	if s, ok, err := db.Slot(cctx, r.Slot); err == nil && ok && s.Active && uint32(s.ActivePID) == r.creator {
		if err := db.Terminate(cctx, r.creator); err != nil {
			return errors.Join(cause, err)
		}
	}
	if left, err := r.awaitNoSlot(cctx, db); err != nil || left {
		return errors.Join(fmt.Errorf("slot %q may be there (%s goes on from there when it is run again, or says what to do): %w", r.Slot, r.command, cause), err)
	}
	return errors.Join(cause, r.withdraw(cctx))
}

// awaitNoSlot waits a moment for the server to remove a slot whose creation was
// given up; true when one is there that was made completely.
func (r *run) awaitNoSlot(ctx context.Context, db source) (bool, error) {
	for deadline := time.Now().Add(cleanupTimeout / 2); ; {
		s, ok, err := db.Slot(ctx, r.Slot)
		if err != nil || !ok {
			return false, err
		}
		if (s.Confirmed != 0 && !s.Active) || time.Now().After(deadline) {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-time.After(cleanupPause):
		}
	}
}
