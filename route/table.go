// Package route turns a row of an outbox table into a Kafka record. It is pure,
// compiled once from configuration.
package route

// Table maps one outbox table. Column names are as in the catalog, unquoted.
type Table struct {
	Schema string
	Name   string

	ID        string // required: column whose value identifies the event
	Key       string // "" : null key
	Type      string // column for the type header; "" : none
	Payload   string // required
	TopicCol  string // column with the topic; exclusive with Topic
	Topic     string // template: literal text with {column} in it
	Timestamp string // "" : commit time
	Partition string // "" : by key

	IDHeader   string // header for the id; default "id"
	TypeHeader string // header for the type; default "type" when Type is mapped
	// Headers maps extra columns to header names, in this order.
	Headers []HeaderColumn
	// Position adds the headers lsn (commit LSN, 16 hex digits) and seq (ordinal
	// in its transaction).
	Position bool
}

// HeaderColumn publishes a column as a header.
type HeaderColumn struct {
	Column string
	Header string
}
