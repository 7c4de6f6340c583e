package outbox

// Schema makes the table of the default shape, as `cdc-relay setup` and `cdc-relay
// setup --dry-run` do. Put it into the migrations of the service; this package runs no
// DDL.
const Schema = `CREATE TABLE public.outbox (
	id            uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
	aggregatetype text        NOT NULL,
	aggregateid   text        NOT NULL,
	type          text        NOT NULL,
	payload       jsonb,
	created_at    timestamptz NOT NULL DEFAULT now()
);
`

// TraceColumn adds a column for traces to it. It changes nothing for a relay that
// runs: write it with Table.Headers {"traceparent": "traceparent"}, and publish it
// with the relay's outbox.headers {traceparent: traceparent}.
const TraceColumn = `ALTER TABLE public.outbox ADD COLUMN traceparent text;
`
