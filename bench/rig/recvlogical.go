package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// Recvlogical runs pg_recvlogical, which reads a slot up to a position and drops what it reads. It returns the process, which
// has ended, with its figures.
func (r *Rig) Recvlogical(ctx context.Context, slot, end string) (*proc.Process, error) {
	path, err := pgserver.ClientBinary("pg_recvlogical")
	if err != nil {
		return nil, err
	}
	log := filepath.Join(r.Dir, "pg_recvlogical.log")
	p, err := proc.Start(proc.Spec{Path: path, LogFile: log, Env: cleanEnv(), Args: []string{"--dbname", r.DSN(), "--slot", slot, "--start",
		"--endpos", end, "--no-loop", "--option", "proto_version=1", "--option", "publication_names=" + Publication, "--file", os.DevNull}})
	if err != nil {
		return nil, err
	}
	if err := p.Wait(ctx); err != nil {
		p.KillTree()
		b, _ := os.ReadFile(log)
		return p, fmt.Errorf("pg_recvlogical: %w:\n%s", err, b[max(0, len(b)-1000):])
	}
	return p, nil
}
