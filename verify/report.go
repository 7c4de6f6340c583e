package verify

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is the outcome.
type Report struct {
	OK     bool `json:"ok"` // nothing is missing at the end
	Counts `json:"counts"`
	// SnapshotLSN and SnapshotAt say of when the rows are.
	SnapshotLSN string      `json:"snapshot_lsn,omitempty"`
	SnapshotAt  *time.Time  `json:"snapshot_at,omitempty"`
	History     *Range      `json:"history,omitempty"` // in place of a snapshot
	Since       *time.Time  `json:"since,omitempty"`
	Until       *time.Time  `json:"until,omitempty"`
	Tables      []string    `json:"tables"`
	Topics      []TopicLine `json:"topics"`
	// Notes are sentences that a person should know to read the numbers.
	Notes        []string `json:"notes,omitempty"`
	SpilledBytes int64    `json:"spilled_bytes"`
	Seconds      float64  `json:"seconds"`
	// Repair is what came of it; nil without one.
	Repair *Repaired `json:"repair,omitempty"`

	started time.Time
}

// TopicLine is what was read of a topic.
type TopicLine struct {
	Topic      string `json:"topic"`
	Exists     bool   `json:"exists"`
	Partitions int    `json:"partitions"`
	Records    int64  `json:"records"` // offsets that were spanned
	Removed    bool   `json:"old_records_removed"`
	Compacted  bool   `json:"compacted"`
}

func newReport(o Options) *Report {
	r := &Report{Tables: []string{}, Topics: []TopicLine{}, started: time.Now()}
	for _, t := range o.Tables {
		r.Tables = append(r.Tables, t.String())
	}
	if !o.Since.IsZero() {
		r.Since = &o.Since
	}
	if !o.Until.IsZero() {
		r.Until = &o.Until
	}
	return r
}

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func (r *Report) topic(t *Topic) {
	_, removed := t.removedBefore()
	r.Topics = append(r.Topics, TopicLine{Topic: t.Name, Exists: !t.Missing, Partitions: len(t.Partitions), Records: t.Records(),
		Removed: removed, Compacted: t.Compacted})
	switch {
	case t.Missing:
		r.note("topic %s does not exist", t.Name)
	case t.SettingsErr != nil:
		r.note("the settings of topic %s could not be read: whether it is compacted, and for how long it keeps records, is not known (%v)", t.Name, t.SettingsErr)
	}
}

// finish draws the conclusions.
func (r *Report) finish(spilled int64) {
	r.SpilledBytes = spilled
	r.Seconds = time.Since(r.started).Seconds()
	r.OK = r.Missing == 0 && r.Unroutable == 0
	if r.Expired+r.Compacted > 0 {
		r.note("rows counted as expired or compacted have no record, and cannot be judged: it may have been published and removed since, or never published")
	}
	if r.Extra > 0 && r.History != nil {
		r.note("an extra record carries a position of the range, where no event is that is published: it is of another writer, or the mapping or the publication was changed since")
	} else if r.Extra > 0 {
		r.note("an extra record is usually one whose row was deleted after it was published; it may also be of another writer to the topic, or of a row that was changed since")
	}
	if r.Duplicate > 0 {
		r.note("duplicates are allowed: a crash, a replay or a repair publishes again, with the same id")
	}
	if r.WithoutID > 0 {
		r.note("records without an id header were not compared: they are of another writer to the topic, or from before outbox[].id_header was changed")
	}
}

// maxTopics bounds how many topics are printed for a person.
const maxTopics = 20

// List keeps the first findings of each kind, for a person.
type List struct {
	Limit    int
	findings map[Kind][]Finding
	more     map[Kind]int64
}

// Add keeps a copy, when there is room.
func (l *List) Add(f Finding) {
	if l.findings == nil {
		l.findings, l.more = map[Kind][]Finding{}, map[Kind]int64{}
	}
	if len(l.findings[f.Kind]) >= l.Limit {
		l.more[f.Kind]++
		return
	}
	f.ID = append([]byte{}, f.ID...)
	f.Places = append([]Place{}, f.Places...)
	l.findings[f.Kind] = append(l.findings[f.Kind], f)
}

// Len is how many findings are kept.
func (l *List) Len() map[Kind]int {
	n := map[Kind]int{}
	for k, f := range l.findings {
		n[k] = len(f)
	}
	return n
}

// WriteText writes the findings behind those that were kept before.
func (l *List) WriteText(w io.Writer, before map[Kind]int) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, k := range kinds {
		for _, f := range l.findings[k][before[k]:] {
			_, _ = fmt.Fprintf(t, "%s\t%s\n", k, f.text())
		}
	}
	return t.Flush()
}

// WriteJSON writes report and list as JSON.
func WriteJSON(w io.Writer, r *Report, l *List) error {
	out := struct {
		*Report
		Findings []Finding `json:"findings"`
		// NotListed is how many findings were left out, by kind.
		NotListed map[Kind]int64 `json:"not_listed,omitempty"`
	}{r, []Finding{}, l.more}
	for _, k := range kinds {
		out.Findings = append(out.Findings, l.findings[k]...)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}

// WriteText writes report and list for a person.
func WriteText(w io.Writer, r *Report, l *List) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name string, n int64, what string) { _, _ = fmt.Fprintf(t, "%s\t%12d\t%s\n", name, n, what) }
	switch {
	case r.History != nil && r.History.To == 0:
		_, _ = fmt.Fprintf(t, "history\tnothing was committed in the range\n")
	case r.History != nil:
		_, _ = fmt.Fprintf(t, "history\tcommitted from %s up to %s\n", r.History.From, r.History.To)
	case r.SnapshotAt != nil:
		_, _ = fmt.Fprintf(t, "snapshot\tof %s at %s, %s%s\n", strings.Join(r.Tables, ", "), r.SnapshotLSN,
			r.SnapshotAt.UTC().Format(time.DateTime+"Z"), r.rangeText())
	}
	for i, topic := range r.Topics {
		if i == maxTopics {
			_, _ = fmt.Fprintf(t, "topic\tand %d more; --json lists all\n", len(r.Topics)-i)
			break
		}
		_, _ = fmt.Fprintf(t, "topic\t%s\n", topic.text())
	}
	line("expected", r.Expected, r.thing()+"s")
	line("seen", r.Seen, "of them in the topics")
	line("missing", r.Missing, "of them in no topic")
	if r.Unroutable > 0 {
		line("unroutable", r.Unroutable, "rows that can never be published as they are")
	}
	if r.Expired+r.Compacted > 0 {
		line("expired", r.Expired, "cannot be judged: records as old were removed from the topic")
		line("compacted", r.Compacted, "cannot be judged: the topic is compacted")
	}
	line("duplicate", r.Duplicate, "records beyond the first of their row or event")
	line("extra", r.Extra, "records without a row or event")
	if r.Newer > 0 {
		line("newer", r.Newer, "records of rows committed after the snapshot, not judged")
	}
	if r.WithoutID > 0 {
		line("without id", r.WithoutID, "records, not compared")
	}
	for _, k := range kinds {
		for _, f := range l.findings[k] {
			_, _ = fmt.Fprintf(t, "%s\t%s\n", k, f.text())
		}
		if l.more[k] > 0 {
			_, _ = fmt.Fprintf(t, "%s\tand %d more; --out FILE lists all\n", k, l.more[k])
		}
	}
	for _, n := range r.Notes {
		_, _ = fmt.Fprintf(t, "note\t%s\n", strings.ReplaceAll(n, "\n", " "))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, r.verdict())
	return err
}

func (r *Report) verdict() string {
	switch {
	case !r.OK:
		return fmt.Sprintf("NOT COMPLETE: %d %ss are in no topic", r.Missing+r.Unroutable, r.thing())
	case r.Expired+r.Compacted > 0:
		return fmt.Sprintf("nothing is missing, as far as can be told: %d %ss cannot be judged any more", r.Expired+r.Compacted, r.thing())
	case r.Expected == 0:
		return "nothing was compared: there is no " + r.thing() + " " + r.where()
	}
	return "complete: every " + r.thing() + " is in its topic"
}

// where is what was looked at.
func (r *Report) where() string {
	switch {
	case r.History != nil:
		return "in that range of the history"
	case r.Since != nil || r.Until != nil:
		return "of that time in the tables"
	}
	return "in the tables"
}

// thing is what is compared with records.
func (r *Report) thing() string {
	if r.History != nil {
		return "event"
	}
	return "row"
}

// Text says what came of a repair, for a person.
func (r *Repaired) Text() string {
	s := fmt.Sprintf("published again: %d records, all of them acknowledged", r.Published)
	if r.Gone > 0 {
		s += fmt.Sprintf("; %d rows are in the table no more: they can never be published", r.Gone)
	}
	if r.Unroutable > 0 {
		s += fmt.Sprintf("; %d rows cannot be published as they are: mend and insert them again", r.Unroutable)
	}
	if r.Missing > 0 {
		return s + fmt.Sprintf("\nNOT REPAIRED: %d records are still in no topic", r.Missing)
	}
	if !r.OK() {
		return s + "\nNOT REPAIRED as a whole"
	}
	return s + "\nrepaired: nothing is missing any more"
}

func (r *Report) rangeText() string {
	s := ""
	if r.Since != nil {
		s += ", rows since " + r.Since.UTC().Format(time.RFC3339)
	}
	if r.Until != nil {
		s += ", rows until " + r.Until.UTC().Format(time.RFC3339)
	}
	return s
}

func (t TopicLine) text() string {
	if !t.Exists {
		return t.Topic + ": does not exist"
	}
	s := fmt.Sprintf("%s: %d partitions, %d records", t.Topic, t.Partitions, t.Records)
	if t.Removed {
		s += ", older ones were removed"
	}
	if t.Compacted {
		s += ", compacted"
	}
	return s
}

// text shows a finding; an id that is not plain is quoted, so that it cannot
// write to the terminal.
func (f Finding) text() string {
	id := f.IDText()
	if q := strconv.Quote(id); q != `"`+id+`"` || id == "" {
		id = q
	}
	s := "id " + id
	if f.Topic != "" {
		s += " in topic " + f.Topic
	}
	if f.Table != "" {
		s += ", table " + f.Table
	}
	if f.LSN != "" {
		s += ", committed at " + f.LSN
	}
	if !f.Time.IsZero() {
		s += ", of " + f.Time.Format(time.RFC3339)
	}
	if f.Kind == Duplicate || f.Rows > 1 {
		s += fmt.Sprintf(": %d rows, %d records", f.Rows, f.Records)
	}
	for i, p := range f.Places {
		if i == 0 {
			s += ", at "
		} else {
			s += ", "
		}
		s += fmt.Sprintf("%d@%d", p.Partition, p.Offset)
	}
	if f.Reason != "" {
		s += " (" + strings.ReplaceAll(f.Reason, "\n", " ") + ")"
	}
	return s
}
