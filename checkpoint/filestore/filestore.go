// Package filestore keeps marks in one local file: for the null sink, tests and
// development. One process at a time may use a file.
package filestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
)

// Store keeps one mark per slot. A save replaces the file as a whole, so that a
// crash leaves the old one or the new one.
type Store struct {
	path string

	mu   sync.Mutex
	high checkpoint.Guard
}

// file is the format: version 1.
type file struct {
	Version int                        `json:"version"`
	Marks   map[string]checkpoint.Mark `json:"marks"` // by checkpoint.Key
}

// New returns a store on the file at path, which the first save makes.
func New(path string) *Store { return &Store{path: path, high: checkpoint.Guard{}} }

// Load implements checkpoint.Store. A file that cannot be understood is
// fault.Stop: going on without it could skip events or repeat all of them.
func (s *Store) Load(ctx context.Context, systemID, slot string) (checkpoint.Mark, bool, error) {
	if err := ctx.Err(); err != nil {
		return checkpoint.Mark{}, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := s.read()
	if err != nil {
		return checkpoint.Mark{}, false, err
	}
	m, ok := f.Marks[checkpoint.Key(systemID, slot)]
	if ok {
		s.high.Raise(m)
	}
	return m, ok, nil
}

// Others implements checkpoint.Store.
func (s *Store) Others(ctx context.Context, systemID, slot string) ([]checkpoint.Mark, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := s.read()
	if err != nil {
		return nil, err
	}
	return checkpoint.OtherClusters(f.Marks, systemID, slot), nil
}

// Save implements checkpoint.Store.
func (s *Store) Save(ctx context.Context, m checkpoint.Mark) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := s.read()
	if err != nil {
		return err
	}
	if old, ok := f.Marks[m.Key()]; ok {
		s.high.Raise(old)
	}
	if err := s.high.Check(m); err != nil {
		return err
	}
	f.Marks[m.Key()] = m
	if err := s.write(f); err != nil {
		return fmt.Errorf("save mark %s to %s: %w", m.LSN, s.path, err)
	}
	s.high.Raise(m)
	return nil
}

// Close implements checkpoint.Store; there is nothing to release.
func (s *Store) Close() error { return nil }

func (s *Store) read() (file, error) {
	var f file
	b, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return file{Version: 1, Marks: map[string]checkpoint.Mark{}}, nil
	}
	if err != nil {
		return f, &fault.Error{Class: fault.Stop, What: "read the marks", Err: err,
			Fix: "let the relay read " + s.path}
	}
	const fix = "put back a copy of the file, or move it away and take the slot over deliberately with cdc-relay adopt, which records what may be missing"
	if err := json.Unmarshal(b, &f); err != nil {
		return f, &fault.Error{Class: fault.Stop, What: fmt.Sprintf("the file with the marks, %s, cannot be understood", s.path), Err: err, Fix: fix}
	}
	if f.Version != 1 || f.Marks == nil {
		return f, fault.Stopped(fix, "the file with the marks, %s, holds no marks of a version that this program knows", s.path)
	}
	for key, m := range f.Marks {
		if m.Key() != key {
			return f, fault.Stopped(fix, "the file with the marks, %s, holds under %q the mark of %q", s.path, key, m.Key())
		}
	}
	return f, nil
}

// write replaces the file and returns when that is durable.
func (s *Store) write(f file) (err error) {
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(s.path)
	tmp, err := os.CreateTemp(dir, filepath.Base(s.path)+".*.tmp") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	_, err = tmp.Write(append(b, '\n'))
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), s.path); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}
