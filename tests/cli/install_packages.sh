#!/bin/sh
# configs/packages.sh: the missing packages are installed by root or sudo; a user without either gets their names and exit 3, and nobody is
# asked for a password if nothing is missing. dpkg-query, apt-get, apt-cache, id and sudo are stand-ins.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
mkdir bin
stand_in() { printf '#!/bin/sh\n%s\n' "$2" >"bin/$1" && chmod +x "bin/$1"; }
stand_in dpkg-query "for last; do :; done; ! grep -qx \"\$last\" $work/missing || exit 1; echo 'install ok installed'"
stand_in apt-get "echo \"\$*\" >>$work/calls"
stand_in apt-cache "[ \"\$2\" = libopenmpi-dev ]" # the one optional package that this distribution has
stand_in id "cat $work/uid"
stand_in sudo "case \$1 in -n) exit 1 ;; esac; echo sudo >>$work/calls; exec \"\$@\""
install() { # EXIT UID MISSING...: by a user, on a machine without these packages
    expected=$1
    echo "$2" >uid
    shift 2
    printf '%s\n' "$@" >missing
    : >calls
    code=0
    PATH=$work/bin:$PATH sh "$MEOPT_SOURCE/configs/packages.sh" </dev/null >out 2>err || code=$?
    [ $code = "$expected" ] || fail "exit $code, not $expected, without $*"
}
install 0 0 ''
[ ! -s calls ] || fail "nothing was missing: $(cat calls)"
install 0 0 cmake libyaml-dev
grep -q '^-qq install .*cmake libyaml-dev$' calls || fail "not installed: $(cat calls)"
install 0 0 libopenmpi-dev ca-certificates
grep -q '^-qq install .* libopenmpi-dev$' calls || fail "the optional package: $(cat calls)"
install 0 1000 libopenmpi-dev
[ ! -s calls ] || fail "asked for an optional package: $(cat calls)"
install 3 1000 cmake libyaml-dev libopenmpi-dev
[ ! -s calls ] || fail "asked for a password without a terminal: $(cat calls)"
grep -q 'cmake libyaml-dev$' err && grep -q conda err || fail "the missing packages are not named"
stand_in sudo "[ \"\$1\" != -n ] || exit 0; echo sudo >>$work/calls; exec \"\$@\"" # asks for no password
install 0 1000 cmake
grep -q sudo calls && grep -q 'install .*cmake$' calls || fail "sudo was not used: $(cat calls)"
