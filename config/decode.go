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
	f, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
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

// value reads a key that holds no further keys.
func (d *decoder) value(at, n ast.Node, f field) {
	n, ok := d.resolve(n, f.path)
	if !ok {
		return
	}
	kind := f.value.Kind()
	if f.path == "sink" && isNull(n) && scalarText(n) == "null" {
		f.value.SetString("null") // a name here, though YAML takes it for nothing
		return
	}
	if isNull(n) {
		if kind != reflect.Slice && kind != reflect.Map {
			d.problem(at, f.path, "has no value; leave the key out for its default%s", emptyHint(f))
		}
		return
	}
	switch kind {
	case reflect.Slice:
		d.list(n, f)
	case reflect.Map:
		d.textMap(n, f)
	default:
		d.scalar(n, f)
	}
}

func emptyHint(f field) string {
	if f.value.Kind() == reflect.String {
		return `, or write "" for an empty text`
	}
	return ""
}

func (d *decoder) list(n ast.Node, f field) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.problem(n, f.path, "must be a list, such as [a, b], not %s", describe(n))
		return
	}
	var out []string
	for i, item := range seq.Values {
		p := fmt.Sprintf("%s[%d]", f.path, i)
		if s, ok := d.text(item, p); ok {
			d.given[p] = d.at(item)
			out = append(out, s)
		}
	}
	f.value.Set(reflect.ValueOf(out))
}

func (d *decoder) textMap(n ast.Node, f field) {
	var out map[string]string
	for _, e := range d.entries(n, f.path, 0) {
		p := join(f.path, e.name)
		if s, ok := d.text(e.value, p); ok {
			d.given[p] = d.at(e.key)
			if out == nil {
				out = make(map[string]string)
			}
			out[e.name] = s
		}
	}
	f.value.Set(reflect.ValueOf(out))
}

func (d *decoder) text(n ast.Node, path string) (string, bool) {
	n, ok := d.resolve(n, path)
	if !ok {
		return "", false
	}
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return scalarText(n), true
	}
	if s, ok := hostPortText(n); ok {
		return s, true
	}
	d.problem(n, path, "must be text, not %s%s", describe(n), quoteHint(n))
	return "", false
}

// hostPortText undoes that the parser takes host:port inside brackets for a key
// and a value; in YAML a colon without a space after it is text.
func hostPortText(n ast.Node) (string, bool) {
	values, ok := mapping(n)
	if !ok || len(values) != 1 {
		return "", false
	}
	k, v := values[0].Key.GetToken(), values[0].Value.GetToken()
	if k == nil || v == nil || k.Position.Line != v.Position.Line ||
		v.Position.Column != k.Position.Column+len([]rune(k.Value))+1 {
		return "", false
	}
	return k.Value + ":" + v.Value, true
}

// scalar reads a text, number, truth value, duration or size.
func (d *decoder) scalar(n ast.Node, f field) {
	v, text := f.value, scalarText(n)
	_, isInt := n.(*ast.IntegerNode)
	_, isBool := n.(*ast.BoolNode)
	_, isText := n.(*ast.StringNode)
	_, isBlock := n.(*ast.LiteralNode)
	var ok bool
	switch {
	case v.Type() == durationType:
		ok = isText || isInt
	case v.Type() == bytesType:
		ok = isText || isInt
	case v.Kind() == reflect.String:
		ok = isText || isBlock
	case v.Kind() == reflect.Int:
		ok = isInt
	case v.Kind() == reflect.Bool:
		ok = isBool
	}
	if !ok {
		hint := ""
		if v.Kind() == reflect.String {
			hint = quoteHint(n)
		}
		d.problem(n, f.path, "must be %s, not %s%s", article(typeName(v)), describe(n), hint)
		return
	}
	if err := setText(v, text); err != nil {
		d.problem(n, f.path, "%v", err)
	}
}

// scalarText returns a scalar as it is written; of a number that is its source,
// since YAML would read 0123 in base 8.
func scalarText(n ast.Node) string {
	switch t := n.(type) {
	case *ast.StringNode:
		return t.Value
	case *ast.LiteralNode:
		return t.Value.Value
	case *ast.MappingKeyNode:
		return scalarText(t.Value)
	}
	if n == nil || n.GetToken() == nil {
		return ""
	}
	return n.GetToken().Value
}

func describe(n ast.Node) string {
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys"
	case *ast.NullNode:
		return "nothing"
	}
	return "this"
}

func quoteHint(n ast.Node) string {
	switch describe(n) {
	case "a number", "true or false":
		return "; put it in quotes"
	}
	return ""
}

func article(name string) string {
	switch name {
	case "text", "true or false":
		return name
	}
	return "a " + name
}
