#!/bin/sh
# Network namespaces as hosts. Ranks with torchrun's variables, each with a card and a library of collectives, and ranks of mpirun are
# bit-identical to one rank. Two ranks on one card are refused. When the network between hosts is cut, the unreachable rank is named within
# 30 s, each side ends with 14, and no process is left. Requires root and iproute2; runs only with MEOPT_LONG=1.
set -eu
skip() { echo "skipped: $*"; exit 77; }
[ "${MEOPT_LONG:-}" = 1 ] || skip "long form, MEOPT_LONG=1"
[ "$(id -u)" = 0 ] || skip "network namespaces want root"
for tool in ip unshare python3; do command -v $tool >/dev/null || skip "no $tool"; done
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
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
logs='log.*'
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
    exits "$2" wait "$1" || fail "$3: exit $code, expected $2"
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
grep -q '^collectives  .*\<RCCL\>' log.0 || fail "the library of the cards is not used"

# mpirun, which starts its daemon on the second host by a command that stands for ssh; ranks on the processor, joined by MPI over the wire.
if command -v mpirun >/dev/null && [ -f "$(dirname "$MEOPT")/libmeopt_mpi.so" ]; then
    cat >agent <<END
#!/bin/sh
echo "\$1" >>"$work/called" # the host: there is one
shift
exec ip netns exec $there unshare --uts sh -c 'hostname second && exec sh -c "\$0"' "\$*"
END
    chmod +x agent
    mpi() { # NAME MORE...
        name=$1
        shift
        # shellcheck disable=SC2086
        on $here first env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 mpirun --bind-to none \
            --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include wire --mca btl_tcp_if_include wire --mca btl self,tcp --mca pml ob1 \
            --host 10.118.0.1,10.118.0.2 -np 2 -x OMP_NUM_THREADS \
            "$MEOPT" train configs/quickstart_dinov2.yaml $same device.type=cpu --no-dashboard --run-dir runs --name "$name" "$@"
    }
    # shellcheck disable=SC2086
    "$MEOPT" train configs/quickstart_dinov2.yaml $same device.type=cpu train.steps=5 --no-dashboard --run-dir runs --name cpu >log.0 2>&1 ||
        fail "one rank on the processor"
    mpi mpi train.steps=5 dist.shard=parameters >log.0 2>&1 || fail "mpirun on two hosts"
    cmp runs/cpu/ckpt/step-00000005/model.safetensors runs/mpi/ckpt/step-00000005/model.safetensors || fail "mpirun on two hosts: other weights"
    [ "$(cat called)" = 10.118.0.2 ] || fail "mpirun has started nothing on the second host"
    remains=$(left)
    [ -z "$remains" ] || fail "mpirun on two hosts: left running: $remains"
else
    echo "without mpirun or the MPI module: not on two hosts by mpirun"
fi

# Two ranks of one host on one card.
rank 0 $here first 0 twice 5; zero=$started
rank 1 $here first 0 twice 5; one=$started
ends "$zero" 7 "rank 0 of two on a card"
ends "$one" 7 "rank 1 of two on a card"
grep -q '^meopt: ranks [01] and [01] of first .*0000:03:00.0' log.0 || fail "the rank on the same card is not named"

# The network is cut.
cut() { # RUN: whose ranks are $zero and $one
    wait_for 60 [ -e "runs/$1/ckpt/LATEST" ] || fail "$1 did not begin"
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
if [ -x agent ]; then
    mpi pulled train.steps=100000 >log.0 2>&1 &
    zero=$!
    wait_for 60 [ -e runs/pulled/ckpt/LATEST ] || fail "ranks of mpirun did not begin"
    ip -n $here link set wire down
    trains() { # processes of ours; mpirun and its daemon wait for each other, as long as the network is away
        for process in /proc/[0-9]*; do
            [ "$(readlink "$process/exe")" = "$(readlink -f "$MEOPT")" ] && [ "$(readlink "$process/cwd")" = "$work" ] && echo "$process"
        done
        true
    }
    wait_for 40 eval '[ -z "$(trains)" ]' || fail "ranks of mpirun still run after the network was cut: $(trains)"
    ip -n $here link set wire up
    grep -q '^meopt: rank 1 (host second.* 1[0-9] s' log.0 || fail "the rank of mpirun beyond the cut is not named"
    kill -9 "$zero" $(pgrep -P "$zero") 2>/dev/null || true # mpirun: it has nobody left to wait for
    wait "$zero" 2>/dev/null || true
    wait_for 30 eval '[ -z "$(left)" ]' || fail "ranks of mpirun, left running: $(left)"
fi
rank 0 $here first 0 cut 100000; zero=$started
rank 1 $there second 0 cut 100000; one=$started
cut cut
grep -q '^meopt: rank 1 (host second.* 1[0-9] s' log.0 || fail "the rank beyond the cut is not named"
grep -q 'coordinator' log.1 || fail "the rank beyond the cut does not say why it ends"
grep -q '"exit_code": 14' runs/cut/state.json || fail "state.json"
echo ok
