package relay

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/sink"
)

// HaltReason says why a record holds up its lane, or reading, and what to do, with
// the position by which the event can be given up.
func HaltReason(h sink.Refusal) (reason, fix string) {
	if h.Reason == nil {
		return "", ""
	}
	reason = h.Reason.Error()
	var f *fault.Error
	if errors.As(h.Reason, &f) && f.Fix != "" {
		fix = f.Fix
		reason = strings.Replace(reason, ". To fix it: "+f.Fix, "", 1)
	}
	if f != nil && f.Class == fault.Stop {
		return reason, fix // there is nothing to give up
	}
	if fix == "" {
		fix = "mend the cause, and restart the relay"
	}
	fix += fmt.Sprintf("; or give the event up: stop the relay and run cdc-relay adopt --lsn %s, which skips everything up to there that is not confirmed "+
		"and records the gap; cdc-relay backfill publishes the other rows of it", h.LSN+1)
	return reason, fix
}

// haltText says it in one sentence, with what it endangers.
func haltText(h sink.Refusal) string {
	reason, fix := HaltReason(h)
	var u *undecodableError
	if !errors.As(h.Reason, &u) {
		reason = fmt.Sprintf("a record can never be written as it is: topic %q, id %q, transaction %s, event %d: %s; nothing after it is confirmed",
			h.Topic, h.ID, h.LSN, h.Seq, reason)
	}
	return reason + ". To fix it: " + fix
}
