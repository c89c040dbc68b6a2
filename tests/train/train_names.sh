#!/bin/sh
# A tower as another library names it, from its directory: plan says what it is, and through training without a step's
# change (lr 0, fp32) and export it comes out with the same embeddings, bit for bit. Another library's tower that is
# not known here is refused by plan, embed and train alike.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
tar -xzf "$MEOPT_SOURCE/configs/sample/COCO2014.tar.gz"
mkdir images
find COCO2014 -name '*.jpg' | sort | head -8 | while read -r f; do cp "$f" images/; done
ln -s "$MEOPT_SOURCE/tests/data/names" names
names=names
cat >c.yaml <<YAML
model:
  weight_t: $names/clip-projection
  weight_s: $names/clip-vision
data:
  root: images
train:
  batch_size: 4
  precision: fp32
optim:
  use_meopt: false
  lr: 0
  min_lr: 0
  weight_decay: 0
YAML
"$MEOPT" plan c.yaml >out 2>&1 || { cat out; fail "plan of transformers' CLIP"; }
grep -q '^teacher .* 2 heads, gelu,' out || fail "config.json of the teacher was not read: $(cat out)"
grep -q '^student .* 2 heads, quick_gelu, .*\<projection' out || fail "nothing is said of the projection: $(cat out)"
for tower in clip-vision clip clip-classifier dinov2-registers timm-dinov2-registers timm-eva timm-eva02 timm-eva02-plain dinov3-registers \
    timm-deit3 timm-flexivit timm-reg-gap timm-gap timm-reg timm-deit-distilled deit eva-clip-mean timm-clip-classifier \
    timm-reg1-gap timm-reg-positions openclip-timm-projection openclip-timm-gap openclip-timm-bias siglip siglip-model timm-siglip \
    openclip-siglip; do
    rm -rf run
    pair="model.weight_t=$names/$tower model_t.heads=2 model_s.heads=2" # both are of one family
    "$MEOPT" train c.yaml $pair model.weight_s="$names/$tower" --steps 2 --run-dir . --name run --no-dashboard >log 2>&1 ||
        { cat log; fail "train $tower"; }
    "$MEOPT" export run -o student.safetensors >/dev/null 2>&1
    activation=auto
    case $tower in clip*) activation=quick_gelu ;; esac
    "$MEOPT" embed c.yaml $pair model.weight_s="$names/$tower" --role student --out before >/dev/null 2>&1
    "$MEOPT" embed c.yaml $pair model.weight_s=student.safetensors model_s.activation=$activation --role student --out after \
        >/dev/null 2>&1
    for out in before after; do # the tensors; the header in front of them reports the checkpoint's name
        tail -c +$(($(od -An -t u8 -N 8 $out) + 9)) $out >$out.data
    done
    [ -s before.data ] || fail "no embeddings of $tower"
    cmp before.data after.data || fail "$tower came out as another"
    case $tower in
    dinov3* | siglip) form=hf again=student-hf ;;
    timm-siglip | timm-eva* | timm-deit3 | timm-flexivit | timm-*gap | timm-reg) form=timm again=student-timm.safetensors ;;
    *) continue ;;
    esac
    rm -rf $again after
    "$MEOPT" export run --format $form -o $again >log 2>&1 || { cat log; fail "export $tower as $form"; }
    # transformers resizes with other rounding than PIL: its files say so
    "$MEOPT" embed c.yaml $pair model.weight_s=$again data.resize_as=pil --role student --out after >/dev/null 2>&1
    tail -c +$(($(od -An -t u8 -N 8 after) + 9)) after >after.data
    cmp before.data after.data || fail "$tower came out as another from $form"
done
for tower in siglip2-naflex eva-clip-rope openclip-timm-mlp; do
    for command in plan train "embed --role student --out e"; do
        exits 7 "$MEOPT" $command c.yaml model.weight_s="$names/$tower" >log 2>&1 || { cat log; fail "$command of $tower: exit $code"; }
    done
done
