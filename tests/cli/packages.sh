#!/bin/sh
# Packages: .deb and .rpm have the program, its data and the libraries that it depends on; the target uninstall removes what was installed.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
if grep -q '^MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt"; then exit 77; fi
"$MEOPT" version >version

package() { # GENERATOR ENDING
    mkdir "$2"
    (cd "$2" && cpack -G "$1" --config "$MEOPT_BUILD/CPackConfig.cmake" -B "$work/$2") >out 2>err || fail "cpack -G $1"
    made=$(find "$work/$2" -maxdepth 1 -name "*.$2")
    [ -s "$made" ] || fail "no .$2"
}
if command -v cpack >/dev/null && command -v dpkg-shlibdeps >/dev/null && command -v file >/dev/null; then
    package DEB deb
    for package in libc6 libcurl4 libarchive13 libssl libyaml; do # also of what is loaded on first use
        dpkg-deb -f "$made" Depends | grep -q "\b$package" || fail "no $package in Depends: $(dpkg-deb -f "$made" Depends)"
    done
    dpkg-deb -c "$made" | grep libmeopt_linked && fail "libmeopt_linked.so is installed"
    dpkg-deb -f "$made" Depends | grep -qiE 'mpi(ch)?[0-9]' && fail "MPI is required: $(dpkg-deb -f "$made" Depends)"
    dpkg-deb -x "$made" unpacked
    if find unpacked -name libmeopt_mpi.so | grep -q .; then
        dpkg-deb -f "$made" Recommends | grep -qE 'openmpi-bin|mpich' || fail "MPI is not recommended"
    fi
    [ "$(unpacked/usr/bin/meopt version)" = "$(cat version)" ] || fail "the program of .deb"
    for file in share/man/man1/meopt.1 share/bash-completion/completions/meopt share/meopt/sources.yaml include/meopt.h; do
        find "unpacked/usr/$file"* | grep -q . || fail ".deb lacks $file"
    done
fi
if command -v rpmbuild >/dev/null; then
    package RPM rpm
    for library in curl archive crypto; do
        rpm -qpR "$made" 2>/dev/null | grep -q "^lib$library.so" || fail ".rpm does not require lib$library"
    done
    rpm -qpR "$made" 2>/dev/null | grep '^libmpi' && fail ".rpm requires MPI"
    rpm -qpl "$made" 2>/dev/null >list
    if grep -q '/libmeopt_mpi.so$' list; then
        rpm -qp --recommends "$made" 2>/dev/null | grep -qE 'openmpi|mpich' || fail ".rpm does not recommend MPI"
    fi
    grep -qx /usr/bin/meopt list || fail ".rpm has no program"
    if rpm -qp --qf '%{DESCRIPTION}' "$made" 2>/dev/null | grep -i cpack; then fail ".rpm is described as one of CPack"; fi
    if grep -Ex '/usr|/usr/(bin|lib|share|include|share/man)' list; then fail ".rpm owns a directory of the system"; fi
fi

DESTDIR="$work/destination" cmake --install "$MEOPT_BUILD" --prefix /opt/meopt >out 2>err || fail "install"
cp "$MEOPT_BUILD/install_manifest.txt" .
[ -x destination/opt/meopt/bin/meopt ] || fail "nothing was installed"
DESTDIR="$work/destination" cmake -P "$MEOPT_SOURCE/core/uninstall.cmake" >out 2>err || fail "uninstall"
rm -f "$MEOPT_BUILD/install_manifest.txt"
left=$(find destination \( -type f -o -type l -o -name meopt \) ! -path destination/opt/meopt)
[ -z "$left" ] || fail "left: $left"
code=0
cmake -P "$MEOPT_SOURCE/core/uninstall.cmake" >out 2>err || code=$?
[ $code != 0 ] || fail "uninstalled twice"
