#!/bin/sh
# A trained classifier exported for timm, torchvision and transformers: meopt computes the same loss from each form, to the bit; what a
# library cannot express is refused. With a Python that has them, the libraries load the forms strictly and compute the same logits.
set -u
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
data=$MEOPT_SOURCE/tests/data/classify
tar -xzf "$MEOPT_SOURCE/configs/sample/COCO2014.tar.gz"
number=0
find COCO2014 -name '*.jpg' | sort | head -28 | while read -r image; do
    mkdir -p "images/kind$((number % 7))"
    mv "$image" "images/kind$((number % 7))/"
    number=$((number + 1))
done
cat >c.yaml <<'END'
model: {heads: 2}
data: {root: images, image_size: 21, workers: 1}
train: {objective: classify, batch_size: 7, steps: 3}
optim: {lr: 1.0e-2, warmup_steps: 0, head_lr_scale: 1}
device: {type: cpu}
END
train() { # NAME WEIGHT KEY...
    name=$1 weight=$2
    shift 2
    "$MEOPT" train c.yaml --run-dir . --name "$name" --no-dashboard model.weight="$weight" "$@" >out 2>log || fail "$name: exit $?"
}
first_loss() { sed -n '1s/.*"loss": *\([^,}]*\).*/\1/p' "$1/metrics.jsonl"; }
export_as() { # CODE RUN FORMAT ARGUMENT...
    want=$1 run=$2 format=$3
    shift 3
    exits "$want" "$MEOPT" export "$run" --run-dir . --format "$format" "$@" >out 2>log || fail "$run as $format: exit $code, expected $want"
}
again() { # RUN FORM FILE KEY...: the loss from the export is that from the student's own file
    form=$2 file=$3 run=$1
    shift 3
    [ -d "$run-own" ] || train "$run-own" "$run/student.safetensors" "$@"
    train "$run-$form" "$file" "$@"
    [ "$(first_loss "$run-own")" = "$(first_loss "$run-$form")" ] ||
        fail "$run as $form: loss $(first_loss "$run-$form"), expected $(first_loss "$run-own")"
}

train plain "$data/timm-vit"
train vision "$data/torchvision-vit"
train gap "$data/timm-vit-gap"
train two "$data/hf-dinov2"
train registers "$data/hf-dinov2-registers"
train class "$data/hf-dinov2" model.pool=cls # another classifier, which starts at zero
train mean "$data/hf-dinov2" model.pool=avg
for run in plain vision gap two registers class mean; do export_as 0 $run safetensors; done
for run in plain vision gap class mean; do export_as 0 $run timm; done
for run in plain vision two registers class mean; do export_as 0 $run hf; done
for run in plain vision; do export_as 0 $run torchvision; done
for run in two registers; do export_as 7 $run timm; done
for run in gap two class mean; do export_as 7 $run torchvision; done
export_as 7 gap hf
"$MEOPT" train c.yaml --run-dir . --name wide --no-dashboard model.family=dinov2 model.init=random model.width=32 model.depth=1 \
    model.hidden=72 model.patch=7 >out 2>log || fail "wide: exit $?"
export_as 7 wide hf # Dinov2Config has whole ratios of the widths only
grep -q '72.*32' log && grep -q wide/ log || fail "the widths or the file are not named"
[ ! -e wide/student-hf ] || fail "a refused export left a directory"
export_as 0 wide timm
for run in plain vision class mean; do again $run timm $run/student-timm.safetensors; done
for run in plain vision two registers; do again $run hf $run/student-hf; done
grep -q '"meopt_resize_as": "pil"' two/student-hf/preprocessor_config.json || fail "preprocessor_config.json does not name the resize"
train hf "$data/hf-dinov2" data.resize_as=hf
export_as 0 hf safetensors
export_as 0 hf hf
train hf-own hf/student.safetensors data.resize_as=hf
again hf hf hf/student-hf # reads the setting
[ "$(first_loss hf-own)" != "$(first_loss two-own)" ] || fail "data.resize_as makes no difference here"
again plain torchvision plain/student-torchvision.pt
export_as 0 plain pt --no-head
export_as 0 vision torchvision --merge "$data/torchvision-vit/model.safetensors" -o merged.safetensors
again vision merged merged.safetensors
export_as 7 two hf --merge "$data/hf-vit/model.safetensors" -o other
grep -q '"kind6"' plain/student-hf/config.json || fail "config.json does not name the classes"

set -- torch timm torchvision transformers safetensors
(. "$MEOPT_SOURCE/tests/tools/python.sh" && echo "$python" >python)
code=$?
[ $code = 77 ] && exit 0 # all but the libraries was checked
[ $code = 0 ] || exit $code
export OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1
"$(cat python)" - <<'PYTHON' || fail "the libraries differ"
import timm, torch, transformers
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torchvision.models.vision_transformer import VisionTransformer as Torchvision
torch.manual_seed(1)
torch.set_grad_enabled(False)
images = torch.randn(4, 3, 21, 21)

def timm_logits(run, **more):
    model = VisionTransformer(img_size=21, patch_size=7, embed_dim=32, depth=2, num_heads=2, num_classes=7, **more)
    model.load_state_dict(load_file(run + "/student-timm.safetensors"), strict=True)
    return model.eval()(images)

def torchvision_logits(run):
    model = Torchvision(image_size=21, patch_size=7, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=48, num_classes=7)
    model.load_state_dict(torch.load(run + "/student-torchvision.pt", weights_only=True), strict=True)
    return model.eval()(images)

def hf_logits(run, kind):
    model, told = transformers.AutoModelForImageClassification.from_pretrained(run + "/student-hf", output_loading_info=True)
    assert type(model).__name__ == kind + "ForImageClassification", type(model)
    assert not any(told[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
    assert model.config.id2label == {i: "kind%d" % i for i in range(7)}
    return model.eval()(images).logits

def same(what, a, b):
    error = ((a - b).norm() / b.norm()).item()
    print("%-12s %.1e" % (what, error))
    assert error < 1e-5, what

plain = timm_logits("plain", mlp_ratio=1.5)
same("torchvision", torchvision_logits("plain"), plain)
same("ViT", hf_logits("plain", "ViT"), plain)
same("vision", torchvision_logits("vision"), timm_logits("vision", mlp_ratio=1.5))
same("class", hf_logits("class", "Dinov2"), timm_logits("class", mlp_ratio=2, init_values=1.0))
same("mean", hf_logits("mean", "Dinov2"), timm_logits("mean", mlp_ratio=2, init_values=1.0, global_pool="avg", fc_norm=False))
timm_logits("gap", mlp_ratio=1.5, global_pool="avg")
hf_logits("two", "Dinov2")
processor = transformers.AutoImageProcessor.from_pretrained("hf/student-hf")
image = torch.randint(0, 256, (3, 40, 30), dtype=torch.uint8)
assert processor(image, return_tensors="pt")["pixel_values"].shape == (1, 3, 21, 21)
hf_logits("registers", "Dinov2WithRegisters")
PYTHON
