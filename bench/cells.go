package main

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/bench/rig"
)

// outcome is what a system did in one round.
type outcome struct {
	figures map[string]float64
	notes   map[string]string
}

// A system is one of the compared, in one group. Group, system and parameters are a cell.
type system struct {
	name string
	run  func(ctx context.Context, round int) (outcome, error)
	slow bool // has fewer rounds
	// missing says why it cannot run on this machine, or is empty; asked when the group is open.
	missing func(ctx context.Context) string
}

// A group is a set of systems that are compared: on one server, by turns.
type group struct {
	scenario, variant string // drain, 300B/tx1
	params            string
	rounds            int
	slowRounds        int
	systems           []*system
	// open starts what all of its rounds share and warms it up.
	open func(ctx context.Context, env *rig.Env) (closing func(), err error)
}

func (g *group) name() string { return join(g.scenario, g.variant) }

// cell is the name by which a cell is chosen.
func (g *group) cell(s *system) string { return join(g.scenario, s.name, g.variant) }

func (g *group) roundsOf(s *system) int {
	if s.slow {
		return g.slowRounds
	}
	return g.rounds
}

func join(parts ...string) string {
	var kept []string
	for _, p := range parts {
		if p != "" {
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, "/")
}

// chosen tells whether a cell is one of those that patterns name: globs with commas between; one that is shorter than the
// cell's name chooses by its beginning. No pattern chooses all.
func chosen(cell, patterns string) bool {
	if strings.TrimSpace(patterns) == "" {
		return true
	}
	parts := strings.Split(cell, "/")
	for p := range strings.SplitSeq(patterns, ",") {
		p = strings.Trim(strings.TrimSpace(p), "/")
		n := strings.Count(p, "/") + 1
		if p == "" || n > len(parts) {
			continue
		}
		if ok, err := path.Match(p, strings.Join(parts[:n], "/")); err == nil && ok {
			return true
		}
	}
	return false
}

func quickGroups(o options) []*group {
	return drainGroups(o, true)
}

func fullGroups(o options) []*group {
	return slices.Concat(drainGroups(o, false), steadyGroups(o), costGroups(o), partitionGroups(o))
}
