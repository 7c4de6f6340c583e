package inbox_test

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// A record whose id was not found, since the configuration named another header, is
// redriven under the id that the right configuration finds: copies of it are skipped,
// whether they come before or after it.
func TestDeadLetters_ARecordWithoutAnIDGetsIt(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a", "b")
	wrong := e.run(bill, func(c *inbox.Config) { c.IDHeader = inbox.CloudEventIDHeader })
	waitFor(t, "the dead letters", func() bool { return wrong.count(inbox.DeadLettered) == 2 })
	e.must(wrong.stop())
	e.produce(0, "b") // a copy, before the redrive
	right := e.run(bill)
	waitFor(t, "the copy", func() bool { return e.offset(e.topic, 0) == 3 })
	d := e.deadLetters()
	for _, l := range e.letters("") {
		e.must(d.Redrive(t.Context(), l.ID, inbox.Redrive{Actor: "ann", Note: "id_header mended", Anyway: true}))
	}
	waitFor(t, "the letters to be done", func() bool { return len(e.letters(inbox.Done)) == 2 })
	e.produce(0, "a") // a copy, after it
	waitFor(t, "the other copy", func() bool { return e.offset(e.topic, 0) == 4 })
	e.must(right.stop())
	if n := e.count("SELECT count(*) FROM inbox WHERE event_id IN ('a', 'b')"); e.invoices() != 2 || e.markers() != 2 || n != 2 {
		t.Errorf("%d invoices, %d markers, %d of them by the events' ids", e.invoices(), e.markers(), n)
	}
}
