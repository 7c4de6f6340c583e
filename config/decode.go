package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxDepth bounds aliases that contain themselves.
const maxDepth = 32

type anchors map[string]ast.Node

// origin says where a key was given.
type origin struct {
	env          string
	line, column int
}

// decoder reads a YAML file into a Config and collects every problem instead of
// stopping at the first.
type decoder struct {
	file     string
	lines    []string // masked, see excerpts
	anchors  anchors
	given    map[string]origin
	problems Problems
}

func (d *decoder) decode(data []byte, c *Config) {
	d.lines = excerpts(data)
	f, err := parseYAML(data)
	if err != nil {
		d.syntax(err)
		return
	}
	var docs []*ast.DocumentNode
	for _, doc := range f.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.NullType && doc.Body.Type() != ast.CommentType {
			docs = append(docs, doc)
		}
	}
	if len(docs) == 0 {
		return
	}
	for _, doc := range docs {
		ast.Walk(d, doc.Body)
	}
	d.section(docs[0].Body, reflect.ValueOf(c).Elem(), "", 0)
	for _, doc := range docs[1:] {
		d.problem(doc.Body, "", "a second document begins here; the file may hold only one")
	}
}

// parseYAML turns a panic of the parser, which has had some, into an error: a
// file is a person's mistake.
func parseYAML(data []byte) (f *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("the parser gave up")
		}
	}()
	return parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
}

// Visit collects anchors.
func (d *decoder) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok {
		d.anchors[a.Name.GetToken().Value] = a.Value
	}
	return d
}

func (d *decoder) syntax(err error) {
	var e yaml.Error
	if !errors.As(err, &e) || e.GetToken() == nil {
		d.problems = append(d.problems, Problem{File: d.file, Message: "not valid YAML"})
		return
	}
	pos := e.GetToken().Position
	p := Problem{File: d.file, Line: pos.Line, Column: pos.Column, Source: d.line(pos.Line),
		Message: "not valid YAML: " + e.GetMessage()}
	if strings.Contains(p.Source, masked) {
		p.Message = "not valid YAML"
	}
	d.problems = append(d.problems, p)
}

func (d *decoder) line(n int) string {
	if n < 1 || n > len(d.lines) {
		return ""
	}
	return d.lines[n-1]
}

func (d *decoder) problem(n ast.Node, path, format string, args ...any) {
	pos := &token.Position{}
	if tk := n.GetToken(); tk != nil {
		pos = tk.Position
	}
	d.problems = append(d.problems, Problem{File: d.file, Line: pos.Line, Column: pos.Column,
		Key: path, Message: fmt.Sprintf(format, args...), Source: d.line(pos.Line)})
}

// resolve follows anchors, aliases and tags to the node with the value.
func (d *decoder) resolve(n ast.Node, path string) (ast.Node, bool) {
	for range maxDepth {
		switch t := n.(type) {
		case *ast.AnchorNode:
			n = t.Value
		case *ast.TagNode:
			n = t.Value
		case *ast.AliasNode:
			name := t.Value.GetToken().Value
			to, ok := d.anchors[name]
			if !ok {
				d.problem(t, path, "no anchor has the name %q", name)
				return nil, false
			}
			n = to
		default:
			return n, true
		}
	}
	d.problem(n, path, "is an alias of itself")
	return nil, false
}

func mapping(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch t := n.(type) {
	case *ast.MappingNode:
		return t.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{t}, true
	}
	return nil, false
}

func isNull(n ast.Node) bool { return n == nil || n.Type() == ast.NullType }

// entry is one key of a mapping. Entries that a merge key (<<) brings come first
// and may be overridden.
type entry struct {
	name   string
	key    ast.Node
	value  ast.Node
	merged bool
}

func (d *decoder) entries(n ast.Node, path string, depth int) []entry {
	values, ok := mapping(n)
	if !ok {
		d.problem(n, path, "must hold keys, as \"key: value\" on lines of their own, not %s", describe(n))
		if _, list := n.(*ast.SequenceNode); path == "" && !list { // another file than a configuration, of which any line may be a secret
			d.problems[len(d.problems)-1].Source = ""
		}
		return nil
	}
	var merged, own []entry
	seen := make(map[string]int)
	for _, mv := range values {
		if mv.Key.IsMergeKey() {
			merged = append(merged, d.merge(mv.Value, path, depth)...)
			continue
		}
		kn, ok := d.resolve(mv.Key, path)
		if !ok {
			continue
		}
		e := entry{name: scalarText(kn), key: mv.Key, value: mv.Value}
		if line, dup := seen[e.name]; dup {
			d.problem(mv.Key, join(path, e.name), "given twice; it is also on line %d", line)
			continue
		}
		seen[e.name] = mv.Key.GetToken().Position.Line
		own = append(own, e)
	}
	return append(merged, own...)
}

func (d *decoder) merge(n ast.Node, path string, depth int) []entry {
	n, ok := d.resolve(n, path)
	if !ok || depth > maxDepth {
		return nil
	}
	if seq, ok := n.(*ast.SequenceNode); ok {
		var out []entry
		for i := len(seq.Values) - 1; i >= 0; i-- { // the first wins
			out = append(out, d.merge(seq.Values[i], path, depth+1)...)
		}
		return out
	}
	out := d.entries(n, path, depth+1)
	for i := range out {
		out[i].merged = true
	}
	return out
}

func (d *decoder) section(n ast.Node, v reflect.Value, path string, depth int) {
	n, ok := d.resolve(n, path)
	if !ok || isNull(n) {
		return
	}
	if depth > maxDepth {
		d.problem(n, path, "is nested too deep")
		return
	}
	known := fields(v, path)
	for _, e := range d.entries(n, path, depth) {
		i := indexOf(known, e.name)
		if i < 0 {
			d.problem(e.key, join(path, keyName(e.name)), "unknown key%s", suggest(e.name, known))
			continue
		}
		f := known[i]
		d.given[f.path] = d.at(e.key)
		switch {
		case f.section():
			d.section(e.value, f.value, f.path, depth+1)
		case f.tables():
			d.tables(e.value, f.value, f.path, depth+1)
		default:
			d.value(e.key, e.value, f)
		}
	}
}

// keyName cuts off what may be a secret that was written without a space after
// its key's colon.
func keyName(name string) string {
	if i := strings.IndexAny(name, ":= "); i >= 0 && secretWord.MatchString(name) {
		return name[:i]
	}
	return name
}

func (d *decoder) at(n ast.Node) origin {
	pos := n.GetToken().Position
	return origin{line: pos.Line, column: pos.Column}
}

func (d *decoder) tables(n ast.Node, v reflect.Value, path string, depth int) {
	n, ok := d.resolve(n, path)
	if !ok || isNull(n) {
		return
	}
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.problem(n, path, "must be a list of tables, each beginning with \"- \", not %s", describe(n))
		return
	}
	list := make([]Outbox, len(seq.Values))
	for i, item := range seq.Values {
		list[i] = defaultOutbox()
		p := fmt.Sprintf("%s[%d]", path, i)
		d.given[p] = d.at(item)
		d.section(item, reflect.ValueOf(&list[i]).Elem(), p, depth+1)
	}
	v.Set(reflect.ValueOf(list))
}
