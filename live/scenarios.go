package live

import (
	"bytes"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/lab/stage"
)

// scenario is what a button does.
type scenario struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	About string `json:"about"`

	expected string // as sight.counts writes it
	script   func(*walk)
}

const (
	once   = "orders=1 outbox=1 messages=1 ids=1 invoices=1 mails=1 "
	copied = "orders=1 outbox=1 messages=2 ids=1 invoices=1 mails=1 "
	read   = " dead_letters=0 bill_behind=0 mail_behind=0"
)

var listed = []scenario{
	{"order", "Place an order", "One order over HTTP. Each process is held at its arrow until the values there are read, and then let go.",
		once + "repeats_dropped=0" + read, order},
	{"relay_after_ack", "Kill the relay after the ack", "Kafka has acknowledged the record, and the relay dies before it confirms the position. It sends the record again: two messages with one id, and still one invoice and one mail.",
		copied + "repeats_dropped=2" + read, relayAfterAck},
	{"worker_before_commit", "Kill the workers before their commit", "Both workers die with their transactions open. The invoice is rolled back with its inbox row and made anew; the mail was out, and its repeat is dropped by the provider.",
		once + "repeats_dropped=1" + read, workerBeforeCommit},
	{"worker_before_offset", "Kill the workers before their offset", "Invoice and mail are committed, and both workers die before they say so to Kafka. The record comes again, and its id is in the inbox.",
		once + "repeats_dropped=2" + read, workerBeforeOffset},
	{"kafka", "Kill Kafka", "The broker is killed, and an order is placed all the same: its event waits in PostgreSQL until the broker is back.",
		once + "repeats_dropped=0" + read, kafkaDown},
	{"twice", "Deliver the record twice", "The same record, byte for byte, is written to the topic once more. Both workers know its id.",
		copied + "repeats_dropped=2" + read, twice},
	{"retry_http", "Lose the answer, and retry", "The order is committed, and the client hears no answer. It sends the request again with its key: the first answer, and no second order.",
		once + "repeats_dropped=0" + read, retryHTTP},
	{"exhaust", "Exhaust the retries", "The mail provider is killed, and the mail worker fails until its attempts are used up. The record becomes a dead letter first, and only then the offset moves; the letter stays open for a person. The provider forgets its mails with its end, as it keeps them in memory.",
		"orders=1 outbox=1 messages=1 ids=1 invoices=1 mails=0 repeats_dropped=0 dead_letters=1 bill_behind=0 mail_behind=0", exhaust},
}

var scenarios = func() map[string]scenario {
	m := map[string]scenario{}
	for _, s := range listed {
		m[s.Name] = s
	}
	return m
}()

func order(w *walk) {
	g := w.toPartition()
	w.confirm()
	w.deliver(g)
	w.move(w.effects(g))
}

func relayAfterAck(w *walk) {
	confirm := w.hold(w.stage.Relay, stage.Confirm)
	g := w.toPartition()
	w.deliver(g)
	w.move(w.effects(g))
	w.reached(confirm, "the relay confirms")
	w.look()
	w.step(Relay, Waits, "The relay is held before it confirms", "It has Kafka's acknowledgement; PostgreSQL has not heard of it.",
		Fact{"confirmed", w.now.confirmed.String()}, Fact{"commit LSN", w.now.lsn.String()})
	w.kill(w.stage.Relay, Relay, "The relay is killed", "Its confirmation dies with it: the slot stays before the order's commit.", Fact{"confirmed", w.now.confirmed.String()})
	confirm.Release()
	w.start(w.stage.Relay, Relay, "The relay is started again", "It begins at the confirmed position, and so reads the commit a second time.", Fact{"from", w.now.confirmed.String()})
	w.copy()
	w.known(1, "The record has another offset and the same id: the inbox finds it, and the offset moves on.")
	w.moved("The offsets move behind the copy", "Nothing is lost, one record came twice, and the effects happened once.")
	w.confirm()
}

// copy waits for the second record.
func (w *walk) copy() {
	w.await("the record is in Kafka a second time", func(s sight) bool { return len(s.copies) > 1 })
	if w.err != nil {
		return
	}
	first, second := w.now.copies[0], w.now.copies[1]
	w.step(Partition, Repeated, "The record is in Kafka a second time", "A copy at another offset, with the same id: at least once means this.",
		Fact{"offset", strconv.FormatInt(second.Offset, 10)}, Fact{"first offset", strconv.FormatInt(first.Offset, 10)}, Fact{"id header", header(second, "id")},
		Fact{"bytes", map[bool]string{true: "equal", false: "differ"}[same(first, second)]})
}

func same(a, b *kgo.Record) bool {
	return a.Partition == b.Partition && bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) &&
		slices.EqualFunc(a.Headers, b.Headers, func(x, y kgo.RecordHeader) bool { return x.Key == y.Key && bytes.Equal(x.Value, y.Value) })
}

func workerBeforeCommit(w *walk) {
	g := w.toPartition()
	w.confirm()
	w.deliver(g)
	w.kill(w.stage.Bill, Worker, "The billing worker is killed before its commit", "PostgreSQL rolls back the invoice and the inbox row together; the offset has not moved.")
	w.kill(w.stage.Mail, Worker, "The mail worker is killed before its commit", "Its inbox row is rolled back, and the mail is out: no database can take it back.", Fact{"mails", strconv.Itoa(w.now.mails)})
	g.release()
	g = w.gates(stage.BeforeCommit)
	w.start(w.stage.Bill, Worker, "The billing worker is started again", "Its group stands before the record.")
	w.start(w.stage.Mail, Worker, "The mail worker is started again", "Its group stands before the record.")
	w.reached(g.bill, "the billing worker has the record again")
	w.reached(g.mail, "the mail worker has the record again")
	w.look()
	if w.err == nil {
		w.step(Worker, Repeated, "Both workers get the record again", "The same offset, since it was not committed. Neither inbox has the id; the mail's key is known to the provider, which sent nothing.",
			Fact{"partition:offset", place(w.now.copies[0])}, Fact{"mails", strconv.Itoa(w.now.mails)}, Fact{"repeats at the provider", strconv.Itoa(w.now.providerDropped)})
	}
	w.move(w.effects(g))
}

func workerBeforeOffset(w *walk) {
	g := w.toPartition()
	w.confirm()
	w.deliver(g)
	offsets := w.effects(g)
	w.kill(w.stage.Bill, Worker, "The billing worker is killed before its offset", "The invoice is committed; Kafka does not know that the record was read.")
	w.kill(w.stage.Mail, Worker, "The mail worker is killed before its offset", "Its inbox row is committed; Kafka does not know that the record was read.")
	offsets.release()
	w.start(w.stage.Bill, Worker, "The billing worker is started again", "Its group stands before the record.")
	w.start(w.stage.Mail, Worker, "The mail worker is started again", "Its group stands before the record.")
	w.known(1, "The same offset came again, and its id is in the inbox: no second invoice, and no second call to the provider.")
	w.moved("The offsets move", "What was missing was only that Kafka knew.")
}

func kafkaDown(w *walk) {
	w.look()
	w.kill(w.stage.Kafka, Partition, "Kafka is killed", "The order service does not need it: it writes to PostgreSQL alone.")
	commit := w.request()
	commit.Release()
	w.committed()
	a := w.answered()
	w.transaction(Fact{"answer", strconv.Itoa(a.status)})
	w.pause(time.Second) // in which a relay that confirms too early would
	w.look()
	if w.err == nil && w.now.confirmedOrder() {
		w.err = errConfirmedTooEarly
	}
	w.step(Relay, Waits, "The relay waits for Kafka", "It has read the commit and cannot send it. The position is not confirmed, so PostgreSQL keeps the WAL.",
		Fact{"commit LSN", w.now.lsn.String()}, Fact{"confirmed", w.now.confirmed.String()})
	g := w.gates(stage.BeforeCommit)
	produce := w.hold(w.stage.Relay, stage.BeforeProduce)
	w.start(w.stage.Kafka, Partition, "Kafka is started again", "With the data that it had. Relay and workers find it by themselves.")
	w.reached(produce, "the relay sends")
	w.publish(produce)
	w.confirm()
	w.deliver(g)
	w.move(w.effects(g))
}

func twice(w *walk) {
	g := w.toPartition()
	w.confirm()
	w.deliver(g)
	w.move(w.effects(g))
	if w.err != nil {
		return
	}
	if err := w.engine.watch.again(w.ctx, w.now.copies[0]); err != nil {
		w.fail(err)
	}
	w.copy()
	w.known(1, "The inbox knows the id, whoever wrote the copy.")
	w.moved("The offsets move behind the copy", "The copy was read, and had no effect.")
}

func retryHTTP(w *walk) {
	heard := w.hold(w.stage.Serve, stage.HTTPAnswer)
	produce := w.hold(w.stage.Relay, stage.BeforeProduce)
	leave := w.send()
	w.reached(heard, "the order service answers")
	w.committed()
	w.step(Request, Waits, "The client hears no answer", "The order is committed and answered, but the answer is lost on the way: the client cannot know.",
		Fact{"Idempotency-Key", w.key()}, Fact{"request", "POST /orders"})
	w.transaction(Fact{"answer", "lost"})
	leave()
	if w.err == nil {
		if lost := <-w.answers; lost.err == nil {
			w.fail(errHeard)
		}
	}
	heard.Release()
	w.send()
	a := w.answered()
	w.look()
	w.step(Request, Repeated, "The client sends the request again", "With the same key, so the service gives the first answer again, and writes nothing.",
		Fact{"answer", strconv.Itoa(a.status)}, Fact{"order", strconv.FormatInt(a.order, 10)}, Fact{"Idempotency-Replayed", strconv.FormatBool(a.replayed)}, Fact{"Idempotency-Key", w.key()})
	w.read(produce)
	g := w.gates(stage.BeforeCommit)
	w.publish(produce)
	w.confirm()
	w.deliver(g)
	w.move(w.effects(g))
}

func exhaust(w *walk) {
	w.look()
	w.kill(w.stage.Provider, Effect, "The mail provider is killed", "Mails cannot be sent; orders and invoices do not need it.")
	bill := w.hold(w.stage.Bill, stage.BeforeCommit)
	mail := w.hold(w.stage.Mail, stage.BeforeOffsetCommit)
	produce := w.commit(w.request())
	w.read(produce)
	w.publish(produce)
	w.confirm()
	w.reached(bill, "the billing worker stands before its COMMIT")
	bill.Release()
	w.await("the invoice is committed", func(s sight) bool { return s.billMarkers > 0 && len(s.invoices) > 0 })
	w.billed()
	w.reached(mail, "the mail worker gives the record up")
	w.await("the dead letter is written", func(s sight) bool { return len(s.letters) > 0 && s.letterRows > 0 })
	if w.err != nil {
		return
	}
	letter := w.now.letters[0]
	w.step(Worker, Failed, "The mail worker has used up its attempts", "Each one failed and was rolled back, while the partition waited.",
		Fact{"attempts", strconv.Itoa(w.now.attempts)}, Fact{"reason", w.now.reason}, Fact{"partition:offset", place(w.now.copies[0])})
	w.step(Partition, Passed, "The record is a dead letter", "It is acknowledged in the topic of dead letters, and noted in PostgreSQL, before the offset moves: a crash here repeats the letter, and loses nothing.",
		Fact{"topic", letter.Topic}, Fact{"partition:offset", place(letter)}, Fact{"id header", header(letter, "id")}, Fact{"inbox-reason", header(letter, "inbox-reason")}, Fact{"inbox-attempts", header(letter, "inbox-attempts")})
	mail.Release()
	w.moved("The offset moves past the record", "The worker goes on with the next; the letter stays open until a person redrives or discards it.")
	w.start(w.stage.Provider, Effect, "The mail provider is started again", "The mail of this order is still missing, and the dead letter says so.")
}
