#!/usr/bin/env bash
# Builds and runs the benchmark: bench.sh run|quick|report|list [flags]. RUN chooses cells, PG the server's version.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
run | quick) scripts/deps.sh all ;;
esac
mkdir -p .cache/bench
go build -o .cache/bench/bench ./bench
exec .cache/bench/bench "$@" # not by "go run", which turns Ctrl-C into an error
