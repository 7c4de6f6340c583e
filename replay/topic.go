package replay

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/route"
)

// compile returns the routers of what is published, to Topic where that is given.
func (o Options) compile() (*route.Router, *route.MessageRouter, error) {
	tables, messages := o.retopic(), o.Messages
	if messages != nil && o.Topic != "" {
		m := *messages
		m.Topic = o.Topic
		messages = &m
	}
	r, mr, err := route.CompileAll(tables, messages)
	if err == nil || o.Topic == "" {
		return r, mr, err
	}
	if _, _, without := route.CompileAll(o.Tables, o.Messages); without != nil {
		return nil, nil, without // it is not about the topic
	}
	cause := err
	var f *fault.Error
	if errors.As(err, &f) && f.Err != nil {
		cause = f.Err
	}
	return nil, nil, &fault.Error{Class: fault.Stop, What: fmt.Sprintf("--topic %s cannot be used", o.Topic), Err: cause,
		Fix: "name one topic, or a template of columns such as 'again.{aggregatetype}'"}
}

// retopic are the tables, with Topic in place of theirs where it is given.
func (o Options) retopic() []route.Table {
	tables := slices.Clone(o.Tables)
	for i := range tables {
		if o.Topic != "" {
			tables[i].Aggregate = tables[i].AggregateColumn() // values stay what they were
			tables[i].Topic, tables[i].TopicCol = o.Topic, ""
		}
	}
	return tables
}

// noTopicColumn is the refusal of a Topic that names a column which a table does not
// have; nil when it has all.
func (o Options) noTopicColumn(table string, columns []decoder.Column) error {
	for _, u := range (route.Table{Topic: o.Topic}).Uses() {
		if slices.ContainsFunc(columns, func(c decoder.Column) bool { return c.Name == u.Column }) {
			continue
		}
		var known []string
		for _, c := range columns {
			known = append(known, c.Name)
		}
		return fault.Stopped(fmt.Sprintf("correct --topic; table %s has the columns %s", table, strings.Join(known, ", ")),
			"--topic %s names the column %q, which table %s does not have", o.Topic, u.Column, table)
	}
	return nil
}

// relation hears of a table as it was at this point of the WAL.
func (r *Replay) relation(rel *decoder.Relation) error {
	err := r.router.Relation(rel)
	if err != nil && r.o.Topic != "" {
		if ofTopic := r.o.noTopicColumn(rel.Namespace+"."+rel.Name, rel.Columns); ofTopic != nil {
			return ofTopic
		}
	}
	return err
}
