// Package stage runs the whole path as real processes that a program can hold at an arrow, kill with SIGKILL and start
// again: PostgreSQL, Apache Kafka, the relay, and the roles of examples/orders.
//
//	s, err := stage.Start(ctx, stage.Options{})
//	if err != nil { ... }
//	defer s.Close()
//
//	h := s.Bill.Hold(stage.BeforeCommit)
//	... POST s.OrdersURL + "/orders"
//	<-h.Reached()            // the billing worker stands in front of its COMMIT
//	s.Bill.Kill()            // SIGKILL; the COMMIT that was held is dropped with it
//	h.Release()
//	err = s.Bill.Start(ctx)  // the event comes again
//
// Every process reaches PostgreSQL and Kafka through proxies of its own, so that a hold of one touches no other. Nothing is
// started again behind the caller's back. All of it dies with this process, and leaves nothing.
package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/netproxy"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// Names on the stage.
const (
	Database    = "shop"
	Slot        = "cdc_relay"
	Topic       = "outbox.event.order" // of the events of orders
	BillGroup   = "billing"            // consumer group, and consumer in the inbox
	MailGroup   = "mail"
	BillLetters = "billing.dead" // dead-letter topics; used with Options.DeadLetters
	MailLetters = "mail.dead"
)

const startTimeout = time.Minute // of one process

// Options says what to start. The zero value is the newest PostgreSQL that is installed, binaries that are built from the
// sources around, one partition, and workers that block at a record which fails.
type Options struct {
	PostgresVersion string // major version
	RelayBinary     string // of cmd/cdc-relay
	OrdersBinary    string // of examples/orders
	Partitions      int    // of Topic; 0: 1
	// DeadLetters gives each worker a dead-letter topic, for records that fail Attempts times (0: 3).
	DeadLetters bool
	Attempts    int
	// Progress, where set, is told what is being started.
	Progress func(what string)
}

// Stage is the running path.
type Stage struct {
	Postgres, Kafka, Relay, Serve, Bill, Mail, Provider *Process

	// OrdersURL is where clients place orders: POST /orders, through a proxy that can hold the answer.
	OrdersURL string
	// MailURL is the provider's own address: GET /mails.
	MailURL string
	// DB reaches the database directly, as superuser.
	DB *pgxpool.Pool
	// Client and Admin reach Kafka directly.
	Client *kgo.Client
	Admin  *kadm.Client

	opts  Options
	dir   string
	pg    *pgserver.Server
	kafka *kafkaserver.Broker
	close []func()

	providerProxy *netproxy.Proxy      // between mail and provider
	guestProxy    *netproxy.KafkaProxy // between guests and Kafka
}

// Start starts everything, with `cdc-relay setup` and the tables of the example, and returns when all of it answers.
func Start(ctx context.Context, opts Options) (*Stage, error) {
	if opts.Partitions == 0 {
		opts.Partitions = 1
	}
	if opts.Attempts == 0 && opts.DeadLetters {
		opts.Attempts = 3
	}
	if opts.Progress == nil {
		opts.Progress = func(string) {}
	}
	s := &Stage{opts: opts}
	if err := s.start(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Stage) start(ctx context.Context) (err error) {
	if s.dir, err = proc.TempDir("stage"); err != nil {
		return err
	}
	s.onClose(func() { _ = os.RemoveAll(s.dir) })
	if err := s.build(ctx); err != nil {
		return err
	}
	s.opts.Progress("starting PostgreSQL and Kafka")
	servers := make(chan error, 1)
	go func() { servers <- s.startPostgres(ctx) }() // received from below
	proxies, err := s.startKafka(ctx)
	if err = errors.Join(err, <-servers); err != nil {
		return err
	}
	s.opts.Progress("starting the relay, the order service and the workers")
	return s.startPath(ctx, proxies)
}

// onClose adds what Close does, last first.
func (s *Stage) onClose(f func()) { s.close = append(s.close, f) }

// Close kills all processes and removes what they wrote. Closing twice is safe.
func (s *Stage) Close() {
	for len(s.close) > 0 {
		last := len(s.close) - 1
		f := s.close[last]
		s.close = s.close[:last]
		f()
	}
}

// Processes lists them, in the order of the path.
func (s *Stage) Processes() []*Process {
	return []*Process{s.Serve, s.Postgres, s.Relay, s.Kafka, s.Bill, s.Mail, s.Provider}
}

// DSN is the superuser's URL of the database, direct.
func (s *Stage) DSN() string { return s.pg.DSN(Database) }

// KafkaAddr is the broker's own host:port, direct.
func (s *Stage) KafkaAddr() string { return s.kafka.Addr() }

func (s *Stage) build(ctx context.Context) error {
	for _, b := range []struct {
		path *string
		pkg  string
	}{{&s.opts.RelayBinary, "./cmd/cdc-relay"}, {&s.opts.OrdersBinary, "./examples/orders"}} {
		if *b.path != "" {
			abs, err := filepath.Abs(*b.path)
			if err != nil {
				return err
			}
			*b.path = abs
			continue
		}
		s.opts.Progress("building " + b.pkg)
		root, err := proc.ModuleRoot()
		if err != nil {
			return fmt.Errorf("there is no source to build %s from: %w", b.pkg, err)
		}
		*b.path = filepath.Join(s.dir, filepath.Base(b.pkg))
		cmd := exec.CommandContext(ctx, "go", "build", "-o", *b.path, b.pkg)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w:\n%s", b.pkg, err, out)
		}
	}
	return nil
}

func (s *Stage) startPostgres(ctx context.Context) (err error) {
	version := s.opts.PostgresVersion
	if version == "" {
		if version, err = newestPostgres(); err != nil {
			return err
		}
	}
	s.pg, err = pgserver.Start(ctx, pgserver.Options{Version: version, Settings: map[string]string{"fsync": "on"}})
	if err != nil {
		return err
	}
	s.Postgres = &Process{Name: "postgres", starts: 1, run: postgresRunner{s.pg}}
	s.onClose(func() { _ = s.pg.Close() })
	if err := s.pg.CreateDatabase(ctx, Database, ""); err != nil {
		return err
	}
	if s.DB, err = pgxpool.New(ctx, s.pg.DSN(Database)); err != nil {
		return err
	}
	s.onClose(s.DB.Close)
	return nil
}

func newestPostgres() (string, error) {
	for version := 19; version >= 15; version-- {
		v := strconv.Itoa(version)
		_, err := pgserver.FindBinaries(v)
		if err == nil {
			return v, nil
		}
		if !errors.Is(err, pgserver.ErrNoBinaries) {
			return "", err
		}
	}
	return "", errors.New("PostgreSQL is not installed (15 or newer); Debian: sudo apt-get install postgresql")
}

// kafkaProxies are those of the processes that speak to Kafka.
type kafkaProxies struct{ relay, bill, mail, guest *netproxy.KafkaProxy }

func (s *Stage) startKafka(ctx context.Context) (proxies kafkaProxies, err error) {
	var listeners []kafkaserver.Listener
	byName := map[string]*netproxy.KafkaProxy{}
	for name, p := range map[string]**netproxy.KafkaProxy{"RELAY": &proxies.relay, "BILL": &proxies.bill, "MAIL": &proxies.mail, "GUEST": &proxies.guest} {
		if *p, err = netproxy.NewKafka(); err != nil {
			return proxies, err
		}
		byName[name] = *p
		listeners = append(listeners, kafkaserver.Listener{Name: name, Protocol: "PLAINTEXT", Advertised: (*p).Addr()})
	}
	s.kafka, err = kafkaserver.Start(ctx, kafkaserver.Options{Listeners: listeners})
	if err != nil {
		return proxies, err
	}
	s.Kafka = &Process{Name: "kafka", starts: 1, run: kafkaRunner{s.kafka, s}}
	s.onClose(func() { _ = s.kafka.Close() })
	for name, p := range byName {
		p.SetTarget(s.kafka.ListenerAddr(name))
		s.onClose(p.Close)
	}
	if s.Client, err = kgo.NewClient(kgo.SeedBrokers(s.kafka.Addr()), kgo.MetadataMinAge(50*time.Millisecond)); err != nil {
		return proxies, err
	}
	s.Admin = kadm.NewClient(s.Client)
	s.onClose(s.Client.Close)
	s.guestProxy = proxies.guest
	return proxies, nil
}
