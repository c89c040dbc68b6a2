#!/bin/sh
# Network namespaces as hosts: ranks that torchrun's variables describe, each with a card and joined by its library, and ranks of mpirun,
# train to the bits of one rank; two ranks on one card are refused; when the network between them is cut, the rank beyond is named within
# 30 s, each side ends with 14 by itself, and nothing is left running. Needs root and iproute2; long: only with MEOPT_LONG=1.
set -eu
skip() { echo "skipped: $*"; exit 77; }
[ "${MEOPT_LONG:-}" = 1 ] || skip "long, set MEOPT_LONG=1"
[ "$(id -u)" = 0 ] || skip "network namespaces want root"
for tool in ip unshare python3; do command -v $tool >/dev/null || skip "no $tool"; done
. "$MEOPT_SOURCE/tests/fake_cards.sh"
work=$(mktemp -d)
here=meopt$$a there=meopt$$b pids=
finish() {
    code=$?
    # shellcheck disable=SC2086
    [ -z "$pids" ] || kill -9 $pids 2>/dev/null || true
    ip netns del $here 2>/dev/null || true
    ip netns del $there 2>/dev/null || true
    rm -rf "$work"
    exit $code
}
trap finish EXIT
ip netns add $here 2>/dev/null || skip "no network namespaces here"
ip netns add $there
ip -n $here link add wire type veth peer name wire netns $there 2>/dev/null || skip "no veth here"
ip -n $here addr add 10.118.0.1/24 dev wire
ip -n $there addr add 10.118.0.2/24 dev wire
for ns in $here $there; do
    ip -n $ns link set lo up
    ip -n $ns link set wire up
done
cd "$work"
fail() { echo "FAILED: $*" >&2; tail -n 15 log.* >&2; exit 1; }
mkdir sample configs tmp
for archive in COCO2014 ModelWeight; do tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C sample; done
cp "$MEOPT_SOURCE/configs/quickstart_dinov2.yaml" configs/
export TMPDIR="$work/tmp" FAKE_CARDS=2 OMP_NUM_THREADS=1 MEOPT_RCCL_LIBRARY="$fakes/libfake_rccl.so"
unset MEOPT_RANKS_ADDRESS || true
same="train.global_batch=4 train.micro_batch=1 train.batch_size=1 train.checkpoint_steps=5"
# On a host (namespace, name): what follows.
on() {
    ns=$1 name=$2
    shift 2
    ip netns exec $ns unshare --uts sh -c 'hostname "$0" && exec "$@"' "$name" "$@"
}
rank() { # RANK NAMESPACE HOST CARD RUN STEPS: as torchrun on two nodes would
    # shellcheck disable=SC2086
    on "$2" "$3" env MASTER_ADDR=10.118.0.1 MASTER_PORT=29500 RANK="$1" WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
        "$MEOPT" train configs/quickstart_dinov2.yaml $same device.type=hip device.cards="$4" train.steps="$6" --no-dashboard --run-dir runs \
        --name "$5" >"log.$1" 2>&1 &
    pids="$pids $!"
    started=$!
}
ends() { # PID EXIT-CODE WHAT
    code=0
    wait "$1" || code=$?
    [ "$code" = "$2" ] || fail "$3: exit $code, expected $2"
}
left() {
    for process in /proc/[0-9]*; do
        tr '\0' ' ' 2>/dev/null <"$process/cmdline" | grep -q "$work\|^meopt worker" && grep -q '^State:.[^Z]' "$process/status" 2>/dev/null || continue
        [ "$(readlink "$process/cwd")" != "$work" ] || [ "${process#/proc/}" = $$ ] || echo "$process"
    done
}

"$MEOPT" train configs/quickstart_dinov2.yaml $same device.type=hip device.cards=0 train.steps=5 --no-dashboard --run-dir runs --name one >log.0 2>&1 ||
    fail "one rank"
rank 0 $here first 0 two 5; zero=$started
rank 1 $there second 0 two 5; one=$started
ends "$zero" 0 "rank 0 of two hosts"
ends "$one" 0 "rank 1 of two hosts"
cmp runs/one/ckpt/step-00000005/model.safetensors runs/two/ckpt/step-00000005/model.safetensors || fail "two hosts have other weights than one rank"
grep -q 'from card to card by RCCL' log.0 || fail "the library of the cards is not used"

# Two ranks of one host on one card.
rank 0 $here first 0 twice 5; zero=$started
rank 1 $here first 0 twice 5; one=$started
ends "$zero" 7 "rank 0 of two on a card"
ends "$one" 7 "rank 1 of two on a card"
grep -q '^meopt: ranks [01] and [01] of first are on the same card, 0000:03:00.0' log.0 || fail "the rank on the same card is not named"

# The network is cut.
cut() { # RUN: whose ranks are $zero and $one
    i=0
    until [ -e "runs/$1/ckpt/LATEST" ]; do
        i=$((i + 1))
        [ "$i" -lt 600 ] || fail "$1 did not begin"
        sleep 0.1
    done
    ip -n $here link set wire down
    begin=$(date +%s)
    ends "$zero" 14 "rank 0 when the network is cut"
    [ $(($(date +%s) - begin)) -le 30 ] || fail "seen after $(($(date +%s) - begin)) s"
    ends "$one" 14 "rank 1 when the network is cut"
    [ $(($(date +%s) - begin)) -le 40 ] || fail "rank 1 ends after $(($(date +%s) - begin)) s"
    ip -n $here link set wire up
    remains=$(left)
    [ -z "$remains" ] || fail "left running: $remains"
}
rank 0 $here first 0 cut 100000; zero=$started
rank 1 $there second 0 cut 100000; one=$started
cut cut
grep -q '^meopt: rank 1 (host second.*) does not answer: no sign for 1[0-9] s' log.0 || fail "the rank beyond the cut is not named"
grep -q 'watches over the ranks does not answer: the network is cut' log.1 || fail "the rank beyond the cut does not say why it ends"
grep -q '"exit_code": 14' runs/cut/state.json || fail "state.json"
echo ok
