#!/bin/sh
# tarball.sh BUILD NAME CC DIR FILE...: NAME-linux-PROCESSOR-glibc2.17.tar.gz in DIR, a directory that runs from anywhere: an installation
# whose program is linked from FILE..., the libraries of others in it, for glibc 2.17 (core/base/glibc_2_17.sh, in BUILD/glibc). The same
# files give the same bytes (SOURCE_DATE_EPOCH, else the time of the last commit).
set -eu
build=$1 name=$2 cc=$3 to=$4
shift 4
here=$(dirname "$0")
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || echo 0)}
work=$(mktemp -d "$to/tarball.XXXXXX")
trap 'rm -rf "$work"' EXIT
. "$here/static_link.sh"

root=$work/$name
cmake --install "$build" --component Unspecified --prefix "$root" --strip >/dev/null # a component: install_manifest.txt stays
link_program "$root/bin/meopt" "$@"
# The licences of what is linked in.
licences=$root/share/doc/meopt
cp "$build"/static/copyright-* "$licences"
for file in $libraries; do
    package=$(dpkg-query -S "$file" 2>/dev/null | sed 's/[:,].*//' | head -1)
    [ ! -e "/usr/share/doc/${package:-none}/copyright" ] || cp -L "/usr/share/doc/$package/copyright" "$licences/copyright-$package"
done
find "$root" -type f \( -path '*/bin/meopt' -o -name 'libmeopt*.so*' \) | while read -r file; do check_glibc "$file"; done
archive=$name-linux-$(uname -m)-glibc2.17.tar.gz
tar -C "$work" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX -cf - "$name" | gzip -n >"$work/part"
mv "$work/part" "$to/$archive"
echo "$to/$archive"
