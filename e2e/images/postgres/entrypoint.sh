#!/bin/bash
# Makes the data directory the first time, by POSTGRES_USER, POSTGRES_PASSWORD and POSTGRES_DB, and becomes the server, which then
# is process 1 and gets the signals. Only builtins of the shell are there.
set -euo pipefail

if [ $# = 0 ] || [ "${1:0:1}" = - ]; then
	set -- postgres "$@"
fi
[ "$1" = postgres ] || exec "$@"
shift

if [ ! -s "$PGDATA/PG_VERSION" ]; then
	user=${POSTGRES_USER:-postgres}
	db=${POSTGRES_DB:-$user}
	: "${POSTGRES_PASSWORD:?is not set, and every client needs it}"
	initdb --no-sync --username="$user" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") --auth=trust --encoding=UTF8
	echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
	if [ "$db" != postgres ]; then
		postgres --single -D "$PGDATA" postgres <<<"CREATE DATABASE \"$db\"" >/dev/null
	fi
fi
exec postgres -c listen_addresses='*' "$@"
