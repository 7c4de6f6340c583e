#!/usr/bin/env bash
# golangci-lint of a pinned version, installed into .cache/bin; go vet and gofmt where that is not possible.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v2.15.0
bin=$PWD/.cache/bin/golangci-lint

unformatted=$(gofmt -l $(git ls-files -co --exclude-standard '*.go'))
[ -z "$unformatted" ] || { echo "not formatted (make fmt): $unformatted" >&2; exit 1; }

if ! "$bin" version 2>/dev/null | grep -qF "${version#v}"; then
	echo "installing golangci-lint $version"
	(cd / && GOBIN=$(dirname "$bin") GOFLAGS=-mod=mod go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version") ||
		{ echo "WARNING: golangci-lint $version cannot be installed; only go vet checks the code, nothing the import rules" >&2
			exec go vet ./...; }
fi
"$bin" run --timeout 15m --allow-parallel-runners ./...
