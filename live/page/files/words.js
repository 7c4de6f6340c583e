// The words and the order of what is shown. Names on the left are those of the engine's API.

// two: what a box writes in one transaction. owners: the processes without which it does not work.
export const boxes = [
  { name: "request", title: "Request", about: "The client sends the order, with its key.", owners: ["serve"] },
  { name: "transaction", title: "Order and event", about: "One commit writes both, or neither.", two: ["Order", "Outbox row"], owners: ["postgres"] },
  { name: "relay", title: "Relay", about: "Reads the commit from the WAL, sends, and confirms after the ack.", owners: ["relay"] },
  { name: "partition", title: "Partition", about: "Kafka keeps the record, at an offset.", owners: ["kafka"] },
  { name: "worker", title: "Worker", about: "Gets the record, perhaps not for the first time.", owners: ["bill", "mail"] },
  { name: "effect", title: "Effect, once", about: "One commit writes both, or neither. A mail is outside: its provider drops a repeat by its key.", two: ["Inbox row", "Effect"], owners: ["postgres", "provider"] },
  { name: "offset", title: "Offset", about: "Committed last: after a crash before it, the record comes again.", owners: ["kafka"] },
];

export const boxTitle = (name) => boxes.find((b) => b.name === name)?.title ?? name;

// Each kind has a word and a sign, so that colour is never alone.
const kinds = {
  passed: { word: "passed", sign: "✓" },
  waits: { word: "waits", sign: "…" },
  killed: { word: "killed", sign: "✕" },
  started: { word: "started again", sign: "▲" },
  repeated: { word: "came again", sign: "↻" },
  skipped: { word: "known, dropped", sign: "⊘" },
  failed: { word: "failed", sign: "!" },
};
export const kind = (name) => kinds[name] ?? { word: String(name), sign: "•" };

export const fields = [
  { name: "order", title: "Order" },
  { name: "outbox", title: "Outbox row" },
  { name: "effects", title: "Business effects" },
  { name: "offset", title: "Consumer offset" },
];

export const processes = {
  serve: "Order service",
  relay: "Relay",
  postgres: "PostgreSQL",
  kafka: "Kafka",
  bill: "Billing worker",
  mail: "Mail worker",
  provider: "Mail provider",
};
export const processTitle = (name) => processes[name] ?? name;

const outcomes = {
  running: { word: "Running", sign: "…" },
  as_expected: { word: "As expected", sign: "✓" },
  not_as_expected: { word: "Not as expected", sign: "!" },
};
export const outcome = (name) => outcomes[name] ?? { word: String(name), sign: "•" };
