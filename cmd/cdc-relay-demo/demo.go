package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

const (
	patience    = 60 * time.Second // for a given server to answer
	drainTime   = 60 * time.Second // for what was committed to arrive
	statusEvery = 10 * time.Second
	settle      = 300 * time.Millisecond // for copies that arrive last
)

// demo is what runs; close ends it in the reverse order.
type demo struct {
	options
	out      *screen
	tally    *tally
	source   *source
	broker   *broker
	relay    *relayProc // nil with Attach
	consumer *consumer
	closers  []func()
	began    time.Time
}

// run is the whole demo. The error says what did not work and what to do; the
// counts are of what was seen until then.
func run(ctx context.Context, o options, out *screen) (counts, error) {
	d := &demo{options: o, out: out, tally: newTally(), began: time.Now()}
	defer d.close()
	out.title("cdc-relay demo: from a committed order to a Kafka consumer")
	if err := d.start(ctx); err != nil {
		if ctx.Err() != nil {
			err = errors.New("it was told to stop before everything had started")
		}
		return d.tally.snapshot(), err
	}
	d.showAround()
	return d.work(ctx)
}

func (d *demo) close() {
	for i := len(d.closers) - 1; i >= 0; i-- {
		d.closers[i]()
	}
}

func (d *demo) onClose(f func()) { d.closers = append(d.closers, f) }

// start brings up everything in order, and leaves the relay ready.
func (d *demo) start(ctx context.Context) error {
	var dir string
	return d.steps(ctx,
		step{"", func(context.Context) (_ string, err error) {
			if d.Attach {
				return "", nil // nothing to write
			}
			dir, err = proc.TempDir("demo")
			d.onClose(func() { removeUnlessKept(dir) })
			return "", err
		}},
		step{"PostgreSQL", d.startSource},
		step{"Kafka", d.startBroker},
		step{"relay", func(ctx context.Context) (string, error) { return d.startRelay(ctx, dir) }},
		step{"", d.startConsumer},
	)
}

// step is one thing to start; its text is shown when it has a name.
type step struct {
	name string
	do   func(context.Context) (string, error)
}

func (d *demo) steps(ctx context.Context, steps ...step) error {
	for _, s := range steps {
		began := time.Now()
		if s.name != "" {
			d.out.print("  %s", d.out.style(dim, "starting "+s.name+" ..."))
		}
		text, err := s.do(ctx)
		if err != nil {
			return err
		}
		if s.name != "" {
			d.out.part(s.name, text, time.Since(began))
		}
	}
	return nil
}

func (d *demo) startSource(ctx context.Context) (string, error) {
	var err error
	if d.Postgres != "" {
		d.source, err = givenPostgres(ctx, d.Postgres, patience)
	} else {
		d.source, err = startPostgres(ctx, d.Version)
	}
	if err != nil {
		return "", err
	}
	d.onClose(d.source.close)
	return d.source.about, d.source.createOrders(ctx)
}

func (d *demo) startBroker(ctx context.Context) (string, error) {
	var err error
	if d.broker, err = startBroker(ctx, d.options); err != nil {
		return "", err
	}
	d.onClose(d.broker.close)
	return d.broker.about, nil
}

func (d *demo) startRelay(ctx context.Context, dir string) (string, error) {
	if d.Attach {
		return "runs elsewhere", d.source.awaitOutbox(ctx, patience)
	}
	bin, err := findRelay(ctx, d.Relay, dir)
	if err != nil {
		return "", err
	}
	port, err := proc.FreePort()
	if err != nil {
		return "", err
	}
	r := &relayProc{
		bin: bin, config: inDir(dir, "relay.yaml"), log: inDir(dir, "relay.log"), out: d.out,
		listen: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
	}
	replication := 1
	if d.Brokers != "" {
		replication = -1
	}
	if err := r.writeConfig(d.source.relay, d.broker.addrs, replication); err != nil {
		return "", fmt.Errorf("write the relay's configuration: %w", err)
	}
	if _, err := r.setup(ctx, d.source.admin); err != nil {
		return "", err
	}
	if err := r.start(); err != nil {
		return "", err
	}
	d.relay = r
	d.onClose(func() { r.current().KillTree() })
	return fmt.Sprintf("%s, log %s", r.listen, r.log), r.awaitReady(ctx)
}

func (d *demo) startConsumer(context.Context) (string, error) {
	var since time.Time
	if d.Brokers != "" {
		since = d.began.Add(-time.Second) // the topic may hold older events
	}
	var err error
	if d.consumer, err = newConsumer(d.broker.addrs, since, d.tally, d.out); err == nil {
		d.onClose(d.consumer.close)
	}
	return "", err
}

// showAround prints what a new user may want to look at.
func (d *demo) showAround() {
	if d.relay != nil {
		d.out.hints("Look around from another terminal:",
			fmt.Sprintf("psql '%s' -c 'SELECT * FROM outbox ORDER BY created_at DESC LIMIT 5'", d.source.admin),
			fmt.Sprintf("psql '%s' -c 'SELECT slot_name, active, confirmed_flush_lsn FROM pg_replication_slots'", d.source.admin),
			fmt.Sprintf("curl -s http://%s/readyz", d.relay.listen),
			fmt.Sprintf("curl -s http://%s/metrics | grep ^cdc_relay", d.relay.listen),
			fmt.Sprintf("%s status --config %s", d.relay.bin, d.relay.config),
			fmt.Sprintf("kill -9 %d    # the relay; it is started again, and nothing is lost", d.relay.current().Pid()),
		)
	}
	end := "Ctrl-C ends."
	if d.Duration > 0 {
		end = fmt.Sprintf("It ends after %s, or at Ctrl-C.", d.Duration)
	}
	d.out.print("\nOrders are written to the database, %v transactions a second. Each line is an event as a Kafka consumer\nsees it; the latency is from sending COMMIT. %s\n", d.Rate, end)
	d.out.header()
}

// work writes orders and consumes until it is told to stop, then lets everything
// arrive, stops the relay, and sums up.
func (d *demo) work(ctx context.Context) (counts, error) {
	if d.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.Duration)
		defer cancel()
	}
	cctx, endConsumer := context.WithCancel(context.WithoutCancel(ctx))
	defer endConsumer()
	octx, endOrders := context.WithCancel(ctx)
	defer endOrders()
	var consuming, ordering sync.WaitGroup
	consuming.Go(func() { d.consumer.run(cctx) })
	shop := &shop{url: d.source.admin, rate: d.Rate, tally: d.tally, out: d.out}
	ordering.Go(func() { shop.run(octx) })
	failed := make(chan error, 1)
	if d.relay != nil {
		consuming.Go(func() {
			if err := d.relay.supervise(cctx); err != nil {
				failed <- err
			}
		})
	}

	err := d.watch(octx, failed)
	endOrders()
	ordering.Wait()
	if err == nil {
		err = d.drain(cctx, failed)
	}
	exit := -1
	if d.relay != nil && err == nil {
		exit, err = d.relay.stop()
	}
	time.Sleep(settle)
	endConsumer()
	consuming.Wait()
	c := d.tally.snapshot()
	if err == nil {
		err = d.judge(c)
	}
	d.summary(c, exit)
	return c, err
}

// watch shows the status now and then, kills the relay if that is wanted, and
// returns when ctx ends or something failed.
func (d *demo) watch(ctx context.Context, failed <-chan error) error {
	status := time.NewTicker(statusEvery)
	defer status.Stop()
	kill := time.NewTimer(killPause())
	defer kill.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-d.source.done():
			return errors.New("PostgreSQL has ended, though nobody told it to")
		case <-status.C:
			d.out.status(d.tally.snapshot())
		case <-kill.C:
			if d.Kill {
				d.relay.kill()
			}
			kill.Reset(killPause())
		}
	}
}

func killPause() time.Duration { return 2*time.Second + rand.N(4*time.Second) }

// drain waits until everything that was committed has arrived.
func (d *demo) drain(ctx context.Context, failed <-chan error) error {
	d.out.note("stopping: waiting for what was committed to arrive")
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for d.tally.snapshot().Waiting > 0 {
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("%d committed events have not arrived after %s; see the relay's log", d.tally.snapshot().Waiting, drainTime)
		case <-look.C:
		}
	}
	if d.relay != nil {
		return d.relay.awaitReady(ctx) // it may just have been killed
	}
	return nil
}

// judge tells what was wrong, or nil.
func (d *demo) judge(c counts) error {
	kills := 0
	if d.relay != nil {
		kills = d.relay.kills
	}
	switch {
	case !c.ok():
		return fmt.Errorf("%d events are missing, %d came out of order, %d were of a transaction that was rolled back",
			c.Waiting, c.OutOfOrder, c.Uncommitted)
	case c.Duplicates > 0 && kills == 0 && !d.Attach:
		return fmt.Errorf("%d events came twice, though the relay was never killed", c.Duplicates)
	case d.Duration > 0 && c.Arrived == 0:
		return errors.New("no event arrived in that time; is it too short, or -rate too low?")
	}
	return nil
}

func (d *demo) summary(c counts, exit int) {
	took := time.Since(d.began).Round(100 * time.Millisecond)
	d.out.print("\n%s", d.out.style(bold, fmt.Sprintf("Summary, after %s", took)))
	d.out.print("  orders    %d placed; %d transactions committed, %d rolled back on purpose, %d failed", c.Orders, c.Committed, c.RolledBack, c.Failed)
	d.out.print("  events    %d of %d arrived; %d duplicates, %d out of order, %d of a rolled back transaction",
		c.Arrived, c.Arrived+c.Waiting, c.Duplicates, c.OutOfOrder, c.Uncommitted)
	if c.Foreign > 0 {
		d.out.print("            %d more that were not from this demo", c.Foreign)
	}
	d.out.print("  latency   p50 %s, p99 %s, longest %s (from sending COMMIT to the consumer)", millis(c.P50), millis(c.P99), millis(c.Max))
	if d.relay != nil && exit >= 0 {
		d.out.print("  relay     killed %s; stopped cleanly at last, exit code %d", times(d.relay.kills), exit)
	}
}

// times is how often something happened.
func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// removeUnlessKept removes the demo's directory, unless it is wanted for a look.
func removeUnlessKept(dir string) {
	if os.Getenv("CDC_RELAY_TEST_KEEP") == "" {
		_ = os.RemoveAll(dir)
	}
}
