package inbox

// Schema makes the table of [Once]: one row per consumer and event that was
// processed. Put it into the migrations of the service; this package runs no DDL. The
// role needs INSERT and SELECT, and DELETE for the cleanup. The last four columns are
// filled by the Runner, and tell a redrive what was processed since.
const Schema = `CREATE TABLE public.inbox (
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
`

// DeadLetterSchema makes the tables of dead letters, for a Runner with a dead-letter
// topic and for [DeadLetters]. The payloads are in the topic; these tables say where,
// why, and what was done. The role needs SELECT, INSERT and UPDATE.
const DeadLetterSchema = `CREATE TABLE public.inbox_dead_letters (
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
`
