// Package docs holds no code; its tests keep the documentation true where a
// machine can.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pages are the documents, by path from the top.
func pages(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, pattern := range []string{"../*.md", "*.md", "adr/*.md", "../examples/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			pages[filepath.Join("docs", f)] = string(b)
		}
	}
	if len(pages) < 5 {
		t.Fatalf("only %d pages found", len(pages))
	}
	return pages
}

func TestDocs_NameTestsThatExist(t *testing.T) {
	exists := map[string]bool{}
	decl := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == ".cache" || d.Name() == ".git") {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range decl.FindAllSubmatch(b, -1) {
			exists[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w+)`")
	for page, text := range pages(t) {
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			if !exists[m[1]] {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
	}
}

func TestDocs_LinksResolve(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	all := pages(t)
	for page, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target, anchor, _ := strings.Cut(m[1], "#")
			path := page
			if target != "" {
				path = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(filepath.Join("..", path)); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			} else if anchor != "" && !anchors(all[path])[anchor] {
				t.Errorf("%s links to %s, which has no such heading", page, m[1])
			}
		}
	}
}

// anchors are the names of the headings of a page, as GitHub makes them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	drop := regexp.MustCompile(`[^\w\- ]`)
	for line := range strings.Lines(text) {
		if h := strings.TrimLeft(line, "#"); h != line {
			h = drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(h)), "")
			found[strings.ReplaceAll(h, " ", "-")] = true
		}
	}
	return found
}

// TestDocs_MakeTargetsExist: what a page tells to type is there.
func TestDocs_MakeTargetsExist(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	use := regexp.MustCompile("`make ([a-z][a-z0-9-]*)|(?m)^ *make ([a-z][a-z0-9-]*)")
	for page, text := range pages(t) {
		for _, m := range use.FindAllStringSubmatch(text, -1) {
			target := m[1] + m[2]
			if !regexp.MustCompile(`(?m)^` + target + `:`).Match(makefile) {
				t.Errorf("%s says make %s, which the Makefile does not have", page, target)
			}
		}
	}
}
