package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

var out struct {
	sync.Mutex
	fakeBroker []string // tests that ran on kfake
	skipped    []string // tests that need a real part which was not there
}

// Result prints the one line that says how a test came out, `RESULT name k=v ... ok=true`, and fails the test when ok is
// false. kv alternates keys and values; floats are printed with three digits.
func Result(t testing.TB, name string, ok bool, kv ...any) {
	t.Helper()
	if len(kv)%2 != 0 {
		panic("e2e.Result: a key without a value")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "RESULT %s", name)
	for i := 0; i < len(kv); i += 2 {
		v := kv[i+1]
		if f, isFloat := v.(float64); isFloat {
			v = fmt.Sprintf("%.3f", f)
		}
		fmt.Fprintf(&b, " %v=%v", kv[i], v)
	}
	fmt.Fprintf(&b, " ok=%t", ok)
	line(b.String())
	if !ok {
		t.Errorf("%s is not ok: see its RESULT line", name)
	}
}

// line prints s on standard output and appends it to the file that CDC_RELAY_RESULTS names, where `go test` would hide it.
func line(s string) {
	out.Lock()
	defer out.Unlock()
	fmt.Fprintln(os.Stdout, s)
	path := os.Getenv("CDC_RELAY_RESULTS")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		fmt.Fprintln(f, s)
		err = f.Close()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "write result: %v\n", err)
	}
}

func noteFakeBroker(name string) {
	out.Lock()
	defer out.Unlock()
	if !slices.Contains(out.fakeBroker, name) {
		out.fakeBroker = append(out.fakeBroker, name)
	}
}

// skip skips the test and has its name and the reason listed at the end of the run.
func skip(t testing.TB, reason string) {
	t.Helper()
	out.Lock()
	out.skipped = append(out.skipped, t.Name()+": "+reason)
	out.Unlock()
	t.Skip(reason)
}

// Main runs the tests of a package, stops what they shared, and lists loudly what was not tested for real. Use it as
//
//	func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }
func Main(m *testing.M) int {
	defer closeShared()
	code := m.Run()
	out.Lock()
	fake, skipped := slices.Clone(out.fakeBroker), slices.Clone(out.skipped)
	out.Unlock()
	if len(fake) > 0 {
		line("WARNING not tested against a real broker (Apache Kafka could not be had), but against kfake: " +
			strings.Join(fake, ", "))
	}
	for _, s := range skipped {
		line("WARNING skipped " + s)
	}
	return code
}
