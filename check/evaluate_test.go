package check

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/route"
)

var outbox = catalog.TableName{Schema: "public", Name: "outbox"}

// good is a configuration and facts of which everything passes.
func good() (Want, Facts) {
	t := route.Table{Schema: "public", Name: "outbox", ID: "id", Key: "aggregateid", Type: "type", Payload: "payload",
		Topic: "orders", Position: true}
	w := Want{
		Preflight: preflight.Want{Slot: "s", Publication: "p", Tables: []catalog.TableName{outbox}, ApplicationName: "cdc-relay"},
		Tables:    []route.Table{t}, MarkTopic: "marks", Brokers: true, Publish: true, Partitions: 6, Replication: -1, MarkReplication: -1,
		MaxBatchBytes: 900 << 10,
	}
	const text, uuid = 25, 2950
	table := catalog.Table{OID: 7, Schema: "public", Name: "outbox", Kind: catalog.KindTable, Persistence: catalog.Permanent,
		Columns: []catalog.Column{
			{Name: "id", TypeOID: uuid, BaseTypeOID: uuid, TypeName: "uuid", NotNull: true},
			{Name: "aggregateid", TypeOID: text, BaseTypeOID: text, TypeName: "text"},
			{Name: "type", TypeOID: text, BaseTypeOID: text, TypeName: "text"},
			{Name: "payload", TypeOID: 3802, BaseTypeOID: 3802, TypeName: "jsonb"},
		}}
	ids := catalog.Identities{
		Publication: checkpoint.Identity{OID: 5, Name: "p", Def: "d"},
		Relations:   []checkpoint.Identity{{OID: 7, Name: "public.outbox"}},
	}
	config := func(policy string) map[string]string {
		return map[string]string{"min.insync.replicas": "2", "unclean.leader.election.enable": "false",
			"max.message.bytes": "1048588", "retention.ms": "604800000", "cleanup.policy": policy}
	}
	return w, Facts{
		Server: catalog.Server{VersionNum: 170002, Version: "17.2", SystemID: "1", Timeline: 1, Database: "shop", CurrentLSN: 1000,
			Encoding: "UTF8", WALLevel: "logical", MaxSlotWALKeepSize: 50000, MaxReplicationSlots: 10, ReplicationSlots: 1,
			MaxWALSenders: 10, Role: catalog.Role{Name: "relay", Replication: true}},
		Slot: catalog.Slot{Name: "s", Plugin: "pgoutput", Type: "logical", Database: "shop", WALStatus: "reserved", Restart: 500, Confirmed: 600},
		Publication: catalog.Publication{OID: 5, Name: "p", Owner: "o", Insert: true, ViaRoot: true,
			Tables: []catalog.PublishedTable{{OID: 7, Schema: "public", Name: "outbox"}}},
		HasSlot: true, HasPublication: true,
		Tables: map[catalog.TableName]*catalog.Table{outbox: &table}, Identities: ids,
		Mark: checkpoint.Mark{SystemID: "1", Slot: "s", Epoch: 1, Timeline: 1, LSN: 600, CheckedLSN: 900, SavedAt: time.Unix(0, 0),
			Publication: ids.Publication, Relations: ids.Relations},
		HasMark: true,
		Topics: map[string]Topic{
			"orders": {Partitions: 6, Replicas: 3, Config: config("delete")},
			"marks":  {Partitions: 1, Replicas: 3, Config: config("compact")},
		},
		Now: time.Unix(100, 0),
	}
}

// drops has the table's partitions dropped.
func drops(w *Want, f *Facts, change func(*catalog.PartitionedTable)) {
	w.AgeColumns, w.DropPartitions, w.PartitionInterval = []string{"at"}, true, time.Hour
	now := time.Unix(1e9, 0)
	table := catalog.PartitionedTable{Now: now, TableName: catalog.TableName{Schema: "public", Name: "outbox"}, Owner: "o", MayOwn: true, MayCreate: true,
		Partitions: []catalog.RangePartition{{Owner: "o"}}}
	if change != nil {
		change(&table)
	}
	f.Partitioned = []catalog.PartitionedTable{table}
}

// left leaves a detached partition, of an epoch of the mark.
func left(f *Facts, epoch uint64) {
	f.Detached = []catalog.Detached{{TableName: catalog.TableName{Schema: "public", Name: "p"}, Note: catalog.Note{Epoch: epoch}}}
}

func TestEvaluate_EverythingPasses(t *testing.T) {
	w, f := good()
	rs := Evaluate(w, f)
	for _, r := range rs {
		if r.Status != Pass {
			t.Errorf("%+v", r)
		}
	}
	if Failed(rs) || len(rs) < 25 {
		t.Errorf("%d results", len(rs))
	}
}

func wantMessages(w *Want, f *Facts) {
	w.Messages = &route.Messages{Prefix: "outbox", Topic: "outbox.event.{aggregatetype}", IDHeader: "id", TypeHeader: "eventType"}
	f.Topics["made"] = f.Topics["orders"]
}

func TestEvaluate_Marking(t *testing.T) {
	orders := catalog.TableName{Schema: "public", Name: "outbox"}
	for _, c := range []struct {
		name string
		edit func(w *Want, f *Facts)
		want Status // "" : nothing is said
		says string
	}{
		{"off", func(w *Want, _ *Facts) { w.Marking = nil }, "", ""},
		{"on", func(*Want, *Facts) {}, Pass, `get "done" in column "status"`},
		{"no index", func(_ *Want, f *Facts) { f.Marked[orders] = catalog.MarkedTable{} }, Warn, "CREATE INDEX CONCURRENTLY ON"},
		{"no table", func(_ *Want, f *Facts) { f.Tables[orders] = nil }, "", ""},
		{"no privilege", func(_ *Want, f *Facts) {
			f.UnmarkedErr = map[catalog.TableName]error{orders: fault.Stopped("GRANT it", "role r may not")}
		}, Fail, "GRANT it"},
		{"updates are published", func(_ *Want, f *Facts) { f.Publication.Update = true }, Warn, "sent to the relay once more"},
	} {
		w, f := good()
		w.Marking = []catalog.Marking{{Table: orders, ID: "id", Column: "status", Value: "done"}}
		f.Marked = map[catalog.TableName]catalog.MarkedTable{orders: {Indexed: true}}
		c.edit(&w, &f)
		var got *Result
		for _, r := range Evaluate(w, f) {
			if r.Name == "mark public.outbox" && got == nil {
				got = &r
			}
		}
		switch {
		case c.want == "" && got != nil, c.want != "" && (got == nil || got.Status != c.want || !strings.Contains(got.Detail+" "+got.Fix, c.says)):
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func TestEvaluate_NothingOfMessagesWithoutAPrefix(t *testing.T) {
	for _, r := range Evaluate(good()) {
		if strings.Contains(r.Name, "messages") {
			t.Errorf("%+v", r)
		}
	}
}

func TestEvaluate_History(t *testing.T) {
	slot := catalog.Slot{Name: "s_history", Plugin: "pgoutput", Type: "logical", Database: "shop", WALStatus: "reserved", Restart: 400, Confirmed: 450}
	for _, c := range []struct {
		name string
		edit func(w *Want, f *Facts)
		want Status // "" : nothing is said
		says string
	}{
		{"off", func(w *Want, f *Facts) { w.History, f.HasHistory = false, false }, "", ""},
		{"on", func(*Want, *Facts) {}, Pass, "from 0/1C2 to 0/258"},
		{"left behind", func(w *Want, f *Facts) { w.History = false }, Warn, "without limit"},
		{"missing", func(w *Want, f *Facts) { f.HasHistory = false }, Fail, "does not exist"},
		{"lost", func(w *Want, f *Facts) { f.HistorySlot.WALStatus = "lost" }, Fail, "is lost"},
		{"another plugin", func(w *Want, f *Facts) { f.HistorySlot.Plugin = "test_decoding" }, Fail, "not a logical slot of pgoutput"},
		{"above the limit", func(w *Want, f *Facts) { w.HistoryHardMax = 99 }, Warn, "will drop it"},
		{"the relay's slot keeps as much", func(w *Want, f *Facts) { w.HistoryHardMax, f.Slot.Restart = 99, 400 }, Pass, "can be replayed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, f := good()
			w.HistorySlot, w.History, w.HistoryHardMax = "s_history", true, 1<<30
			f.HistorySlot, f.HasHistory = slot, true
			c.edit(&w, &f)
			var got Result
			for _, r := range Evaluate(w, f) {
				if r.Name == "history slot" {
					got = r
				}
			}
			if got.Status != c.want || !strings.Contains(got.Detail, c.says) || (got.Fix == "") != (c.want == Pass || c.want == "") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestEvaluate_PublicationBeforeSlot: that a horizon does not prove which came first
// is no warning once the slot is marked and all is as it was then.
func TestEvaluate_PublicationBeforeSlot(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(f *Facts)
		want Status
		says string
	}{
		"proven":            {func(f *Facts) { f.MayFollow = false }, Pass, "before the slot"},
		"marked":            {func(*Facts) {}, Pass, "when the slot was marked"},
		"no mark":           {func(f *Facts) { f.HasMark = false }, Warn, "nothing proves"},
		"altered since":     {func(f *Facts) { f.Identities.Publication.Def = "e" }, Warn, "after the slot"},
		"setup is not done": {func(f *Facts) { f.Mark.LSN, f.Mark.Intent = 0, true }, Warn, "nothing proves"},
	} {
		w, f := good()
		f.MayFollow = true
		c.edit(&f)
		found := false
		for _, r := range Evaluate(w, f) {
			found = found || r.Name == "publication before slot" && r.Status == c.want && strings.Contains(r.Detail, c.says)
		}
		if !found {
			t.Errorf("%s: no %s with %q", name, c.want, c.says)
		}
	}
}

// TestEvaluate_CoveredGapsAskForNothing but a start of the relay, and that only where
// something waits for it.
func TestEvaluate_CoveredGapsAskForNothing(t *testing.T) {
	w, f := good()
	w.AgeColumns = []string{"created_at"}
	created := catalog.Column{Name: "created_at", TypeOID: 1184, BaseTypeOID: 1184, TypeName: "timestamptz"}
	f.Tables[outbox].Columns = append(f.Tables[outbox].Columns, created)
	gaps := []checkpoint.Gap{{To: 99, Table: "public.outbox", Reason: "adopted"}, {To: 98, Reason: "older"}}
	f.Mark.Gaps = gaps
	says := func(want ...string) {
		t.Helper()
		var b bytes.Buffer
		for _, r := range Evaluate(w, f) {
			if r.Status != Pass || r.Name == "open gap" || r.Name == "retention" {
				b.WriteString(string(r.Status) + " " + r.Name + ": " + r.Detail + "\n")
			}
		}
		if b.String() != strings.Join(want, "\n")+"\n" {
			t.Errorf("got:\n%swant:\n%s", b.String(), strings.Join(want, "\n"))
		}
	}
	f.Covered = gaps[1:]
	says("warn open gap: public.outbox, from the beginning to 0/63: adopted",
		"pass open gap: every outbox table, from the beginning to 0/62: covered by a backfill; it closes at the relay's next start",
		"fail retention: 1 gap(s) are open: rows that may never have been published are not told from the others, so nothing is deleted")
	f.Covered = gaps
	says("pass open gap: public.outbox, from the beginning to 0/63: covered by a backfill; it closes at the relay's next start",
		"pass open gap: every outbox table, from the beginning to 0/62: covered by a backfill; it closes at the relay's next start",
		"warn retention: 2 gap(s) are covered by a backfill and close at the relay's next start; until then nothing is deleted")
}

func TestEvaluate_FindsEachDefect(t *testing.T) {
	column := func(f *Facts, name string) *catalog.Column {
		for i, c := range f.Tables[outbox].Columns {
			if c.Name == name {
				return &f.Tables[outbox].Columns[i]
			}
		}
		return nil
	}
	topic := func(f *Facts, name string, change func(*Topic)) {
		tp := f.Topics[name]
		change(&tp)
		f.Topics[name] = tp
	}
	for name, tc := range map[string]struct {
		change func(*Want, *Facts)
		result string
		status Status
		says   string // in the detail or the fix
	}{
		"database away":       {func(_ *Want, f *Facts) { f.DatabaseErr = errors.New("refused") }, "database", Fail, "refused"},
		"old server":          {func(_ *Want, f *Facts) { f.Server.VersionNum = 120009 }, "server version", Fail, "13 or newer"},
		"standby":             {func(_ *Want, f *Facts) { f.Server.InRecovery = true }, "primary", Fail, "standby"},
		"wal_level":           {func(_ *Want, f *Facts) { f.Server.WALLevel = "replica" }, "wal_level", Fail, "replica"},
		"encoding":            {func(_ *Want, f *Facts) { f.Server.Encoding = "SQL_ASCII" }, "encoding", Warn, "SQL_ASCII"},
		"no replication":      {func(_ *Want, f *Facts) { f.Server.Role.Replication = false }, "role", Fail, `ALTER ROLE "relay" REPLICATION`},
		"superuser":           {func(_ *Want, f *Facts) { f.Server.Role.Superuser = true }, "role", Warn, "superuser"},
		"no free slot":        {func(_ *Want, f *Facts) { f.HasSlot = false; f.Server.ReplicationSlots = 10 }, "max_replication_slots", Fail, "all 10"},
		"no free walsender":   {func(_ *Want, f *Facts) { f.Server.WALSenders = 10 }, "max_wal_senders", Fail, "all 10"},
		"walsender is ours":   {func(_ *Want, f *Facts) { f.Server.WALSenders = 10; f.Slot.Active = true }, "max_wal_senders", Pass, ""},
		"unbounded WAL":       {func(_ *Want, f *Facts) { f.Server.MaxSlotWALKeepSize = -1 }, "max_slot_wal_keep_size", Warn, "fill"},
		"tight WAL":           {func(_ *Want, f *Facts) { f.Server.MaxSlotWALKeepSize = 64 }, "max_slot_wal_keep_size", Warn, "64 MB"},
		"idle timeout":        {func(_ *Want, f *Facts) { f.Server.VersionNum = 180000; f.Server.IdleSlotTimeout = time.Hour }, "idle_replication_slot_timeout", Warn, "1h"},
		"idle timeout off":    {func(_ *Want, f *Facts) { f.Server.VersionNum = 180000 }, "idle_replication_slot_timeout", Pass, "off"},
		"synchronous":         {func(_ *Want, f *Facts) { f.Server.SynchronousStandbyNames = "*" }, "synchronous_standby_names", Fail, "wait for Kafka"},
		"synchronous allowed": {func(w *Want, f *Facts) { f.Server.SynchronousStandbyNames = "*"; w.Preflight.AllowSynchronous = true }, "synchronous_standby_names", Warn, "may wait"},

		"messages":                     {wantMessages, "messages", Pass, `"outbox"`},
		"messages, few emitters":       {wantMessages, "messages emitters", Pass, ""},
		"messages of an old server":    {func(w *Want, f *Facts) { wantMessages(w, f); f.Server.VersionNum = 130022 }, "messages", Fail, "14 or newer"},
		"messages in another encoding": {func(w *Want, f *Facts) { wantMessages(w, f); f.Server.Encoding = "LATIN1" }, "messages", Warn, "convert_to(body, 'UTF8')"},
		"messages of any role": {func(w *Want, f *Facts) {
			wantMessages(w, f)
			f.Emitters = catalog.MessageEmitters{Public: true, Revoke: []string{"REVOKE a", "REVOKE b"}}
		}, "messages emitters", Warn, "REVOKE a; REVOKE b; and GRANT"},
		"topic of messages": {func(w *Want, f *Facts) { wantMessages(w, f); w.Messages.Topic = "made" }, "topic made", Pass, ""},

		"no publication":       {func(_ *Want, f *Facts) { f.HasPublication = false }, "publication", Fail, "cdc-relay adopt"},
		"nothing set up":       {func(_ *Want, f *Facts) { f.HasPublication, f.HasSlot, f.HasMark = false, false, false }, "publication", Fail, "cdc-relay setup"},
		"no inserts":           {func(_ *Want, f *Facts) { f.Publication.Insert = false }, "publication inserts", Fail, "publish = 'insert'"},
		"more than inserts":    {func(_ *Want, f *Facts) { f.Publication.Update = true }, "publication inserts", Warn, "more than inserts"},
		"not via root":         {func(_ *Want, f *Facts) { f.Publication.ViaRoot = false }, "publication via root", Warn, "publish_via_partition_root"},
		"not via root, needed": {func(_ *Want, f *Facts) { f.Publication.ViaRoot = false; f.Tables[outbox].Kind = "p" }, "publication via root", Fail, "partitions"},
		"all tables":           {func(_ *Want, f *Facts) { f.Publication.AllTables = true }, "publication tables", Warn, "ALL TABLES"},
		"other tables": {func(_ *Want, f *Facts) {
			f.Publication.Tables = append(f.Publication.Tables, catalog.PublishedTable{Schema: "a", Name: "b"})
		}, "publication tables", Warn, "a.b"},

		"no table": {func(_ *Want, f *Facts) { f.Tables[outbox] = nil }, "table public.outbox", Fail, "does not exist"},
		"a view":   {func(_ *Want, f *Facts) { f.Tables[outbox].Kind = "v" }, "table public.outbox", Fail, "not a table"},
		"unlogged": {func(_ *Want, f *Facts) { f.Tables[outbox].Persistence = "u" }, "table public.outbox", Fail, "SET LOGGED"},
		"foreign partition": {func(_ *Want, f *Facts) {
			f.Tables[outbox].Partitions = []catalog.Partition{{Name: "x.y", Kind: "f", Persistence: "p"}}
		}, "table public.outbox", Fail, "x.y"},
		"not published":      {func(_ *Want, f *Facts) { f.Publication.Tables = nil }, "table public.outbox published", Fail, "ADD TABLE"},
		"row filter":         {func(_ *Want, f *Facts) { f.Publication.Tables[0].RowFilter = "(id > 5)" }, "table public.outbox published", Warn, "(id > 5)"},
		"column list":        {func(_ *Want, f *Facts) { f.Publication.Tables[0].Columns = []string{"id", "aggregateid", "type"} }, "table public.outbox columns", Fail, `"payload"`},
		"no column":          {func(_ *Want, f *Facts) { column(f, "payload").Name = "body" }, "table public.outbox columns", Fail, "id, aggregateid, type, body"},
		"generated column":   {func(_ *Want, f *Facts) { column(f, "payload").Generated = true }, "table public.outbox columns", Fail, "generated"},
		"nullable id":        {func(_ *Want, f *Facts) { column(f, "id").NotNull = false }, "table public.outbox columns", Warn, "SET NOT NULL"},
		"unusable type":      {func(w *Want, _ *Facts) { w.Tables[0].Partition = "aggregateid" }, "table public.outbox columns", Fail, "cannot be the partition"},
		"no topic column":    {func(w *Want, _ *Facts) { w.Tables[0].Topic = "x.{aggregatetype}" }, "table public.outbox columns", Fail, `"aggregatetype"`},
		"topics of the rows": {func(w *Want, _ *Facts) { w.Tables[0].Topic = "x.{type}" }, "topics", Warn, "kafka.topics.names"},

		"no slot":      {func(_ *Want, f *Facts) { f.HasSlot, f.HasMark = false, false }, "slot", Fail, "run cdc-relay setup"},
		"slot dropped": {func(_ *Want, f *Facts) { f.HasSlot = false }, "slot", Fail, "cdc-relay recover"},
		"no slot, mark unread": {func(_ *Want, f *Facts) {
			f.HasSlot, f.HasMark, f.StoreErr = false, false, errors.New("no")
		}, "slot", Fail, "let the mark be read first"},
		"physical slot":  {func(_ *Want, f *Facts) { f.Slot.Type = "physical" }, "slot", Fail, "physical"},
		"two_phase":      {func(_ *Want, f *Facts) { f.Slot.TwoPhase = true }, "slot", Fail, "two_phase"},
		"temporary":      {func(_ *Want, f *Facts) { f.Slot.Temporary = true }, "slot", Fail, "temporary"},
		"other plugin":   {func(_ *Want, f *Facts) { f.Slot.Plugin = "test_decoding" }, "slot plugin", Fail, "test_decoding"},
		"other database": {func(_ *Want, f *Facts) { f.Slot.Database = "x" }, "slot database", Fail, `"x"`},
		"lost":           {func(_ *Want, f *Facts) { f.Slot.WALStatus = "lost" }, "slot wal_status", Fail, "lost"},
		"nearly lost":    {func(_ *Want, f *Facts) { f.Slot.WALStatus = "unreserved" }, "slot wal_status", Fail, "next checkpoint"},
		"much WAL":       {func(_ *Want, f *Facts) { f.Slot.WALStatus = "extended" }, "slot wal_status", Warn, "extended"},
		"store away":     {func(_ *Want, f *Facts) { f.StoreErr = errors.New("no") }, "mark", Fail, "no"},
		"no mark":        {func(_ *Want, f *Facts) { f.HasMark = false }, "ready to stream", Fail, "adopt"},
		"slot ahead":     {func(_ *Want, f *Facts) { f.Slot.Confirmed = 700 }, "ready to stream", Fail, "ahead of the mark"},
		"table made again": {func(_ *Want, f *Facts) {
			f.Identities.Relations = []checkpoint.Identity{{OID: 8, Name: "public.outbox"}}
			f.Gone = map[uint32]bool{7: true}
		}, "ready to stream", Fail, "public.outbox"},
		"gap": {func(_ *Want, f *Facts) { f.Mark.Gaps = []checkpoint.Gap{{To: 99, Reason: "adopted"}} }, "open gap", Warn, "adopted"},

		"not by time": {func(w *Want, f *Facts) { drops(w, f, nil); f.NotByTime = []string{"table x is not partitioned"} }, "retention", Fail, "not partitioned"},
		"no owner":    {func(w *Want, f *Facts) { drops(w, f, func(t *catalog.PartitionedTable) { t.MayOwn = false }) }, "retention", Fail, `GRANT "o" TO "relay"`},
		"no CREATE":   {func(w *Want, f *Facts) { drops(w, f, func(t *catalog.PartitionedTable) { t.MayCreate = false }) }, "retention", Fail, `GRANT CREATE ON SCHEMA "public" TO "o"`},
		"partition's owner": {func(w *Want, f *Facts) {
			drops(w, f, func(t *catalog.PartitionedTable) { t.Partitions[0].Owner = "x" })
		}, "retention", Fail, "OWNER TO"},
		"none for now": {func(w *Want, f *Facts) {
			drops(w, f, func(t *catalog.PartitionedTable) { t.Partitions[0].To = t.Now })
		}, "retention", Fail, "start the relay"},
		"none for now, by hand": {func(w *Want, f *Facts) {
			drops(w, f, func(t *catalog.PartitionedTable) { t.Partitions[0].To = t.Now })
			w.PartitionInterval = 0
		}, "retention", Fail, "partition_interval"},
		"one for now": {func(w *Want, f *Facts) {
			drops(w, f, func(t *catalog.PartitionedTable) { t.Partitions[0].To = t.Now.Add(1) })
		}, "retention", Pass, "can be dropped"},
		"default": {func(w *Want, f *Facts) {
			drops(w, f, func(t *catalog.PartitionedTable) {
				t.Partitions[0].To = t.Now
				t.Partitions = append(t.Partitions, catalog.RangePartition{Owner: "o", Default: true})
			})
		}, "retention", Pass, "can be dropped"},
		"drops partitions": {func(w *Want, f *Facts) { drops(w, f, nil) }, "retention", Pass, "can be dropped"},
		"drops, gap":       {func(w *Want, f *Facts) { drops(w, f, nil); f.Mark.Gaps = []checkpoint.Gap{{To: 99}} }, "retention", Fail, "gap(s) are open"},
		"detached":         {func(w *Want, f *Facts) { drops(w, f, nil); left(f, 1) }, "detached partition public.p", Pass, "when everything"},
		"detached, epoch":  {func(w *Want, f *Facts) { drops(w, f, nil); left(f, 2) }, "detached partition public.p", Warn, "ATTACH PARTITION"},
		"detached, kept":   {func(_ *Want, f *Facts) { left(f, 1) }, "detached partition public.p", Warn, "drop_partitions"},

		"brokers away": {func(_ *Want, f *Facts) {
			f.BrokersErr = &fault.Error{Class: fault.Stop, What: "wrong password", Fix: "give another"}
		}, "brokers", Fail, "give another"},
		"brokers away, mark there": {func(_ *Want, f *Facts) { f.BrokersErr = errors.New("x") }, "mark", Skip, "in Kafka"},
		"no topic":                 {func(_ *Want, f *Facts) { f.Topics["orders"] = Topic{Missing: true} }, "topic orders", Warn, "--create-topics"},
		"no topic, none allowed":   {func(_ *Want, f *Facts) { f.Topics["orders"] = Topic{Missing: true, CreateErr: errors.New("denied")} }, "topic orders", Fail, "denied"},
		"topic denied":             {func(_ *Want, f *Facts) { f.Topics["orders"] = Topic{Err: errors.New("denied")} }, "topic orders", Fail, "grant"},
		"leaderless":               {func(_ *Want, f *Facts) { topic(f, "orders", func(t *Topic) { t.Leaderless = 2 }) }, "topic orders", Warn, "2 of 6"},
		"one replica": {func(_ *Want, f *Facts) {
			topic(f, "orders", func(t *Topic) { t.Replicas = 1; t.Config["min.insync.replicas"] = "1" })
		}, "topic orders replication", Warn, "lost"},
		"min isr 1":        {func(_ *Want, f *Facts) { topic(f, "orders", func(t *Topic) { t.Config["min.insync.replicas"] = "1" }) }, "topic orders replication", Warn, "one broker has it"},
		"min isr all":      {func(_ *Want, f *Facts) { topic(f, "orders", func(t *Topic) { t.Config["min.insync.replicas"] = "3" }) }, "topic orders replication", Warn, "nothing can be written"},
		"min isr too many": {func(_ *Want, f *Facts) { topic(f, "orders", func(t *Topic) { t.Config["min.insync.replicas"] = "4" }) }, "topic orders replication", Fail, "ever"},
		"unclean": {func(_ *Want, f *Facts) {
			topic(f, "orders", func(t *Topic) { t.Config["unclean.leader.election.enable"] = "true" })
		}, "topic orders unclean election", Warn, "lost"},
		"small messages":  {func(_ *Want, f *Facts) { topic(f, "orders", func(t *Topic) { t.Config["max.message.bytes"] = "1000" }) }, "topic orders max.message.bytes", Warn, "1000"},
		"short retention": {func(_ *Want, f *Facts) { topic(f, "orders", func(t *Topic) { t.Config["retention.ms"] = "60000" }) }, "topic orders retention", Warn, "1m0s"},
		"no retention":    {func(_ *Want, f *Facts) { topic(f, "orders", func(t *Topic) { t.Config["retention.ms"] = "-1" }) }, "topic orders retention", Pass, "without limit"},
		"huge retention": {func(_ *Want, f *Facts) {
			topic(f, "orders", func(t *Topic) { t.Config["retention.ms"] = "9223372036854775807" })
		}, "topic orders retention", Pass, "without limit"},
		"compacted":            {func(_ *Want, f *Facts) { topic(f, "orders", func(t *Topic) { t.Config["cleanup.policy"] = "compact" }) }, "topic orders cleanup.policy", Warn, "compact"},
		"configuration denied": {func(_ *Want, f *Facts) { topic(f, "orders", func(t *Topic) { t.ConfigErr = errors.New("denied") }) }, "topic orders configuration", Warn, "DESCRIBE_CONFIGS"},
		"marks expire": {func(_ *Want, f *Facts) {
			topic(f, "marks", func(t *Topic) { t.Config["cleanup.policy"] = "compact,delete" })
		}, "topic marks cleanup.policy", Fail, "removed"},
		"marks in two":      {func(_ *Want, f *Facts) { topic(f, "marks", func(t *Topic) { t.Partitions = 2 }) }, "topic marks", Fail, "2 partitions"},
		"no topic of marks": {func(_ *Want, f *Facts) { f.Topics["marks"] = Topic{Missing: true}; f.HasMark = false }, "mark", Fail, "marks"},
		"configuration":     {func(w *Want, _ *Facts) { w.Warnings = []string{"admin.listen: open"} }, "admin.listen", Warn, "open"},
	} {
		t.Run(name, func(t *testing.T) {
			w, f := good()
			tc.change(&w, &f)
			rs := Evaluate(w, f)
			found := false
			for _, r := range rs {
				if r.Name == tc.result && r.Status == tc.status && strings.Contains(r.Detail+" "+r.Fix, tc.says) {
					found = true
				}
				if (r.Status == Fail || r.Status == Warn) && r.Detail == "" {
					t.Errorf("%+v says nothing", r)
				}
			}
			if !found {
				var b bytes.Buffer
				_ = WriteText(&b, rs)
				t.Errorf("no %s of %q with %q in:\n%s", tc.status, tc.result, tc.says, b.String())
			}
			if tc.status == Fail && !Failed(rs) {
				t.Error("does not fail")
			}
			if tc.status != Fail && tc.status != Skip && Failed(rs) {
				t.Error("fails")
			}
		})
	}
}

func TestEvaluate_WithoutDatabaseAndBrokersOnlySkips(t *testing.T) {
	w, _ := good()
	f := Facts{DatabaseErr: errors.New("away"), BrokersErr: errors.New("away")}
	for _, r := range Evaluate(w, f) {
		if r.Status != Skip && r.Name != "database" && r.Name != "brokers" {
			t.Errorf("%+v", r)
		}
	}
}

// A format that has texts as members or attributes cannot have a bytea there.
func TestEvaluate_BytesInAFormat(t *testing.T) {
	for _, tc := range []struct {
		format route.Format
		column string
		status Status
		says   string
	}{
		{route.FormatRaw, "id", Pass, ""},
		{route.FormatRaw, "aggregateid", Pass, ""},
		{route.FormatJSON, "payload", Pass, ""},
		{route.FormatCloudEvents, "payload", Pass, ""},
		{route.FormatJSON, "id", Fail, "any type but bytea with the format json"},
		{route.FormatJSON, "aggregateid", Fail, "any type but bytea with the format json"},
		{route.FormatCloudEvents, "id", Fail, "any type but bytea with the format cloudevents"},
		{route.FormatCloudEvents, "aggregateid", Fail, "any type but bytea with the format cloudevents"},
		{route.FormatCloudEvents, "type", Fail, "any type but bytea with the format cloudevents"},
	} {
		w, f := good()
		w.Tables[0].Format = tc.format
		if tc.format == route.FormatCloudEvents {
			w.Tables[0].Source = "/shop"
		}
		for i, c := range f.Tables[outbox].Columns {
			if c.Name == tc.column {
				f.Tables[outbox].Columns[i].TypeOID, f.Tables[outbox].Columns[i].BaseTypeOID, f.Tables[outbox].Columns[i].TypeName = 90001, 17, "bytes"
			}
		}
		found := false
		for _, res := range Evaluate(w, f) {
			if strings.HasSuffix(res.Name, " columns") {
				found = true
				if res.Status != tc.status || !strings.Contains(res.Detail+res.Fix, tc.says) {
					t.Errorf("%s of bytea in %s: %+v", tc.column, tc.format, res)
				}
			}
		}
		if !found {
			t.Errorf("%s in %s: nothing of the columns", tc.column, tc.format)
		}
	}
}
