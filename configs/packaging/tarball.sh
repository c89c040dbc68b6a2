#!/bin/sh
# tarball.sh BUILD PROGRAM NAME [DIR]: NAME-linux-PROCESSOR-glibcX.Y.tar.gz in DIR (BUILD), a directory that runs from anywhere: an installation,
# and the libraries of PROGRAM but for glibc's next to it. X.Y is the oldest glibc whose symbols are enough. The same files give the same
# bytes (SOURCE_DATE_EPOCH, else the time of the last commit).
set -eu
build=$1 program=$2 name=$3 to=${4:-$1}
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$(dirname "$0")" log -1 --format=%ct 2>/dev/null || echo 0)}
work=$(mktemp -d "$to/tarball.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/$name
cmake --install "$build" --component Unspecified --prefix "$root" --strip >/dev/null # a component: install_manifest.txt stays
libraries=$(cd "$root" && find . -name libmeopt_mpi.so | head -1)
libdir=$root/$(dirname "${libraries:-./lib/meopt/x}")/lib
mkdir -p "$libdir"
cp "$program" "$root/bin/meopt"
strip "$root/bin/meopt"
LC_ALL=C ldd "$program" | sed -n 's/^\t[^ ]* => \(\/[^ ]*\) .*/\1/p' | sort -u >"$work/libraries"
while read -r file; do
    case ${file##*/} in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.* | libanl.so.* | libutil.so.* | libnsl.so.* | ld-linux*) ;;
    *) cp -L "$file" "$libdir/" && chmod 644 "$libdir/${file##*/}" ;;
    esac
done <"$work/libraries"
for file in "$root/bin/meopt" "$libdir"/*; do
    objdump -T "$file" | grep -o 'GLIBC_2\.[0-9.]*'
done | sed 's/GLIBC_//' | sort -uV | tail -1 >"$work/floor"
floor=$(cat "$work/floor")
archive=$name-linux-$(uname -m)-glibc$floor.tar.gz
tar -C "$work" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX -cf - "$name" | gzip -n >"$work/part"
mv "$work/part" "$to/$archive"
echo "$to/$archive: $(find "$libdir" -type f | wc -l) libraries, requires glibc $floor"
