#!/usr/bin/env bash
# Builds an image from what is installed on this machine, for where none can be pulled:
#
#   containers-images.sh postgres TAG      the newest PostgreSQL in /usr/lib/postgresql, or that of CDC_RELAY_TEST_PG_VERSION
#   containers-images.sh kafka TAG         Java and the jars that `make deps` fetched
#
# Needs a Docker engine that answers.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1 tag=$2

work=$(mktemp -d "${TMPDIR:-/tmp}/cdc-relay-image.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root

# put PATH...: copies files and directories to the same paths below the root, without symbolic links.
put() {
	mkdir -p "$root"
	(cd / && tar -chf - --exclude=src.zip --exclude=ct.sym "${@#/}") | tar -xpf - -C "$root"
}

# put_libraries: copies what the programs and libraries below the root are linked with.
put_libraries() {
	find "$root" -type f \( -perm -u+x -o -name '*.so*' \) -print0 | LD_LIBRARY_PATH=${1:-} xargs -0 ldd 2>/dev/null |
		sed -nE 's#^[[:space:]]+([^ ]+ => )?(/[^ ]+) \(0x.*#\2#p' | sort -u | grep -vF "$root" | while read -r lib; do
		[ -e "$root$lib" ] || put "$lib"
	done
}

base() {
	mkdir -p "$root"/{bin,etc,run,var/run} && mkdir -m 1777 "$root/tmp"
	cp /bin/bash "$root/bin/bash"
	ln -s bash "$root/bin/sh"
	printf '%s\n' 'root:x:0:0::/:/bin/sh' 'postgres:x:999:999::/var/lib/postgresql:/bin/sh' 'kafka:x:1000:1000::/var/lib/kafka:/bin/sh' >"$root/etc/passwd"
	printf '%s\n' 'root:x:0:' 'postgres:x:999:' 'kafka:x:1000:' >"$root/etc/group"
	echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
	[ ! -d /usr/lib/locale/C.utf8 ] || put /usr/lib/locale/C.utf8
}

postgres() {
	local version=${CDC_RELAY_TEST_PG_VERSION:-} name
	if [ -z "$version" ]; then
		version=$(find /usr/lib/postgresql -path '*/bin/initdb' | sed 's#.*/\([0-9]*\)/bin/initdb#\1#' | sort -n | tail -1)
	fi
	local dir=/usr/lib/postgresql/$version
	[ -x "$dir/bin/initdb" ] || { echo "no PostgreSQL ${version} in /usr/lib/postgresql to build an image from" >&2; exit 1; }
	for name in postgres initdb pg_isready psql; do put "$dir/bin/$name"; done
	put "$dir/lib" "/usr/share/postgresql/$version" /usr/share/zoneinfo
	rm -rf "$root$dir"/lib/{llvmjit*,bitcode,pgxs} "$root"/usr/share/zoneinfo/{right,posix}
	put_libraries
	args=(--build-arg "BINDIR=$dir/bin")
}

kafka() {
	local java home jars
	java=$(readlink -f "${JAVA_HOME:+$JAVA_HOME/bin/}java" 2>/dev/null || true)
	[ -x "$java" ] || java=$(readlink -f "$(command -v java)")
	home=${java%/bin/java}
	jars=${CDC_RELAY_KAFKA_JARS:-$(ls -td .cache/kafka/jars-* | grep -E '/jars-[0-9a-f]+$' | head -1)}
	put "$java" "$home/conf" "$home/lib"
	rm -rf "$root$home"/lib/{libawt_xawt.so,libsplashscreen.so,libjsound.so,libfontmanager.so}
	mkdir -p "$root/opt/kafka/libs" "$root/opt/kafka/bin"
	cp "$jars"/*.jar "$root/opt/kafka/libs/"
	put_libraries "$home/lib:$home/lib/server"
	args=(--build-arg "JAVA_HOME=$home")
}

base
$kind
mkdir "$work/context" "$work/context/empty"
cp e2e/images/"$kind"/* "$work/context/"
tar -C "$root" --owner=0 --group=0 -cf "$work/context/rootfs.tar" .
rm -rf "$root"
DOCKER_BUILDKIT=0 docker build -q -t "$tag" "${args[@]}" "$work/context" 2>"$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
