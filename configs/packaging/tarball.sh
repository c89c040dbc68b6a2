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
sh "$here/static_libs.sh" "$build/static" "$cc"

# The static libraries of Debian's packages. Those without a package in this list are linked where they exist.
missing=
for library in yaml:libyaml-dev jpeg:libjpeg-dev png16:libpng-dev webp:libwebp-dev webpdemux:libwebp-dev z:zlib1g-dev jansson:libjansson-dev \
    pcre2-8:libpcre2-dev utf8proc:libutf8proc-dev ssl:libssl-dev crypto:libssl-dev ncursesw:libncurses-dev tinfo:libncurses-dev lzma:liblzma-dev \
    zstd:libzstd-dev gomp: uring: sharpyuv:; do
    file=lib${library%:*}.a package=${library#*:}
    path=$($cc -print-file-name="$file")
    if [ "$path" != "$file" ]; then set -- "$@" "$(readlink -f "$path")"; elif [ -n "$package" ]; then missing="$missing $package"; fi
done
[ -z "$missing" ] || { echo "packages with static libraries are missing:$missing" >&2; exit 1; }

root=$work/$name
cmake --install "$build" --component Unspecified --prefix "$root" --strip >/dev/null # a component: install_manifest.txt stays
$cc -o "$root/bin/meopt" -L"$build/glibc" -Wl,--wrap=__libc_start_main -Wl,--start-group "$@" "$build/static/libcurl.a" "$build/static/libarchive.a" \
    -Wl,--end-group -lglibc_2_17 -static-libgcc -Wl,--no-as-needed -lpthread -ldl -lrt -lm
strip "$root/bin/meopt"
# The licences of what is linked in.
licences=$root/share/doc/meopt
cp "$build"/static/copyright-* "$licences"
for file; do
    package=$(dpkg-query -S "$file" 2>/dev/null | sed 's/[:,].*//' | head -1)
    [ ! -e "/usr/share/doc/${package:-none}/copyright" ] || cp -L "/usr/share/doc/$package/copyright" "$licences/copyright-$package"
done
objects=$(find "$root" -type f \( -path '*/bin/meopt' -o -name 'libmeopt*.so*' \))
echo "$objects" | while read -r file; do objdump -T "$file" | grep -o 'GLIBC_[A-Z0-9._]*'; done | sed 's/GLIBC_//' | sort -uV | tail -1 >"$work/floor"
[ "$(cat "$work/floor")" = 2.17 ] || { echo "a file requires glibc $(cat "$work/floor")" >&2; exit 1; }
archive=$name-linux-$(uname -m)-glibc2.17.tar.gz
tar -C "$work" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX -cf - "$name" | gzip -n >"$work/part"
mv "$work/part" "$to/$archive"
echo "$to/$archive"
