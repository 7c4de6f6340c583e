#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME each.
set -euo pipefail
cd "$(dirname "$0")/.."
targets=$(grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | grep -v '^./\.cache/' | sed -E 's#^(.*)/[^/]+_test\.go:[0-9]+:func (.*)$#\1 \2#' | sort -u)
[ -n "$targets" ] || { echo "no fuzz targets"; exit 0; }
count=0
while read -r dir name; do
	count=$((count + 1))
	echo "fuzz $dir $name"
	go test "$dir" -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-10s}" </dev/null | { grep -vE '^fuzz: elapsed' || true; }
done <<<"$targets"
# The end of a loop that stops at the first failure.
echo "RESULT decoder fuzz_targets=$count seconds_each=${FUZZTIME:-10s} ok=true"
