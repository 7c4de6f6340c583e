// Command cdc-relay-demo shows the relay at work: it starts PostgreSQL, a Kafka
// broker and the relay as a process of its own, inserts orders, and prints each
// event as a consumer sees it, until Ctrl-C. With -page it runs the whole path,
// from an order service to the effects in two workers, and serves a page on which
// one follows single orders and breaks things. It is a command of its own so that
// the service's binary carries no broker.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/live"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // something did not start, or an order did not arrive as it should
	exitUsage  = 2
)

// options of a run.
type options struct {
	Rate     float64       // transactions a second
	Duration time.Duration // 0: until it is told to stop
	Kafka    string        // embedded or real
	Kill     bool          // kill the relay now and then
	Version  string        // major version of PostgreSQL that is preferred
	Relay    string        // the relay's binary; "" : beside this one, else built
	// Given servers are used instead of starting one. With Attach the relay runs
	// elsewhere too: nothing is set up or started.
	Postgres string
	Brokers  string
	Attach   bool
	Page     bool // serve the page instead
	Port     int  // of the page; 0: the default one, or a free one
}

func main() {
	o, code := parse(os.Args[1:])
	if code >= 0 {
		os.Exit(code)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { // lives as long as the process
		<-signals
		cancel()
		<-signals
		os.Exit(exitFailed) // children end with us
	}()
	out := newScreen(os.Stdout, isTerminal(os.Stdout))
	do := func() error { _, err := run(ctx, o, out); return err }
	if o.Page {
		do = func() error { return runPage(ctx, o, out) }
	}
	if err := do(); err != nil {
		out.problem(err)
		os.Exit(exitFailed)
	}
}

// parse reads flags, whose defaults come from the variables that make passes
// on; a code of 0 or more ends the program.
func parse(args []string) (options, int) {
	var o options
	f := flag.NewFlagSet("cdc-relay-demo", flag.ContinueOnError)
	env := environment{}
	f.Float64Var(&o.Rate, "rate", env.number("RATE", 5), "`number` of transactions a second")
	f.DurationVar(&o.Duration, "duration", env.duration("DURATION"), "end by itself after this `time`; 0: at Ctrl-C")
	f.StringVar(&o.Kafka, "kafka", env.text("KAFKA", "embedded"), "`kind` of broker: embedded (kfake, in this process) or real (Apache Kafka; needs Java and, once, Maven)")
	f.BoolVar(&o.Kill, "kill", env.truth("KILL"), "kill the relay every 2 to 6 seconds, to show that nothing is lost")
	f.StringVar(&o.Version, "pg", env.text("PG", ""), "major `version` of PostgreSQL to prefer, of those installed")
	f.StringVar(&o.Relay, "relay", "", "the relay's `binary`; by default the one beside this program, else it is built")
	f.StringVar(&o.Postgres, "postgres", "", "use the database at this `URL` instead of starting a server")
	f.StringVar(&o.Brokers, "brokers", "", "use the Kafka brokers `host:port,...` instead of starting one")
	f.BoolVar(&o.Attach, "attach", false, "the relay runs elsewhere: only insert orders and consume; needs -postgres and -brokers")
	f.BoolVar(&o.Page, "page", false, "serve a page about the whole path, with real Kafka, instead of printing; of the other flags it takes -port, -pg and -relay")
	f.IntVar(&o.Port, "port", env.whole("PORT"), fmt.Sprintf("`port` of the page, on loopback; 0: %d, or a free one where that is taken", live.DefaultPort))
	f.Usage = func() {
		fmt.Fprintf(f.Output(), "Shows cdc-relay at work, from a committed order to a Kafka consumer.\n\nUsage: cdc-relay-demo [flags]\n\n")
		f.PrintDefaults()
		fmt.Fprintf(f.Output(), "\nRATE, DURATION, KAFKA, KILL, PG and PORT in the environment stand for -rate, -duration, -kafka, -kill, -pg and -port.\n")
	}
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return o, exitOK
	case err != nil:
		return o, exitUsage
	}
	problem := env.problem
	switch {
	case problem != "":
	case f.NArg() > 0:
		problem = fmt.Sprintf("what is %q? Only flags are taken", f.Arg(0))
	case o.Rate <= 0 || o.Rate > 5000:
		problem = "-rate must be above 0 and at most 5000"
	case o.Duration < 0:
		problem = "-duration must not be below 0"
	case o.Kafka != "embedded" && o.Kafka != "real":
		problem = fmt.Sprintf("-kafka is %q, and must be embedded or real", o.Kafka)
	case o.Attach && (o.Postgres == "" || o.Brokers == ""):
		problem = "-attach needs -postgres and -brokers"
	case o.Page && (o.Attach || o.Kill || o.Postgres != "" || o.Brokers != "" || o.Duration != 0 || os.Getenv("RATE") != ""):
		problem = "the page has no rate, duration, kills or given servers: these are of the demo in the terminal (make demo-terminal)"
	case o.Port < 0 || o.Port > 65535:
		problem = "-port must be from 0 to 65535"
	case o.Attach && o.Kill:
		problem = "-kill cannot kill a relay that runs elsewhere (-attach)"
	}
	if problem != "" {
		fmt.Fprintln(os.Stderr, "cdc-relay-demo: "+problem)
		return o, exitUsage
	}
	return o, -1
}

// environment reads variables and keeps the first problem.
type environment struct{ problem string }

func (e *environment) text(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

func (e *environment) number(name string, def float64) float64 {
	v := os.Getenv(name)
	if v == "" {
		return def
	}
	n, err := strconv.ParseFloat(v, 64)
	if err != nil {
		e.problem = fmt.Sprintf("%s=%q is not a number", name, v)
	}
	return n
}

func (e *environment) whole(name string) int {
	v := os.Getenv(name)
	if v == "" {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		e.problem = fmt.Sprintf("%s=%q is not a whole number", name, v)
	}
	return n
}

func (e *environment) duration(name string) time.Duration {
	v := os.Getenv(name)
	if v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		e.problem = fmt.Sprintf("%s=%q is not a duration such as 30s", name, v)
	}
	return d
}

func (e *environment) truth(name string) bool {
	switch strings.ToLower(os.Getenv(name)) {
	case "", "0", "no", "false":
		return false
	}
	return true
}
