package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// postgresRunner kills the postmaster with all its children, as a crash of the machine does.
type postgresRunner struct{ *pgserver.Server }

func (r postgresRunner) start(ctx context.Context) error { return r.Start(ctx) }
func (r postgresRunner) kill()                           { r.Kill9() }
func (r postgresRunner) pid() int                        { return r.Pid() }
func (r postgresRunner) done() <-chan struct{}           { return r.Done() }
func (r postgresRunner) log() string                     { return fileTail(r.LogPath()) }

type kafkaRunner struct {
	*kafkaserver.Broker
	s *Stage
}

// start has the workers join again at once: the broker still counts on the members that they were before its death.
func (r kafkaRunner) start(ctx context.Context) error {
	if err := r.Start(ctx); err != nil {
		return err
	}
	return errors.Join(r.s.expel(ctx, BillGroup), r.s.expel(ctx, MailGroup))
}

func (r kafkaRunner) kill()                 { r.Kill9() }
func (r kafkaRunner) pid() int              { return r.Pid() }
func (r kafkaRunner) done() <-chan struct{} { return r.Done() }
func (r kafkaRunner) log() string           { return fileTail(r.LogPath()) }

// createTables makes the tables of the example.
func (s *Stage) createTables(ctx context.Context) error {
	root, err := proc.ModuleRoot()
	if err != nil {
		return fmt.Errorf("find examples/orders/schema.sql: %w", err)
	}
	schema, err := os.ReadFile(filepath.Join(root, "examples", "orders", "schema.sql"))
	if err != nil {
		return err
	}
	if _, err := s.DB.Exec(ctx, string(schema)); err != nil {
		return fmt.Errorf("create the tables of the example: %w", err)
	}
	return nil
}

// awaitMembers waits until the group has handed out its partitions.
func (s *Stage) awaitMembers(ctx context.Context, group string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return Eventually(ctx, "the group "+group+" has members", func(ctx context.Context) (bool, error) {
		described, err := s.Admin.DescribeGroups(ctx, group)
		return described[group].State == "Stable" && len(described[group].Members) > 0, err
	})
}

// expel removes all members of a group; one whose process lives joins again. The broker would do so by itself with the dead
// ones when their session ends, 30 s after they were heard of last, and lets no new member have partitions before.
func (s *Stage) expel(ctx context.Context, group string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var described kadm.DescribedGroups
	err := Eventually(ctx, "Kafka knows the group "+group, func(ctx context.Context) (ok bool, err error) {
		described, err = s.Admin.DescribeGroups(ctx, group) // a broker that was just started does not know yet
		return err == nil, err
	})
	if err != nil {
		return err
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = group
	for _, m := range described[group].Members {
		member := kmsg.NewLeaveGroupRequestMember()
		member.MemberID = m.MemberID
		req.Members = append(req.Members, member)
	}
	if len(req.Members) == 0 {
		return nil
	}
	if _, err := req.RequestWith(ctx, s.Client); err != nil {
		return fmt.Errorf("remove the members from the group %s: %w", group, err)
	}
	return nil
}

// KafkaVersion is the broker's.
func (s *Stage) KafkaVersion() (string, error) { return s.kafka.Version() }
