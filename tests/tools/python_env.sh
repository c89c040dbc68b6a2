#!/bin/sh
# Prints the Python of an environment with the libraries of a set: python_env.sh [short|long]. short: PyTorch
# (requirements_short.txt); long, the default: also what else requirements.txt names (timm, transformers, Lightning) and
# DINOv2's own classes.
# It is made once for these versions and this Python, under ${XDG_CACHE_HOME:-~/.cache}/meopt-tests (gigabytes; remove it at
# will). Exit 3: no package index answers, or it is too slow, reported on stderr; 1: anything else. pip's own settings hold
# (PIP_INDEX_URL, PIP_FIND_LINKS, ...). PyTorch for CPUs alone is a fifth as large: from download.pytorch.org if that answers.
set -eu
set=${1:-long}
cd "$(dirname "$0")"
python=$(command -v python3) || { echo "there is no python3" >&2; exit 1; }
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/meopt-tests
key=$({ cat requirements.txt requirements_short.txt; "$python" -VV; uname -m; } | sha256sum | cut -c1-12)
case $set in
short) requirements=requirements_short.txt probe=typing-extensions seconds=300 ;;
long) requirements=requirements.txt probe=safetensors seconds=3600 ;;
*) echo "usage: python_env.sh [short|long]" >&2 && exit 2 ;;
esac
env=$cache/$set-$key
[ ! -e "$cache/long-$key/whole" ] || env=$cache/long-$key # has the libraries of the short set, too
mkdir -p "$cache"
exec 9>"$env.lock"
flock 9
if [ ! -e "$env/whole" ]; then
    rm -rf "$env"
    "$python" -m venv "$env" >&2 || { echo "python3 -m venv failed: is python3-venv there?" >&2; exit 1; }
    missing() { # WHY
        echo "$1$(sed -n '$s/^/: /p' "$env/log")" >&2
        rm -rf "$env"
        exit 3
    }
    export PIP_DISABLE_PIP_VERSION_CHECK=1
    timeout --foreground 20 "$env/bin/python" -m pip --retries 0 --timeout 10 download -q --no-deps -d "$env/probe" "$probe" >"$env/log" 2>&1 ||
        missing "no package index answers"
    cpu=https://download.pytorch.org/whl/cpu
    if [ -z "${PIP_INDEX_URL:-}${PIP_EXTRA_INDEX_URL:-}${PIP_NO_INDEX:-}" ] &&
        "$python" -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1] + "/torch/", timeout=5)' $cpu 2>/dev/null; then
        export PIP_EXTRA_INDEX_URL=$cpu
    fi
    echo "installing $requirements into $env" >&2
    code=0
    timeout --foreground "$seconds" "$env/bin/python" -m pip install -q --no-compile -r "$requirements" >"$env/log" 2>&1 || code=$?
    [ $code != 124 ] || missing "$requirements took more than $seconds s"
    [ $code = 0 ] || { cat "$env/log" >&2 && exit 1; }
    # of facebookresearch/dinov2 the classes alone are wanted, not what its training asks for
    [ "$set" = short ] || "$env/bin/python" -m pip install -q --no-deps dinov2==0.0.1.dev2 >&2
    rm -rf "$env/probe" "$env/log"
    touch "$env/whole"
fi
echo "$env/bin/python"
