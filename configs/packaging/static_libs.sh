#!/bin/sh
# static_libs.sh DIR CC: builds libcurl.a and libarchive.a in DIR, whose own forms in Debian need libraries that have no static form. Their
# sources are those of this release of Debian or Ubuntu, by apt-get source with its signatures, or the directories curl and libarchive of
# MEOPT_LIBRARY_SOURCES. Needs no root.
set -eu
mkdir -p "$1"
cd "$1"
exec 9>lock
flock 9
[ ! -e whole ] || exit 0
export CC="$2" CFLAGS="-ffile-prefix-map=$PWD=." LDFLAGS=
if [ -n "${MEOPT_LIBRARY_SOURCES:-}" ]; then
    rm -rf curl libarchive
    cp -R "$MEOPT_LIBRARY_SOURCES/curl" "$MEOPT_LIBRARY_SOURCES/libarchive" .
else
    if ! command -v apt-get >/dev/null || ! command -v dpkg-source >/dev/null; then
        echo "no apt-get here: set MEOPT_LIBRARY_SOURCES to a directory with the sources, curl and libarchive" >&2
        exit 1
    fi
    # The same archives as this machine's, but their sources; lists and cache in DIR.
    rm -rf apt && mkdir -p apt/lists/partial apt/cache/archives/partial apt/parts
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        [ -e "$file" ] || continue
        to=apt/parts/$(basename "$file")
        places='(debian|debian-security|ubuntu|ubuntu-ports)'
        case $file in
        *.sources) awk -v RS= -v ORS='\n\n' "/URIs:[^\n]*\/$places\/?([ \n]|\$)/" "$file" | sed 's/^Types:.*/Types: deb-src/' >"$to" ;;
        *.list) sed -nE "s/^deb(-src)? (.*\/$places\/? .*)/deb-src \2/p" "$file" | sort -u >"$to" ;;
        esac
    done
    options="-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=$PWD/apt/parts -o Dir::State::Lists=$PWD/apt/lists
        -o Dir::Cache=$PWD/apt/cache -o APT::Sandbox::User=$(id -un)"
    # shellcheck disable=SC2086
    apt-get -qq $options update
    for name in curl libarchive; do
        # shellcheck disable=SC2086
        versions=$(apt-cache $options showsrc --only-source $name | sed -n 's/^Version: //p' | sort -Vru)
        for version in $versions; do # a mirror may lack the files of the newest for a while
            rm -rf $name*
            # shellcheck disable=SC2086
            ! apt-get -qq $options source --download-only "$name=$version" || break
            echo "$name $version could not be fetched; an older version is used if there is one" >&2
        done
        dpkg-source --no-check -x ./"$name"*.dsc $name >/dev/null # apt-get has compared the checksums
    done
    rm -rf apt
fi
configure() { # NAME OPTION...
    name=$1
    shift
    cmake -S "$name" -B "build-$name" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_TESTING=OFF \
        -Wno-dev "$@" >"$name.log" 2>&1 || { tail -n 30 "$name.log" >&2; exit 1; }
}
# HTTP and HTTPS with OpenSSL; the certificates are those of the machine it runs on (fetch/http.c).
configure curl -DBUILD_CURL_EXE=OFF -DHTTP_ONLY=ON -DCURL_USE_OPENSSL=ON -DCMAKE_USE_OPENSSL=ON -DUSE_LIBIDN2=OFF -DCURL_USE_LIBSSH2=OFF \
    -DCMAKE_USE_LIBSSH2=OFF -DCURL_USE_LIBPSL=OFF -DUSE_NGHTTP2=OFF -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF -DCURL_DISABLE_LDAP=ON -DENABLE_MANUAL=OFF \
    -DENABLE_CURL_MANUAL=OFF -DBUILD_LIBCURL_DOCS=OFF -DBUILD_MISC_DOCS=OFF -DCURL_CA_BUNDLE=none -DCURL_CA_PATH=none
# tar and zip, xz and zstd; gzip is read by fetch/inflate.c.
configure libarchive -DENABLE_OPENSSL=OFF -DENABLE_NETTLE=OFF -DENABLE_MBEDTLS=OFF -DENABLE_LIBXML2=OFF -DENABLE_EXPAT=OFF -DENABLE_LZ4=OFF \
    -DENABLE_LZO=OFF -DENABLE_LIBB2=OFF -DENABLE_BZip2=OFF -DENABLE_ACL=OFF -DENABLE_XATTR=OFF -DENABLE_PCREPOSIX=OFF -DENABLE_CAT=OFF \
    -DENABLE_CPIO=OFF -DENABLE_TAR=OFF -DENABLE_UNZIP=OFF -DENABLE_TEST=OFF -DENABLE_WERROR=OFF
build() { # NAME OPTION...
    name=$1
    shift
    cmake --build "build-$name" -j "$(nproc)" "$@" >>"$name.log" 2>&1 || { tail -n 30 "$name.log" >&2; exit 1; }
    find "build-$name" -name "lib${name#lib}.a" -exec cp {} . \;
    cp "$name/COPYING" "copyright-$name"
}
build curl
build libarchive --target archive_static # and no shared library
rm -rf build-curl build-libarchive curl libarchive curl_* libarchive_*
touch whole
