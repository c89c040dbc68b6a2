# Sourced with $here (this directory), $build and $cc set. Programs with the libraries of others in them, for glibc 2.17
# (core/base/glibc_2_17.sh, in $build/glibc):
#   link_program OUTPUT FILE...   links and strips one, which calls libcurl, libarchive and libcrypto directly (fetch/linked.c)
#   check_glibc FILE              fails if FILE requires a later glibc
#   $libraries                    the static libraries of the system's packages, linked into each
sh "$here/static_libs.sh" "$build/static" "$cc"

# The static libraries of Debian's packages. Those without a package in this list are linked where they exist.
libraries='' missing=''
for library in yaml:libyaml-dev jpeg:libjpeg-dev png16:libpng-dev webp:libwebp-dev webpdemux:libwebp-dev z:zlib1g-dev jansson:libjansson-dev \
    pcre2-8:libpcre2-dev utf8proc:libutf8proc-dev ssl:libssl-dev crypto:libssl-dev ncursesw:libncurses-dev tinfo:libncurses-dev lzma:liblzma-dev \
    zstd:libzstd-dev gomp: sharpyuv:; do
    file=lib${library%:*}.a package=${library#*:}
    path=$($cc -print-file-name="$file")
    if [ "$path" != "$file" ]; then libraries="$libraries $(readlink -f "$path")"; elif [ -n "$package" ]; then missing="$missing $package"; fi
done
[ -z "$missing" ] || { echo "packages with static libraries are missing:$missing" >&2; exit 1; }
link_program() {
    output=$1
    shift
    # shellcheck disable=SC2086 # words
    $cc -o "$output" -L"$build/glibc" -Wl,--wrap=__libc_start_main -Wl,--start-group "$@" \
        "$build/CMakeFiles/meopt_linked.dir/fetch/linked.c.o" $libraries "$build/static/libcurl.a" \
        "$build/static/libarchive.a" -Wl,--end-group -lglibc_2_17 -static-libgcc -Wl,--no-as-needed -lpthread -ldl -lrt -lm
    strip "$output"
}
check_glibc() {
    floor=$(objdump -T "$1" | grep -o 'GLIBC_[A-Z0-9._]*' | sed 's/GLIBC_//' | sort -uV | tail -1)
    [ "$(printf '%s\n' "$floor" 2.17 | sort -V | tail -1)" = 2.17 ] || { echo "$1 requires glibc $floor" >&2; exit 1; }
}
