#!/bin/sh
# dpkg-shlibdeps without libmeopt_mpi.so: the program runs without MPI, which the package recommends.
set -eu
for argument; do
    shift
    case $argument in
    */libmeopt_mpi.so) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec dpkg-shlibdeps "$@"
