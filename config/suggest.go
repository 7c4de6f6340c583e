package config

import (
	"strconv"
	"strings"
)

func indexOf(known []field, name string) int {
	for i, f := range known {
		if f.name == name {
			return i
		}
	}
	return -1
}

// suggest returns the known key that looks most like name.
func suggest(name string, known []field) string {
	best, bestAt := 1+max(1, len(name)/3), ""
	for _, f := range known {
		if n := distance(strings.ToLower(name), f.name); n < best {
			best, bestAt = n, f.name
		}
	}
	if bestAt == "" {
		return ""
	}
	return "; did you mean " + strconv.Quote(bestAt) + "?"
}

// distance counts the edits between two words; a swap of neighbours is one.
func distance(a, b string) int {
	prev2, prev := []int(nil), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur := make([]int, len(b)+1)
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev = prev, cur
	}
	return prev[len(b)]
}
