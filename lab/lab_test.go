package lab

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// defaultKills is what the page was made with.
const defaultKills = 100

// TestScenes_AreThoseOfThePage holds docs/lab.md against the scenes of the command: their names, what happens in them and what
// is expected, and that what was measured was that.
func TestScenes_AreThoseOfThePage(t *testing.T) {
	page, err := os.ReadFile("../docs/lab.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []Row
	for _, s := range Scenes(defaultKills) {
		rows = append(rows, Row{Scene: s.Name, Window: s.Window, Expected: s.Expect, Measured: s.Expect, OK: true})
	}
	versions := regexp.MustCompile(`Measured with PostgreSQL (\S+) and Apache Kafka (\S+)\.\n`).FindStringSubmatch(string(page))
	if versions == nil {
		t.Fatal("docs/lab.md names no versions: run make lab-docs")
	}
	var want strings.Builder
	if err := WriteMarkdown(&want, rows, Versions{versions[1], versions[2]}); err != nil {
		t.Fatal(err)
	}
	if want.String() != string(page) {
		t.Errorf("docs/lab.md is not what the command prints when all rows are as expected: run make lab-docs. It would be:\n%s", want.String())
	}
}

func TestScenes_HaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Scenes(1) {
		if s.Name == "" || s.Window == "" || s.Expect == "" || s.run == nil || seen[s.Name] {
			t.Errorf("scene %+v", s)
		}
		seen[s.Name] = true
	}
	if _, err := choose(Scenes(1), []string{"no_such_scene"}); err == nil {
		t.Error("an unknown scene was chosen")
	}
}

func TestWriteMarkdown_ShowsADifference(t *testing.T) {
	var b strings.Builder
	rows := []Row{{Scene: "s", Expected: "orders=1", Measured: "orders=2"}}
	if err := WriteMarkdown(&b, rows, Versions{}); err != nil {
		t.Fatal(err)
	}
	if Failed(rows) != 1 || !strings.Contains(b.String(), "| orders=1 | **orders=2** |") {
		t.Errorf("failed=%d:\n%s", Failed(rows), b.String())
	}
}
