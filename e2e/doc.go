// Package e2e is the test environment: real PostgreSQL, real Apache Kafka, the relay as a process of its own, proxies
// between them, and what a test needs to judge the outcome without the relay's own code.
//
//	func TestE2E_Crash(t *testing.T) {           // make e2e RUN=crash
//		pg := e2e.Postgres(t)                    // a server of its own, version from CDC_RELAY_TEST_PG_VERSION
//		k := e2e.Kafka(t)                        // one broker for the whole test binary
//		topic := k.Topic(t, "orders", 6)         // a topic of its own
//		pg.Exec(t, `CREATE TABLE outbox (...)`)
//		oracle := e2e.NewOracle(t, pg)           // a second slot, with test_decoding
//
//		relay := e2e.StartRelay(t, e2e.RelayOptions{Config: "source:\n  url: " + pg.DSN() + "\n..."})
//		relay.WaitReady(t, 30*time.Second)
//		sampler := e2e.SampleConfirmed(t, pg, "cdc_relay")
//		...
//		relay.Kill()
//		records := k.Consume(t, topic)
//		order := oracle.Inserts(t, "public.outbox", "id")
//		e2e.Result(t, "crash", missing == 0, "kills", 50, "missing", missing)
//	}
//
// A package that uses it should hand its TestMain to Main, which stops what the tests share and lists the tests that did not
// see a real broker. Everything also ends when the test binary panics or is killed: children get a signal from the kernel,
// and directories are removed by a process that waits for that.
//
// Environment:
//
//	CDC_RELAY_TEST_PG_VERSION   major version of the servers that tests start (15)
//	CDC_RELAY_TEST_POSTGRES     DSN of a superuser on a running server to use instead; each test makes a database of its own
//	CDC_RELAY_TEST_KAFKA        host:port of a running broker to use instead
//	CDC_RELAY_TEST_CONTAINERS   1: containers, by the Docker engine that answers; a test that needs a process is skipped
//	CDC_RELAY_TEST_POSTGRES_IMAGE, CDC_RELAY_TEST_KAFKA_IMAGE
//	                            their images (postgres:17 and apache/kafka:4.0.0, or what behaves like them)
//	CDC_RELAY_TEST_BINARY       the relay's binary to run instead of building it
//	CDC_RELAY_TEST_RACE         1: build the relay with the race detector
//	CDC_RELAY_TEST_KEEP         1: keep the temporary directories, with the servers' logs
//	CDC_RELAY_RESULTS           file to which every RESULT line is appended
package e2e
