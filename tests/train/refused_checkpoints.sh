#!/bin/sh
# plan, embed and train refuse the same checkpoints with the same messages: a planned run does not fail at its start, and no tower is
# computed that differs from its file.
set -u
. "$MEOPT_SOURCE/tests/lib.sh"
towers=$MEOPT_SOURCE/tests/data/towers
mkdir "$work/images"
cp "$MEOPT_SOURCE"/tests/data/preprocess/images/0[15]_*.jpg "$work/images/"
failed=0

# begin NAME: a teacher and a student, both of tests/data/towers/NAME
begin() {
    rm -rf "$work/case"
    mkdir "$work/case"
    cp "$towers/$1/model.safetensors" "$work/case/teacher.safetensors"
    cp "$towers/$1/model.safetensors" "$work/case/student.safetensors"
    cat >"$work/case/c.yaml" <<YAML
model_t: {weight: teacher.safetensors, heads: 2}
model_s: {weight: student.safetensors, heads: 2}
data: {root: $work/images}
train: {batch_size: 1}
device: {type: cpu}
YAML
}
# rename OLD NEW [FILE]: a tensor's name, of the same length, in the file's header
rename() {
    file=$work/case/${3:-teacher}.safetensors
    LC_ALL=C sed "s/\"$1\"/\"$2\"/" "$file" >"$file.new"
    cmp -s "$file" "$file.new" && { echo "no tensor $1"; failed=1; }
    mv "$file.new" "$file"
}
# run CODE TEXT COMMAND [key=value ...]
run() {
    code=$1 text=$2 command=$3
    shift 3
    case $command in
    plan) set -- plan "$work/case/c.yaml" "$@" ;;
    embed) set -- embed --role teacher --out "$work/case/out" "$work/case/c.yaml" "$@" ;;
    train) set -- train --steps 1 --run-dir "$work/case/runs" --name one "$work/case/c.yaml" "$@" ;;
    esac
    "$MEOPT" "$@" >"$work/log" 2>&1
    got=$?
    [ "$got" = "$code" ] && grep -q "$text" "$work/log" && return
    echo "expected exit $code and '$text' of: meopt $*; got $got:"
    cat "$work/log"
    failed=1
}
alike() {
    for each in plan embed train; do run 7 "$1" "$each"; done
}

block=visual.transformer.resblocks
for name in openclip-quick dinov2-registers eva-layerscale eva02 openclip-clipa openclip-coca dinov3; do
    begin $name
    for each in plan embed train; do run 0 '' $each; done
done

begin openclip-quick
rename $block.1.ln_1.bias $block.1.rope.bias
alike "$block.1.rope.bias"
begin openclip-quick
rename $block.1.ln_1.bias vizual.transformer.resblocks.1.ln_1.bias
alike 'ln_1.bias'
begin eva-layerscale
rename visual.blocks.0.gamma_1 visual.blocks.0.gamma_7
alike 'gamma_7'
begin dinov2-registers
rename register_tokens register_others
alike 'register_others'
begin openclip-quick
printf '{"model_cfg": {"vision_cfg": {"width": 32, "attentional_pool": true}}}' >"$work/case/open_clip_config.json"
alike 'open_clip_config.json.*attentional_pool'
printf '{"model_cfg": {"quick_gelu": true, "vision_cfg": {"width": 32}}}' >"$work/case/open_clip_config.json"
run 0 ' quick_gelu,' plan
run 0 ' quick_gelu,' train
rm -rf "$work/case/runs" "$work/case/open_clip_config.json"
assumed=' gelu (assumed), .*1e-05 (assumed), .*cls.* (assumed), '
for each in plan train embed; do run 0 "$assumed" $each; done

# NaN, which names and shapes do not show: plan reads no values
begin openclip-quick
bytes=$(wc -c <"$work/case/teacher.safetensors")
printf '\377\377\377\177' | dd of="$work/case/teacher.safetensors" bs=1 seek=$((bytes - 4)) conv=notrunc 2>/dev/null
for each in embed train; do run 3 'teacher.safetensors.* 1 .*NaN' $each; done

# a student whose head does not fit; a teacher that is wrong next to a student that is not there
begin openclip-quick
rename $block.1.ln_1.bias $block.1.ln_1.bia5 student
run 7 'ln_1.bia5' plan
run 7 'ln_1.bia5' train
begin openclip-quick
rename $block.1.ln_1.bias $block.1.ln_1.bia5
rm "$work/case/student.safetensors"
run 7 'ln_1.bia5' plan
exit $failed
