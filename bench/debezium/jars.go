package debezium

import (
	"context"
	_ "embed"

	"github.com/cdc-relay/cdc-relay/bench/maven"
)

// pom names the jars of Kafka Connect and Debezium, pinned.
//
//go:embed pom.xml
var pom []byte

// ErrNotAvailable says that what Debezium needs, its jars or Java, is not here and could not be fetched.
var ErrNotAvailable = maven.ErrNotAvailable

// Ensure is the directory of the jars of Kafka Connect and Debezium. It runs Maven when they are missing, one process at a time;
// the error matches ErrNotAvailable when that is not possible.
func Ensure(ctx context.Context) (string, error) { return maven.Dir(ctx, "debezium", pom) }
