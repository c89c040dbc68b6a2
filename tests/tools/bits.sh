#!/bin/sh
# The same bits as when the tables of tests/data/bits were recorded: final weights, optimizer state, losses and norms of short runs of the
# three quickstarts, over presets, baselines, rules, formats and ways of a step.
#
#   sh tests/tools/bits.sh [GROUP] [--record]    GROUP: avx2 (the default), native, hip, cuda; MEOPT_LONG=1: all rows of every group
#
# Bits also depend on what is not ours: the compiler, libm, libjpeg, the processor's approximations, and on the kernels that meopt selects
# for it. A table begins with a fingerprint of these (tests/bits/arithmetic.c calls the libraries directly). Where no table has the
# fingerprint of this machine nothing can be said: exit 77, naming the parts that differ. Where one has it, every bit must be as recorded. MEOPT_CPU_ISA=SET selects the kernels of the group native, which are otherwise those that meopt selects.
# --record adds the table of this machine, or replaces it: at a commit that is known to be good. Where other bits are wanted: record anew,
# say why in the commit, and remove the tables of other machines, which are out of date then.
set -eu
MEOPT_SOURCE=${MEOPT_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
MEOPT_BUILD=${MEOPT_BUILD:-$MEOPT_SOURCE/build-ci}
MEOPT=${MEOPT:-$MEOPT_BUILD/meopt}
group=avx2 record=
for argument in "$@"; do
    case $argument in
    avx2 | native | hip | cuda) group=$argument ;;
    --record) record=yes ;;
    *) echo "unknown argument $argument" >&2 && exit 2 ;;
    esac
done
[ "$group" != avx2 ] || grep -q '^flags.* fma .* avx2 ' /proc/cpuinfo || { echo "this processor has no AVX2" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for archive in COCO2014 ModelWeight; do
    mkdir -p "$work/sample"
    tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C "$work/sample"
done
mkdir "$work/configs"
cp "$MEOPT_SOURCE"/configs/quickstart*.yaml "$work/configs/"

for name in $(env | sed -nE 's/^((FAKE|OMP|KMP)_[[:upper:]_]*|MEOPT_GRAPHS)=.*/\1/p'); do unset "$name"; done
[ "$group" = native ] || unset MEOPT_CPU_ISA
export OMP_NUM_THREADS=2 OMP_DYNAMIC=false
case $group in
avx2) export MEOPT_CPU_ISA=avx2 device=cpu steps=4 batch=4 ;;
native) device=cpu steps=4 batch=4 ;;
*) # on the host only images are decoded and resized; few steps, emulation is slow
    . "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
    export MEOPT_CPU_ISA=plain
    device=$group steps=2 batch=2
    ;;
esac

compiler() { sed -n "s/^set(CMAKE_$1_COMPILER_\(ID\|VERSION\) \"\(.*\)\")/\2/p" "$MEOPT_BUILD"/CMakeFiles/*/CMake$1Compiler.cmake | tr '\n' ' '; }
cached() { sed -n "s/^$1:[A-Z]*=/$1=/p" "$MEOPT_BUILD/CMakeCache.txt" | tr '\n' ' '; }
fingerprint() {
    echo "build $(uname -m) $(compiler C)$(cached CMAKE_BUILD_TYPE)$(cached CMAKE_C_FLAGS)$(cached MEOPT_OPENMP)$(cached MEOPT_SANITIZE)"
    case $group in hip | cuda) echo "card $(compiler CXX)$(cached CMAKE_CXX_FLAGS)" ;; esac
    "$MEOPT_BUILD/tests/bits_arithmetic" "$work"/sample/COCO2014/train2014/*.jpg >"$work/arithmetic"
    case $group in # libraries and instructions that a group does not use do not matter to it
    avx2) grep -v '^kernels \|^rcp14 ' "$work/arithmetic" ;;
    native) cat "$work/arithmetic" ;;
    *) grep '^lib' "$work/arithmetic" ;;
    esac
}

# NAME CONFIG KEY=VALUE...
rows() {
    for config in quickstart quickstart_openclip quickstart_dinov2; do
        family=${config#quickstart} family=${family#_}
        for preset in quality balanced minimal; do echo "${family:-eva}_$preset $config optim.preset=$preset"; done
        echo "${family:-eva}_amp $config optim.use_meopt=false"
        echo "${family:-eva}_pure_bf16 $config optim.use_meopt=false optim.pure_bf16=true"
        echo "${family:-eva}_fp32 $config optim.use_meopt=false train.precision=fp32"
    done
    cat <<'ROWS'
recompute quickstart train.recompute=block
recompute_keep quickstart_dinov2 train.recompute=block optim.gradients=keep
saved_8bit quickstart train.save_activations=8bit
saved_8bit_micro quickstart_dinov2 train.save_activations=8bit train.micro_batch=1 optim.gradients=keep
keep quickstart optim.gradients=keep
keep_fp32 quickstart_openclip optim.gradients=keep train.precision=fp32 optim.preset=quality
release_fp32 quickstart_dinov2 train.precision=fp32
clip_exact quickstart optim.clip_mode=exact optim.clip_grad_norm=0.02
clip_exact_keep quickstart_openclip optim.clip_mode=exact optim.clip_grad_norm=0.02 optim.gradients=keep
clip_exact_recompute quickstart_dinov2 optim.clip_mode=exact optim.clip_grad_norm=0.02 train.recompute=block
clip_previous quickstart_openclip optim.clip_grad_norm=0.02
clip_block quickstart_dinov2 optim.clip_mode=block optim.clip_grad_norm=0.02
clip_none quickstart_dinov2 optim.clip_grad_norm=0
micro_keep quickstart optim.gradients=keep train.micro_batch=1
micro_release quickstart_openclip train.micro_batch=1
micro_recompute quickstart_dinov2 train.micro_batch=1 train.recompute=block
micro_exact quickstart optim.clip_mode=exact optim.clip_grad_norm=0.02 train.micro_batch=1
micro_amp quickstart_dinov2 train.micro_batch=1 optim.use_meopt=false
apadam quickstart optim.name=apadam
apadam_keep quickstart_dinov2 optim.name=apadam optim.gradients=keep
apsgd quickstart_openclip optim.name=apsgd optim.nesterov=true
apsgd_damp quickstart optim.name=apsgd optim.dampening=0.1 optim.preset=minimal
lamb quickstart_dinov2 optim.name=lamb
lamb_clip quickstart optim.name=lamb optim.trust_clip=true optim.always_adapt=true optim.max_grad_norm=0.01 optim.preset=minimal
lamb_amp quickstart_openclip optim.name=lamb optim.use_meopt=false
lion quickstart optim.name=lion
lion_minimal quickstart_dinov2 optim.name=lion optim.preset=minimal
weights_fp32 quickstart_dinov2 optim.weights=fp32 optim.state_m=8bit
weights_fp32_copy quickstart optim.weights=fp32+copy
weights_bf16_sr quickstart_openclip optim.weights=bf16_sr optim.state_m=bf16 optim.state_v=bf16
weights_bf16_4 quickstart_dinov2 optim.weights=bf16+4 optim.state_m=4bit optim.state_v=8bit
weights_bf16_16 quickstart optim.weights=bf16+16 optim.state_m=bf16_nearest optim.state_v=fp32
pure_bf16_meopt quickstart_openclip optim.pure_bf16=true
cache_teacher quickstart train.cache_teacher=true
cache_micro quickstart_dinov2 train.cache_teacher=true train.micro_batch=2 loss.tokens=cls+patch
tokens quickstart_dinov2 loss.tokens=cls+patch data.image_size=28
cosine quickstart_openclip loss.type=cosine
smooth_l1 quickstart loss.type=smooth-l1 loss.reduction=sum-dim loss.normalize=false
augment quickstart_dinov2 data.augment=true train.seed=3
random quickstart_openclip model.family=openclip model_s.init=random model_s.width=160 model_s.depth=2 model_s.hidden=320 model_s.out=32 model_s.patch=14
schedule quickstart optim.schedule=linear optim.min_lr=1e-4 optim.weight_decay=0.3 optim.beta1=0.8
ROWS
}
# A short test takes these: each way of a step once, shared out among the two drivers, whose host code is one.
hip_rows=' eva_balanced openclip_amp clip_exact_recompute micro_release saved_8bit '
cuda_rows=' dinov2_minimal eva_fp32 micro_exact lamb_clip '
case $group/${MEOPT_LONG:-0} in
avx2/* | */1) short_rows= ;;
native/*) short_rows=$hip_rows$cuda_rows ;;
hip/*) short_rows=$hip_rows ;;
cuda/*) short_rows=$cuda_rows ;;
esac

run_row() { # NAME CONFIG KEY=VALUE...: prints what is compared
    name=$1 config=$2
    shift 2
    rm -rf "$work/run"
    "$MEOPT" train "$work/configs/$config.yaml" "device.type=$device" "train.steps=$steps" "train.batch_size=$batch" \
        optim.warmup_steps=1 "$@" --run-dir "$work" --name run --json >"$work/out" 2>"$work/log" ||
        { echo "FAILED: row $name does not train" && tail -5 "$work/log" && return 1; }
    printf '%s' "$name"
    for part in model.safetensors optimizer.bin; do
        printf ' %s=%.16s' "${part%.*}" "$(sha256sum <"$work/run/ckpt/step-0000000$steps/$part")"
    done
    for key in loss cosine grad_norm; do
        printf ' %s=%s' $key "$(sed "s/.*\"$key\":\([^,}]*\).*/\1/" "$work/run/metrics.jsonl" | paste -sd,)"
    done
    echo
}

fingerprint >"$work/fingerprint"
data=$MEOPT_SOURCE/tests/data/bits
if [ -n "$record" ]; then
    rows | while read -r row; do
        run_row $row >"$work/row" </dev/null || { cat "$work/row" >&2 && exit 1; }
        [ "$device" != cpu ] || run_row $row </dev/null | cmp - "$work/row" || { echo "row ${row%% *}: two runs differ" >&2 && exit 1; }
        cat "$work/row"
    done >"$work/table"
    table=$data/$group-$(sha256sum <"$work/fingerprint" | cut -c1-8).txt
    cat "$work/fingerprint" - "$work/table" >"$table" </dev/null
    echo "recorded $table"
    exit 0
fi

lines=$(wc -l <"$work/fingerprint")
table=
for candidate in "$data/$group"-*.txt; do
    [ -f "$candidate" ] || continue
    head -n "$lines" "$candidate" >"$work/known"
    cmp -s "$work/known" "$work/fingerprint" && table=$candidate && break
    echo "not comparable with ${candidate##*/} (< recorded, > here):"
    diff "$work/known" "$work/fingerprint" | grep '^[<>]' || true
done
if [ -z "$table" ]; then
    echo "skipped: no recorded bits of group $group for this compiler, these libraries and this processor; at a commit that is known to be good:"
    echo "    MEOPT_BUILD=$MEOPT_BUILD sh tests/tools/bits.sh $group --record"
    exit 77
fi
tail -n "+$((lines + 1))" "$table" >"$work/known"
rows >"$work/rows"
while read -r name rest; do # nothing recorded goes without being asked
    grep -q "^$name " "$work/rows" || { echo "FAILED: ${table##*/} has a row $name, which is no longer run" && exit 1; }
done <"$work/known"
compared=0 failed=0
while read -r row; do
    name=${row%% *}
    case ${short_rows:-" $name "} in *" $name "*) ;; *) continue ;; esac
    grep "^$name " "$work/known" >"$work/recorded" || { echo "$name: not in ${table##*/}" && continue; }
    run_row $row >"$work/now" </dev/null || true
    compared=$((compared + 1))
    cmp -s "$work/recorded" "$work/now" && continue
    failed=$((failed + 1))
    echo "FAILED: other bits (< recorded, > now)"
    diff "$work/recorded" "$work/now" | grep '^[<>]' || true
done <"$work/rows"
echo "$compared rows of ${table##*/}, $failed with other bits"
[ "$failed" = 0 ] && [ "$compared" -gt 0 ]
