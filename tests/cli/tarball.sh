#!/bin/sh
# The tarball runs from a directory that was moved, with an empty environment, requires nothing but glibc 2.17, and its bytes are those of a
# second one. Its modulefile works with Environment Modules and Lmod.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
if grep -q '^MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt"; then exit 77; fi
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$MEOPT_BUILD/CMakeCache.txt")
[ -e "$MEOPT_BUILD/static/whole" ] || [ "${MEOPT_LONG:-}" ] ||
    { echo "no static libraries: sh configs/packaging/static_libs.sh $MEOPT_BUILD/static $cc"; exit 77; }
export SOURCE_DATE_EPOCH=1700000000
tarball() {
    sh "$MEOPT_SOURCE/configs/packaging/tarball.sh" "$MEOPT_BUILD" meopt-test "$cc" "$1" "$MEOPT_BUILD/CMakeFiles/meopt.dir/cli/main.c.o" \
        "$MEOPT_BUILD/libmeopt_commands.a" "$MEOPT_BUILD/libmeopt.a" >out 2>err || fail "tarball"
}
mkdir one two
tarball "$work/one"
tarball "$work/two"
archive=$(cd one && ls)
cmp "one/$archive" "two/$archive" || fail "two tarballs of the same files differ"
case $archive in meopt-test-linux-*-glibc2.17.tar.gz) ;; *) fail "the name $archive" ;; esac
tar -xzf "one/$archive"
mkdir "a place"
mv meopt-test "a place/moved"
bin="$work/a place/moved/bin/meopt"
readelf -d "$bin" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' >libraries
grep -Ev '^(libc|libm|libdl|libpthread|librt)\.so\.[0-9]$|^ld-linux' libraries && fail "libraries of the system"
for library in curl libarchive; do
    [ -s "a place/moved/share/doc/meopt/copyright-$library" ] || fail "no licence of $library"
done
isa=${MEOPT_CPU_ISA:+MEOPT_CPU_ISA=$MEOPT_CPU_ISA} # both train with one instruction set
moved() { env -i HOME="$work" PATH=/usr/bin:/bin OMP_NUM_THREADS=1 $isa "$bin" "$@" >out 2>err || fail "meopt $* from the tarball"; }

# The modulefile, with Environment Modules and with Lmod, where they are: the moved program is found, and not after `module unload`.
version=$(env -i HOME="$work" PATH=/usr/bin:/bin "$bin" version | grep -o '[0-9][0-9.]*[0-9]' | head -1)
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

for library in CURL ARCHIVE CRYPTO; do # in the program: none is loaded
    isa="$isa MEOPT_${library}_LIBRARY=none"
done
moved version --verbose
grep -E '^ *(libcurl|libarchive|OpenSSL) .*[0-9]\.[0-9]' out | wc -l | grep -q '^3$' || fail "a library is not in the program: $(cat out)"
moved fetch sample --dest sample
moved config new quickstart quick.yaml
old=$MEOPT_BUILD/tests/test_old_kernel # Linux 3.10, where the kernel has a filter for that
code=0
"$old" true || code=$?
[ $code != 77 ] || old=env
env -i HOME="$work" PATH=/usr/bin:/bin OMP_NUM_THREADS=1 $isa "$old" "$bin" train quick.yaml train.steps=2 train.batch_size=4 --no-dashboard \
    --name tarball >out 2>err || fail "meopt train from the tarball"
moved export runs/tarball --format pt --out tarball.pt
"$MEOPT" train quick.yaml train.steps=2 train.batch_size=4 --no-dashboard --name build 2>err || fail "train"
"$MEOPT" export runs/build --format pt --out build.pt >out 2>err || fail "export"
cmp tarball.pt build.pt || fail "the tarball trains other weights than the program of this machine"
