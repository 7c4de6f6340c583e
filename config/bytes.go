package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size: a whole number of bytes, or with a unit (KiB, MiB, GiB, TiB,
// kB, MB, GB, TB).
type Bytes int64

var byteUnits = []struct {
	name string
	size int64
}{
	// Largest first, so that String finds the shortest exact form.
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3},
}

// ParseBytes reads a size such as 65536, 64KiB or 1.5GiB.
func ParseBytes(s string) (Bytes, error) {
	s = strings.TrimSpace(s)
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit := s[len(digits):]
	digits = strings.TrimSpace(digits)
	size, ok := unitSize(unit)
	if !ok {
		return 0, fmt.Errorf("unknown unit %q; use a number of bytes, or KiB, MiB, GiB, TiB, kB, MB, GB, TB", unit)
	}
	if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
		if n != 0 && (n > math.MaxInt64/size || n < math.MinInt64/size) {
			return 0, fmt.Errorf("%q is too large", s)
		}
		return Bytes(n * size), nil
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || math.IsNaN(f) || unit == "" || unit == "B" {
		return 0, fmt.Errorf("%q is not a size; write it like 65536, 900KiB or 64MiB", s)
	}
	f *= float64(size)
	if math.Abs(f) >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is too large", s)
	}
	return Bytes(f), nil
}

func unitSize(unit string) (int64, bool) {
	if unit == "" || unit == "B" {
		return 1, true
	}
	for _, u := range byteUnits {
		if strings.EqualFold(u.name, unit) {
			return u.size, true
		}
	}
	return 0, false
}

// String returns the size in the largest unit that keeps it exact.
func (b Bytes) String() string {
	if b == 0 {
		return "0"
	}
	for _, u := range byteUnits {
		if int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalYAML writes the size as String does.
func (b Bytes) MarshalYAML() (any, error) { return b.String(), nil }

// UnmarshalText reads what ParseBytes reads.
func (b *Bytes) UnmarshalText(text []byte) error {
	n, err := ParseBytes(string(text))
	if err != nil {
		return err
	}
	*b = n
	return nil
}
