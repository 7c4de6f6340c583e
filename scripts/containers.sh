#!/usr/bin/env bash
# End-to-end tests in containers, and docker-compose.yml once:
#
#   containers.sh            50 kills of the relay, and servers paused, disconnected, killed and stopped under load
#   containers.sh short      the same with few kills, one pause and one disconnection (CI)
#
# Where a Docker engine answers, it is used, with the public images, or images that are built here where those cannot be pulled.
# Where none answers, and as root, docker.io is installed by apt if it is missing and an engine is started in namespaces of its own,
# so that neither it nor its bridges and firewall rules are seen by the machine; they end with this script, even when it is killed
# (what a kill leaves on disk, the next run removes).
# That engine has no way out, so its images are always built here.
#
# Where no engine can be had, that is said and nothing is tested: no failure, unless CI is set. CDC_RELAY_TEST_CONTAINERS=0 leaves
# the containers out anywhere.
#
# CDC_RELAY_TEST_POSTGRES_IMAGE and CDC_RELAY_TEST_KAFKA_IMAGE name other images; CRASHES is the number of kills.
set -euo pipefail
cd "$(dirname "$0")/.."
form=${1:-full}
case $form in full | short) ;; *) echo "usage: $0 [full|short]" >&2; exit 2 ;; esac

# not_here says why nothing can be tested, and ends.
not_here() {
	echo "WARNING: no containers, so the tests in containers and docker-compose.yml were NOT run: $*" >&2
	if [ -n "${CI:-}" ]; then
		echo "That is a failure where CI is set; CDC_RELAY_TEST_CONTAINERS=0 leaves them out." >&2
		exit 1
	fi
	exit 0
}

engine_answers() { command -v docker >/dev/null && timeout 20 docker version >/dev/null 2>&1; }

# find_compose sets compose to the command, of either generation.
find_compose() {
	if timeout 20 docker compose version >/dev/null 2>&1; then
		compose=(docker compose)
	elif command -v docker-compose >/dev/null; then
		compose=(docker-compose)
	else
		return 1
	fi
}

install_engine() {
	local missing=()
	command -v dockerd >/dev/null || missing+=(docker.io)
	command -v iptables >/dev/null || missing+=(iptables) # dockerd does not start without
	command -v ip >/dev/null || missing+=(iproute2)
	find_compose || missing+=(docker-compose)
	[ ${#missing[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null || { echo "not installed: ${missing[*]}"; return 1; }
	echo "installing ${missing[*]} with apt-get" >&2
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq >&2 && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || { echo "apt-get cannot install ${missing[*]}"; return 1; }
	command -v docker >/dev/null || apt-get install -y -qq --no-install-recommends docker-cli >/dev/null || { echo "no docker command"; return 1; }
}

# build makes the binaries outside, where the network is.
build() {
	mkdir -p "$work/bin"
	CGO_ENABLED=0 go build -o "$work/bin/" ./cmd/cdc-relay ./cmd/cdc-relay-demo
	go test -c -o "$work/bin/e2e.test" ./e2e
	[ -n "${CDC_RELAY_KAFKA_JARS:-}" ] || go run ./e2e/cmd/fetch-kafka || echo "WARNING: no jars of Apache Kafka" >&2
}

# images puts the names of images that are there into CDC_RELAY_TEST_*_IMAGE.
images() {
	DOCKER_BUILDKIT=0 docker build -q -t cdc-relay:e2e -f Dockerfile.local "$work/bin" >/dev/null 2>&1
	DOCKER_BUILDKIT=0 docker build -q -t cdc-relay-demo:e2e -f Dockerfile.local --target demo "$work/bin" >/dev/null 2>&1
	image CDC_RELAY_TEST_POSTGRES_IMAGE postgres "postgres:${CDC_RELAY_TEST_PG_VERSION:-17}"
	image CDC_RELAY_TEST_KAFKA_IMAGE kafka apache/kafka:4.0.0
}

image() {
	local variable=$1 kind=$2 public=$3
	if [ -n "${!variable:-}" ]; then
		echo "using the image ${!variable}"
	elif docker image inspect "$public" >/dev/null 2>&1 || { [ -z "${OWN_ENGINE:-}" ] && timeout 300 docker pull -q "$public" >/dev/null; }; then
		echo "using the image $public"
		export "$variable=$public"
	else
		echo "building an image of $kind from what is installed: $public cannot be pulled"
		scripts/containers-images.sh "$kind" "cdc-relay-e2e-$kind:local" >/dev/null
		export "$variable=cdc-relay-e2e-$kind:local"
	fi
}

tests() {
	local args=(-test.v -test.count=1 -test.timeout=30m '-test.run=^TestE2E_(Crash|ContainerOutage)$' "-crashes=${CRASHES:-50}")
	[ "$form" = full ] || args+=(-test.short "-crashes=${CRASHES:-8}")
	# Ryuk, which removes what a killed test leaves, is an image that may not be there; we look after that.
	mkdir -p "$work/tmp"
	(cd e2e && TMPDIR=$work/tmp CDC_RELAY_TEST_CONTAINERS=1 TESTCONTAINERS_RYUK_DISABLED=true CDC_RELAY_TEST_BINARY=$work/bin/cdc-relay \
		"$work/bin/e2e.test" "${args[@]}" 2>&1) | { grep --line-buffered -vE '^=== (RUN|PAUSE|CONT|NAME)' || true; }
}

free_port() {
	local port
	while port=$((20000 + RANDOM % 10000)) && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
	echo "$port"
}

# compose_once starts docker-compose.yml, waits until its consumer has seen events and has ended well, and removes all of it.
compose_once() {
	if ! find_compose; then
		echo "WARNING: no docker compose: docker-compose.yml was NOT started" >&2
		[ -z "${CI:-}" ]
		return
	fi
	export COMPOSE_PROJECT_NAME=cdcrelaye2e$$ CDC_RELAY_IMAGE=cdc-relay:e2e CDC_RELAY_DEMO_IMAGE=cdc-relay-demo:e2e
	export POSTGRES_IMAGE=$CDC_RELAY_TEST_POSTGRES_IMAGE KAFKA_IMAGE=$CDC_RELAY_TEST_KAFKA_IMAGE RATE=10 DURATION=8s
	POSTGRES_PORT=$(free_port) KAFKA_PORT=$(free_port) ADMIN_PORT=$(free_port)
	export POSTGRES_PORT KAFKA_PORT ADMIN_PORT
	local began=$SECONDS events=0 code=none ok=false demo
	if timeout 240 "${compose[@]}" up -d --no-build >"$work/compose.log" 2>&1; then
		demo=$("${compose[@]}" ps -q demo)
		code=$(timeout 120 docker wait "$demo" || echo none)
		docker logs "$demo" >"$work/demo.log" 2>&1
		events=$(grep -cE '[0-9]+@[0-9]+ .*Order[A-Z]' "$work/demo.log" || true)
	fi
	[ "$code" != 0 ] || [ "$events" -eq 0 ] || ok=true
	$ok || { cat "$work/compose.log"; "${compose[@]}" logs --no-color --tail 60; } >&2 || true
	"${compose[@]}" down -v --timeout 30 >>"$work/compose.log" 2>&1 || ok=false
	echo "RESULT compose events=$events demo_exit_code=$code seconds=$((SECONDS - began)) ok=$ok"
	$ok
}

# run is the whole, with an engine that answers.
run() {
	local began=$SECONDS failed=0
	images
	echo "images ready after $((SECONDS - began)) s"
	tests || failed=1
	compose_once || failed=1
	return $failed
}

# leave_nothing removes containers and images of this run from an engine that goes on.
leave_nothing() {
	local left
	left=$(docker ps -aq --filter label=cdc-relay-e2e)
	[ -z "$left" ] || docker rm -fv $left >/dev/null
	docker image rm -f cdc-relay:e2e cdc-relay-demo:e2e cdc-relay-e2e-postgres:local cdc-relay-e2e-kafka:local >/dev/null 2>&1 || true
}

# inside runs as the first process of its own namespaces: starts the engine, runs, stops the engine.
inside() {
	trap 'exit 130' INT TERM
	local d
	for d in $engine_dirs; do
		mkdir -p "$d" && mount -t tmpfs none "$d"
	done
	ip link set lo up
	setsid dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/docker.pid" --storage-driver overlay2 \
		--cgroup-parent "/$(basename "$work")" -H "unix://$work/docker.sock" >"$work/engine.log" 2>&1 &
	engine=$!
	trap stop_engine EXIT
	export DOCKER_HOST=unix://$work/docker.sock OWN_ENGINE=1
	local began=$SECONDS
	until docker version >/dev/null 2>&1; do
		if ! kill -0 $engine 2>/dev/null || [ $((SECONDS - began)) -gt 60 ]; then
			tail -20 "$work/engine.log" >&2
			echo "the engine did not start" >"$work/no-engine"
			return 1
		fi
		sleep 0.1
	done
	run & # so that a signal ends the wait; what still runs then ends with the namespace
	wait $!
}

# stop_engine lets the engine stop its containers and unmount their file systems.
stop_engine() {
	kill $engine 2>/dev/null || return 0
	wait $engine || true
}

# remove_cgroups removes what the engine of a work directory of that name left, and ends what is still frozen there: it was
# killed, but sees that only now.
remove_cgroups() {
	local file
	for file in $(find /sys/fs/cgroup -path "*/$1/*" -name freezer.state 2>/dev/null); do echo THAWED >"$file"; done
	for file in $(find /sys/fs/cgroup -path "*/$1/*" -name cgroup.freeze 2>/dev/null); do echo 0 >"$file"; done
	for file in 1 2 3 4 5; do
		find /sys/fs/cgroup -depth -type d -path "*/$1*" -exec rmdir {} + 2>/dev/null || true
		[ -n "$(find /sys/fs/cgroup -type d -name "$1" 2>/dev/null)" ] || return 0
		sleep 1
	done
	echo "WARNING: control groups named $1 are left" >&2
}

# sweep removes what runs left that were killed with SIGKILL.
sweep() {
	local dir
	for dir in "${TMPDIR:-/tmp}"/cdc-relay-c.*; do
		[ -s "$dir/pid" ] && ! kill -0 "$(cat "$dir/pid")" 2>/dev/null || continue
		remove_cgroups "$(basename "$dir")"
		rm -rf "$dir"
	done
}

start_and_run() {
	local why fresh=() d child status=0
	[ "$(id -u)" = 0 ] || not_here "no Docker engine answers, and only root can start one"
	why=$(install_engine) || not_here "$why"
	if engine_answers; then # the package started it
		given
		return
	fi
	local spaces=(unshare --net --mount --pid --fork --mount-proc --kill-child)
	"${spaces[@]}" true 2>/dev/null || not_here "this machine lets nobody make namespaces"
	sweep
	for d in $engine_dirs; do [ -e "$d" ] || fresh+=("$d"); done
	build
	CONTAINERS_INSIDE=$work setpriv --pdeathsig KILL "${spaces[@]}" "$0" "$form" &
	child=$!
	trap 'kill -TERM $(cat /proc/$child/task/$child/children)' INT TERM # unshare itself ignores both
	while wait $child || status=$?; kill -0 $child 2>/dev/null; do :; done
	remove_cgroups "$(basename "$work")"
	[ ${#fresh[@]} -eq 0 ] || rmdir "${fresh[@]}" 2>/dev/null || true
	[ ! -e "$work/no-engine" ] || not_here "$(cat "$work/no-engine")"
	return $status
}

given() {
	echo "using the Docker engine that answers"
	trap 'leave_nothing; rm -rf "$work"' EXIT
	build
	run
}

# Where the engine writes, whatever its options say.
engine_dirs="/etc/docker /opt/containerd /run/docker /run/containerd"

if [ "${CDC_RELAY_TEST_CONTAINERS:-}" = 0 ]; then
	echo "WARNING: CDC_RELAY_TEST_CONTAINERS=0: nothing is tested in containers" >&2
elif [ -n "${CONTAINERS_INSIDE:-}" ]; then
	work=$CONTAINERS_INSIDE
	inside
else
	work=$(mktemp -d "${TMPDIR:-/tmp}/cdc-relay-c.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	echo $$ >"$work/pid"
	if engine_answers; then
		given
	else
		start_and_run
	fi
fi
