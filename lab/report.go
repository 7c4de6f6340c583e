package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Failed is the number of rows that differ from what was expected.
func Failed(rows []Row) (n int) {
	for _, r := range rows {
		if !r.OK {
			n++
		}
	}
	return n
}

// WriteText writes one paragraph per row, for a terminal.
func WriteText(w io.Writer, rows []Row) error {
	var b strings.Builder
	for _, r := range rows {
		verdict := "ok"
		if !r.OK {
			verdict = "DIFFERS"
		}
		fmt.Fprintf(&b, "%-8s%s: %s (%.1f s)\n", verdict, r.Scene, r.Window, r.Seconds)
		fmt.Fprintf(&b, "        expected  %s\n        measured  %s\n", strings.ReplaceAll(r.Expected, "\n", " "), r.Measured)
		if r.Error != "" {
			fmt.Fprintf(&b, "        %s\n", strings.ReplaceAll(r.Error, "\n", "\n        "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes one object. stopped is why not all scenes are in it; without it, "failed": 0 would read as if they were.
func WriteJSON(w io.Writer, rows []Row, v Versions, stopped error) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	doc := map[string]any{"versions": v, "scenes": append([]Row{}, rows...), "failed": Failed(rows)}
	if stopped != nil {
		doc["error"] = stopped.Error()
	}
	return e.Encode(doc)
}

const preface = `# The lab

<!-- Made by "make lab-docs". Edit lab/ instead. -->

` + "`make lab`" + ` starts PostgreSQL, Apache Kafka, the relay and the services of [examples/orders](../examples/orders/README.md) as
processes of their own, kills them with SIGKILL in one window after the other, and counts what is in the tables and topics
afterwards. A message is held in the window by a proxy between the process and the server; what a dead process had sent and
the proxy still held is dropped with its connection. ` + "`make lab ARGS=\"--scene whole_path --kills 500\"`" + ` runs one scene, ` + "`--json`" + `
and ` + "`--markdown`" + ` print the table for programs and for this page, and the exit code is not 0 when a row differs.

An effect that happens once is made of messages that are delivered at least once, and of three keys, each unique in one
transaction: that of the client's request, the row of the outbox beside the order, and the marker of the inbox beside the
effect. The rows below that show another outcome (no outbox, two transactions, another order of the offset, no key) are the
wrong ways, run for comparison: their code is ` + "`lab/role_wrong.go`" + `, and is not to be copied.

`

// WriteMarkdown writes the page docs/lab.md. It has nothing in it that changes from run to run.
func WriteMarkdown(w io.Writer, rows []Row, v Versions) error {
	var b strings.Builder
	b.WriteString(preface)
	fmt.Fprintf(&b, "Measured with PostgreSQL %s and Apache Kafka %s.\n\n", v.PostgreSQL, v.Kafka)
	b.WriteString("| Scene | What happens | Expected | Measured |\n|---|---|---|---|\n")
	for _, r := range rows {
		measured := r.Measured
		if !r.OK {
			measured = "**" + strings.TrimSpace(measured+" "+strings.Join(strings.Fields(r.Error), " ")) + "**"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.Scene, strings.ReplaceAll(r.Window, "|", `\|`), cell(r.Expected), cell(measured))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// cell is text in a table, with a line for each step.
func cell(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "|", `\|`), ", ", ",<br>")
}
