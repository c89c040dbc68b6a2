#!/bin/sh
# meopt config on the command line: what scripts rely on.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
cd "$dir"
expect() { exits "$@" >out 2>err || { cat out err; fail "exit $code, expected $*"; }; } # code command...

# What the table says of a key stands there whole, however long it is.
page=$(cat "$MEOPT_SOURCE/man/meopt.yaml.5")
"$MEOPT" config list --json | sed -n 's/^ *"help": "\(.*\)"$/\1/p' | grep -v '\\' >helps
[ "$(wc -l <helps)" -gt 100 ] || fail "no helps in config list --json"
while IFS= read -r help; do
    case $page in *"${help#?}."*) ;; *) fail "meopt.yaml(5) does not say whole: $help" ;; esac
done <helps
if command -v mandoc >/dev/null; then
    for page in meopt.yaml.5 meopt-config.1; do
        mandoc -Tlint -W warning "$MEOPT_SOURCE/man/$page" || fail "$page"
    done
fi
# Every option of every config command is in the page.
for command in get set unset list check diff new edit; do
    "$MEOPT" config $command --help | grep -o -- '--[a-z-]*' | sort -u | while read -r option; do
        [ "$option" = --help ] || grep -q -- "Fl -${option#--}" "$MEOPT_SOURCE/man/meopt-config.1" || fail "$option of config $command is not documented"
    done
done

for name in eva_clip open_clip dinov2 quickstart dinov3_vits_from_vitl eupe_student radio_like; do
    expect 0 "$MEOPT" config new $name
    sed 's|\.\./||' "$MEOPT_SOURCE/configs/$name.yaml" | cmp $name.yaml - || fail "template $name"
    expect 0 "$MEOPT" config check $name.yaml
done
expect 1 "$MEOPT" config new eva_clip
expect 2 "$MEOPT" config new eva_klip
grep -q 'eva_clip?' err || fail "suggestion"

cp eva_clip.yaml before.yaml
expect 0 "$MEOPT" config set -n eva_clip.yaml optim.lr=1.0e-3
grep -q '^optim.lr: .* -> 1.0e-3$' out || fail "dry run shows the change"
cmp eva_clip.yaml before.yaml || fail "dry run wrote"
expect 0 "$MEOPT" config set eva_clip.yaml optim.lr=1e-3 optim.use_meopt=false
grep -q 'optim.lr: .*1e-3.* 1.0e-3' err || fail "1e-3 is flagged"
expect 0 "$MEOPT" config get eva_clip.yaml optim.use_meopt
[ "$(cat out)" = false ] || fail "get"
expect 0 "$MEOPT" config set eva_clip.yaml optim.lr=2.0e-5 optim.use_meopt=true
cmp eva_clip.yaml before.yaml || fail "setting back gives the same bytes"
expect 0 "$MEOPT" config set --json eva_clip.yaml train.micro_batch=8
grep -q '"changed": true' out || fail "json"
expect 0 "$MEOPT" config list --show-origin eva_clip.yaml
grep -q '^eva_clip.yaml:[0-9]* *train.micro_batch = 8$' out || fail "origin"
expect 0 "$MEOPT" config list --json eva_clip.yaml
expect 0 "$MEOPT" config list --combinations --json
[ "$(grep -c '"hint": ".' out)" -gt 100 ] && grep -q '"key": "dist.pipeline"' out || fail "combinations: $(cat out)"
expect 0 "$MEOPT" config list --combinations
grep -qx dist.pipeline out || fail "combinations: $(cat out)"
expect 2 "$MEOPT" config list --combinations eva_clip.yaml
expect 0 "$MEOPT" config unset eva_clip.yaml train.micro_batch
cmp eva_clip.yaml before.yaml || fail "unset takes what set added"
expect 7 "$MEOPT" config set eva_clip.yaml optim.lr=fast
expect 7 "$MEOPT" config set eva_clip.yaml optim.lrr=1
grep -q 'optim.lr?' err || fail "nearest key"
expect 7 "$MEOPT" config set eva_clip.yaml train.micro_batch=5
cmp eva_clip.yaml before.yaml || fail "a refused change wrote"
expect 2 "$MEOPT" config set eva_clip.yaml optim.lr
# what other programs call a key, wherever it stands; and what an experiment needs
"$MEOPT" config list --json >keys.json
for word in learning_rate Warmup wd optimizer max-steps bs gradient_accumulation_steps amp gradient_checkpointing save_steps num_workers img_size data_path teacher gpus output_dir; do
    expect 7 "$MEOPT" config set eva_clip.yaml $word=1
    suggestion=$(sed -n 's/.*[^a-z_.]\([a-z_.]\{1,\}\)?.*/\1/p' err)
    [ "$suggestion" ] && grep -qF "\"$suggestion\": " keys.json || fail "$word: $(cat err)"
done
printf 'train:\n  learning_rate: 1.0e-3\n' >other.yaml
expect 7 "$MEOPT" config check other.yaml
grep -q 'optim.lr?' err || fail "learning_rate below train: $(cat err)"
: >empty.yaml
expect 0 "$MEOPT" config check empty.yaml
grep -q 'model_t.weight, model_s.weight, data.root' err || fail "an empty experiment: $(cat err)"
expect 7 "$MEOPT" config get nothing.yaml optim.lr
expect 0 "$MEOPT" config diff eva_clip.yaml
grep -q 'optim.lr' out && fail "a value equal to the default is no difference"
expect 0 "$MEOPT" config diff eva_clip.yaml dinov2.yaml
grep -q '^model.family  *eva  *dinov2' out || fail "diff of two"
expect 0 "$MEOPT" config diff --json eva_clip.yaml optim.lr=1.0e-3
tr -d ' \n' <out | grep -q '"optim.lr":{"old":[0-9.e-]*,"new":0.001}' || fail "diff with a change"
# What YAML 1.1 readers parse differently comes with a spelling that all parse alike.
while IFS='|' read -r line better; do
    printf '%s\n' "$line" >ambiguous.yaml
    expect 0 "$MEOPT" config check ambiguous.yaml
    [ "$(sed -n 's/^ *write //p' err)" = "$better" ] || fail "$line: $(cat err)"
done <<END
optim: {lr: 1e-3}|1.0e-3
optim: {lr: +.5}|0.5
optim: {lr: 0.5}|
train: {seed: 010}|10
train: {seed: 0o17}|15
train: {seed: 10}|
optim: {use_meopt: yes}|true
lora: {targets: 2026-01-02}|"2026-01-02"
lora: {targets: 1:30}|"1:30"
lora: {targets: no}|"no"
lora: {targets: 1_000}|"1_000"
lora: {targets: q_proj}|
END
printf 'optim:\n  lr: 1\n  wieght_decay: no\ntrain: {batch_size: x}\n' >bad.yaml
expect 7 "$MEOPT" config check bad.yaml
grep -q 'bad.yaml:3:3: optim.wieght_decay' err || fail "first problem"
grep -q 'bad.yaml:4:21: train.batch_size .* 1 to 65536' err || fail "second problem"
grep -q '\^~' err || fail "caret"
printf 'train: {precision: fp32}\nmodel_t: {dtype: bf16}\nmodel_s: {dtype: bf16}\n' >unheard.yaml
expect 0 "$MEOPT" config check unheard.yaml
grep -q 'unheard.yaml:1:9: .*train.precision' err || fail "a precision that no tower takes"
for key in optim.offload_fraction=0.5 optim.offload_dir=/tmp lora.alpha=8; do
    expect 0 "$MEOPT" config check empty.yaml $key
    grep -q "note: ${key%=*} " err || fail "a note does not name ${key%=*}: $(cat err)"
done
expect 7 "$MEOPT" config check --json bad.yaml
grep -q '"line": 3' out || fail "json problems"
grep -q "$(printf '\033')" out err && fail "escape bytes in a pipe"
# A read-only directory: refused, nothing half-written.
if [ "$(id -u)" != 0 ]; then
    mkdir ro && cp eva_clip.yaml ro/ && chmod 555 ro
    expect 1 "$MEOPT" config set ro/eva_clip.yaml optim.lr=1
    chmod 755 ro
    cmp ro/eva_clip.yaml before.yaml || fail "read-only"
fi
# Changes of different keys at the same time, as from several machines on NFS: none is lost, each is reported as it was.
cp before.yaml shared.yaml
on_nfs() { env LD_LIBRARY_PATH="$MEOPT_BUILD/tests" LD_PRELOAD=libfault.so FAULT_NFS=1 "$@"; }
export ASAN_OPTIONS="verify_asan_link_order=0:${ASAN_OPTIONS:-}"
for key in optim.lr=0.5 optim.beta1=0.5 optim.beta2=0.95 optim.eps=0.5 optim.weight_decay=0.25 train.seed=77 \
    train.epochs=3 data.prefetch=5 data.max_bad=0.5 data.workers=3; do
    (on_nfs "$MEOPT" config set shared.yaml $key 2>/dev/null || echo $key >>lost) &
done
wait
test ! -e lost || fail "at once: $(cat lost) refused"
for key in optim.lr=0.5 optim.beta1=0.5 optim.beta2=0.95 optim.eps=0.5 optim.weight_decay=0.25 train.seed=77 \
    train.epochs=3 data.prefetch=5 data.max_bad=0.5 data.workers=3; do
    test "$("$MEOPT" config get shared.yaml ${key%=*})" = ${key#*=} || fail "at once: $key is lost"
done
# Held by another: waited for, then reported. Read by no one: a FIFO.
if command -v flock >/dev/null; then
    mkfifo release
    flock shared.yaml sh -c ': >held; cat release' &
    echo $! >left
    wait_for 30 [ -e held ] || fail "no lock"
    hasten 100
    expect 9 "$MEOPT" config set shared.yaml train.seed=78
    grep -q shared.yaml err || fail "held: the file is not named"
    hasten 1
    : >release
    wait
fi
mkfifo pipe.yaml
expect 7 timeout 10 "$MEOPT" config set pipe.yaml train.seed=1
echo ok
