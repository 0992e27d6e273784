#!/bin/sh
# debian.sh FILE: makes an archive of a minimal Debian, as the tests of the package unpack it. Needs debootstrap, root and a mirror.
set -eu
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mirror=$(sed -n 's/^URIs: *\(\S*\).*/\1/p; s/^deb  *\(\[[^]]*\] *\)\{0,1\}\(\S*\) .*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
debootstrap --variant=minbase --include=logrotate bookworm "$root" "${mirror:-http://deb.debian.org/debian}" >"$1.log" 2>&1 ||
    { tail -n 20 "$1.log" >&2; exit 1; }
chmod 0755 "$root"
rm -rf "$root/var/cache/apt/archives" "$root"/var/lib/apt/lists/*
tar --create --file "$1.making" --directory "$root" --one-file-system .
mv "$1.making" "$1"
