package record

import (
	"math"
	"slices"
)

// Spread is what several rounds gave.
type Spread struct {
	Median, Min, Max float64
	N                int
}

// SpreadOf is the spread of all values that are numbers.
func SpreadOf(all []float64) Spread {
	v := slices.DeleteFunc(slices.Clone(all), math.IsNaN)
	if len(v) == 0 {
		return Spread{Median: math.NaN(), Min: math.NaN(), Max: math.NaN()}
	}
	slices.Sort(v)
	s := Spread{Min: v[0], Max: v[len(v)-1], N: len(v), Median: v[len(v)/2]}
	if len(v)%2 == 0 {
		s.Median = (v[len(v)/2-1] + v[len(v)/2]) / 2
	}
	return s
}

// Figure is the spread of one figure of a system, over its rounds.
func (f File) Figure(group, system, figure string) Spread {
	var v []float64
	for _, r := range f.Rounds {
		if r.Group != group || r.System != system {
			continue
		}
		if x, ok := r.Figures[figure]; ok {
			v = append(v, x)
		}
	}
	return SpreadOf(v)
}

// Ratio is the spread of the quotients, round by round, of a figure of two systems of one group.
func (f File) Ratio(group, system, of, figure string) Spread {
	return f.RatioOf(group, system, group, of, figure)
}

// RatioOf is Ratio for systems of two groups.
func (f File) RatioOf(group, system, ofGroup, of, figure string) Spread {
	below := map[int]float64{}
	for _, r := range f.Rounds {
		if x, ok := r.Figures[figure]; ok && r.Group == ofGroup && r.System == of {
			below[r.Round] = x
		}
	}
	var v []float64
	for _, r := range f.Rounds {
		x, ok := r.Figures[figure]
		if !ok || r.Group != group || r.System != system {
			continue
		}
		if y, ok := below[r.Round]; ok && y > 0 {
			v = append(v, x/y)
		}
	}
	return SpreadOf(v)
}

// Count is how many rounds of a system there are.
func (f File) Count(group, system string) int {
	n := 0
	for _, r := range f.Rounds {
		if r.Group == group && r.System == system {
			n++
		}
	}
	return n
}

// Newest leaves, of each group, the rounds of the relay, machine and parameters that were measured last.
func (f File) Newest() File {
	last := map[string]Round{}
	for _, r := range f.Rounds {
		if !r.Time.Before(last[r.Group].Time) {
			last[r.Group] = r
		}
	}
	out := f
	out.Rounds = nil
	for _, r := range f.Rounds {
		if l := last[r.Group]; r.Build == l.Build && r.Machine == l.Machine && r.Params == l.Params {
			out.Rounds = append(out.Rounds, r)
		}
	}
	return out
}

// Has tells whether there are rounds of a system.
func (f File) Has(group, system string) bool { return f.Count(group, system) > 0 }
