#!/bin/sh
# Prints the Python of an environment with the libraries of tests/tools/requirements.txt, and DINOv2's own classes; made
# once for these versions and this Python, under ${XDG_CACHE_HOME:-~/.cache}/meopt-tests (several gigabytes; remove it
# at will). Exit 3: no package index answers, reported on stderr; 1: anything else. pip's own settings hold (PIP_INDEX_URL,
# PIP_EXTRA_INDEX_URL: one with a torch for processors alone makes it a fifth as large).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=$(command -v python3) || { echo "there is no python3" >&2; exit 1; }
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/meopt-tests
key=$({ cat "$here/requirements.txt" "$here/python_env.sh"; "$python" -VV; uname -m; } | sha256sum | cut -c1-12)
env=$cache/env-$key
mkdir -p "$cache"
exec 9>"$env.lock"
flock 9
if [ ! -e "$env/whole" ]; then
    rm -rf "$env"
    "$python" -m venv "$env" >&2 || { echo "python3 -m venv failed: is python3-venv there?" >&2; exit 1; }
    pip() { "$env/bin/python" -m pip --disable-pip-version-check "$@"; }
    if ! pip --retries 1 --timeout 30 download -q --no-deps -d "$env/probe" safetensors >"$env/log" 2>&1; then
        echo "no package index answers: $(tail -1 "$env/log")" >&2
        rm -rf "$env"
        exit 3
    fi
    echo "installing torch, timm, open_clip and transformers into $env" >&2
    pip install -q -r "$here/requirements.txt" >&2
    # of facebookresearch/dinov2 the classes alone are wanted, not what its training asks for
    pip install -q --no-deps dinov2==0.0.1.dev2 >&2
    rm -rf "$env/probe" "$env/log"
    touch "$env/whole"
fi
echo "$env/bin/python"
