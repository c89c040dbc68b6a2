#!/bin/sh
# Packages. The tarball runs from a directory that was moved, with its own libraries and an empty environment, and its bytes are those of a
# second one; .deb and .rpm have the program, its data and the libraries that it depends on; the target uninstall removes what was installed.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
[ -x "$MEOPT_BUILD/meopt_relocatable" ] || { echo "skipped: no meopt_relocatable in this build"; exit 77; }
if grep -q '^MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt"; then exit 77; fi
export SOURCE_DATE_EPOCH=1700000000
tarball() { sh "$MEOPT_SOURCE/configs/packaging/tarball.sh" "$MEOPT_BUILD" "$MEOPT_BUILD/meopt_relocatable" meopt-test "$1" >>out 2>>err || fail "tarball"; }
mkdir one two
tarball "$work/one"
tarball "$work/two"
archive=$(cd one && ls)
cmp "one/$archive" "two/$archive" || fail "two tarballs of the same files differ"
case $archive in meopt-test-linux-*-glibc2.*.tar.gz) ;; *) fail "the name $archive" ;; esac
tar -xzf "one/$archive"
mkdir "a place"
mv meopt-test "a place/moved"
bin="$work/a place/moved/bin/meopt"
LC_ALL=C ldd "$bin" >libraries
grep -q 'not found' libraries && fail "a library is missing"
grep '=> /' libraries | grep -Ev '/(libc|libm|libdl|libpthread|librt|libresolv|libanl|libutil)\.so' >others
grep -v "a place/moved" others | grep . && fail "libraries of the system"
moved() { env -i HOME="$work" PATH=/usr/bin:/bin OMP_NUM_THREADS=1 "$bin" "$@" >out 2>err || fail "meopt $* from the tarball"; }

# The modulefile, with Environment Modules and with Lmod, where they are: the moved program is found, and not after `module unload`.
mv "a place" place # Lmod 8.6 cannot read a modulefile below a directory with a space
cat >modules <<END
export MANPATH=/usr/share/man
. "\$1"
module use "$work/place/moved/share/modulefiles"
module load "meopt/\$2"
command -v meopt
printf '%s\n' "\${MANPATH-}"
module unload meopt
! command -v meopt
END
version=$(env -i HOME="$work" PATH=/usr/bin:/bin "$bin" version | grep -o '[0-9][0-9.]*[0-9]' | head -1)
for init in /usr/share/modules/init/bash /usr/share/lmod/lmod/init/bash; do
    if [ ! -e $init ]; then
        echo "not tried: $init is missing"
        continue
    fi
    env -i HOME="$work" PATH=/usr/bin:/bin bash modules $init "$version" >out 2>err || fail "the modulefile with $init"
    [ "$(sed -n 1p out)" = "$work/place/moved/bin/meopt" ] || fail "$init: the program is not in PATH"
    man=$(sed -n 2p out)
    case :$man: in *":$work/place/moved/share/man:/usr/share/man:"*) ;; *) fail "$init: MANPATH $man" ;; esac
done
mv place "a place"

moved fetch sample --dest sample
moved config new quickstart quick.yaml
moved train quick.yaml train.steps=2 train.batch_size=4 --no-dashboard
env -i HOME="$work" PATH=/usr/bin:/bin "$bin" version >version || fail "version"

package() { # GENERATOR ENDING
    mkdir "$2"
    (cd "$2" && cpack -G "$1" --config "$MEOPT_BUILD/CPackConfig.cmake" -B "$work/$2") >out 2>err || fail "cpack -G $1"
    made=$(find "$work/$2" -maxdepth 1 -name "*.$2")
    [ -s "$made" ] || fail "no .$2"
}
if command -v cpack >/dev/null && command -v dpkg-shlibdeps >/dev/null; then
    package DEB deb
    dpkg-deb -f "$made" Depends | grep -q 'libc6.*libcurl4' || fail "Depends: $(dpkg-deb -f "$made" Depends)"
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
    rpm -qpR "$made" 2>/dev/null | grep -q '^libcurl.so.4' || fail ".rpm does not require libcurl"
    rpm -qpR "$made" 2>/dev/null | grep '^libmpi' && fail ".rpm requires MPI"
    rpm -qpl "$made" 2>/dev/null >list
    if grep -q '/libmeopt_mpi.so$' list; then
        rpm -qp --recommends "$made" 2>/dev/null | grep -qE 'openmpi|mpich' || fail ".rpm does not recommend MPI"
    fi
    grep -qx /usr/bin/meopt list || fail ".rpm has no program"
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
