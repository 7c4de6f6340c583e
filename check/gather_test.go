package check

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/checkpoint"
)

// hung is a cluster that never answers.
type hung struct{}

func (hung) Ping(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (hung) Metadata(ctx context.Context, _ ...string) (map[string]broker.Topic, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (hung) TopicConfig(ctx context.Context, _ string) (map[string]string, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (hung) MayCreate(ctx context.Context, _ broker.TopicSpec) error { <-ctx.Done(); return ctx.Err() }

func TestGather_NeverHangs(t *testing.T) {
	w, _ := good()
	start := time.Now()
	f := Gather(t.Context(), w, Sources{
		Connect:   func() (*pgx.ConnConfig, error) { return pgx.ParseConfig("host=/nonexistent connect_timeout=0") },
		Cluster:   func() (Cluster, error) { return hung{}, nil },
		OpenStore: func(context.Context) (checkpoint.Store, error) { t.Error("asked without a database"); return nil, nil },
		Timeout:   100 * time.Millisecond,
	})
	if f.DatabaseErr == nil || f.BrokersErr == nil || time.Since(start) > 5*time.Second {
		t.Errorf("%v %v %s", f.DatabaseErr, f.BrokersErr, time.Since(start))
	}
}
