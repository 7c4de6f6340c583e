#!/usr/bin/env bash
# End-to-end tests. PG=15|17|18|all chooses the servers, RUN=<name> one test (or several, with commas) by the name in its
# RESULT line, ARGS flags of the tests. The names decoder, tracker, java_partitioning and page are unit tests, and need no server.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0
rest=()
for name in $(tr ',' ' ' <<<"${RUN:-}"); do
	case $name in
	decoder) scripts/fuzz.sh || failed=1 ;;
	tracker) go test -count=1 -v ./checkpoint -run '^TestTracker_' | grep --line-buffered -vE '^=== ' || failed=1 ;;
	java_partitioning) go test -count=1 -v ./sink/kafka -run '^TestMurmur2_|^TestPartition' | grep --line-buffered -vE '^=== ' || failed=1 ;;
	page) go test -count=1 -v ./live/page -run '^TestPage$' | grep --line-buffered -vE '^=== ' || failed=1 ;;
	*) rest+=("$name") ;;
	esac
done
[ -z "${RUN:-}" ] || [ ${#rest[@]} -gt 0 ] || exit $failed

pattern='^TestE2E_'
if [ -n "${RUN:-}" ]; then
	RUN=$(IFS=,; echo "${rest[*]}")
	names=$(sed -E 's/(^|_|,)([a-z0-9])/\1\U\2/g; s/_//g; s/,/|/g' <<<"$RUN") # slot_truth -> SlotTruth
	pattern="^TestE2E_($names)\$"
	for name in ${names//|/ }; do
		grep -rqE "^func TestE2E_$name\(" e2e/*_test.go || { echo "no e2e test of that name: $name (in RUN=$RUN)" >&2; exit 2; }
	done
fi
case ${PG:=15} in
all) versions="15 17 18" ;;
*) versions=$PG ;;
esac

mkdir -p .cache
results=$(mktemp .cache/results.XXXXXX)
trap 'rm -f "$results" "$results.log"' EXIT
export CDC_RELAY_RESULTS=$PWD/$results
for v in $versions; do
	echo "== e2e on PostgreSQL $v"
	echo "-- PostgreSQL $v" >>"$results"
	CDC_RELAY_TEST_PG_VERSION=$v go test -count=1 -v -timeout "${E2E_TIMEOUT:-60m}" ./e2e -run "$pattern" ${ARGS:+-args $ARGS} </dev/null 2>&1 |
		{ grep --line-buffered -vE '^=== (RUN|PAUSE|CONT|NAME)' || true; } | tee -a "$results.log" || failed=1
done
if [ -z "${RUN:-}" ] || [ "$versions" != "${versions% *}" ]; then
	echo "== results" # once more, all in one place
	cat "$results"
fi
if [ $failed != 0 ]; then
	echo "== what failed" # at the end, where nothing hides it: of each failed test what it said, without the servers' logs
	awk '/^ *[a-z_]+\.go:[0-9]+: |^RESULT .*ok=false/ { said = said substr($0, 1, 400) "\n" }
		/^panic: / { print }
		/^--- FAIL/ { print $0; printf "%s", said }
		/^--- / { said = "" }' "$results.log"
fi
exit $failed
