// Package inbox makes the effect of an event happen once, however often the event is
// delivered. A unique key, consumer and event id, is written in the transaction of the
// effect.
package inbox
