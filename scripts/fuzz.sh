#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME each.
set -euo pipefail
cd "$(dirname "$0")/.."
targets=$(grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | grep -v '^./\.cache/' | sed -E 's#^(.*)/[^/]+_test\.go:[0-9]+:func (.*)$#\1 \2#' | sort -u)
[ -n "$targets" ] || { echo "no fuzz targets"; exit 0; }
# A target ends by SIGINT and not by -fuzztime: when that runs out while a worker is asked for its result, Go's fuzzing (1.26,
# internal/fuzz) takes its own deadline for a failure ("context deadline exceeded"). An interrupt it takes for what it is.
bins=$(mktemp -d)
trap 'rm -rf "$bins"' EXIT
count=0
while read -r dir name; do
	count=$((count + 1))
	echo "fuzz $dir $name"
	go test -c -o "$bins/$name.test" -fuzz "^$name\$" "$dir"
	cache=$PWD/.cache/fuzz/$dir
	mkdir -p "$cache"
	(cd "$dir" && timeout --preserve-status -s INT -k 60s "${FUZZTIME:-5s}" "$bins/$name.test" \
		-test.run '^$' -test.fuzz "^$name\$" -test.fuzzcachedir "$cache" </dev/null 2>&1) | { grep --line-buffered -vE '^fuzz: elapsed' || true; }
	rm "$bins/$name.test"
done <<<"$targets"
# The end of a loop that stops at the first failure.
echo "RESULT decoder fuzz_targets=$count seconds_each=${FUZZTIME:-5s} ok=true"
