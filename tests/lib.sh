# Sourced by the test scripts (. "$MEOPT_SOURCE/tests/lib.sh"): a temporary directory, the end of a failed test, and waiting.
#   $work     the directory; removed when the script ends, after the processes whose ids are in $work/left were killed
#   $logs     names or patterns of files in $work; fail prints the last lines of each
#   cleanup   a script that has more to undo defines this function
#   report    a script that has more to show when it fails defines this function
# Sourced again, it does nothing: directory and functions stay.
[ -z "${lib_sourced-}" ] || return 0
lib_sourced=1
work=$(mktemp -d -p "${TMPDIR:-/tmp}")
export OMPI_MCA_orte_tmpdir_base="$work" # mpirun: of two that begin at once, one may find the directory of both made
logs='out err log'
cleanup() { :; }
report() { :; }
trap 'cleanup || :; [ ! -s "$work/left" ] || kill -KILL $(cat "$work/left") 2>/dev/null || :; rm -rf "$work" || wait_for 5 rm -rf "$work"' EXIT # a killed process may have written meanwhile
fail() { # MESSAGE...: print it, the logs and what report shows, end the test
    echo "FAILED: $*" >&2
    (cd "$work" && for file in $logs; do [ ! -s "$file" ] || tail -n 25 "$file"; done) >&2 || :
    report >&2 || :
    exit 1
}
exits() { # CODE COMMAND...: whether the command ends with this code; code: the one that it had
    without_first "$@" && code=0 || code=$?
    [ $code = "$1" ]
}
without_first() { shift && "$@"; }
wait_for() { # SECONDS COMMAND...: run the command until it succeeds, at growing intervals; 1 after that time. A condition: eval '...'
    wait_left=$(($1 * 100)) wait_pause=1
    shift
    until "$@"; do
        [ $wait_left -gt 0 ] || return 1
        LD_PRELOAD= sleep 0.0$wait_pause
        wait_left=$((wait_left - wait_pause))
        [ $wait_pause = 9 ] || wait_pause=$((wait_pause + 1))
    done
}
ours() { # PATTERN: the cmdline in /proc of each process in $work with an argument that matches; another suite may run at the same time
    grep -lz -e "$1" /proc/[0-9]*/cmdline 2>/dev/null | while read -r ours_file; do
        [ "$(readlink "${ours_file%cmdline}cwd" 2>/dev/null)" != "$(cd "$work" && pwd -P)" ] || echo "$ours_file"
    done
}
slow_saves() { # COMMAND...: exec it, with syncs below $work/runs (of $part) that take $ms (30): a small run lasts until it is hit
    export FAULT_UNDER="$work/runs" FAULT_SLOW="sync:${ms:-30}000${part:+:$part}" LD_LIBRARY_PATH="$MEOPT_BUILD/tests${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    [ ! -f "$MEOPT_BUILD/tests/libfault.so" ] || export LD_PRELOAD=libfault.so
    exec "$@"
}
hasten() { # N: clocks run N times as fast for commands and terminals started from now on (tests/fault/clock.c); 1: as usual
    unset LD_PRELOAD FAST_CLOCK
    [ "$1" = 1 ] || export LD_LIBRARY_PATH="$MEOPT_BUILD/tests" LD_PRELOAD=libfast_clock.so FAST_CLOCK="$1" ASAN_OPTIONS="verify_asan_link_order=0:${ASAN_OPTIONS:-}"
}
