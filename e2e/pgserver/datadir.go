package pgserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// prepare fills the server's directory: data (a copy of the version's template), socket, configuration.
func (s *Server) prepare(ctx context.Context) error {
	if err := os.MkdirAll(s.SocketDir(), 0o755); err != nil {
		return err
	}
	fresh := false
	if _, err := os.Stat(filepath.Join(s.DataDir(), "PG_VERSION")); err != nil {
		fresh = true
		if err := s.copyTemplate(ctx); err != nil {
			return err
		}
	}
	settings := defaults()
	settings["unix_socket_directories"] = s.SocketDir()
	if err := s.copyTLS(settings); err != nil {
		return err
	}
	maps.Copy(settings, s.opts.Settings)
	if err := s.appendConf(settings); err != nil {
		return err
	}
	if fresh {
		if err := s.writeHBA(); err != nil {
			return err
		}
		if err := renewSystemID(s.DataDir()); err != nil {
			return fmt.Errorf("give the new server an identity: %w", err)
		}
	}
	if err := os.Chmod(s.DataDir(), 0o700); err != nil {
		return err
	}
	return proc.ChownTree(s.dir, s.user)
}

// copyTLS copies the files of certificate, key and authority into the server's directory, and names them in settings.
func (s *Server) copyTLS(settings map[string]string) error {
	if s.opts.CertFile == "" {
		return nil
	}
	dir := filepath.Join(s.dir, "tls")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	settings["ssl"] = "on"
	for setting, from := range map[string]string{
		"ssl_cert_file": s.opts.CertFile, "ssl_key_file": s.opts.KeyFile, "ssl_ca_file": s.opts.CAFile,
	} {
		if from == "" {
			continue
		}
		b, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("copy %s: %w", setting, err)
		}
		to := filepath.Join(dir, setting)
		if err := os.WriteFile(to, b, 0o600); err != nil {
			return err
		}
		settings[setting] = to
	}
	return nil
}

func (s *Server) writeHBA() error {
	method := "trust"
	if s.opts.Scram {
		method = "scram-sha-256"
	}
	lines := append([]string{}, s.opts.HBA...)
	lines = append(lines,
		"local all all trust",
		"local replication all trust",
		"host all all 127.0.0.1/32 "+method,
		"host replication all 127.0.0.1/32 "+method,
	)
	return os.WriteFile(filepath.Join(s.DataDir(), "pg_hba.conf"), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// copyTemplate copies the cached data directory of this version, which it makes with initdb the first time.
func (s *Server) copyTemplate(ctx context.Context) error {
	cache, err := proc.CacheDir()
	if err != nil {
		return err
	}
	template := filepath.Join(cache, "pg-template", s.version)
	unlock, err := proc.Lock(template + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(template, "PG_VERSION")); err != nil {
		if err := s.makeTemplate(ctx, template); err != nil {
			return fmt.Errorf("make a data directory of PostgreSQL %s: %w", s.version, err)
		}
	}
	return copyDir(ctx, template, s.DataDir())
}

func (s *Server) makeTemplate(ctx context.Context, template string) error {
	tmp, err := proc.TempDir("initdb")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	pwfile := filepath.Join(tmp, "pw")
	if err := os.WriteFile(pwfile, []byte(Password+"\n"), 0o600); err != nil {
		return err
	}
	if err := proc.ChownTree(tmp, s.user); err != nil {
		return err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(s.binDir, "initdb"), "--no-sync", "--auth=trust", "--username="+Superuser,
		"--pwfile="+pwfile, "--locale=C.UTF-8", "--encoding=UTF8", "-D", filepath.Join(tmp, "data"))
	cmd.Env, cmd.Dir = serverEnv(), tmp
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credentialOf(s.user)}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out.String())
	}
	// Renamed into place when whole, so that a killed run leaves no half template.
	part := template + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := copyDir(ctx, filepath.Join(tmp, "data"), part); err != nil {
		return err
	}
	return os.Rename(part, template)
}

func credentialOf(u *proc.User) *syscall.Credential {
	if u == nil {
		return nil
	}
	return &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID), Groups: []uint32{}}
}

func copyDir(ctx context.Context, from, to string) error {
	out, err := exec.CommandContext(ctx, "cp", "-R", "--reflink=auto", from, to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}

// renewSystemID gives a copied data directory its own system identifier, as initdb would have: in pg_control, which a
// CRC protects, and in the long header of the first page of each WAL segment, which none does.
func renewSystemID(dataDir string) error {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	id[7] &= 0x7f // keep it positive: tools print it as an unsigned number, some read it as a signed one
	path := filepath.Join(dataDir, "global", "pg_control")
	control, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	crcAt := -1
	for at := 64; at+4 <= len(control) && at < 1024; at += 4 { // where it lies depends on the version
		if crc32.Checksum(control[:at], table) == binary.NativeEndian.Uint32(control[at:]) {
			crcAt = at
			break
		}
	}
	if crcAt < 0 {
		return errors.New("pg_control has no valid checksum")
	}
	copy(control, id[:])
	binary.NativeEndian.PutUint32(control[crcAt:], crc32.Checksum(control[:crcAt], table))
	if err := os.WriteFile(path, control, 0o600); err != nil {
		return err
	}
	segments, err := filepath.Glob(filepath.Join(dataDir, "pg_wal", "0000*"))
	if err != nil {
		return err
	}
	for _, seg := range segments {
		if err := writeAt(seg, id[:], 24); err != nil {
			return err
		}
	}
	return nil
}

func writeAt(path string, b []byte, offset int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(b, offset); err != nil {
		return err
	}
	return f.Close()
}
