#!/bin/sh
# meopt fetch against curl and bsdtar on the same archive, loopback nginx, interleaved: 20,000 files of incompressible bytes,
# 1 GB. Prints ratios. Each is timed with and without a sync of the disk after it: meopt fetch always syncs before it publishes.
#   MEOPT=build/meopt sh tests/bench/fetch.sh [FILES [KIB_PER_FILE [ROUNDS]]]
set -eu
for tool in nginx curl bsdtar python3; do command -v $tool >/dev/null || { echo "needs $tool (Debian: nginx-light curl libarchive-tools python3)"; exit 77; }; done
MEOPT=$(realpath "${MEOPT:-build/meopt}")
files=${1:-20000} kib=${2:-50} rounds=${3:-3}
work=$(mktemp -d -p "${TMPDIR:-/tmp}")
trap 'test ! -s "$work/pid" || kill "$(cat "$work/pid")" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
export XDG_STATE_HOME="$work/state" no_proxy='*'
mkdir -p www tree/COCO2014/train2014
head -c $((files * kib * 1024)) /dev/urandom | (cd tree/COCO2014/train2014 && split -b ${kib}k -a 4 - COCO_)
tar -C tree -czf www/a.tar.gz COCO2014
rm -rf tree
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf '%s\npid "%s/pid";\nerror_log "%s/error.log";\nevents {}\nhttp { access_log off; sendfile on;\n client_body_temp_path "%s/t1"; proxy_temp_path "%s/t2"; fastcgi_temp_path "%s/t3"; uwsgi_temp_path "%s/t4"; scgi_temp_path "%s/t5";\n server { listen 127.0.0.1:%s; root "%s/www"; } }\n' \
    "$(test "$(id -u)" != 0 || echo 'user root;')" "$work" "$work" "$work" "$work" "$work" "$work" "$work" "$port" "$work" >nginx.conf
nginx -c "$work/nginx.conf" 2>/dev/null
sha=$(sha256sum <www/a.tar.gz | cut -c1-64)
url=http://127.0.0.1:$port/a.tar.gz
python3 - "$MEOPT" "$url" "$sha" "$rounds" <<'EOF'
import os, resource, shutil, subprocess, sys, time
meopt, url, sha, rounds = sys.argv[1:4] + [int(sys.argv[4])]
def run(name, command, sync):
    for d in ("c", "x", "m"): shutil.rmtree(d, ignore_errors=True)
    os.makedirs("x")
    os.sync()
    t = time.time()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if sync: os.sync()
    return time.time() - t
commands = {"curl": ["curl", "-s", "-o", "c", url], "bsdtar": ["bsdtar", "-x", "-f", "www/a.tar.gz", "-C", "x"], "meopt": [meopt, "fetch", "--from", url, "--sha256", sha, "--dest", "m", "--quiet"]}
best = {}
for i in range(rounds):
    for name, command in commands.items():
        for sync in (False, True):
            t = run(name, command, sync)
            best[name, sync] = min(best.get((name, sync), 1e9), t)
for sync in (False, True):
    c, b, m = (best[n, sync] for n in ("curl", "bsdtar", "meopt"))
    print("%-12s curl %.2f s  bsdtar %.2f s  meopt fetch %.2f s: %.2f x the longer, %.2f x one after the other" % ("with sync" if sync else "without sync", c, b, m, m / max(b, c), m / (b + c)))
shutil.rmtree("m", ignore_errors=True)
p = subprocess.Popen(commands["meopt"])
_, status, use = os.wait4(p.pid, 0)
print("peak memory of meopt fetch: %.1f MiB (its larger process)" % (max(use.ru_maxrss, 0) / 1024))
EOF
