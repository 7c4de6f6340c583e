#!/usr/bin/env bash
# All tests but the end-to-end ones, with the race detector.
set -euo pipefail
cd "$(dirname "$0")/.."
go test -race -timeout 15m $(go list ./... | grep -v '/e2e$')
