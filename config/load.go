package config

import (
	"fmt"
	"os"
	"reflect"
	"strings"
)

// Load reads the file at path ("" for none), then the environment (as
// os.Environ returns it), then overrides (values by the key's path, as text),
// each over the ones before and all over the defaults, and validates the whole.
// The error is of type Problems and lists everything that is wrong; nothing is
// connected to, and the only files that are read are those that the configuration
// names.
func Load(path string, env []string, overrides map[string]string) (Config, error) {
	c := Default()
	d := &decoder{file: path, given: make(map[string]origin)}
	if path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return Config{}, Problems{{Message: fmt.Sprintf("read the configuration file: %v", err)}}
		}
		if strings.TrimSpace(string(data)) != "" {
			d.anchors = anchors{}
			d.decode(data, &c)
		}
	}
	return finish(c, d, env, overrides)
}

// Parse is Load for a file's content; name stands for the file in messages.
func Parse(name string, data []byte, env []string, overrides map[string]string) (Config, error) {
	c := Default()
	d := &decoder{file: name, given: make(map[string]origin), anchors: anchors{}}
	d.decode(data, &c)
	return finish(c, d, env, overrides)
}

func finish(c Config, d *decoder, env []string, overrides map[string]string) (Config, error) {
	e := readEnvironment(env)
	e.apply(&c, d.given)
	problems := append(d.problems, e.problems...)
	problems = append(problems, override(&c, overrides, d.given)...)
	broken := make(map[string]bool) // keys that already have a problem
	for _, p := range problems {
		broken[p.Key] = true
	}

	for i := range c.Outbox {
		path := fmt.Sprintf("outbox[%d]", i)
		c.Outbox[i].applyShape(func(key string) bool { _, ok := d.given[path+"."+key]; return ok })
	}
	c.Messages.IDHeader, c.Messages.TypeHeader = attributeHeaders(c.Messages.Format, c.Messages.IDHeader, c.Messages.TypeHeader,
		func(key string) bool { _, ok := d.given["messages."+key]; return ok })
	normalize(&c)
	for _, p := range c.problems() {
		if !broken[p.Key] {
			problems = append(problems, d.locate(p))
		}
	}
	if len(problems) > 0 {
		return Config{}, problems.sorted()
	}
	return c, nil
}

// locate adds where the key was given; of a key that was not, where the nearest
// one above it was.
func (d *decoder) locate(p Problem) Problem {
	for path := p.Key; path != ""; path = parent(path) {
		o, ok := d.given[path]
		if !ok {
			continue
		}
		if p.Env = o.env; o.env == "" && o.line > 0 {
			p.File, p.Line, p.Column, p.Source = d.file, o.line, o.column, d.line(o.line)
		}
		break
	}
	return p
}

func parent(path string) string {
	i := strings.LastIndexAny(path, ".[")
	if i < 0 {
		return ""
	}
	return path[:i]
}

func override(c *Config, overrides map[string]string, given map[string]origin) Problems {
	var out Problems
	known := make(map[string]bool)
	walk(reflect.ValueOf(c).Elem(), "", func(f field) {
		text, ok := overrides[f.path]
		known[f.path] = true
		if !ok {
			return
		}
		given[f.path] = origin{}
		if err := setText(f.value, text); err != nil {
			out = append(out, Problem{Key: f.path, Message: err.Error()})
		}
	})
	for _, path := range sortedKeys(overrides) {
		if !known[path] {
			out = append(out, Problem{Key: keyName(path), Message: "unknown key" + suggestName(path, known)})
		}
	}
	return out
}

// normalize makes empty lists and maps nil, so that configurations compare.
func normalize(c *Config) {
	walk(reflect.ValueOf(c).Elem(), "", func(f field) {
		if k := f.value.Kind(); (k == reflect.Slice || k == reflect.Map) && f.value.Len() == 0 {
			f.value.SetZero()
		}
	})
}
