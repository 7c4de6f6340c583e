-- +goose Up
CREATE TABLE public.outbox (
	id            uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
	aggregatetype text        NOT NULL,
	aggregateid   text        NOT NULL,
	type          text        NOT NULL,
	payload       jsonb,
	created_at    timestamptz NOT NULL DEFAULT now()
);

COMMENT ON TABLE public.outbox IS
	'Events to publish: insert one in the transaction whose effect it announces. Rows are published when that commits; they may be deleted once published.';
COMMENT ON COLUMN public.outbox.id IS
	'Identity of the event, the same in every copy of it; consumers drop copies by it.';
COMMENT ON COLUMN public.outbox.aggregatetype IS
	'Kind of the thing that changed; names the topic.';
COMMENT ON COLUMN public.outbox.aggregateid IS
	'Identity of the thing that changed; the key, so that its events stay in order.';
COMMENT ON COLUMN public.outbox.type IS
	'What happened; a header of the record.';
COMMENT ON COLUMN public.outbox.payload IS
	'Value of the record, byte for byte as PostgreSQL prints it. NULL publishes a null value, which deletes the key from a compacted topic.';
COMMENT ON COLUMN public.outbox.created_at IS
	'When the transaction began; not published by default.';

-- +goose Down
DROP TABLE public.outbox;
