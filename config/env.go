package config

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// EnvFile names the configuration file; it is read by the command, not here.
const EnvFile = EnvPrefix + "CONFIG"

var (
	outboxEnv = regexp.MustCompile(`^` + EnvPrefix + `OUTBOX_(\d+)_`)
	// What Kubernetes sets for a Service whose name begins with cdc-relay.
	serviceEnv = regexp.MustCompile(`_SERVICE_(HOST|PORT)(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$`)
)

// environment is what of the process's environment belongs to the service.
type environment struct {
	vars     map[string]string
	problems Problems
}

func readEnvironment(env []string) *environment {
	e := &environment{vars: make(map[string]string)}
	for _, kv := range env {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || !strings.HasPrefix(name, EnvPrefix) || foreignEnv(name, value) {
			continue
		}
		e.vars[name] = value
	}
	return e
}

// foreignEnv reports variables with our prefix that are not keys: the tests',
// the command's own, and those that Kubernetes makes of a Service's name.
func foreignEnv(name, value string) bool {
	if name == EnvFile || strings.HasPrefix(name, EnvPrefix+"TEST_") {
		return true
	}
	return serviceEnv.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://")
}

// apply sets the keys that the environment gives. A variable CDC_RELAY_OUTBOX_X
// stands for CDC_RELAY_OUTBOX_0_X.
func (e *environment) apply(c *Config, given map[string]origin) {
	e.shorthand()
	e.grow(c, given)
	known := make(map[string]bool)
	walk(reflect.ValueOf(c).Elem(), "", func(f field) {
		name := f.env()
		text, ok := e.vars[name]
		known[name] = true
		if !ok {
			return
		}
		given[f.path] = origin{env: name}
		if err := setText(f.value, text); err != nil {
			if f.secret != "" {
				err = fmt.Errorf("not %s", article(typeName(f.value)))
			}
			e.problems = append(e.problems, Problem{Env: name, Key: f.path, Message: err.Error()})
		}
	})
	for _, name := range sortedKeys(e.vars) {
		if !known[name] {
			e.problems = append(e.problems, Problem{Env: name, Message: "unknown variable" + suggestName(name, known)})
		}
	}
}

// shorthand renames the variables of the first table that leave out its number.
func (e *environment) shorthand() {
	for _, name := range sortedKeys(e.vars) {
		rest, ok := strings.CutPrefix(name, EnvPrefix+"OUTBOX_")
		if !ok || outboxEnv.MatchString(name) {
			continue
		}
		full := EnvPrefix + "OUTBOX_0_" + rest
		if _, both := e.vars[full]; both {
			e.problems = append(e.problems, Problem{Env: name, Message: "given twice; the same as " + full})
		} else {
			e.vars[full] = e.vars[name]
		}
		delete(e.vars, name)
	}
}

// grow adds the tables that only the environment names. Numbers go on from those
// of the file without a hole.
func (e *environment) grow(c *Config, given map[string]origin) {
	numbers := make(map[int]string)
	for _, name := range sortedKeys(e.vars) {
		if m := outboxEnv.FindStringSubmatch(name); m != nil {
			if n, err := strconv.Atoi(m[1]); err == nil && numbers[n] == "" {
				numbers[n] = name
			}
		}
	}
	for n := len(c.Outbox); numbers[n] != ""; n++ {
		c.Outbox = append(c.Outbox, defaultOutbox())
		given[fmt.Sprintf("outbox[%d]", n)] = origin{env: numbers[n]}
	}
}

func suggestName(name string, known map[string]bool) string {
	best, bestAt := 1+len(name)/4, ""
	for _, k := range sortedKeys(known) {
		if n := distance(name, k); n < best {
			best, bestAt = n, k
		}
	}
	if bestAt == "" {
		return ""
	}
	return "; did you mean " + bestAt + "?"
}
