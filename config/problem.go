package config

import (
	"fmt"
	"regexp"
	"sort"
	"strings"
)

// Problem is one thing that is wrong with the configuration. It shows no secret.
type Problem struct {
	File         string // "" when it does not come from a file
	Line, Column int    // from 1; 0 when unknown
	Env          string // the environment variable it comes from
	Key          string // path of the key; may be ""
	Message      string
	Source       string // the line of the file, secrets masked
}

// Where returns file:line:column, or the variable, or "".
func (p Problem) Where() string {
	switch {
	case p.Env != "":
		return p.Env
	case p.File != "" && p.Line > 0:
		return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
	}
	return p.File
}

// String returns the problem, with the line of the file below it.
func (p Problem) String() string {
	var parts []string
	for _, s := range []string{p.Where(), p.Key, p.Message} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	s := strings.Join(parts, ": ")
	if p.Source != "" {
		num := fmt.Sprintf("%5d | ", p.Line)
		s += "\n" + num + p.Source
		if p.Column > 0 && p.Column <= len([]rune(p.Source))+1 {
			s += "\n" + strings.Repeat(" ", len(num)-2) + "| " + strings.Repeat(" ", p.Column-1) + "^"
		}
	}
	return s
}

// Problems is everything that is wrong with the configuration.
type Problems []Problem

// Error lists every problem.
func (ps Problems) Error() string {
	var b strings.Builder
	if len(ps) == 1 {
		b.WriteString("the configuration has a problem:")
	} else {
		fmt.Fprintf(&b, "the configuration has %d problems:", len(ps))
	}
	for _, p := range ps {
		b.WriteString("\n  " + strings.ReplaceAll(p.String(), "\n", "\n  "))
	}
	return b.String()
}

// sorted orders by place in the file; then variables; then the rest.
func (ps Problems) sorted() Problems {
	rank := func(p Problem) int {
		switch {
		case p.File != "":
			return 0
		case p.Env != "":
			return 1
		}
		return 2
	}
	sort.SliceStable(ps, func(i, j int) bool {
		a, b := ps[i], ps[j]
		if rank(a) != rank(b) {
			return rank(a) < rank(b)
		}
		if rank(a) == 0 {
			return a.Line < b.Line || a.Line == b.Line && a.Column < b.Column
		}
		return rank(a) == 1 && a.Env < b.Env
	})
	return ps
}

const masked = "***"

var (
	// What smells of a secret, also misspelled, since that is when a line is shown.
	secretWord = regexp.MustCompile(`(?i)(pas|psw|pss|pwd|word|wrd|secret|token|url|dsn|cred)`)
	// Such a name with what separates it from its value, and the value.
	secretPair = regexp.MustCompile(`(?i)(["']?[\w.-]*(?:pas|psw|pss|pwd|word|wrd|secret|token|url|dsn|cred)[\w.-]*["']?(?:\s*[:=]\s*|\s+))\S.*$`)
	userInfo   = regexp.MustCompile(`(://[^\s:/@]*:)\S*@`)
	dsnSecret  = regexp.MustCompile(`(?i)((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'?|[^\s&]+)`)
)

// excerpts returns the lines of a file as they may be shown: from a secret's name
// on they are masked, and so are the deeper lines below it.
func excerpts(data []byte) []string {
	lines := strings.Split(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n")
	below := -1 // indent of the secret's line, while inside its value
	for i, line := range lines {
		indent := len(line) - len(strings.TrimLeft(line, " "))
		trimmed := strings.TrimSpace(line)
		switch {
		case below >= 0 && (trimmed == "" || indent > below):
			lines[i] = line[:indent] + masked
			continue
		case hidesSecret(line):
			below = indent
			lines[i] = secretPair.ReplaceAllString(line, "${1}"+masked)
		default:
			below = -1
		}
		lines[i] = maskText(strings.ReplaceAll(lines[i], "\t", " "))
	}
	return lines
}

// hidesSecret reports whether what follows on the line may be a secret.
func hidesSecret(line string) bool {
	code, _, _ := strings.Cut(line, " #")
	if name, _, ok := strings.Cut(code, ":"); ok && !strings.Contains(code, "{") {
		return secretWord.MatchString(name)
	}
	return secretWord.MatchString(code)
}

// maskText masks the passwords inside a connection string or any text.
func maskText(s string) string {
	s = userInfo.ReplaceAllString(s, "${1}"+masked+"@")
	return dsnSecret.ReplaceAllString(s, "${1}"+masked)
}
