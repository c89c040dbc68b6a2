#!/bin/sh
# A trained student in each form of export, loaded again without keys, gives bit-identical embeddings, also at a different size. Forms:
# names of transformers and of timm, and inside the original checkpoint, of which every other byte stays. A form without a matching class is
# refused, and a head without a matching tensor is reported.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
export OMP_NUM_THREADS=1
quietly() { "$@" >log 2>&1 || { cat log; fail "failed: $*"; }; }
refused() { # CODE NAME COMMAND...: of the object at fault
    want=$1 named=$2
    shift 2
    exits "$want" "$@" >log 2>&1 || { cat log; fail "exit $code, not $want: $*"; }
    grep -q -e "$named" log || { cat log; fail "does not name '$named': $*"; }
}
tar -xzf "$MEOPT_SOURCE/configs/sample/COCO2014.tar.gz"
mkdir images
find COCO2014 -name '*.jpg' | sort | head -4 | while read -r f; do cp "$f" images/; done
ln -s "$MEOPT_SOURCE/tests/data/names" names
names=names
cat >c.yaml <<YAML
model:
  weight_t: $names/clip-projection
  weight_s: $names/clip-projection
data:
  root: images
  image_size: 28
train:
  batch_size: 4
  precision: fp32
optim:
  use_meopt: false
  lr: 1.0e-2
  warmup_steps: 0
YAML
train() { # NAME KEYS...
    name=$1
    shift
    quietly "$MEOPT" train c.yaml model_t.heads=2 model_s.heads=2 "$@" --steps 2 --run-dir . --name "$name" --no-dashboard
}
# The tensors alone: the header in front of them names the checkpoint.
tensors() { tail -c +$(($(od -An -tu8 -N8 "$1") + 9)) "$1" >"$2"; }
# The student that `file` holds, as large as its images and larger; with the keys in `told`. Images are resized as they were in
# training, though transformers' own rounding is what it says.
embed() { # FILE OUT [SIZE...]
    file=$1 out=$2
    shift 2
    rm -f "$out"
    for size in ${*:-28 42}; do
        quietly "$MEOPT" embed c.yaml model.weight_t="$tower" model_t.heads=2 $told model.weight_s="$file" \
            data.image_size=$size data.resize_as=pil --role student --out embedded.safetensors
        tensors embedded.safetensors part
        cat part >>"$out"
    done
    [ -s "$out" ] || fail "no embeddings of $file"
}
# The names in a safetensors file, of which the header's length is the first.
table() {
    bytes=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    tail -c +9 "$1" | head -c "$bytes" | tr '{' '\n' | grep -o '"[^"]*":$' | grep -v __metadata__ | sort
}

for name in clip clip-vision clip-projection timm-clip timm-clip-bare dinov2 dinov2-registers dinov2-giant timm-dinov2 \
    timm-dinov2-registers timm-dinov2-giant timm-eva vit dinov3 dinov2-quick_gelu; do
    tower=$names/${name%-quick_gelu}
    case $name in dinov2-quick_gelu) activation=quick_gelu ;; clip-projection | timm* | dinov* | vit) activation=gelu ;; *) activation=quick_gelu ;; esac
    case $name in *giant) activation=auto ;; esac
    case $name in timm-eva) resize=auto ;; *registers | timm*) resize=timm ;; *) resize=hf ;; esac
    train "$name" model.weight_t="$tower" model.weight_s="$tower" model_s.activation=$activation
    quietly "$MEOPT" export "$name" -o own.safetensors
    told="model_s.heads=2 model_s.activation=$activation model_s.pos_resize=$resize"
    embed own.safetensors expected
    cp part expected42
    embed "$tower" before
    told=
    embed own.safetensors after
    cmp expected after || fail "$name: its file does not say what it is"
    for size in 28 42; do
        quietly "$MEOPT" embed "$name" --role student data.image_size=$size --out embedded.safetensors
        tensors embedded.safetensors part
        [ $size = 28 ] && cp part run || cat part >>run
    done
    cmp expected run || fail "$name: the run itself embeds otherwise"
    cmp -s expected before && fail "$name: nothing was trained"
    for form in hf timm pt merged; do
        case $name-$form in
        timm-eva-hf) refused 7 'transformers .* eva$' \
            "$MEOPT" export "$name" --format hf -o out; continue ;;
        timm-dinov2-giant-hf) # its class rounds the feed-forward up to a multiple of 8
            refused 7 'DINOv2 .* 20 ' "$MEOPT" export "$name" --format hf -o out; continue ;;
        *-merged) quietly "$MEOPT" export "$name" --merge "$tower" -o out ;;
        *) quietly "$MEOPT" export "$name" --format $form -o out ;;
        esac
        embed out after 42 # resized positions, too
        cmp expected42 after || fail "$name comes out of $form as another"
        if [ $form = merged ]; then
            table "$tower/model.safetensors" >want
            table out >got
            cmp want got || fail "$name: the merged file has other names"
        fi
        rm -rf out
    done
done

# transformers' whole model: a directory with its configuration
quietly "$MEOPT" export clip --format hf --merge "$names/clip" -o whole
cmp whole/config.json "$names/clip/config.json" || fail "config.json was not copied"
tower=$names/clip
quietly "$MEOPT" export clip -o own.safetensors
embed whole after
embed own.safetensors expected
cmp expected after || fail "the whole model has another tower"

# A directory is replaced whole or not at all, and only where it is an export.
quietly "$MEOPT" export clip --format hf -o whole
cmp -s whole/config.json "$names/clip/config.json" && fail "an earlier export was not replaced"
mkdir empty && ln -s empty link
quietly "$MEOPT" export clip --format hf -o link/
[ -L link ] && [ -f empty/model.safetensors ] || fail "an empty directory was not taken, or the link was replaced"
sum=$(cat whole/* | cksum)
echo mine >whole/notes.txt
refused 1 '^meopt: whole: ' "$MEOPT" export clip --format hf -o whole
[ "$(cat whole/notes.txt)" = mine ] && rm whole/notes.txt && [ "$(cat whole/* | cksum)" = "$sum" ] || fail "what was refused was changed"
cp -r "$names/clip-vision" theirs && chmod -R u+w theirs
refused 1 '^meopt: theirs: ' "$MEOPT" export clip --format hf -o theirs
touch file
refused 1 '^meopt: file: ' "$MEOPT" export clip --format hf -o file
cp theirs/model.safetensors original.safetensors
refused 2 '--out .*--merge' "$MEOPT" export clip-vision --merge original.safetensors -o ./original.safetensors
cmp original.safetensors theirs/model.safetensors || fail "the original was overwritten"
[ -z "$(ls -d ./*.partial-* 2>/dev/null)" ] || fail "a side directory stays"

# What killed exports left is removed by the next one of that name, and nothing else: no link, no file of a similar name
if [ -f "$MEOPT_BUILD/tests/libfault.so" ]; then
    for form in "--format hf -o killed" "-o killed.safetensors" "--format pt -o killed.pt"; do
        for k in 1 3; do
            head -c 65536 /dev/zero >shared
            # shellcheck disable=SC2086 # several words
            (env LD_LIBRARY_PATH="$MEOPT_BUILD/tests" LD_PRELOAD=libfault.so FAULT_SHARED="$work/shared" FAULT_CALL=write FAULT_K=$k FAULT_KILL=1 \
                FAULT_UNDER="$work" "$MEOPT" export clip $form >log 2>&1) 2>/dev/null && fail "$form: no kill $k"
        done
        left=$(find . -maxdepth 1 -name '*killed*.partial-??????' | wc -l)
        [ "$left" = 1 ] || fail "$form: $left unfinished exports, expected the last one"
        mkdir killed.partial-theirs
        echo mine >killed.partial-theirs/notes.txt
        echo mine >.killed.backup
        ln -s "$work/images" killed.partial-linked
        # shellcheck disable=SC2086
        quietly "$MEOPT" export clip $form
        left=$(find . -maxdepth 1 -name '*killed*.partial-??????' | wc -l)
        [ "$left" = 2 ] || fail "$form: $((left - 2)) unfinished exports stay"
        [ -f .killed.backup ] && [ -f killed.partial-theirs/notes.txt ] && [ -L killed.partial-linked ] && [ -n "$(ls images)" ] ||
            fail "$form: something else was removed"
        rm -rf killed* .killed*
    done
fi
for i in 1 2 3 4 5 6; do # at the same time: none takes the unfinished export of another for one that was killed
    "$MEOPT" export clip --format hf -o together >"log$i" 2>&1 || echo failed >>failures &
    "$MEOPT" export clip -o together.safetensors >"log.$i" 2>&1 || echo failed >>failures &
done
wait
[ ! -e failures ] || fail "exports at the same time: $(cat log1 log.1)"
[ -z "$(ls -d ./*.partial-?????? ./.*.partial-?????? 2>/dev/null)" ] && [ -f together/model.safetensors ] || fail "exports at the same time leave files"

# a head from 16 to 8 values
train headed model.weight_s="$names/clip-vision"
quietly "$MEOPT" export headed -o with.safetensors
table with.safetensors | grep -q distill_head || fail "the head is not in the plain export"
quietly "$MEOPT" export headed --no-head -o without.safetensors
table without.safetensors | grep -q distill_head && fail "--no-head left the head in"
table with.safetensors | grep -v distill_head >want
table without.safetensors | cmp - want || fail "--no-head took more than the head"
for form in "--format hf" "--format timm" "--merge $names/clip-vision"; do
    quietly "$MEOPT" export headed $form -o out
    grep -q 'distill_head\.\*' log || fail "$form: the head that is left out is not named"
    rm -rf out
done
train deep model.weight_s="$names/clip-vision" loss.head=mlp
quietly "$MEOPT" export deep --format hf -o out
grep -q 'distill_head\.\*' log || fail "the head of two layers that is left out is not named"
rm -rf out

# heads of pooling by attention, which open_clip's configuration gave the run, are in its files
mkdir coca-from
cp "$MEOPT_SOURCE/tests/data/towers/openclip-coca-wide/model.safetensors" coca-from/
printf '{"vision_cfg": {"width": 32, "head_width": 16, "attentional_pool": true, "attn_pooler_heads": 3}}' >coca-from/open_clip_config.json
train coca model.weight_t=coca-from/model.safetensors model.weight_s=coca-from/model.safetensors
rm coca-from/open_clip_config.json
quietly "$MEOPT" export coca -o coca.safetensors
quietly "$MEOPT" export coca --format openclip --merge coca-from/model.safetensors -o merged.safetensors
quietly "$MEOPT" embed coca --out run.safetensors
for file in coca merged; do
    quietly "$MEOPT" embed c.yaml --role teacher model.weight_t=$file.safetensors model_t.heads=2 --out alone.safetensors
    quietly "$MEOPT" plan c.yaml model.weight_t=$file.safetensors model.weight_s=$file.safetensors model_t.heads=2 model_s.heads=2
    [ "$(grep -c ' 3 heads, image' log)" = 2 ] || { cat log; fail "$file: the heads of its pooling are not printed"; }
    tensors run.safetensors want
    tensors alone.safetensors have
    cmp want have || fail "$file embeds otherwise than the run"
done
refused 7 'timm .* openclip ' "$MEOPT" export coca --format timm

refused 2 '--merge' "$MEOPT" export clip --format openclip
for form in "clip --merge" "--merge clip" "--merge -o out clip"; do
    # shellcheck disable=SC2086 # several words
    refused 2 'lora.rank' "$MEOPT" export $form
done
refused 7 '"vision_model\."' "$MEOPT" export clip --format openclip --merge "$names/clip"
refused 7 'clip-vision: .* 2 ' "$MEOPT" export clip --merge "$names/clip-vision" -o out
refused 7 'dinov2: .* openclip$' "$MEOPT" export clip --merge "$names/dinov2" -o out
[ ! -e out ] || fail "a refused export left a file"
sed -i '/student_activation/d' clip/meta.json
refused 7 '^meopt: clip/meta.json: ' "$MEOPT" export clip --format hf -o out
# Positions that were trained at another size: reported where the library's class would resize them in another way.
train larger model.weight_t="$names/dinov2" model.weight_s="$names/dinov2" data.image_size=42
quietly "$MEOPT" export larger --format timm -o larger.safetensors
grep -q '28 px .*42 px.* hf' log || { cat log; fail "timm's resize is not reported"; }
quietly "$MEOPT" export larger --format hf -o larger-hf
! grep -q '28 px .*42 px' log || { cat log; fail "transformers' own resize is reported as different"; }
