// Package idempotency is the HTTP side of an effect that happens once: a middleware
// for net/http and the header Idempotency-Key (draft-ietf-httpapi-idempotency-key-header).
// A client that heard no answer sends its request again with the same key, and is told
// the first answer instead of causing the effect twice.
//
//	keys, err := idempotency.ForPGX(pool.Begin, idempotency.Config{Client: clientOf})
//	mux.Handle("POST /orders", keys.Handle("POST /orders", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
//		// ... insert the order, and outbox.Write, with tx ...
//		w.WriteHeader(http.StatusCreated)
//		return nil
//	}))
//
// The row of the key is written in the transaction of the effect: either both are
// there, or neither. That transaction is begun by the function that the caller gives,
// and committed or rolled back here, as the handler's answer says:
//
//	handler                    its writes     the answer, told    the same request again
//	nil and 200 to 399         committed      after the commit    is told the first answer
//	nil and 400 to 499         rolled back    after the commit    is told the first answer
//	nil and 408, 425 or 429    rolled back    as it is            runs the handler
//	nil and 500 or more        rolled back    as it is            runs the handler
//	an error                   rolled back    500, without it     runs the handler
//	a panic                    rolled back    none                runs the handler
//
// # What a client is told
//
// Problems are application/problem+json (RFC 9457) with a member "code":
//
//	400 missing-key, malformed-key     the header is not there, or no key
//	400 unreadable-body                the body broke off
//	401 unknown-client                 Config.Client returned an error
//	409 in-flight                      the first request with this key is still running: try again
//	413 body-too-large                 above Config.MaxBodyBytes
//	422 key-reused                     the key came before with another request
//	500 failed                         the handler failed, nothing happened
//	500 answer-lost                    see below
//	503 unavailable                    the database is not there, or the commit was not confirmed: try again
//
// 409 and 503 carry Retry-After. A replayed answer carries Idempotency-Replayed: true,
// and of the first answer's headers those of Config.KeepHeaders.
//
// # What is the same request
//
// A key belongs to a client and a route. Within them a request is the same when
// method, path, query, Content-Type and body are, byte for byte.
//
// # Crashes
//
// A request that runs holds an advisory lock of its transaction. When the process
// dies, the server ends the transaction, and with it lock, row and effect are gone: the
// next request with that key is the first one. When its host vanishes without closing
// the connection, the server notices by TCP keepalives (tcp_keepalives_idle) or
// idle_in_transaction_session_timeout; until then the key is answered 409.
//
// A commit whose confirmation was lost is answered 503 unavailable. It may have
// happened: the same request again is then told its answer, and otherwise runs.
//
// It cannot fail open: while the database does not answer, no handler runs.
//
// # What the caller still has to do
//
//   - Create the table ([Schema]), and call [Keys.Cleanup] now and then.
//   - Do everything that belongs to the request through tx, and return an error if it
//     failed. What a handler does elsewhere (a call of another service, another
//     connection) is not undone, and is done again by a retry: give it a key of its own, or
//     do it from an event. It must not take a second connection of the same pool either:
//     enough requests at once would wait for each other for ever.
//   - Authenticate before, so that Config.Client is true: the key of one client must not
//     show the answer of another.
//   - Tell clients to make a new key per order, and to use it for every retry of it, within
//     Config.Expiry. After that, a retry is a new request.
//   - Keep answers small: they are held in memory until the commit, and stored. Streaming
//     is not possible; http.NewResponseController(w).Flush returns http.ErrNotSupported.
//
// With *sql.Tx, which cannot be wrapped, a handler could end the transaction itself.
// It is told by 500, and the key answers 500 answer-lost until it expires, because
// nobody knows the answer to an effect that may have happened. A pgx.Tx that is lent
// refuses to be ended.
package idempotency
