package filestore_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/checkpoint/checkpointtest"
	"github.com/cdc-relay/cdc-relay/checkpoint/filestore"
	"github.com/cdc-relay/cdc-relay/fault"
)

func TestFilestore_KeepsTheContract(t *testing.T) {
	checkpointtest.Run(t, func(t *testing.T) func() checkpoint.Store {
		path := filepath.Join(t.TempDir(), "mark")
		return func() checkpoint.Store { return filestore.New(path) }
	})
}

func TestFilestore_LeavesOneFileForItsOwnerOnly(t *testing.T) {
	dir := t.TempDir()
	s := filestore.New(filepath.Join(dir, "mark"))
	for i := range 20 {
		if err := s.Save(t.Context(), checkpointtest.At(1, pglogrepl.LSN(i+1))); err != nil {
			t.Fatal(err)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v; want one", files, err)
	}
	info, err := files[0].Info()
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v; want 0600", info.Mode(), err)
	}
}

func TestFilestore_CorruptFileStops(t *testing.T) {
	for name, content := range map[string]string{
		"empty":     "",
		"truncated": `{"version":1,"marks":{"1/a":{"system_id":"1","slot":"a","lsn":5`,
		"other":     `{"hello":1}`,
		"version 2": `{"version":2,"marks":{}}`,
		"wrong key": `{"version":1,"marks":{"1/a":{"system_id":"1","slot":"b"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "mark")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			s := filestore.New(path)
			_, ok, err := s.Load(t.Context(), "1", "a")
			if ok || fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), "adopt") {
				t.Fatalf("load: %v, %v; want a stop that names the way out", ok, err)
			}
			if err := s.Save(t.Context(), checkpointtest.At(1, 5)); fault.ClassOf(err) != fault.Stop {
				t.Fatalf("save: %v; want a stop", err)
			}
			if b, err := os.ReadFile(path); err != nil || string(b) != content {
				t.Fatalf("the file was changed to %q, %v", b, err)
			}
		})
	}
}

func TestFilestore_FailedSaveKeepsTheOldMark(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "mark")
	s := filestore.New(path)
	if err := s.Save(t.Context(), checkpointtest.At(1, 5)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	err := s.Save(context.Background(), checkpointtest.At(1, 6))
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("save into a directory that is gone: %v; want an error that names the file", err)
	}
}
