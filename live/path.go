package live

import (
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/lab/stage"
)

// The parts that the scenarios are made of: each takes the order from one box to the next, and reads what is there.

// request sends the order, and stops the service in front of its COMMIT.
func (w *walk) request() *stage.Hold {
	commit := w.hold(w.stage.Serve, stage.BeforeCommit)
	w.send()
	w.reached(commit, "the order service stands before its COMMIT")
	w.look()
	w.step(Request, Passed, "The client sends an order",
		"The key lets the service know the request again, should the client hear no answer and repeat it. Nothing is committed yet.",
		Fact{"Idempotency-Key", w.key()}, Fact{"request", "POST /orders"})
	return commit
}

// commit lets the service commit, with the relay held before it sends.
func (w *walk) commit(commit *stage.Hold) (produce *stage.Hold) {
	produce = w.hold(w.stage.Relay, stage.BeforeProduce)
	commit.Release()
	w.committed()
	a := w.answered()
	w.transaction(Fact{"answer", strconv.Itoa(a.status)})
	return produce
}

func (w *walk) committed() {
	w.await("order and event are committed", func(s sight) bool { return len(s.orders) > 0 && s.lsn != 0 })
}

func (w *walk) transaction(facts ...Fact) {
	if w.err != nil {
		return
	}
	s := w.now
	xid := s.order.xid
	if s.xid != xid {
		xid += " and " + s.xid
	}
	w.step(Transaction, Passed, fmt.Sprintf("Order %s and its event are committed", joined(s.orders)),
		"Both rows, and the row of the request's key, are in one transaction: there is no order without its event, and no event without its order.",
		append([]Fact{{"event", s.events[0]}, {"order", joined(s.orders)}, {"xid", xid}, {"commit LSN", s.lsn.String()}}, facts...)...)
}

// read waits until the relay is about to send.
func (w *walk) read(produce *stage.Hold) {
	w.reached(produce, "the relay is about to send")
	w.look()
	w.step(Relay, Passed, "The relay has read the commit",
		"The server sends it only after the commit; what is rolled back never comes. The confirmed position is still before it.",
		Fact{"commit LSN", w.now.lsn.String()}, Fact{"confirmed", w.now.confirmed.String()})
}

// gates are where the workers stand.
type gates struct{ bill, mail *stage.Hold }

func (w *walk) gates(point stage.Point) gates {
	return gates{w.hold(w.stage.Bill, point), w.hold(w.stage.Mail, point)}
}

func (g gates) release() {
	g.bill.Release()
	g.mail.Release()
}

// publish lets the relay send, and waits for the record.
func (w *walk) publish(produce *stage.Hold) {
	produce.Release()
	w.await("the record is in Kafka", func(s sight) bool { return s.kafka && len(s.copies) > 0 && s.bill.End > s.copies[0].Offset })
	if w.err != nil {
		return
	}
	r := w.now.copies[0]
	w.step(Partition, Passed, "Kafka has the record", "Kafka keeps it at an offset of the partition that its key chooses. Only when it has acknowledged the record may the relay confirm.",
		recordFacts(r)...)
}

func recordFacts(r *kgo.Record) []Fact {
	return []Fact{{"partition", strconv.Itoa(int(r.Partition))}, {"offset", strconv.FormatInt(r.Offset, 10)}, {"id header", header(r, "id")},
		{"topic", r.Topic}, {"key", string(r.Key)}, {"lsn header", header(r, "lsn")}, {"eventType header", header(r, "eventType")}}
}

// confirm waits until PostgreSQL has the relay's confirmation.
func (w *walk) confirm() {
	w.await("the relay has confirmed", sight.confirmedOrder)
	w.step(Relay, Passed, "The relay confirms the position", "After Kafka's acknowledgement, and after its own mark is saved: now the server may forget the WAL before it.",
		Fact{"confirmed", w.now.confirmed.String()}, Fact{"commit LSN", w.now.lsn.String()})
}

// deliver waits until both workers stand in front of their COMMIT.
func (w *walk) deliver(g gates) {
	w.reached(g.bill, "the billing worker stands before its COMMIT")
	w.reached(g.mail, "the mail worker stands before its COMMIT")
	w.look()
	if w.err == nil && len(w.now.copies) > 0 {
		w.step(Worker, Passed, "Both workers have the record", "Each has a transaction open, with the event's id in its inbox. The mail is out already, since no transaction can hold it back; the invoice is not committed.",
			Fact{"partition:offset", place(w.now.copies[0])}, Fact{"groups", stage.BillGroup + ", " + stage.MailGroup}, Fact{"mails", strconv.Itoa(w.now.mails)})
	}
}

// effects lets both commit, one after the other, and stops them before their offsets.
func (w *walk) effects(g gates) (offsets gates) {
	offsets = w.gates(stage.BeforeOffsetCommit)
	g.bill.Release()
	w.await("the invoice is committed", func(s sight) bool { return s.billMarkers > 0 && len(s.invoices) > 0 })
	w.billed()
	g.mail.Release()
	w.await("the mail's inbox row is committed", func(s sight) bool { return s.mailMarkers > 0 })
	w.mailed()
	w.reached(offsets.bill, "the billing worker commits its offset")
	w.reached(offsets.mail, "the mail worker commits its offset")
	return offsets
}

func (w *walk) billed() {
	w.step(Effect, Passed, "The inbox row and the invoice are committed", "Both are in one transaction, with a unique key on consumer and event id: a second delivery finds the row and does nothing.",
		Fact{"consumer", stage.BillGroup}, Fact{"invoice", joined(w.now.invoices)})
}

func (w *walk) mailed() {
	w.step(Effect, Passed, "The mail's inbox row is committed", "The mail itself went out before it, with a key made of the event's id, by which the provider drops a repeat.",
		Fact{"consumer", stage.MailGroup}, Fact{"mails", strconv.Itoa(w.now.mails)}, Fact{"repeats at the provider", strconv.Itoa(w.now.providerDropped)})
}

// move lets both commit their offsets.
func (w *walk) move(offsets gates) {
	offsets.release()
	w.moved("The offsets move", "They are last: had a worker died before, the record would come again, and be known.")
}

func (w *walk) moved(title, text string) {
	w.await("both groups have read everything", sight.done)
	w.step(Offset, Passed, title, text, Fact{"bill", position(w.now.bill)}, Fact{"mail", position(w.now.mail)})
}

// known waits until both workers have dropped a repeat, which their offset and their log show.
func (w *walk) known(dropped int, text string) {
	w.await("the workers dropped the repeat", func(s sight) bool { return s.done() && s.billDropped >= dropped && s.mailDropped >= dropped })
	w.step(Worker, Skipped, "Both workers know the id and do nothing", text,
		Fact{"dropped by bill", strconv.Itoa(w.now.billDropped)}, Fact{"dropped by mail", strconv.Itoa(w.now.mailDropped)}, Fact{"invoices", strconv.Itoa(len(w.now.invoices))})
}

// toPartition is the way until the record is in Kafka, with the workers held before they commit.
func (w *walk) toPartition() gates {
	produce := w.commit(w.request())
	w.read(produce)
	g := w.gates(stage.BeforeCommit)
	w.publish(produce)
	return g
}
