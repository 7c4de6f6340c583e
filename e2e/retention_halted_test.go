package e2e_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// TestE2E_RetentionHalted: a relay that is halted at what the server cannot decode
// makes partitions all the same, without which rows of the application are refused.
func TestE2E_RetentionHalted(t *testing.T) {
	r := newRig(t, rigOptions{noTable: true})
	r.pg.Exec(t, partitionedOutbox...)
	r.relayYAML, r.sourceYAML = partitionsYAML, "  publication: pub\n"
	r.pg.Exec(t, "SELECT pg_create_logical_replication_slot('"+r.slot+"', 'pgoutput')",
		"INSERT INTO outbox (id, created_at) VALUES ('doubt', date_trunc('hour', now()) - interval '30 minutes')",
		"CREATE PUBLICATION pub FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)")
	r.setup(t, "--existing-slot")
	const partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass"
	before := r.pg.Query(t, partitions)
	relay := r.start(t)
	defer relay.Kill()
	relay.WaitNotReady(t, 30*time.Second, "did not exist at this point of the WAL")
	made := false
	for end := time.Now().Add(10 * time.Second); !made && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		made = r.pg.Query(t, partitions) != before
	}
	_, body := relay.Ready()
	ok := made && relay.Alive() && strings.Contains(body, `"halted"`)
	e2e.Result(t, "retention_halted", ok, "made", made)
}
