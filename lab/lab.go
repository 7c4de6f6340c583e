// Package lab measures every window between two commits of the whole path on real servers: each scene kills real processes
// in one window and compares what is in PostgreSQL and Kafka afterwards with what is expected.
//
// Some scenes show the wrong ways, too: the processes of those are the files role_*.go, wrong on purpose, and not to be copied.
package lab

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/lab/stage"
)

// Scene is one window.
type Scene struct {
	Name   string
	Window string // where the process dies, or what is repeated
	Expect string
	run    func(context.Context, *lab) (string, error)
}

// Row is the outcome of a scene.
type Row struct {
	Scene    string  `json:"scene"`
	Window   string  `json:"window"`
	Expected string  `json:"expected"`
	Measured string  `json:"measured"`
	OK       bool    `json:"ok"`
	Error    string  `json:"error,omitempty"` // why it could not be measured
	Seconds  float64 `json:"seconds"`
}

// Versions are those of the servers.
type Versions struct {
	PostgreSQL string `json:"postgresql"`
	Kafka      string `json:"kafka"`
}

// Options says what to run.
type Options struct {
	Stage   stage.Options
	Polling string   // binary of e2e/cmd/polling-relay; "": built
	Scenes  []string // names; none: all
	Kills   int      // of the scene whole_path
	// Progress, where set, is told what happens; row is nil between scenes.
	Progress func(what string, row *Row)
}

const sceneTimeout = 5 * time.Minute

// lab is what the scenes have at hand.
type lab struct {
	*stage.Stage
	self, polling string // binaries
	kills         int
	say           func(string)
	n             int // names made so far
}

// Run runs the scenes one after the other on one stage. The error is for what kept it from running them; rows that differ
// are none.
func Run(ctx context.Context, o Options) (rows []Row, v Versions, err error) {
	scenes, err := choose(Scenes(o.Kills), o.Scenes)
	if err != nil {
		return nil, v, err
	}
	if o.Progress == nil {
		o.Progress = func(string, *Row) {}
	}
	l := &lab{polling: o.Polling, kills: o.Kills, say: func(what string) { o.Progress(what, nil) }}
	if l.self, err = os.Executable(); err != nil {
		return nil, v, err
	}
	o.Stage.Progress = l.say
	if l.Stage, err = stage.Start(ctx, o.Stage); err != nil {
		return nil, v, err
	}
	defer l.Close()
	if _, err := l.DB.Exec(ctx, schema); err != nil {
		return nil, v, fmt.Errorf("create the lab's tables: %w", err)
	}
	if v, err = l.versions(ctx); err != nil {
		return nil, v, err
	}
	for _, s := range scenes {
		if ctx.Err() != nil {
			return rows, v, ctx.Err()
		}
		l.say(s.Name)
		row := l.measure(ctx, s)
		rows = append(rows, row)
		o.Progress(s.Name, &row)
	}
	return rows, v, nil
}

func (l *lab) measure(ctx context.Context, s Scene) Row {
	ctx, cancel := context.WithTimeout(ctx, sceneTimeout)
	defer cancel()
	began := time.Now()
	got, err := s.run(ctx, l)
	row := Row{Scene: s.Name, Window: s.Window, Expected: s.Expect, Measured: got, OK: err == nil && got == s.Expect,
		Seconds: time.Since(began).Round(10 * time.Millisecond).Seconds()}
	if err != nil {
		row.Error = err.Error()
	}
	return row
}

func choose(all []Scene, names []string) ([]Scene, error) {
	if len(names) == 0 {
		return all, nil
	}
	var chosen []Scene
	for _, name := range names {
		i := slices.IndexFunc(all, func(s Scene) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no scene %q", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func (l *lab) versions(ctx context.Context) (v Versions, err error) {
	if err := l.DB.QueryRow(ctx, `SELECT split_part(current_setting('server_version'), ' ', 1)`).Scan(&v.PostgreSQL); err != nil {
		return v, err
	}
	v.Kafka, err = l.KafkaVersion()
	return v, err
}

// Scenes lists all scenes, in the order of the path. Kills is the number in the last one.
func Scenes(kills int) []Scene {
	return []Scene{
		commitThenPublish, publishThenCommit,
		pollingRelay, relayAfterAck,
		httpWithoutKey, httpWithKey,
		deliveredTwice, twoGroups, effectThenMarker, markerThenEffect, sameRecordAtOnce, missingOrder,
		offsetFirst, offsetAnyway, offsetLast, offsetWithInbox,
		retriesExhausted,
		wholePath(kills),
	}
}

const schema = `CREATE SCHEMA lab;
CREATE TABLE lab.orders (id text PRIMARY KEY, status text NOT NULL DEFAULT 'placed');
CREATE TABLE lab.shop (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, client text NOT NULL);
CREATE TABLE lab.invoices (scene text NOT NULL, event text NOT NULL);
CREATE TABLE lab.lines (scene text NOT NULL, event text NOT NULL);
CREATE TABLE lab.runs (scene text NOT NULL, event text NOT NULL);
CREATE TABLE lab.outbox (
	id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregateid text, type text NOT NULL, payload text,
	status text NOT NULL DEFAULT 'pending', created_at timestamptz NOT NULL DEFAULT now());
`
