package config

import (
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"
)

// EnvPrefix begins every environment variable of the service.
const EnvPrefix = "CDC_RELAY_"

// key is one key of the configuration as its struct field describes it.
type key struct {
	name   string // last part of the path
	path   string // source.host, outbox[0].columns.id
	deflt  string
	doc    string
	secret string // "", "true" or "url"
}

// env returns the environment variable of the key.
func (k key) env() string {
	r := strings.NewReplacer(".", "_", "[", "_", "]", "")
	return EnvPrefix + strings.ToUpper(r.Replace(k.path))
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	bytesType    = reflect.TypeFor[Bytes]()
	outboxType   = reflect.TypeFor[[]Outbox]()
)

// fields returns the keys of a struct value, in the order of the file, each with
// its value.
func fields(v reflect.Value, path string) []field {
	t := v.Type()
	out := make([]field, 0, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("yaml")
		out = append(out, field{
			key: key{name: name, path: join(path, name), deflt: f.Tag.Get("default"),
				doc: f.Tag.Get("doc"), secret: f.Tag.Get("secret")},
			value: v.Field(i),
		})
	}
	return out
}

type field struct {
	key
	value reflect.Value
}

// section reports whether the field holds further keys.
func (f field) section() bool { return f.value.Kind() == reflect.Struct }

// tables reports whether the field is the list of outbox tables.
func (f field) tables() bool { return f.value.Type() == outboxType }

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// walk calls fn for every key that holds a value, in the order of the file; it
// goes through the elements of the outbox list.
func walk(v reflect.Value, path string, fn func(field)) {
	for _, f := range fields(v, path) {
		switch {
		case f.section():
			walk(f.value, f.path, fn)
		case f.tables():
			for i := range f.value.Len() {
				walk(f.value.Index(i), fmt.Sprintf("%s[%d]", f.path, i), fn)
			}
		default:
			fn(f)
		}
	}
}

// Default returns the configuration of an empty file.
func Default() Config {
	c := Config{Outbox: []Outbox{{}}}
	applyDefaults(reflect.ValueOf(&c).Elem(), "")
	return c
}

func defaultOutbox() Outbox {
	var o Outbox
	applyDefaults(reflect.ValueOf(&o).Elem(), "")
	return o
}

func applyDefaults(v reflect.Value, path string) {
	walk(v, path, func(f field) {
		if f.deflt == "" {
			return
		}
		if err := setText(f.value, f.deflt); err != nil {
			panic(fmt.Sprintf("config: default of %s: %v", f.path, err))
		}
	})
}

// setText sets a value from text as an environment variable holds it. Its errors
// quote the text: the caller withholds them for a secret.
func setText(v reflect.Value, text string) error {
	switch {
	case v.Type() == durationType:
		d, err := parseDuration(text)
		if err != nil {
			return err
		}
		v.SetInt(int64(d))
	case v.Type() == bytesType:
		b, err := ParseBytes(text)
		if err != nil {
			return err
		}
		v.SetInt(int64(b))
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		v.SetInt(int64(n))
	case v.Kind() == reflect.Bool:
		b, err := parseBool(text)
		if err != nil {
			return err
		}
		v.SetBool(b)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.ValueOf(splitList(text)))
	case v.Kind() == reflect.Map:
		m, err := splitMap(text)
		if err != nil {
			return err
		}
		v.Set(reflect.ValueOf(m))
	default:
		panic("config: no text form for " + v.Type().String())
	}
	return nil
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration; write it with a unit, such as 500ms, 10s or 2m", text)
	}
	return d, nil
}

func parseBool(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "true", "1", "yes", "on":
		return true, nil
	case "false", "0", "no", "off":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", text)
}

func splitList(text string) []string {
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

func splitMap(text string) (map[string]string, error) {
	var out map[string]string
	for _, part := range splitList(text) {
		k, v, ok := strings.Cut(part, "=")
		if k, v = strings.TrimSpace(k), strings.TrimSpace(v); !ok || k == "" {
			return nil, fmt.Errorf("%q is not of the form name=value,name=value", part)
		}
		if out == nil {
			out = make(map[string]string)
		}
		out[k] = v
	}
	return out, nil
}

// typeName says in the reference and in messages what a key takes.
func typeName(v reflect.Value) string {
	switch {
	case v.Type() == durationType:
		return "duration"
	case v.Type() == bytesType:
		return "size"
	case v.Kind() == reflect.String:
		return "text"
	case v.Kind() == reflect.Int:
		return "whole number"
	case v.Kind() == reflect.Bool:
		return "true or false"
	case v.Kind() == reflect.Slice:
		return "list of text"
	case v.Kind() == reflect.Map:
		return "map of text to text"
	}
	return v.Type().String()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
