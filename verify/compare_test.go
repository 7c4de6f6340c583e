package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/spill"
)

// thing is an entry with its key, for a test.
type thing struct {
	topic int
	id    string
	entry
}

func row(id string) thing   { return thing{0, id, entry{origin: fromTable, time: unknownTime}} }
func later(id string) thing { return thing{0, id, entry{origin: fromLater, time: unknownTime}} }
func record0(id string, at int64) thing {
	return thing{0, id, entry{origin: fromTopic, time: at, partition: 2, offset: at}}
}

// compared runs things through the sorter and the comparison.
func compared(t testing.TB, c *comparer, things []thing) (Counts, []Finding) {
	t.Helper()
	s := spill.New(t.TempDir(), 0)
	defer s.Close()
	for _, x := range things {
		if err := s.Add(appendKey(nil, x.topic, []byte(x.id)), x.append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	it, err := s.Sort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var findings []Finding
	c.counts = new(Counts)
	c.found = func(f Finding) error {
		f.ID, f.Places = slices.Clone(f.ID), slices.Clone(f.Places)
		findings = append(findings, f)
		return nil
	}
	if err := c.compare(t.Context(), it, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	return *c.counts, findings
}

func newComparer() *comparer {
	return &comparer{
		topics: []*Topic{{Name: "orders", Retention: -1}, {Name: "invoices", Retention: -1}}, tables: []string{"public.outbox"},
		now: time.Unix(1_000_000, 0),
	}
}

func TestCompare_CountsAndNamesEachKind(t *testing.T) {
	for name, tc := range map[string]struct {
		things   []thing
		want     Counts
		findings string
	}{
		"nothing": {},
		"seen":    {[]thing{row("a"), record0("a", 1)}, Counts{Expected: 1, Seen: 1}, ""},
		"missing": {[]thing{row("a"), row("b"), record0("a", 1)}, Counts{Expected: 2, Seen: 1, Missing: 1}, "missing b 1/0 []"},
		"duplicate": {
			[]thing{row("a"), record0("a", 1), record0("a", 1), record0("a", 1), record0("a", 1)},
			Counts{Expected: 1, Seen: 1, Duplicate: 3}, "duplicate a 1/4 [{2 1} {2 1} {2 1}]",
		},
		"extra":                         {[]thing{record0("x", 7), row("a"), record0("a", 1)}, Counts{Expected: 1, Seen: 1, Extra: 1}, "extra x 0/1 [{2 7}]"},
		"newer":                         {[]thing{record0("x", 7), later("x")}, Counts{Newer: 1}, ""},
		"committed around the snapshot": {[]thing{row("x"), later("x"), record0("x", 7)}, Counts{Expected: 1, Seen: 1}, ""},
		"not yet published":             {[]thing{later("x")}, Counts{}, ""},
		"an id that is not unique": {
			[]thing{row("a"), row("a"), record0("a", 1)}, Counts{Expected: 2, Seen: 1, Missing: 1}, "missing a 2/1 [{2 1}]",
		},
		"an id that is not unique, newer": {[]thing{row("a"), later("a"), later("a"), record0("a", 1), record0("a", 2)}, Counts{Expected: 1, Seen: 1}, ""},
		"another topic": {
			[]thing{row("a"), {1, "a", entry{origin: fromTopic, time: 5}}},
			Counts{Expected: 1, Missing: 1, Extra: 1}, "missing a 1/0 []; extra a 0/1 [{0 0}]",
		},
		"a topic beyond those that were read": {
			[]thing{{1, "a", entry{origin: fromLater, time: unknownTime}}}, Counts{}, "",
		},
		"ids that begin alike, or are empty": {
			[]thing{row(""), row("a"), row("ab"), row("a\x00"), record0("", 1), record0("ab", 1)},
			Counts{Expected: 4, Seen: 2, Missing: 2}, "missing a 1/0 []; missing a\x00 1/0 []",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, findings := compared(t, newComparer(), tc.things)
			if got != tc.want {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
			var told []string
			for _, f := range findings {
				told = append(told, fmt.Sprintf("%s %s %d/%d %v", f.Kind, f.ID, f.Rows, f.Records, f.Places))
			}
			if s := strings.Join(told, "; "); s != tc.findings {
				t.Errorf("got  %q\nwant %q", s, tc.findings)
			}
		})
	}
}

func TestCompare_ExtraOnlyWithinTheRange(t *testing.T) {
	outside := func(id string) thing { return thing{0, id, entry{origin: fromOutside, time: 5}} }
	got, _ := compared(t, newComparer(), []thing{record0("in", 1), outside("out"), row("r"), outside("r")})
	if want := (Counts{Expected: 1, Seen: 1, Extra: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestCompare_TellsWhatIsMissingToWhoRepairs, and of the history where it is.
func TestCompare_TellsWhatIsMissingToWhoRepairs(t *testing.T) {
	c := newComparer()
	var lost []string
	c.lost = func(topic, table int, at int64, id []byte) error {
		lost = append(lost, fmt.Sprintf("%d/%d/%d/%s", topic, table, at, id))
		return nil
	}
	event := func(id string, lsn uint64) thing { return thing{1, id, entry{origin: fromWAL, time: 7, lsn: lsn}} }
	_, findings := compared(t, c, []thing{row("a"), row("b"), record0("b", 1), event("e", 0x20), event("f", 0x30), {1, "f", entry{origin: fromTopic}}})
	if got := strings.Join(lost, " "); got != "0/0/-1/a 1/0/7/e" {
		t.Errorf("got %s", got)
	}
	if len(findings) != 2 || findings[0].Table != "public.outbox" || findings[0].LSN != "" || findings[1].LSN != "0/20" || findings[1].Table != "" {
		t.Errorf("got %+v", findings)
	}
}

func TestCompare_Stops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := spill.New(t.TempDir(), 0)
	defer s.Close()
	_ = s.Add(appendKey(nil, 0, []byte("a")), row("a").append(nil))
	it, err := s.Sort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := newComparer()
	c.counts = new(Counts)
	if err := c.compare(ctx, it, func(int64) {}); err == nil {
		t.Error("went on")
	}
}

// model counts by maps what compare counts by merging.
func model(things []thing) (want Counts) {
	type key struct {
		topic int
		id    string
	}
	rows, laters, records, inRange := map[key]int64{}, map[key]int64{}, map[key]int64{}, map[key]int64{}
	all := map[key]bool{}
	for _, x := range things {
		k := key{x.topic, x.id}
		all[k] = true
		switch x.origin {
		case fromTable, fromWAL:
			rows[k]++
		case fromLater:
			laters[k]++
		default:
			records[k]++
			if x.origin == fromTopic {
				inRange[k]++
			}
		}
	}
	for k := range all {
		r, n := rows[k], records[k]
		want.Expected += r
		want.Seen += min(r, n)
		want.Missing += max(0, r-n)
		switch {
		case r > 0:
			want.Duplicate += max(0, n-max(r, laters[k]))
		case laters[k] > 0:
			want.Newer += n
		default:
			want.Extra += inRange[k]
		}
	}
	return want
}

// randomThings makes entries of few ids, so that they meet.
func randomThings(rnd *rand.Rand, n int) []thing {
	var things []thing
	for range n {
		e := entry{origin: origin(rnd.IntN(5)), time: rnd.Int64N(300) - 1}
		if e.isRecord() {
			e.partition, e.offset = rnd.Int32N(6), rnd.Int64N(1000)
		}
		things = append(things, thing{rnd.IntN(2), strings.Repeat("k", rnd.IntN(3)) + fmt.Sprint(rnd.IntN(n/2+1)), e})
	}
	return things
}

func TestCompare_AgreesWithModel(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		c := newComparer()
		things := randomThings(rnd, 20+int(seed)*100)
		got, findings := compared(t, c, things)
		if want := model(things); got != want {
			t.Fatalf("seed %d:\ngot  %+v\nwant %+v", seed, got, want)
		}
		for _, f := range findings {
			if f.Kind == Missing && f.Rows <= f.Records || len(f.Places) > maxPlaces {
				t.Fatalf("seed %d: %+v", seed, f)
			}
		}
	}
}

func FuzzCompare(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	f.Fuzz(func(t *testing.T, data []byte) {
		c := newComparer()
		var things []thing
		for len(data) >= 3 {
			e := entry{origin: origin(data[0] % 5), time: int64(data[1]%5) - 1}
			things = append(things, thing{int(data[0] / 5 % 2), string(data[2 : 2+min(1, int(data[1]/5))]), e})
			data = data[3:]
		}
		if got, _ := compared(t, c, things); got != model(things) {
			t.Fatalf("got %+v, want %+v", got, model(things))
		}
	})
}

func TestEntry_ComesBackAsItWas(t *testing.T) {
	for _, e := range []entry{
		{}, {origin: fromLater, time: unknownTime, table: 300}, {origin: fromTable, time: math.MaxInt64},
		{origin: fromWAL, time: 1, lsn: math.MaxUint64}, {origin: fromOutside, partition: 3},
		{origin: fromTopic, time: math.MinInt64, partition: math.MaxInt32, offset: math.MaxInt64},
	} {
		b := e.append(nil)
		got, err := parseEntry(b)
		if err != nil || got != e {
			t.Errorf("got %+v, %v; want %+v", got, err, e)
		}
		for n := range b {
			if _, err := parseEntry(b[:n]); err == nil {
				t.Errorf("%+v: %d of %d bytes pass for an entry", e, n, len(b))
			}
		}
	}
	for _, topic := range []int{0, 127, 128, 70_000} {
		got, id, err := cutKey(appendKey(nil, topic, []byte("id")))
		if err != nil || got != topic || string(id) != "id" {
			t.Errorf("topic %d: got %d, %q, %v", topic, got, id, err)
		}
	}
}

func TestTopic_AbsentTellsMissingFromRemoved(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) int64 { return now.Add(-d).UnixMilli() }
	const day = 24 * time.Hour
	whole := []Partition{{First: 0, End: 5, Earliest: ago(90 * day)}, {First: 0, End: 0, Earliest: unknownTime}}
	cut := []Partition{{First: 0, End: 5, Earliest: ago(90 * day)}, {First: 7, End: 9, Earliest: ago(8 * day)}}
	emptied := []Partition{{First: 9, End: 9, Earliest: unknownTime}}
	for name, tc := range map[string]struct {
		topic Topic
		at    int64
		want  Kind
	}{
		"nothing was removed":                 {Topic{Partitions: whole, Retention: 7 * day}, ago(30 * day), Missing},
		"nothing was removed, time unknown":   {Topic{Partitions: whole, Retention: 7 * day}, unknownTime, Missing},
		"no topic":                            {Topic{Missing: true}, ago(30 * day), Missing},
		"compacted":                           {Topic{Partitions: whole, Compacted: true, Retention: -1}, ago(0), Compacted},
		"older than retention":                {Topic{Partitions: cut, Retention: 7 * day}, ago(9 * day), Expired},
		"within retention":                    {Topic{Partitions: cut, Retention: 7 * day}, ago(6 * day), Missing},
		"at retention, clocks differ":         {Topic{Partitions: emptied, Retention: 7 * day}, ago(7*day - time.Minute), Expired},
		"younger than what is left":           {Topic{Partitions: cut, Retention: 2 * day}, ago(5 * day), Missing},
		"hardly younger than what is left":    {Topic{Partitions: cut, Retention: 2 * day}, ago(8*day - time.Minute), Expired},
		"time unknown":                        {Topic{Partitions: cut, Retention: 7 * day}, unknownTime, Expired},
		"by size, older than what is left":    {Topic{Partitions: cut, Retention: 30 * day, BySize: true}, ago(10 * day), Expired},
		"by size, younger than what is left":  {Topic{Partitions: cut, Retention: 30 * day, BySize: true}, ago(5 * day), Missing},
		"without limit, records were deleted": {Topic{Partitions: cut, Retention: -1}, ago(10 * day), Expired},
		"settings unknown":                    {Topic{Partitions: cut, Retention: -1, SettingsErr: errEntry}, ago(10 * day), Expired},
		"settings unknown, young":             {Topic{Partitions: cut, Retention: -1, SettingsErr: errEntry}, ago(day), Missing},
		"emptied, within retention":           {Topic{Partitions: emptied, Retention: 7 * day}, ago(day), Missing},
		"emptied, older":                      {Topic{Partitions: emptied, Retention: 7 * day}, ago(8 * day), Expired},
		"emptied, by size":                    {Topic{Partitions: emptied, Retention: 7 * day, BySize: true}, ago(0), Expired},
	} {
		t.Run(name, func(t *testing.T) {
			if got, reason := tc.topic.absent(tc.at, now); got != tc.want {
				t.Errorf("got %s (%s), want %s", got, reason, tc.want)
			}
		})
	}
}

func TestFinding_IsPlainInEveryForm(t *testing.T) {
	f := Finding{Kind: Extra, Topic: "t", ID: []byte("\x1b[2J<a>"), Records: 1, Places: []Place{{1, 2}}}
	if s := f.text(); s != `id "\x1b[2J<a>" in topic t, at 1@2` {
		t.Errorf("got %s", s)
	}
	f.ID = []byte{0xff, 0x00}
	b, err := json.Marshal(f)
	var got map[string]any
	if err != nil || json.Unmarshal(b, &got) != nil {
		t.Fatal(err)
	}
	want := map[string]any{"kind": "extra", "topic": "t", "id": `\xff00`, "id_is_hex": true, "rows": 0.0, "records": 1.0,
		"places": []any{map[string]any{"partition": 1.0, "offset": 2.0}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestReport_BoundsTheListAndSaysTheVerdict(t *testing.T) {
	l := &List{Limit: 2}
	for i := range 5 {
		l.Add(Finding{Kind: Missing, Topic: "t", Table: "public.outbox", ID: fmt.Append(nil, i), Rows: 1})
	}
	l.Add(Finding{Kind: Duplicate, Topic: "t", ID: []byte("d"), Rows: 1, Records: 2})
	r := newReport(Options{})
	r.Counts = Counts{Expected: 10, Seen: 5, Missing: 5, Duplicate: 1}
	r.finish(0)
	var text, js strings.Builder
	if err := WriteText(&text, r, l); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"id 0 in topic t, table public.outbox", "and 3 more; --out FILE", "id d in topic t: 1 rows, 2 records",
		"NOT COMPLETE: 5 rows are in no topic", "duplicates are allowed"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "id 2 ") {
		t.Errorf("the list is not bounded:\n%s", text.String())
	}
	if err := WriteJSON(&js, r, l); err != nil {
		t.Fatal(err)
	}
	var got struct {
		OK        bool
		Counts    Counts
		Findings  []struct{ Kind, ID string }
		NotListed map[Kind]int `json:"not_listed"`
	}
	if err := json.Unmarshal([]byte(js.String()), &got); err != nil {
		t.Fatal(err)
	}
	if got.OK || got.Counts != r.Counts || len(got.Findings) != 3 || got.NotListed[Missing] != 3 {
		t.Errorf("got %+v", got)
	}
}
