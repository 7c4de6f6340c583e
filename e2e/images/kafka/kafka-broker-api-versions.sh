#!/bin/bash
# Stands in for Kafka's tool of that name, whose class is not among the jars: asks the broker for its API versions and succeeds when
# an answer comes. Used as: kafka-broker-api-versions.sh --bootstrap-server host:port
set -euo pipefail
[ "${1:-}" = --bootstrap-server ] && [ $# = 2 ] || { echo "usage: $0 --bootstrap-server host:port" >&2; exit 2; }
exec 3<>"/dev/tcp/${2%:*}/${2##*:}"
# length 10, ApiVersions, version 0, correlation 1, no client id
printf '\0\0\0\012\0\022\0\0\0\0\0\001\377\377' >&3
IFS= read -r -t 10 -d '' <&3 # an answer begins with its length, whose first byte is zero
