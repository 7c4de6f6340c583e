package docs

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// recipes are the statements of sql-recipes.md by heading.
func recipes(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile("sql-recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		for _, block := range strings.Split(text, "```sql\n")[1:] {
			sql, _, _ := strings.Cut(block, "```")
			found[heading] = append(found[heading], sql)
		}
	}
	return found
}

// cook runs recipes, and notes which.
type cook struct {
	t       *testing.T
	srv     *pgserver.Server
	recipes map[string][]string
	ran     map[string]bool
}

func (c *cook) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cook) begin() pgx.Tx {
	c.t.Helper()
	conn, err := c.srv.Connect(c.t.Context(), "postgres")
	c.must(err)
	c.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(c.t.Context())
	c.must(err)
	return tx
}

func (c *cook) recipe(heading string, n int) string {
	c.t.Helper()
	if len(c.recipes[heading]) <= n {
		c.t.Fatalf("the page has no statement %d under %q", n, heading)
	}
	c.ran[fmt.Sprint(heading, n)] = true
	return c.recipes[heading][n]
}

// run returns how many rows the statement n under the heading wrote.
func (c *cook) run(tx pgx.Tx, heading string, n int, args ...any) int64 {
	c.t.Helper()
	tag, err := tx.Exec(c.t.Context(), c.recipe(heading, n), args...)
	c.must(err)
	return tag.RowsAffected()
}

// alone is run in a transaction of its own.
func (c *cook) alone(heading string, n int, args ...any) int64 {
	c.t.Helper()
	tx := c.begin()
	rows := c.run(tx, heading, n, args...)
	c.must(tx.Commit(c.t.Context()))
	return rows
}

func (c *cook) count(sql string) (n int) {
	c.t.Helper()
	tx := c.begin()
	c.must(tx.QueryRow(c.t.Context(), sql).Scan(&n))
	c.must(tx.Rollback(c.t.Context()))
	return n
}

func (c *cook) want(what string, got, want any) {
	c.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		c.t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// The table of the page is that of the package: both have to be changed together.
func TestRecipes_HaveTheInboxOfThePackage(t *testing.T) {
	if got := recipes(t)["Tables"]; len(got) != 1 || got[0] != inbox.Schema {
		t.Errorf("the page has\n%s\nand inbox.Schema is\n%s", got, inbox.Schema)
	}
}

func TestRecipes_DoWhatTheySay(t *testing.T) {
	srv, err := pgserver.Start(t.Context(), pgserver.Options{Version: os.Getenv("CDC_RELAY_TEST_PG_VERSION")})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	c := &cook{t: t, srv: srv, recipes: recipes(t), ran: map[string]bool{}}
	c.must(srv.Exec(t.Context(), "postgres", migrations.SQL(), c.recipe("Tables", 0),
		"CREATE TABLE orders (id bigint PRIMARY KEY, status text)", "CREATE TABLE invoices (order_id bigint)",
		"CREATE PUBLICATION p FOR TABLE outbox WITH (publish = 'insert')", "SELECT pg_create_logical_replication_slot('s', 'test_decoding')"))
	c.outbox()
	c.inbox()
	c.cleanup()
	for heading, statements := range c.recipes {
		for n := range statements {
			if !c.ran[fmt.Sprint(heading, n)] {
				t.Errorf("statement %d under %q is not tested", n, heading)
			}
		}
	}
}

func (c *cook) outbox() {
	const id = "0190b3e4-7c4a-7000-8000-0000000000a1"
	lost := c.begin()
	c.want("an event", c.run(lost, "Write an event", 0, "order", "lost", "OrderPlaced", `{}`), 1)
	c.must(lost.Rollback(c.t.Context()))
	c.alone("Write an event", 0, "order", "1", "OrderPlaced", `{"order": 1}`)
	c.want("an event once", c.alone("Write an event once", 0, id, "order", "2", "OrderPlaced", `{}`), 1)
	c.want("the same again", c.alone("Write an event once", 0, id, "order", "2", "OrderPlaced", `{}`), 0)
	tx := c.begin()
	const short = "0190b3e4-7c4a-7000-8000-0000000000a2"
	c.run(tx, "Write an event and keep no row", 0, short, "order", "3", "OrderPlaced", nil)
	c.want("deleted", c.run(tx, "Write an event and keep no row", 1, short), 1)
	c.must(tx.Commit(c.t.Context()))
	c.alone("Write a logical message", 0, "shop", id, "order", "4", "OrderPlaced", `{"a":1}`)
	c.want("rows of the outbox", c.count("SELECT count(*) FROM outbox"), 2)

	rows, err := c.begin().Query(c.t.Context(), "SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL)")
	c.must(err)
	changes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	c.must(err)
	all := strings.Join(changes, "\n")
	for _, word := range []string{"'1'", "'2'", "'3'", `prefix: shop`, `"aggregateid" : "4"`, `"payload" : {"a":1}`} {
		if !strings.Contains(all, word) {
			c.t.Errorf("the WAL does not have %s:\n%s", word, all)
		}
	}
	c.want("inserts in the WAL", strings.Count(all, "INSERT"), 3)
}

func (c *cook) inbox() {
	const gate, update = "The gate of a consumer", "A gate before an update"
	c.want("delivery 1", c.alone(gate, 0, "billing", "e1", 1), 1)
	c.want("delivery 2", c.alone(gate, 0, "billing", "e1", 1), 0)
	c.want("another consumer", c.alone(gate, 0, "mail", "e1", 1), 1)
	lost := c.begin()
	c.run(lost, gate, 0, "billing", "e2", 2)
	c.must(lost.Rollback(c.t.Context()))
	c.want("after a rollback", c.alone(gate, 0, "billing", "e2", 2), 1)

	// Two workers with one record: the second waits, and does nothing.
	first, second := c.begin(), c.begin()
	c.want("the first worker", c.run(first, gate, 0, "billing", "e3", 3), 1)
	done := make(chan int64, 1)
	go func() { // ends with its message
		tag, err := second.Exec(c.t.Context(), c.recipes[gate][0], "billing", "e3", 3)
		if err != nil {
			c.t.Error(err)
		}
		done <- tag.RowsAffected()
	}()
	for c.count("SELECT count(*) FROM pg_locks WHERE NOT granted") == 0 {
		if len(done) > 0 {
			c.t.Fatal("the second worker did not wait")
		}
	}
	c.must(first.Commit(c.t.Context()))
	c.want("the second worker", <-done, 0)
	c.must(second.Commit(c.t.Context()))
	c.want("invoices", c.count("SELECT count(*) FROM invoices"), 4)

	c.must(c.srv.Exec(c.t.Context(), "postgres", "INSERT INTO orders VALUES (1, 'new')"))
	for _, want := range []struct {
		event string
		order int
		got   string
	}{{"p1", 1, "true true"}, {"p1", 1, "false false"}, {"p2", 99, "true false"}} {
		tx := c.begin()
		var isFirst, applied bool
		c.must(tx.QueryRow(c.t.Context(), c.recipe(update, 0), "payments", want.event, want.order).Scan(&isFirst, &applied))
		c.must(tx.Commit(c.t.Context()))
		c.want("update by "+want.event, fmt.Sprint(isFirst, " ", applied), want.got)
	}
	c.want("paid orders", c.count("SELECT count(*) FROM orders WHERE status = 'paid'"), 1)
}

func (c *cook) cleanup() {
	c.must(c.srv.Exec(c.t.Context(), "postgres", "UPDATE outbox SET created_at = now() - interval '8 days' WHERE aggregateid = '1'",
		"UPDATE inbox SET processed_at = now() - interval '8 days' WHERE event_id = 'e1'"))
	c.want("old rows of the outbox", c.alone("Clean up", 0, "7 days"), 1)
	c.want("old rows of the inbox", c.alone("Clean up", 1, "7 days", "billing"), 1)
	c.want("rows of another consumer", c.count("SELECT count(*) FROM inbox WHERE consumer = 'mail'"), 1)
	c.want("rows of the outbox", c.count("SELECT count(*) FROM outbox"), 1)
}
