package route

import (
	"errors"
	"fmt"
	"strings"
)

// maxTopic is the longest topic name that Kafka takes.
const maxTopic = 249

// part of a topic template: literal text, or a column when column is set.
type part struct {
	literal string
	column  string
}

// parseTemplate splits a template. Braces have no other meaning than to name a
// column, since no topic can have one.
func parseTemplate(s string) ([]part, error) {
	if s == "" {
		return nil, errors.New("it is empty")
	}
	var parts []part
	columns := 0
	for rest := s; rest != ""; {
		literal, after, found := strings.Cut(rest, "{")
		if i := illegalAt([]byte(literal)); i >= 0 {
			return nil, fmt.Errorf("the character %q cannot be in a topic's name; allowed are a-z, A-Z, 0-9, '.', '_' and '-', and {column}", literal[i])
		}
		if literal != "" {
			parts = append(parts, part{literal: literal})
		}
		if !found {
			break
		}
		column, tail, closed := strings.Cut(after, "}")
		switch {
		case !closed:
			return nil, errors.New("a { has no }")
		case column == "":
			return nil, errors.New("{} names no column")
		}
		parts = append(parts, part{column: column})
		columns++
		rest = tail
	}
	if columns == 0 {
		if reason := illegalTopic([]byte(s)); reason != "" {
			return nil, errors.New(reason)
		}
	}
	return parts, nil
}

// illegalTopic says why Kafka would not take the name; "" when it would. It
// does not show the name, which is data of a row.
func illegalTopic(name []byte) string {
	switch {
	case len(name) == 0:
		return "it is empty"
	case string(name) == "." || string(name) == "..":
		return "it is only dots"
	}
	if i := illegalAt(name); i >= 0 {
		return fmt.Sprintf("it has a character at position %d that a topic's name cannot have; allowed are a-z, A-Z, 0-9, '.', '_' and '-'", i+1)
	}
	if len(name) > maxTopic {
		return fmt.Sprintf("it is %d characters long and Kafka takes at most %d", len(name), maxTopic)
	}
	return ""
}

// illegalAt returns the index of the first byte that a topic's name cannot
// have, -1 when there is none.
func illegalAt(name []byte) int {
	for i, c := range name {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return i
		}
	}
	return -1
}

// internLimit bounds the table of topic names; past it the table starts anew.
const internLimit = 4096

// interner makes one string per topic name, so that rows in steady state
// allocate none. Invariant: every name in it is legal.
type interner struct {
	names map[string]string
	last  string
}

// intern returns name as a string, or why it is no topic's name.
func (in *interner) intern(name []byte) (topic, reason string) {
	if string(name) == in.last && in.last != "" {
		return in.last, ""
	}
	topic, ok := in.names[string(name)]
	if !ok {
		if reason := illegalTopic(name); reason != "" {
			return "", reason
		}
		if in.names == nil || len(in.names) >= internLimit {
			in.names = make(map[string]string)
		}
		topic = string(name)
		in.names[topic] = topic
	}
	in.last = topic
	return topic, ""
}
