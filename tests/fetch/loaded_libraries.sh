#!/bin/sh
# libcurl, libarchive and libcrypto are loaded by the commands that use them: meopt starts without them, and where one is missing, what needs it names
# its package, and the rest works.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
if grep -q '^MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt"; then objects=30; else objects=24; fi
export XDG_STATE_HOME="$work/state" XDG_CONFIG_HOME="$work/config" https_proxy=http://127.0.0.1:9 http_proxy=http://127.0.0.1:9
LD_TRACE_LOADED_OBJECTS=1 "$MEOPT" >loaded
if grep -q libcurl loaded; then
    echo "libcurl is linked: it has no shared form, or there is no readelf"
    exit 77
fi
grep -E 'lib(archive|ssl|crypto)\.' loaded && fail "loaded at each start"
[ "$(wc -l <loaded)" -le $objects ] || fail "$(wc -l <loaded) libraries at each start"

without() { # LIBRARY CODE COMMAND...
    library=$1 expected=$2
    shift 2
    exits "$expected" env "MEOPT_${library}_LIBRARY=$work/missing.so" "$@" >out 2>err || fail "without $library: exit $code, not $expected: $*"
}
named() { grep -q "$work/missing.so" err && grep -q "$1" err || fail "the missing library or its package is not named: $(cat err)"; }
"$MEOPT" fetch sample --dest there 2>err || fail "fetch sample"
without ARCHIVE 1 "$MEOPT" fetch sample --dest sample
named libarchive13
[ -z "$(find sample -type f)" ] || fail "left $(find sample -type f)"
without CURL 0 "$MEOPT" fetch sample --dest sample
without CURL 1 "$MEOPT" fetch hf:gpt2
named libcurl4
mkdir -p config/meopt
printf 'sources:\n  far:\n    file: far.tar.gz\n    url: https://far.invalid/far.tar.gz\n    top: FAR\n    trust_first_use: true\n' >config/meopt/sources.yaml
without CURL 1 "$MEOPT" fetch far --dest far
named libcurl4
seq 1000 >lines
if command -v zstd >/dev/null; then
    seq 1000 | zstd -q >lines.zst
    without ARCHIVE 1 "$MEOPT" tokenize --tokenizer "$MEOPT_SOURCE/tests/data/tokenizers/qwen.json" lines.zst -o lines
    named libarchive13
fi
without CRYPTO 1 "$MEOPT" fetch sample --dest none
named openssl
without CRYPTO 1 "$MEOPT" tokenize --tokenizer "$MEOPT_SOURCE/tests/data/tokenizers/qwen.json" lines -o lines
named openssl
without CURL 0 "$MEOPT" version --verbose
grep -q 'libcurl *none' out || fail "version: $(cat out)"
without ARCHIVE 0 "$MEOPT" doctor
grep -q libarchive13 out || fail "doctor does not name the package"
printf 'int none;\n' >wrong.c
if cc=$(command -v cc) && "$cc" -shared -fPIC wrong.c -o wrong.so 2>cc; then
    exits 1 env "MEOPT_CURL_LIBRARY=$work/wrong.so" "$MEOPT" fetch hf:gpt2 2>err || fail "another library: exit $code"
    grep -q 'wrong.so.*curl_global_init' err || fail "the missing function is not named"
fi
