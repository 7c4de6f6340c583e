package config

import (
	"fmt"
	"reflect"

	"github.com/goccy/go-yaml/ast"
)

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
