// Command cdc-relay publishes the committed rows of a transactional outbox in
// PostgreSQL to Apache Kafka.
package main

import (
	"io"
	"os"
	"time"
)

func main() {
	a := &app{
		signalEcho: signalEcho,
		env:        os.Environ(), in: os.Stdin, out: os.Stdout, err: os.Stderr, exit: os.Exit,
	}
	os.Exit(a.main(os.Args[1:]))
}

// app is what the commands use of the process, so that tests can stand in.
type app struct {
	env  []string
	in   io.Reader
	out  io.Writer
	err  io.Writer
	exit func(code int) // leaves at once; for a second signal
	// signalEcho: a signal that comes this soon after the first is the same.
	signalEcho time.Duration
}
