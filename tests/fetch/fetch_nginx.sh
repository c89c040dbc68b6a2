#!/bin/sh
# Fetching from a real nginx over TLS with a CA of its own: SIGKILL at random moments, two at once, a disk that fills up.
# MEOPT_LONG: 200 kills of a 200 MB archive; else 8 of 5 MB.
set -eu
PATH=$PATH:/usr/sbin # of a user, on Debian
for tool in nginx openssl; do command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }; done
. "$MEOPT_SOURCE/tests/lib.sh"
mount=
trap 'test ! -s "$work/pid" || kill "$(cat "$work/pid")" 2>/dev/null || true; test -z "$mount" || umount "$mount" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
export XDG_STATE_HOME="$work/state" XDG_CONFIG_HOME="$work/config" no_proxy='*' CURL_CA_BUNDLE="$work/ca.pem"
kills=8 files=50 file_bytes=100000 rate=3m
if [ "${MEOPT_LONG:-}" = 1 ]; then kills=200 files=2000 rate=4m; fi

openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=test-ca >/dev/null 2>&1
openssl req -newkey rsa:2048 -nodes -keyout key.pem -out req.pem -subj /CN=localhost >/dev/null 2>&1
printf 'subjectAltName=IP:127.0.0.1\n' >ext
openssl x509 -req -in req.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out cert.pem >/dev/null 2>&1
mkdir -p www tree/COCO2014/train2014
head -c $((files * file_bytes)) /dev/urandom | (cd tree/COCO2014/train2014 && split -b $file_bytes -a 4 - COCO_)
tar -C tree -czf www/COCO2014.tar.gz COCO2014
size=$(stat -c %s www/COCO2014.tar.gz)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >nginx.conf <<EOF
$(test "$(id -u)" != 0 || echo 'user root;')
pid "$work/pid";
error_log "$work/error.log";
events { worker_connections 64; }
http {
    log_format bytes '\$status \$body_bytes_sent \$http_range';
    access_log "$work/access.log" bytes;
    client_body_temp_path "$work/t1"; proxy_temp_path "$work/t2"; fastcgi_temp_path "$work/t3";
    uwsgi_temp_path "$work/t4"; scgi_temp_path "$work/t5";
    server {
        listen 127.0.0.1:$port ssl;
        ssl_certificate "$work/cert.pem"; ssl_certificate_key "$work/key.pem";
        sendfile off; output_buffers 1 16k; ssl_buffer_size 4k;
        root "$work/www";
        location /fast/ { alias "$work/www/"; }
        location / { limit_rate $rate; }
    }
}
EOF
nginx -c "$work/nginx.conf" 2>nginx.log || { cat nginx.log; exit 1; }
url=https://127.0.0.1:$port/COCO2014.tar.gz
mkdir -p config/meopt
cat >config/meopt/sources.yaml <<EOF
sources:
  big:
    file: COCO2014.tar.gz
    url: [https://127.0.0.1:$port/gone.tar.gz, $url]
    top: COCO2014
    trust_first_use: true
  quick:
    file: COCO2014.tar.gz
    url: https://127.0.0.1:$port/fast/COCO2014.tar.gz
    top: COCO2014
    trust_first_use: true
EOF
bad=0
fail() {
    echo "FAILED: $*"
    test ! -s err || tail -5 err
    bad=1
}
same() { diff -r --exclude=.meopt-complete tree/COCO2014 "$1" >/dev/null || fail "$2: another tree"; }

# the CA must be known
got=0
CURL_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt "$MEOPT" fetch big --dest no 2>err || got=$?
test $got = 4 || fail "unknown CA: exit $got"
test ! -e no/COCO2014 || fail "unknown CA: published"

# SIGKILL at random moments; never published early, no byte of it trusted wrongly, none that is in the file requested again
held() { cat kill/.meopt-fetch/big.part* 2>/dev/null | wc -c; }
: >access.log
: >held
n=0
while [ $n -lt $kills ]; do
    "$MEOPT" fetch big --dest kill --quiet 2>err &
    pid=$!
    # three of four when some more of the archive is there, the others after a time: also before and after a transfer
    goal=$(awk -v s=$n -v k=$kills -v b="$size" -v h="$(held)" 'BEGIN {srand(s + 1); print int(h + 1 + rand() * b / k)}')
    if [ $((n % 4)) = 3 ]; then sleep "$(awk -v s=$n 'BEGIN {srand(s + 1); printf "%.3f", 0.15 * rand()}')"; else
        while [ "$(held)" -lt "$goal" ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
    fi
    kill -KILL $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    held >>held
    if [ -e kill/COCO2014 ]; then
        test -f kill/COCO2014/.meopt-complete || fail "published without a marker after kill $n"
        same kill/COCO2014 "published after kill $n"
        break
    fi
    n=$((n + 1))
done
"$MEOPT" fetch big --dest kill --quiet 2>err || fail "after $n kills: exit $?"
same kill/COCO2014 "after $n kills"
test "$(ls -A kill)" = "COCO2014
COCO2014.tar.gz
COCO2014.tar.gz.sha256" ||
    fail "left $(ls -A kill)"
(cd kill && sha256sum -c --quiet COCO2014.tar.gz.sha256) || fail "left $(ls -A kill)"
sent=$(awk '$1 < 400 {n += $2} END {print n}' access.log)
echo "$n kills: $sent bytes sent for an archive of $size: $(awk -v a="$sent" -v b="$size" 'BEGIN {printf "%.2f", 100 * (a - b) / b}') % twice"
hit=$(awk '$1 == 206 && $2 > 1000' access.log | wc -l)
test "$hit" -ge $((n / 2)) || fail "only $hit of $n kills met a transfer"
# each request that resumes (that for the first byte alone asks for the size) begins where the file of a killed process ended, or one write (256 KiB) before
awk 'NR == FNR {held[$1]; next}
    $1 == 206 && $3 != "bytes=0-0" {near = 0; for (h in held) {d = h - substr($3, 7); near = near || (d >= 0 && d <= 262144)}; if (!near) print $3}' held access.log >astray
test ! -s astray || fail "requests begin at $(xargs <astray), files ended at $(xargs <held)"
# what is sent twice is that and what lay in the sockets' buffers when a process died, which is the more the less it was given to run
if [ "${MEOPT_LONG:-}" = 1 ]; then
    test $((sent - size)) -le $((size / 50)) || fail "$((sent - size)) bytes were sent twice"
fi

# SIGKILL at each rename, from the claim of the download to the tree: the next run leaves the tree, and the archive unless it is not wanted
for stream in '' --stream; do
    k=0 got=137 want=COCO2014
    [ "$stream" ] || want='COCO2014 COCO2014.tar.gz COCO2014.tar.gz.sha256'
    while [ $got = 137 ]; do
        k=$((k + 1))
        rm -rf each
        mkdir each
        head -c 65536 /dev/zero >counters
        got=0
        env LD_LIBRARY_PATH="$MEOPT_BUILD/tests${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" LD_PRELOAD=libfault.so FAULT_SHARED="$work/counters" FAULT_UNDER="$work/each" \
            FAULT_CALL=rename FAULT_K=$k FAULT_KILL=1 "$MEOPT" fetch quick --dest each --quiet $stream 2>err || got=$?
        "$MEOPT" fetch quick --dest each --quiet $stream 2>err || fail "killed at rename $k: exit $?"
        same each/COCO2014 "killed at rename $k"
        [ "$(ls -A each | xargs)" = "$want" ] || fail "killed at rename $k $stream: left $(ls -A each)"
    done
    if [ $got != 0 ] || [ $k -lt 4 ]; then fail "rename $k $stream: exit $got"; fi
done

# the first use is remembered: another file at the same address is refused
mv www/COCO2014.tar.gz www/keep.tar.gz
tar -C tree/COCO2014 -czf www/COCO2014.tar.gz train2014
got=0
"$MEOPT" fetch big --dest changed --quiet 2>err || got=$?
test $got = 3 || fail "another file than the first time: exit $got"
test ! -e changed/COCO2014 || fail "another file than the first time: published"
mv www/keep.tar.gz www/COCO2014.tar.gz

# two at once: the second waits; the first is killed; the second finishes
"$MEOPT" fetch big --dest two 2>err1 &
first=$!
wait_for 2 eval 'test -n "$(ls two/.meopt-fetch 2>/dev/null)"' || :
CURL_CA_BUNDLE='' REQUESTS_CA_BUNDLE="$work/ca.pem" "$MEOPT" fetch big --dest two --json >out 2>err &
second=$!
wait_for 5 grep -q '"phase":"waiting"' out || fail "two at once: the second does not wait"
kill -KILL $first
wait $first 2>/dev/null || true
wait $second || fail "two at once: the other ends with $?"
same two/COCO2014 "two at once"

# two ranges side by side, when the archive is large enough
if [ "${MEOPT_LONG:-}" = 1 ]; then
    : >access.log
    "$MEOPT" fetch --from "https://127.0.0.1:$port/fast/COCO2014.tar.gz" --trust --dest ranges --connections 2 --quiet 2>err || fail "ranges: exit $?"
    same ranges/COCO2014 ranges
    test "$(awk '$1 == 206 && $2 > 1000' access.log | wc -l)" = 2 || fail "ranges: $(awk '$1 == 206' access.log | wc -l) requests"
fi

# a full disk, while downloading and while unpacking, and then room again
if [ "$(id -u)" = 0 ] && mkdir small && mount -t tmpfs -o size=$((size + size / 2)) tmpfs small 2>/dev/null; then
    mount=$work/small
    got=0
    "$MEOPT" fetch big --dest small --quiet 2>err || got=$?
    test $got = 5 || fail "too small a disk: exit $got"
    grep -q ' [0-9.]* GiB .* [0-9.]* GiB ' err || fail "too small a disk: no numbers"
    test ! -e small/COCO2014 || fail "too small a disk: published"
    # the preflight is passed, and then another takes the room: while unpacking
    mount -o remount,size=$((3 * size)) small
    "$MEOPT" fetch big --dest small --quiet 2>err &
    pid=$!
    wait_for 5 eval 'test "$(cat small/.meopt-fetch/big.part.* 2>/dev/null | wc -c)" -gt 1000000' || :
    head -c $((2 * size)) /dev/zero >small/filler 2>/dev/null || true
    got=0
    wait $pid || got=$?
    test $got = 5 || fail "the disk fills up: exit $got"
    test ! -e small/COCO2014 || fail "the disk fills up: published"
    rm small/filler
    "$MEOPT" fetch big --dest small --quiet 2>err || fail "after room was made: exit $?"
    same small/COCO2014 "after room was made"
else
    echo "full disk not tested: needs root for a small tmpfs"
fi
test $bad = 0 && echo "nginx: all as expected"
exit $bad
