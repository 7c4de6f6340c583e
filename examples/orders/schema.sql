-- Tables of the example. In production each service has a database of its own: the first part is the order service's, the
-- second billing's, the third of every worker. What the libraries need is copied from them, and a test compares.

-- The order service.

CREATE TABLE public.orders (
	id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	customer  text        NOT NULL,
	item      text        NOT NULL,
	cents     bigint      NOT NULL CHECK (cents > 0),
	email     text        NOT NULL,
	placed_at timestamptz NOT NULL DEFAULT now()
);

-- outbox.Schema
CREATE TABLE public.outbox (
	id            uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
	aggregatetype text        NOT NULL,
	aggregateid   text        NOT NULL,
	type          text        NOT NULL,
	payload       jsonb,
	created_at    timestamptz NOT NULL DEFAULT now()
);

-- idempotency.Schema
CREATE TABLE public.idempotency_keys (
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

-- Billing. The order is in another service's database, so nothing refers to it. One order may have several invoices (a
-- correction, an instalment): not a constraint keeps a second one out, but the marker of its event.

CREATE TABLE public.invoices (
	id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	order_id   bigint      NOT NULL,
	customer   text        NOT NULL,
	cents      bigint      NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX invoices_order_id ON public.invoices (order_id);

-- Every worker.

-- inbox.Schema
CREATE TABLE public.inbox (
	consumer        text        NOT NULL,
	event_id        text        NOT NULL,
	processed_at    timestamptz NOT NULL DEFAULT now(),
	kafka_topic     text,
	kafka_partition integer,
	kafka_offset    bigint,
	key_hash        bytea,                -- of the record's key, 16 bytes of SHA-256
	PRIMARY KEY (consumer, event_id)
);
CREATE INDEX inbox_processed_at ON public.inbox (consumer, processed_at);

-- inbox.DeadLetterSchema, for DEAD_LETTER_TOPIC
CREATE TABLE public.inbox_dead_letters (
	id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	consumer        text        NOT NULL, -- the owner
	event_id        text        NOT NULL,
	kafka_topic     text        NOT NULL, -- where the record was first
	kafka_partition integer     NOT NULL,
	kafka_offset    bigint      NOT NULL,
	key_hash        bytea,
	letter_topic     text       NOT NULL, -- where it is now
	letter_partition integer    NOT NULL,
	letter_offset    bigint     NOT NULL,
	redrive_topic   text        NOT NULL, -- '': none was configured
	reason          text        NOT NULL, -- without payload
	attempts        integer     NOT NULL,
	state           text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'redriven', 'done', 'discarded')),
	failed_at       timestamptz NOT NULL DEFAULT now(),
	changed_at      timestamptz NOT NULL DEFAULT now(), -- the state
	UNIQUE (consumer, kafka_topic, kafka_partition, kafka_offset, event_id)
);
CREATE INDEX inbox_dead_letters_unresolved ON public.inbox_dead_letters (consumer, key_hash) WHERE state IN ('open', 'redriven');
CREATE INDEX inbox_dead_letters_event ON public.inbox_dead_letters (consumer, event_id);
CREATE TABLE public.inbox_dead_letter_actions (
	dead_letter_id bigint      NOT NULL REFERENCES public.inbox_dead_letters,
	action         text        NOT NULL, -- redrive, discard
	actor          text        NOT NULL,
	note           text        NOT NULL,
	at             timestamptz NOT NULL DEFAULT now()
);
