package idempotency

// Schema makes the table. Put it into the migrations of the service; this package runs
// no DDL. Its role needs SELECT, INSERT, UPDATE and DELETE. Config.Schema and
// Config.Table name another table with these columns.
const Schema = `CREATE TABLE public.idempotency_keys (
	client      text        NOT NULL,
	route       text        NOT NULL,
	key         text        NOT NULL,
	fingerprint bytea       NOT NULL, -- SHA-256 of the request
	status      integer,              -- of the answer; NULL only where a handler committed by itself
	headers     text,                 -- JSON: name to values
	body        bytea,
	created_at  timestamptz NOT NULL DEFAULT now(),
	expires_at  timestamptz NOT NULL,
	PRIMARY KEY (client, route, key)
);
CREATE INDEX idempotency_keys_expires_at ON public.idempotency_keys (expires_at);
`
