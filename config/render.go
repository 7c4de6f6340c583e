package config

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Example writes the commented file with every key at its default. It loads, and
// gives what an empty file gives.
func Example(w io.Writer) error {
	c := Default()
	p := &printer{comments: true}
	p.comment("", "Configuration of cdc-relay. Every key is shown with its default; leave out what")
	p.comment("", "you do not change. A key a.b is also given by the environment variable "+EnvPrefix+"A_B.")
	p.comment("", "Sizes are bytes or have a unit (KiB, MiB, GiB); durations have one (ms, s, m, h).")
	p.section(reflect.ValueOf(&c).Elem(), "", "")
	_, err := w.Write(p.buf.Bytes())
	return err
}

// Print writes the effective configuration as a file, with secrets masked.
func Print(w io.Writer, c Config) error {
	p := &printer{}
	p.section(reflect.ValueOf(&c).Elem(), "", "")
	_, err := w.Write(p.buf.Bytes())
	return err
}

type printer struct {
	buf      bytes.Buffer
	comments bool
}

func (p *printer) line(format string, args ...any) { fmt.Fprintf(&p.buf, format+"\n", args...) }

// comment writes text folded at 100 columns.
func (p *printer) comment(indent, text string) {
	for _, l := range fold(text, 98-len(indent)) {
		p.line("%s# %s", indent, l)
	}
}

func (p *printer) section(v reflect.Value, path, indent string) {
	for i, f := range fields(v, path) {
		if p.comments {
			if indent == "" || f.section() && i > 0 {
				p.line("")
			}
			p.comment(indent, f.describe())
		}
		switch {
		case f.section():
			p.line("%s%s:", indent, f.name)
			p.section(f.value, f.path, indent+"  ")
		case f.tables():
			p.tables(f, indent)
		default:
			p.line("%s%s: %s", indent, f.name, yamlValue(f))
		}
	}
}

func (p *printer) tables(f field, indent string) {
	if p.comments {
		p.comment(indent, shapeRule)
	}
	if f.value.Len() == 0 {
		p.line("%s%s: []", indent, f.name)
		return
	}
	p.line("%s%s:", indent, f.name)
	for i := range f.value.Len() {
		if p.comments {
			p.line("%s  # The first table; more follow as further items.", indent)
		}
		sub := &printer{comments: p.comments}
		sub.section(f.value.Index(i), fmt.Sprintf("%s[%d]", f.path, i), indent+"    ")
		p.buf.WriteString(item(sub.buf.String(), indent))
	}
}

// item turns a section into an item of a list: a dash before its first key.
func item(section, indent string) string {
	lines := strings.SplitAfter(section, "\n")
	for i, l := range lines {
		if t := strings.TrimSpace(l); t != "" && !strings.HasPrefix(t, "#") {
			lines[i] = indent + "  - " + strings.TrimPrefix(l, indent+"    ")
			break
		}
	}
	return strings.Join(lines, "")
}

// describe is the doc with the kind of value where the default does not show it.
func (f field) describe() string {
	switch {
	case f.section(), f.tables():
		return f.doc
	case f.value.Type() == durationType, f.value.Type() == bytesType,
		f.value.Kind() == reflect.Bool, f.value.Kind() == reflect.Int:
		return f.doc
	}
	if kind := typeName(f.value); kind != "text" {
		return f.doc + " (" + kind + ")"
	}
	return f.doc
}

func yamlValue(f field) string {
	v := f.value
	switch {
	case v.Type() == durationType:
		return shortDuration(time.Duration(v.Int()))
	case v.Type() == bytesType:
		return Bytes(v.Int()).String()
	case v.Kind() == reflect.String:
		return yamlText(mask(f.key, v.String()))
	case v.Kind() == reflect.Slice:
		var items []string
		for i := range v.Len() {
			items = append(items, yamlText(v.Index(i).String()))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case v.Kind() == reflect.Map:
		m, _ := v.Interface().(map[string]string)
		var items []string
		for _, k := range sortedKeys(m) {
			items = append(items, yamlText(k)+": "+yamlText(m[k]))
		}
		return "{" + strings.Join(items, ", ") + "}"
	}
	return fmt.Sprint(v.Interface())
}

func mask(k key, s string) string {
	switch {
	case s == "" || k.secret == "":
		return s
	case k.secret == "url":
		return maskText(s)
	}
	return masked
}

// yamlText quotes always: YAML then takes no text for anything else.
func yamlText(s string) string { return strconv.Quote(s) }

// shortDuration is String without zero parts: 2m, not 2m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

func fold(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
