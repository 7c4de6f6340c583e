package live_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/lab/stage"
	"github.com/cdc-relay/cdc-relay/live"
	"github.com/cdc-relay/cdc-relay/live/page"
	"github.com/cdc-relay/cdc-relay/live/page/browsertest"
)

// A person presses each button. What the page then shows, its fields, its outcome and its list, is compared with rows and
// offsets that are read without the engine.
func TestDemo_ThePageShowsWhatIsInPostgresAndKafka(t *testing.T) {
	e, s := engine(t)
	url := serve(t, e, page.Handler()).URL
	b := browsertest.Start(t)
	p := b.Open(t, url)
	p.Wait(`document.querySelectorAll("[data-run]").length >= 8 && document.querySelector("#connection").dataset.connection === "up"`)
	failed := 0
	for _, name := range names {
		if !t.Run(name, func(t *testing.T) { press(t, p, s, name, url) }) {
			failed++
		}
	}
	e2e.Result(t, "demo", failed == 0, "scenarios", len(names), "failed", failed)
}

func press(t *testing.T, p *browsertest.Page, s *stage.Stage, name, url string) {
	before := browsertest.Eval[string](p, `document.querySelector("#outcome").dataset.walk ?? ""`)
	p.Click(fmt.Sprintf("[data-run=%q]", name))
	p.Wait(fmt.Sprintf(`![undefined, %q].includes(document.querySelector("#outcome").dataset.walk)`, before))
	walk := browsertest.Eval[string](p, `document.querySelector("#outcome").dataset.walk`)
	var rec recording
	e2e.Eventually(t, 2*time.Minute, "the walk has ended", func() bool {
		get(t, url+"/api/walks/"+walk, &rec)
		return rec.Walk.Ended != nil
	})
	p.Wait(`document.querySelector("#outcome").dataset.outcome !== "running"`)
	p.Wait(fmt.Sprintf(`document.querySelectorAll("#steps > li").length === %d`, len(rec.Steps)))
	p.Click("#latest")
	p.Wait(`document.querySelector("#steps > li:last-child").getAttribute("aria-current") === "step"`)

	real := lookUp(t, s)
	if got := p.Text("#outcome .chip"); !strings.HasSuffix(got, "As expected") {
		t.Errorf("the page says %q: %s; got %s", got, rec.Walk.Problem, rec.Walk.Got)
	}
	shown := map[string]string{}
	for k, v := range real.counts() {
		shown[k] = p.Text(fmt.Sprintf("#outcome td[data-got=%q]", k))
		if shown[k] != v {
			t.Errorf("the page shows %s=%s, and there is %s", k, shown[k], v)
		}
	}
	for field, want := range real.fields(t, s) {
		if got := p.Text(fmt.Sprintf("dd[data-field=%q]", field)); !strings.HasPrefix(got, want) {
			t.Errorf("the field %s shows %q, and there is %q", field, got, want)
		}
	}
	_, shownLSN, _ := strings.Cut(p.Text(`dd[data-field="outbox"]`), " at ")
	end, err := pglogrepl.ParseLSN(shownLSN)
	begin, headerErr := strconv.ParseUint(headerOf(real.Records[0], "lsn"), 16, 64)
	// The header says where the commit's record of some 60 bytes begins, and the field where it ends.
	if err != nil || headerErr != nil || uint64(end) <= begin || uint64(end) > begin+512 {
		t.Errorf("the page shows the LSN %q, and the record says %s", shownLSN, headerOf(real.Records[0], "lsn"))
	}
	compareList(t, p, rec, real)
	for _, proc := range s.Processes() {
		row := p.Text(fmt.Sprintf("li[data-process=%q]", proc.Name))
		if !strings.Contains(row, fmt.Sprintf("pid %d", proc.Pid())) {
			t.Errorf("the page shows %q, and %s has pid %d", row, proc.Name, proc.Pid())
		}
	}
	t.Logf("%s: %d steps; %v", walk, len(rec.Steps), shown)
}

// fields are what the page must show at the end, but for the repeats, which no table holds.
func (r truth) fields(t *testing.T, s *stage.Stage) map[string]string {
	t.Helper()
	at := func(group string) string {
		offsets, err := s.Offsets(t.Context(), group, stage.Topic)
		if err != nil || len(offsets) != 1 {
			t.Fatal(offsets, err)
		}
		return fmt.Sprintf("0:%d of %d", offsets[0].Committed, offsets[0].End)
	}
	return map[string]string{"order": r.Order + " committed", "outbox": "id " + r.Event + " at ",
		"effects": fmt.Sprintf("invoices %d, mails %d, repeats dropped ", r.Invoices, r.Mails), "offset": "bill " + at(stage.BillGroup) + ", mail " + at(stage.MailGroup)}
}

// compareList wants the list of the page to be the recording, and the records' places in it to be those of Kafka.
func compareList(t *testing.T, p *browsertest.Page, rec recording, real truth) {
	t.Helper()
	kinds := browsertest.Eval[[]string](p, `[...document.querySelectorAll("#steps > li")].map(li => li.dataset.box + " " + li.dataset.kind + " " + li.querySelector(".title").textContent)`)
	for i, step := range rec.Steps {
		if want := fmt.Sprintf("%s %s %s", step.Box, step.Kind, step.Title); kinds[i] != want {
			t.Errorf("step %d of the list is %q, and was recorded as %q", step.N, kinds[i], want)
		}
	}
	list := p.Texts(`#steps > li`)
	text := strings.Join(list, "\n")
	for _, want := range []string{real.Event, "order" + real.Order} {
		if !strings.Contains(text, want) {
			t.Errorf("the list does not show %q", want)
		}
	}
	var places []string
	for i, step := range rec.Steps {
		if step.Box == live.Partition && (step.Kind == live.Passed || step.Kind == live.Repeated) {
			for _, f := range step.Facts {
				if f.Name == "offset" && strings.Contains(list[i], "offset"+f.Value) {
					places = append(places, f.Value)
				}
			}
		}
	}
	var want []string
	for _, r := range real.Records {
		want = append(want, strconv.FormatInt(r.Offset, 10))
	}
	if strings.Join(places, " ") != strings.Join(want, " ") {
		t.Errorf("the list shows the records at the offsets %v, and they are at %v", places, want)
	}
}
