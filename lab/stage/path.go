package stage

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/e2e/netproxy"
)

func (s *Stage) startPath(ctx context.Context, kp kafkaProxies) error {
	if err := s.createTables(ctx); err != nil {
		return err
	}
	for _, add := range []func(context.Context, kafkaProxies) error{s.addRelay, s.addServe, s.addProvider, s.addWorkers} {
		if err := add(ctx, kp); err != nil {
			return err
		}
	}
	for _, p := range []*Process{s.Relay, s.Provider, s.Serve, s.Bill, s.Mail} {
		if err := p.Start(ctx); err != nil {
			return err
		}
	}
	for _, group := range []string{BillGroup, MailGroup} {
		if err := s.awaitMembers(ctx, group); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stage) addRelay(ctx context.Context, kp kafkaProxies) error {
	pg, dsn, err := s.postgresProxy()
	if err != nil {
		return err
	}
	listen, err := freeAddr()
	if err != nil {
		return err
	}
	config := filepath.Join(s.dir, "cdc-relay.yaml")
	text := fmt.Sprintf(`source:
  url: %q
  status_interval: 100ms
kafka:
  brokers: [%q]
  retry_max: 200ms
  topics: {names: [%s], partitions: %d, replication: 1}
checkpoint:
  replication: 1
admin:
  listen: %q
`, dsn, kp.relay.Addr(), Topic, s.opts.Partitions, listen)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	setup := exec.CommandContext(ctx, s.opts.RelayBinary, "setup", "--config", config, "--create-topics")
	setup.Env = cleanEnv()
	if out, err := setup.CombinedOutput(); err != nil {
		return fmt.Errorf("cdc-relay setup: %w:\n%s", err, out)
	}
	c := &child{path: s.opts.RelayBinary, args: []string{"run", "--config", config}, env: cleanEnv(), dir: s.dir,
		ready: answers("http://" + listen + "/readyz")}
	s.Relay = s.process("relay", c, pg, kp.relay)
	s.Relay.points = map[Point]func() *Hold{
		BeforeProduce: func() *Hold { return kp.relay.HoldRequests(netproxy.KeyProduce, Topic) },
		ProduceAnswer: func() *Hold { return kp.relay.HoldAnswers(netproxy.KeyProduce, Topic) },
		Confirm:       pg.HoldConfirms,
	}
	return nil
}

func (s *Stage) addServe(_ context.Context, _ kafkaProxies) error {
	pg, dsn, err := s.postgresProxy()
	if err != nil {
		return err
	}
	c, proxy, _, err := s.httpChild("serve", "/healthz", "DATABASE_URL="+dsn)
	if err != nil {
		return err
	}
	s.OrdersURL = "http://" + proxy.Addr()
	s.Serve = s.process("serve", c, pg, proxy)
	s.Serve.points = map[Point]func() *Hold{
		BeforeCommit: pg.HoldCommits,
		CommitAnswer: pg.HoldCommitAnswers,
		HTTPAnswer:   proxy.HoldAnswers,
	}
	return nil
}

func (s *Stage) addProvider(_ context.Context, _ kafkaProxies) error {
	c, proxy, url, err := s.httpChild("provider", "/mails")
	if err != nil {
		return err
	}
	s.MailURL = url
	s.Provider = s.process("provider", c, proxy)
	s.providerProxy = proxy
	return nil
}

// httpChild is a role that serves HTTP, with a raw proxy in front.
func (s *Stage) httpChild(role, health string, env ...string) (*child, *netproxy.Proxy, string, error) {
	listen, err := freeAddr()
	if err != nil {
		return nil, nil, "", err
	}
	proxy, err := netproxy.New()
	if err != nil {
		return nil, nil, "", err
	}
	s.onClose(proxy.Close)
	proxy.SetTarget(listen)
	c := s.orders(role, append(env, "LISTEN="+listen)...)
	c.ready = answers("http://" + listen + health)
	return c, proxy, "http://" + listen, nil
}

func (s *Stage) addWorkers(ctx context.Context, kp kafkaProxies) error {
	for _, w := range []struct {
		process              **Process
		role, group, letters string
		kafka                *netproxy.KafkaProxy
	}{
		{&s.Bill, "bill", BillGroup, BillLetters, kp.bill},
		{&s.Mail, "mail", MailGroup, MailLetters, kp.mail},
	} {
		pg, dsn, err := s.postgresProxy()
		if err != nil {
			return err
		}
		env := []string{"DATABASE_URL=" + dsn, "BROKERS=" + w.kafka.Addr(), "TOPIC=" + Topic}
		if w.role == "mail" {
			env = append(env, "MAIL_URL=http://"+s.providerProxy.Addr())
		}
		if s.opts.Attempts > 0 {
			env = append(env, "ATTEMPTS="+strconv.Itoa(s.opts.Attempts))
		}
		forever := "-1"
		if _, err := s.Admin.CreateTopic(ctx, 1, 1, map[string]*string{"retention.ms": &forever}, w.letters); err != nil {
			return fmt.Errorf("create topic %s: %w", w.letters, err)
		}
		if s.opts.DeadLetters {
			env = append(env, "DEAD_LETTER_TOPIC="+w.letters)
		}
		c := s.orders(w.role, env...)
		c.before = func(ctx context.Context) error { return s.expel(ctx, w.group) }
		p := s.process(w.role, c, pg, w.kafka)
		p.points = map[Point]func() *Hold{
			BeforeCommit:       pg.HoldCommits,
			CommitAnswer:       pg.HoldCommitAnswers,
			BeforeOffsetCommit: func() *Hold { return w.kafka.HoldRequests(netproxy.KeyOffsetCommit) },
			OffsetAnswer:       func() *Hold { return w.kafka.HoldAnswers(netproxy.KeyOffsetCommit) },
		}
		if w.role == "mail" {
			p.points[ProviderAnswer] = s.providerProxy.HoldAnswers
		}
		*w.process = p
	}
	return nil
}

func (s *Stage) orders(role string, env ...string) *child {
	return &child{path: s.opts.OrdersBinary, args: []string{role}, env: append(cleanEnv(), env...), dir: s.dir}
}

func (s *Stage) process(name string, c *child, proxies ...abandoner) *Process {
	p := &Process{Name: name, run: c, proxies: proxies}
	s.onClose(p.Kill)
	return p
}

// Guest is a process of the caller's own on the stage, not started yet: it gets DATABASE_URL and BROKERS, through proxies, and
// can be held at all points of PostgreSQL and Kafka. Guests share one proxy to Kafka: what holds or kills one there disturbs the
// others. Parameters, such as "search_path=lab", are added to DATABASE_URL.
func (s *Stage) Guest(name, path string, args, env []string, parameters string) (*Process, error) {
	pg, dsn, err := s.postgresProxy()
	if err != nil {
		return nil, err
	}
	if parameters != "" {
		dsn += "&" + parameters
	}
	env = append(append(cleanEnv(), env...), "DATABASE_URL="+dsn, "BROKERS="+s.guestProxy.Addr())
	p := s.process(name, &child{path: path, args: args, env: env, dir: s.dir}, pg, s.guestProxy)
	p.points = map[Point]func() *Hold{
		BeforeProduce:      func() *Hold { return s.guestProxy.HoldRequests(netproxy.KeyProduce) },
		ProduceAnswer:      func() *Hold { return s.guestProxy.HoldAnswers(netproxy.KeyProduce) },
		BeforeCommit:       pg.HoldCommits,
		CommitAnswer:       pg.HoldCommitAnswers,
		BeforeOffsetCommit: func() *Hold { return s.guestProxy.HoldRequests(netproxy.KeyOffsetCommit) },
		OffsetAnswer:       func() *Hold { return s.guestProxy.HoldAnswers(netproxy.KeyOffsetCommit) },
	}
	return p, nil
}

// postgresProxy is a proxy to the database, and the superuser's URL through it.
func (s *Stage) postgresProxy() (*netproxy.PostgresProxy, string, error) {
	p, err := netproxy.NewPostgres()
	if err != nil {
		return nil, "", err
	}
	s.onClose(p.Close)
	p.SetTarget(s.pg.Addr())
	u, err := url.Parse(s.DSN())
	if err != nil {
		return nil, "", err
	}
	u.Host = p.Addr()
	return p, u.String(), nil
}

// cleanEnv is the environment without what would change the configuration of a child.
func cleanEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case strings.HasPrefix(name, "CDC_RELAY_"), strings.HasPrefix(name, "PG"):
		case name == "RETRY_TOPIC", name == "DEAD_LETTER_TOPIC", name == "ATTEMPTS", name == "INBOX_KEEP", name == "TOPIC":
		default:
			env = append(env, v)
		}
	}
	return env
}
