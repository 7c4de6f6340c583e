package live

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/lab/stage"
)

// ownSlot tells where a transaction committed, by PostgreSQL's own decoder, before and without the relay.
const ownSlot = "live_observer"

// observer reads what the path has done for one order, directly: not through the proxies, and not from the relay.
type observer struct {
	stage *stage.Stage
	watch *watcher

	mu      sync.Mutex
	commits map[string]commit // of rows, "order <id>" or "event <id>"; the last thousands
}

// commit is a transaction: its id, and the position behind its commit.
type commit struct {
	xid string
	lsn pglogrepl.LSN
}

func newObserver(ctx context.Context, s *stage.Stage, w *watcher) (*observer, error) {
	if _, err := s.DB.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'test_decoding')`, ownSlot); err != nil {
		return nil, fmt.Errorf("create the slot %s: %w", ownSlot, err)
	}
	return &observer{stage: s, watch: w, commits: map[string]commit{}}, nil
}

// close drops the slot, which would retain WAL for nobody.
func (o *observer) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, _ = o.stage.DB.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, ownSlot) // the server may have gone
}

// sight is what was seen of one order, and of what surrounds it.
type sight struct {
	orders   []int64
	events   []string      // ids of the outbox rows
	order    commit        // of the first one; the zero value: not known yet
	lsn      pglogrepl.LSN // behind the commit of the first event; 0: not known yet
	xid      string        // of the first event's transaction
	invoices []int64

	confirmed pglogrepl.LSN // of the relay's slot

	billMarkers, mailMarkers int
	letterRows, attempts     int
	reason                   string

	copies  []*kgo.Record // in the topic, of the order
	letters []*kgo.Record // in the topics of dead letters
	read    bool          // copies is all that the topic holds

	kafka      bool // it answered
	bill, mail stage.Offset

	provider bool // it answered
	mails    int
	// Deliveries that had no effect: by the inbox, as the worker logged it, and by the provider.
	billDropped, mailDropped, providerDropped int
}

const sightQuery = `WITH o AS (SELECT id FROM public.orders WHERE customer = $1),
	e AS (SELECT id::text FROM public.outbox WHERE aggregatetype = 'order' AND aggregateid IN (SELECT id::text FROM o)),
	l AS (SELECT reason, attempts FROM public.inbox_dead_letters WHERE event_id IN (SELECT id FROM e))
SELECT (SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM o), (SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM e),
	(SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM public.invoices WHERE order_id IN (SELECT id FROM o)),
	(SELECT count(*) FROM public.inbox WHERE consumer = $2 AND event_id IN (SELECT id FROM e)),
	(SELECT count(*) FROM public.inbox WHERE consumer = $3 AND event_id IN (SELECT id FROM e)),
	(SELECT count(*) FROM l), (SELECT coalesce(min(reason), '') FROM l), (SELECT coalesce(max(attempts), 0) FROM l),
	(SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $4)`

// see reads everything of the orders of one customer since that time. PostgreSQL must answer; of what else does not, the sight says so.
func (o *observer) see(ctx context.Context, customer string, since time.Time) (s sight, err error) {
	var confirmed string
	err = o.stage.DB.QueryRow(ctx, sightQuery, customer, stage.BillGroup, stage.MailGroup, stage.Slot).Scan(&s.orders, &s.events, &s.invoices,
		&s.billMarkers, &s.mailMarkers, &s.letterRows, &s.reason, &s.attempts, &confirmed)
	if err != nil {
		return s, fmt.Errorf("read the order's rows: %w", err)
	}
	if s.confirmed, err = pglogrepl.ParseLSN(confirmed); err != nil {
		return s, fmt.Errorf("read the position of slot %s: %w", stage.Slot, err)
	}
	if len(s.events) > 0 {
		if s.order, err = o.commitOf(ctx, fmt.Sprintf("order %d", s.orders[0])); err != nil {
			return s, err
		}
		event, err := o.commitOf(ctx, "event "+s.events[0])
		if err != nil {
			return s, err
		}
		s.lsn, s.xid = event.lsn, event.xid
	}
	o.seeKafka(ctx, &s)
	o.seeProvider(ctx, &s)
	s.billDropped = duplicates(o.stage.Bill.Log(), since)
	s.mailDropped = duplicates(o.stage.Mail.Log(), since)
	return s, nil
}

// inserted is a row as test_decoding writes it. Only its beginning is read: what a client sent cannot stand there.
var inserted = regexp.MustCompile(`^table public\.(?:(orders): INSERT: id\[bigint\]:(\d+) |outbox: INSERT: id\[uuid\]:'([0-9a-f-]+)' )`)

// commitOf is the commit of a row's transaction, the zero value while the server has not decoded it.
func (o *observer) commitOf(ctx context.Context, row string) (commit, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c, known := o.commits[row]; known {
		return c, nil
	}
	if len(o.commits) > 5000 {
		clear(o.commits)
	}
	rows, err := o.stage.DB.Query(ctx, `SELECT lsn::text, xid::text, data FROM pg_logical_slot_get_changes($1, NULL, NULL)`, ownSlot)
	if err != nil {
		return commit{}, fmt.Errorf("read where transactions committed: %w", err)
	}
	defer rows.Close()
	var open []string // rows of the transaction that is being read; transactions come whole
	for rows.Next() {
		var at, xid, data string
		if err := rows.Scan(&at, &xid, &data); err != nil {
			return commit{}, fmt.Errorf("read where a transaction committed: %w", err)
		}
		switch m := inserted.FindStringSubmatch(data); {
		case m != nil && m[1] != "":
			open = append(open, "order "+m[2])
		case m != nil:
			open = append(open, "event "+m[3])
		case strings.HasPrefix(data, "COMMIT"):
			lsn, err := pglogrepl.ParseLSN(at)
			if err != nil {
				return commit{}, fmt.Errorf("read where transaction %s committed: %w", xid, err)
			}
			for _, r := range open {
				o.commits[r] = commit{xid, lsn}
			}
			open = nil
		}
	}
	return o.commits[row], rows.Err()
}

func (o *observer) seeKafka(ctx context.Context, s *sight) {
	keys := map[string]bool{}
	for _, id := range s.orders {
		keys[strconv.FormatInt(id, 10)] = true
	}
	ofOrder := func(r *kgo.Record) bool { return keys[string(r.Key)] }
	if o.stage.Kafka.Up() {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		bill, billErr := o.stage.Offsets(ctx, stage.BillGroup, stage.Topic)
		mail, mailErr := o.stage.Offsets(ctx, stage.MailGroup, stage.Topic)
		if s.kafka = billErr == nil && mailErr == nil && len(bill) == 1 && len(mail) == 1; s.kafka {
			s.bill, s.mail = bill[0], mail[0]
			s.bill.Committed, s.mail.Committed = max(0, s.bill.Committed), max(0, s.mail.Committed)
		}
	}
	// Behind the offsets: what was committed is among what was read, when read says so.
	s.read = s.kafka && o.watch.hasRead(stage.Topic, s.mail.Partition, s.mail.End)
	s.copies = o.watch.find(stage.Topic, ofOrder)
	for _, topic := range []string{stage.BillLetters, stage.MailLetters} {
		s.letters = append(s.letters, o.watch.find(topic, ofOrder)...)
	}
}

func (o *observer) seeProvider(ctx context.Context, s *sight) {
	if !o.stage.Provider.Up() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	mails, err := o.stage.Mails(ctx)
	if s.provider = err == nil; err != nil {
		return
	}
	for _, m := range mails.Mails {
		if names(m.Key, s.events) {
			s.mails++
		}
	}
	for line := range logLines(o.stage.Provider.Log()) {
		if strings.HasPrefix(line.Msg, "mail dropped") && names(line.Key, s.events) {
			s.providerDropped++
		}
	}
}

func names(key string, events []string) bool {
	for _, id := range events {
		if strings.Contains(key, id) {
			return true
		}
	}
	return false
}

// duplicates counts the records that a worker skipped, as it logged it since that time.
func duplicates(log string, since time.Time) (n int) {
	for line := range logLines(log) {
		if line.Kind == "duplicates" && line.Topic == stage.Topic && !line.Time.Before(since) {
			n += line.N
		}
	}
	return n
}

// logLine is what matters of a line of the example's log.
type logLine struct {
	Time  time.Time
	Msg   string
	Kind  string
	Topic string
	Key   string
	N     int
}

// logLines yields the lines that are whole.
func logLines(log string) func(yield func(logLine) bool) {
	return func(yield func(logLine) bool) {
		for text := range strings.Lines(log) {
			var line logLine
			if json.Unmarshal([]byte(text), &line) == nil && !yield(line) {
				return
			}
		}
	}
}

// versions asks the servers; one that does not answer in time is left out.
func (o *observer) versions(ctx context.Context) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	v := map[string]string{}
	var pg string
	if o.stage.DB.QueryRow(ctx, `SHOW server_version`).Scan(&pg) == nil {
		v["postgresql"], _, _ = strings.Cut(pg, " ")
	}
	if brokers, err := o.watch.admin.ApiVersions(ctx); err == nil {
		for _, b := range brokers {
			v["kafka"] = strings.TrimPrefix(b.VersionGuess(), "v")
		}
	}
	v["relay"] = "of this source"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v["relay"] = info.Main.Version
	}
	return v
}

// fields are what the page shows of the order.
func (s sight) fields() Fields {
	f := Fields{Order: "none", Outbox: "none", Offset: "Kafka is down"}
	if len(s.orders) > 0 {
		f.Order = joined(s.orders) + " committed"
	}
	if len(s.events) > 0 {
		f.Outbox = "id " + s.events[0] + " at " + s.lsn.String()
		if len(s.events) > 1 {
			f.Outbox += fmt.Sprintf(", and %d more", len(s.events)-1)
		}
	}
	mails := strconv.Itoa(s.mails)
	if !s.provider {
		mails = unknown
	}
	f.Effects = fmt.Sprintf("invoices %d, mails %s, repeats dropped %d", len(s.invoices), mails, s.dropped())
	if s.letterRows > 0 {
		f.Effects += fmt.Sprintf(", dead letters %d", s.letterRows)
	}
	if s.kafka {
		f.Offset = "bill " + position(s.bill) + ", mail " + position(s.mail)
	}
	return f
}

// unknown stands for what did not answer: it is no number, and so never what was expected.
const unknown = "unknown"

// counts are what a walk is judged by.
func (s sight) counts() string {
	ids, mails, bill, mail := map[string]bool{}, unknown, unknown, unknown
	if s.provider {
		mails = strconv.Itoa(s.mails)
	}
	if s.kafka {
		bill, mail = strconv.FormatInt(s.bill.End-s.bill.Committed, 10), strconv.FormatInt(s.mail.End-s.mail.Committed, 10)
	}
	for _, r := range s.copies {
		ids[header(r, "id")] = true
	}
	return fmt.Sprintf("orders=%d outbox=%d messages=%d ids=%d invoices=%d mails=%s repeats_dropped=%d dead_letters=%d bill_behind=%s mail_behind=%s",
		len(s.orders), len(s.events), len(s.copies), len(ids), len(s.invoices), mails, s.dropped(), len(s.letters), bill, mail)
}

func (s sight) dropped() int { return s.billDropped + s.mailDropped + s.providerDropped }

func (s sight) confirmedOrder() bool { return s.lsn != 0 && s.confirmed >= s.lsn }

// done tells whether both groups stand behind everything that the topic holds, and all of it was seen.
func (s sight) done() bool {
	return s.kafka && s.read && s.bill.Committed == s.bill.End && s.mail.Committed == s.mail.End
}

// settled tells whether all that a walk is judged by was there in this one look.
func (s sight) settled() bool { return s.done() && s.confirmedOrder() && s.provider }

func position(o stage.Offset) string {
	return fmt.Sprintf("%d:%d of %d", o.Partition, o.Committed, o.End)
}

func joined(ids []int64) string {
	parts := make([]string, len(ids))
	for i, id := range ids {
		parts[i] = strconv.FormatInt(id, 10)
	}
	return strings.Join(parts, ", ")
}
