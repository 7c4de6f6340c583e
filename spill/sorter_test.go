package spill

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

func sorted(t *testing.T, s *Sorter) []string {
	t.Helper()
	it, err := s.Sort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for it.Next() {
		got = append(got, string(it.Key())+"="+string(it.Value()))
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestSorter_AgreesWithSort: whatever fits in memory, goes to one level of runs, or to several.
func TestSorter_AgreesWithSort(t *testing.T) {
	for _, n := range []int{0, 1, 100, 5_000, 300_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			dir := t.TempDir()
			s := New(dir, leastMemory)
			rnd := rand.New(rand.NewPCG(uint64(n), 7))
			var want []string
			for i := range n {
				key := make([]byte, rnd.IntN(14))
				for j := range key {
					key[j] = "\x00ab\xff"[rnd.IntN(4)] // many are equal, or begin alike
				}
				value := fmt.Sprint(i)
				want = append(want, string(key)+"="+value)
				if err := s.Add(key, []byte(value)); err != nil {
					t.Fatal(err)
				}
			}
			if n == 300_000 && len(s.runs) <= fanIn {
				t.Errorf("only %d runs: the merge of several levels is not tested", len(s.runs))
			}
			if files, _ := os.ReadDir(dir); len(files) > 0 {
				t.Errorf("a temporary file has a name: %v", files)
			}
			got := sorted(t, s)
			byKey := func(a, b string) int {
				ka, _, _ := strings.Cut(a, "=")
				kb, _, _ := strings.Cut(b, "=")
				return strings.Compare(ka, kb)
			}
			if !slices.IsSortedFunc(got, byKey) {
				t.Error("not in the order of the keys")
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%d entries came out of %d, or others", len(got), len(want))
			}
			if s.Len() != int64(n) {
				t.Errorf("Len is %d", s.Len())
			}
			for range 2 {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestSorter_TakesAnEntryLargerThanItsMemory(t *testing.T) {
	s := New(t.TempDir(), leastMemory)
	defer s.Close()
	big := strings.Repeat("k", 3*leastMemory)
	for _, key := range []string{"z", big, "a", big} {
		if err := s.Add([]byte(key), nil); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := sorted(t, s), []string{"a=", big + "=", big + "=", "z="}; !slices.Equal(got, want) {
		t.Errorf("got %d entries in another order", len(got))
	}
}

func TestSorter_FailsWhereNothingCanBeWritten(t *testing.T) {
	s := New(t.TempDir()+"/missing", leastMemory)
	defer s.Close()
	var err error
	for i := 0; i < 1<<16 && err == nil; i++ {
		err = s.Add(binary.BigEndian.AppendUint32(nil, uint32(i)), nil)
	}
	if err == nil || !strings.Contains(err.Error(), "temporary file") {
		t.Errorf("got %v", err)
	}
}

func TestSorter_StopsAMerge(t *testing.T) {
	s := New(t.TempDir(), leastMemory)
	defer s.Close()
	for i := range 300_000 {
		if err := s.Add(binary.BigEndian.AppendUint32(nil, uint32(i)), nil); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Sort(ctx); err == nil {
		t.Error("went on")
	}
}

func FuzzSorter(f *testing.F) {
	f.Add([]byte("a,b,,a"), uint16(3))
	f.Fuzz(func(t *testing.T, data []byte, many uint16) {
		s := New(t.TempDir(), leastMemory)
		defer s.Close()
		var want [][]byte
		for i := range int(many%64) + 1 {
			for _, key := range bytes.Split(data, []byte(",")) {
				want = append(want, key)
				if err := s.Add(key, bytes.Repeat([]byte{byte(i)}, 500)); err != nil {
					t.Fatal(err)
				}
			}
		}
		slices.SortFunc(want, bytes.Compare)
		it, err := s.Sort(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, key := range want {
			if !it.Next() || !bytes.Equal(it.Key(), key) {
				t.Fatalf("entry %d of %d: %q, want %q; %v", i, len(want), it.Key(), key, it.Err())
			}
		}
		if it.Next() || it.Err() != nil {
			t.Fatalf("more came out than went in: %v", it.Err())
		}
	})
}
