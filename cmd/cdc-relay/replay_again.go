package main

import (
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/replay"
)

// again is the command that goes on with a replay: the same one, from the first
// transaction that is not acked as a whole, to the same end.
func (f *replayFlags) again(rep replay.Report) string {
	var b strings.Builder
	b.WriteString("cdc-relay replay" + f.configFile)
	add := func(name, value string) { b.WriteString(" --" + name + " " + shellWord(value)) }
	for _, kv := range f.set {
		key, _, _ := strings.Cut(kv, "=")
		if strings.Contains(key, "password") || strings.HasSuffix(key, "url") {
			kv = key + "=..." // a secret: whoever goes on knows it
		}
		add("set", kv)
	}
	add("from", rep.Next.String())
	if f.toBound.Time.IsZero() {
		add("to", rep.To.String())
	} else {
		add("to", f.to)
	}
	if f.topic != "" {
		add("topic", f.topic)
	}
	for _, list := range []struct {
		name   string
		values []string
	}{{"aggregate-type", f.aggregates}, {"key", f.keys}, {"id", f.ids}} {
		for _, v := range list.values {
			add(list.name, v)
		}
	}
	if f.rate > 0 {
		add("rate", strconv.FormatFloat(f.rate, 'f', -1, 64))
	}
	if f.dryRun {
		b.WriteString(" --dry-run")
	}
	return b.String()
}

// shellWord quotes s for a shell where that is needed.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("./:_+-=,@", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
