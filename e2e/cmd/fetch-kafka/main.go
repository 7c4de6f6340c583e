// Command fetch-kafka fetches the jars of Apache Kafka into the cache, so that no test has to wait for them.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := kafkaserver.Prepare(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
