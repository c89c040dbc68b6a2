#!/bin/sh
# dpkg-shlibdeps without libmeopt_mpi.so, since the program runs without MPI, which the package recommends; and with MEOPT_LINKED, which needs the
# libraries that the program loads on first use (fetch/linked.c).
set -eu
for argument; do
    shift
    case $argument in
    */libmeopt_mpi.so) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec dpkg-shlibdeps "$@" "$MEOPT_LINKED"
