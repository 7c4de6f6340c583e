#!/usr/bin/env bash
# Everything that must pass, in order, each phase with its duration. Stops at the first that fails.
set -euo pipefail
cd "$(dirname "$0")/.."

export E2E_TIMEOUT=${E2E_TIMEOUT:-45m}
summary=()
phase() {
	local name=$1 began=$SECONDS
	shift
	echo "==== $name"
	if "$@"; then
		summary+=("$(printf '%-28s %4d s' "$name" $((SECONDS - began)))")
	else
		echo "==== $name FAILED after $((SECONDS - began)) s" >&2
		[ ${#summary[@]} -eq 0 ] || printf '%s\n' "${summary[@]}"
		exit 1
	fi
}

# Tests 1, 2 and 9 of the promises, and the hand-off of a backfill, run on the newer servers too, as far as they are there;
# the recovery of a slot on one of them.
newer=environment,crash,confirm_rule,slot_truth,handoff
e2e_on() {
	local version=$1
	if ! [ -x "/usr/lib/postgresql/$version/bin/postgres" ] && ! [ -x ".cache/postgres/$version/bin/postgres" ]; then
		echo "WARNING: no binaries of PostgreSQL $version: nothing was tested on it" >&2
		return 0
	fi
	PG=$version RUN=$newer${2:-} scripts/e2e.sh
}

lab() {
	if ! go run ./e2e/cmd/fetch-kafka; then
		echo "WARNING: no real Apache Kafka: the lab was not run" >&2
		return 0
	fi
	scripts/lab.sh --pg 15
}

phase "dependencies" scripts/deps.sh all
phase "build" go build ./...
phase "vet" go vet ./...
phase "lint" scripts/lint.sh
phase "unit tests" scripts/unit.sh
phase "fuzz" scripts/fuzz.sh
phase "e2e on PostgreSQL 15" env PG=15 RUN= scripts/e2e.sh
phase "e2e on PostgreSQL 17" e2e_on 17 ,recover,synced_failover
phase "e2e on PostgreSQL 18" e2e_on 18
phase "lab on PostgreSQL 15" lab
phase "e2e in containers, short" scripts/containers.sh short
printf '%s\n' "${summary[@]}"
echo "all passed in $SECONDS s"
