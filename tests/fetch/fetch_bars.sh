#!/bin/sh
# Fetching on a terminal, from a real nginx that sends slowly: a bar for each archive and one for all, with time left over all, what
# is unpacked next to it, and where a transfer was resumed; at 80 columns nothing wraps, and nothing of it stays on the screen at the end.
set -eu
PATH=$PATH:/usr/sbin # of a user, on Debian
for tool in nginx openssl python3; do command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }; done
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
cleanup() {
    [ ! -s "$dir/pid" ] || kill "$(cat "$dir/pid")"
    end_terminals
}
cd "$dir"
openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out ca.pem -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 >/dev/null 2>&1
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir -p www config/meopt
for name in photographs weights; do
    mkdir -p "tree/$name"
    head -c 2000000 /dev/urandom | (cd "tree/$name" && split -b 30000 -a 3 - part)
    tar -C tree -cf "www/$name.tar" "$name"
done
cat >nginx.conf <<END
$(test "$(id -u)" != 0 || echo 'user root;')
pid "$dir/pid"; error_log "$dir/error.log";
events { worker_connections 64; }
http {
    access_log off; client_body_temp_path "$dir/t1"; proxy_temp_path "$dir/t2"; fastcgi_temp_path "$dir/t3"; uwsgi_temp_path "$dir/t4"; scgi_temp_path "$dir/t5";
    server {
        listen 127.0.0.1:$port ssl; ssl_certificate "$dir/ca.pem"; ssl_certificate_key "$dir/key.pem"; ssl_buffer_size 4k;
        root "$dir/www"; limit_rate 700k;
    }
}
END
nginx -c "$dir/nginx.conf" 2>nginx.log || { cat nginx.log; exit 1; }
{
    echo 'sources:'
    for name in photographs weights; do
        printf '  %s:\n    file: %s.tar\n    url: https://127.0.0.1:%s/%s.tar\n    top: %s\n    size_about: 2200000\n    trust_first_use: true\n' $name $name "$port" $name $name
    done
} >config/meopt/sources.yaml
start() {
    terminal 80 24 C.UTF-8 "XDG_STATE_HOME='$dir/state' XDG_CONFIG_HOME='$dir/config' no_proxy='*' CURL_CA_BUNDLE='$dir/ca.pem'" \
        "'$MEOPT' fetch photographs weights --dest to"
}
start
await '^photographs  *█[█░]* *[1-9][0-9]*% [0-9.]* [KM]iB/[0-9.]* MiB'
await '^weights  *░* *0% 0 B/~[0-9.]* MiB'
await '^all 2  *█*░* *[0-9]*% .*/~[0-9.]* MiB  [0-9]*s left'
await '^ *[0-9.]* [KM]iB/s, [0-9]*s left  unpacked [1-9]'
[ "$(screen | grep -c .)" = 4 ] || fail "not four lines"
keys C-c
await 'status 130'
stop
start
await 'resumed at [0-9.]* [KM]iB'
await '^weights  *█[█░]* *[1-9][0-9]*%'
await '^photographs  *█* 100% .*done'
await 'status 0'
screen | grep -q '[█░]' && fail "a bar stays on the screen"
[ "$(screen | grep -c 'SHA-256 .* [0-9a-f]*$')" = 2 ] || fail "the results are not reported"
diff -r --exclude=.meopt-complete tree to 2>/dev/null | grep -v '^Only in to: ' && fail "another tree"
stop
