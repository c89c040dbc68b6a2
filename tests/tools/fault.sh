#!/bin/sh
# The k-th call of every kind fails, or the process is killed there (tests/fault/faults.py), and a power cut at every
# change of a file (tests/fault/power.py): a documented exit code, a message with file and cause, nothing half under a
# final name, what was there still loads, and the same command again makes the same bits.
# Short form: sampled by a seed; MEOPT_LONG=1: the first and the last call from every place in the program, and others
# drawn by the seed, on all processors (MEOPT_FAULT_JOBS). MEOPT_FAULT_COMMANDS and MEOPT_FAULT_CALLS choose,
# MEOPT_FAULT_SEED draws other cases, MEOPT_FAULT_TIMES a multiple of the cases.
set -eu
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
! ldd "$MEOPT" | grep -q libasan || { echo "a sanitizer wants to be loaded first"; exit 77; }
work=$(mktemp -d -p "${TMPDIR:-/tmp}")
trap 'rm -rf "$work"' EXIT
work=$(cd "$work" && pwd -P)
here=$MEOPT_SOURCE/tests/fault
export PYTHONDONTWRITEBYTECODE=1
code=0
for part in faults power; do
    mkdir "$work/$part"
    python3 "$here/$part.py" "$MEOPT_BUILD/tests/libfault.so" "$MEOPT" "$MEOPT_SOURCE" "$work/$part" || code=1
done
exit $code
