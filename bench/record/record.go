// Package record keeps the rounds of a benchmark: each is written to the raw JSON file as soon as it is finished, so that
// nothing of a broken run is lost and none of it is measured twice.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Round is what one system did once.
type Round struct {
	Group  string `json:"group"`  // scenario and parameters, such as drain/300B/tx1: its systems are compared
	System string `json:"system"` // such as kafka, null or pg_recvlogical
	Params string `json:"params"` // what else decides the figures, such as rows=1000000
	Round  int    `json:"round"`  // from 1; rounds of one number ran side by side

	Figures map[string]float64 `json:"figures"`
	Notes   map[string]string  `json:"notes,omitempty"`

	Time       time.Time `json:"time"`
	Commit     string    `json:"commit"`
	Build      string    `json:"build"` // hash of the relay's binary: what is measured, whatever the commit says
	LoadBefore float64   `json:"load_before"`
	Machine    string    `json:"machine"` // key in File.Machines
}

// Skipped says why a cell was not run.
type Skipped struct {
	Group  string    `json:"group"`
	System string    `json:"system"`
	Why    string    `json:"why"`
	Time   time.Time `json:"time"`
}

// File is the raw JSON.
type File struct {
	Machines map[string]Machine `json:"machines"`
	Rounds   []Round            `json:"rounds"`
	Skipped  []Skipped          `json:"skipped,omitempty"`
}

// Store is a File on disk. Its methods may be called from any goroutine.
type Store struct {
	path string
	mu   sync.Mutex
	file File
}

// Open reads the file at path; with fresh, or where there is none, it starts an empty one, which is written with the first
// round.
func Open(path string, fresh bool) (*Store, error) {
	s := &Store{path: path, file: File{Machines: map[string]Machine{}}}
	if fresh {
		return s, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &s.file); err != nil {
		return nil, fmt.Errorf("read %s (-fresh starts anew): %w", path, err)
	}
	if s.file.Machines == nil {
		s.file.Machines = map[string]Machine{}
	}
	return s, nil
}

// File is a copy of what the store holds.
func (s *Store) File() File {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.file
	f.Rounds = append([]Round(nil), f.Rounds...)
	f.Skipped = append([]Skipped(nil), f.Skipped...)
	return f
}

// Has tells whether such a round of such a build is there, whatever its figures.
func (s *Store) Has(r Round) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.file.Rounds {
		if x.Group == r.Group && x.System == r.System && x.Params == r.Params && x.Round == r.Round && x.Build == r.Build && x.Machine == r.Machine {
			return true
		}
	}
	return false
}

// Add writes a round; the one that it repeats, of whatever build, is replaced.
func (s *Store) Add(r Round, m Machine) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.file.Rounds[:0]
	for _, x := range s.file.Rounds {
		if x.Group != r.Group || x.System != r.System || x.Round != r.Round {
			kept = append(kept, x)
		}
	}
	s.file.Rounds = append(kept, r)
	s.file.Machines[r.Machine] = m
	s.forget(r.Group, r.System)
	return s.write()
}

// Skip writes why a cell was left out.
func (s *Store) Skip(k Skipped) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(k.Group, k.System)
	s.file.Skipped = append(s.file.Skipped, k)
	return s.write()
}

func (s *Store) forget(group, system string) {
	kept := s.file.Skipped[:0]
	for _, x := range s.file.Skipped {
		if x.Group != group || x.System != system {
			kept = append(kept, x)
		}
	}
	s.file.Skipped = kept
}

// write replaces the file as a whole, so that a kill leaves the old one or the new one.
func (s *Store) write() error {
	b, err := json.MarshalIndent(s.file, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(s.path+".part", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(s.path+".part", s.path)
}
