#!/usr/bin/env bash
# The lab: builds what it needs and runs its scenes. See docs/lab.md.
set -euo pipefail
cd "$(dirname "$0")/.."
KAFKA=real scripts/deps.sh demo >&2
mkdir -p bin
go build -o bin/ ./cmd/cdc-relay ./cmd/cdc-relay-lab ./examples/orders ./e2e/cmd/polling-relay
exec bin/cdc-relay-lab "$@" # not by "go run", which turns Ctrl-C into an error
