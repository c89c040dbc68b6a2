#!/bin/sh
# The blocks of README on classification, several teachers, language models, LoRA, BERT and export, each line as README has it, to the last one, in one
# directory. The models are those that README names, tiny, by the real classes (tests/make/readme_models.py), as directories and in the cache
# of a hub. After `config new`, sizes and numbers of steps are lowered. Figures of README that `plan` computes; the configurations that it names.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
copy="$work/a directory" home="$work/a home"
mkdir -p "$home/bin" "$copy"
ln -s "$MEOPT" "$home/bin/meopt"
cd "$copy" || exit 1
export PATH="$home/bin:$PATH" HOME="$home" HF_HOME="$home/hf" HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
unset HF_HUB_CACHE HF_ENDPOINT HF_TOKEN
for model in Qwen3-0.6B:Qwen bert-base-uncased:google-bert; do
    repository="$HF_HOME/hub/models--${model#*:}--${model%:*}" commit=0123456789abcdef0123456789abcdef01234567
    cp -r "$MEOPT_SOURCE/tests/data/readme/${model%:*}" .
    chmod -R u+w "${model%:*}"
    mkdir -p "$repository/snapshots" "$repository/refs"
    cp -r "${model%:*}" "$repository/snapshots/$commit"
    printf %s $commit >"$repository/refs/main"
done
ln -s models--google-bert--bert-base-uncased "$HF_HOME/hub/models--bert-base-uncased" # its older name
python3 - <<'END'
import json, random
random.seed(3)
words = "the light and darkness trains large transformers in a fraction of card memory".split()
def text(n): return " ".join(random.choice(words) for _ in range(n))
def write(name, rows): open(name, "w").write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
write("chats.jsonl", [{"messages": [{"role": "user", "content": "What is MEOpt?"}, {"role": "assistant", "content": "the light, 光。"}]}] * 200)
write("web.jsonl", [{"text": text(60)} for _ in range(40)])
for part, count in (("train", 60), ("val", 20)):
    write(part + ".jsonl", [{"text": ("light " if i % 2 else "darkness ") * 3 + text(5), "label": "good" if i % 2 else "bad"} for i in range(count)])
END
lines() { # FROM TO: the commands of README between two patterns, without comments
    sed -n "/$1/,/$2/s/^    //p" "$MEOPT_SOURCE/README.md" | sed 's/  .*//' | grep '^meopt '
}
smaller() { # COMMAND: what it has just written, in a size for a test
    # shellcheck disable=SC2086
    case $1 in
    'meopt config new digits '*) set -- "$1" train.epochs=1 ;;
    'meopt config new radio_like '*)
        sed -i 's/^  - weight: .*/  - depth: 1\n    init: random/; s/image_size: 256/image_size: 32/; s/image_size: 384/image_size: 48/' "${1##* }"
        set -- "$1" data.root=sample/digits/train model_s.init=random model_s.depth=1 train.steps=2 train.batch_size=4 device.type=cpu
        ;;
    'meopt config new bytes '*) set -- "$1" train.steps=8 train.eval_steps=4 train.batch_size=4 model.depth=1 ;;
    'meopt config new qwen3 '*) set -- "$1" model.context=64 train.batch_size=4 train.epochs=1 device.type=cpu ;;
    'meopt config new chat_lora '*) set -- "$1" model.context=64 train.batch_size=4 train.epochs=1 device.type=cpu ;;
    'meopt config new bert_classify '*) set -- "$1" model.arch=custom model.family=bert model.heads=2 model.context=32 train.batch_size=4 train.epochs=1 device.type=cpu ;;
    *) return ;;
    esac
    file=${1##* }
    shift
    meopt config set "$file" "$@" >out 2>&1 || fail "config set $file $*"
}
run() { # PLACE FROM TO LEAST: every line ends with 0
    lines "$2" "$3" >"$work/lines"
    count=$(wc -l <"$work/lines")
    [ "$count" -ge "$4" ] || fail "$1: README has $count lines"
    while read -r line <&3; do
        echo 'What is MEOpt?' >"$work/in" # of a dialogue
        (eval "$line") >"$work/out" 2>"$work/err" <"$work/in" || fail "$1: '$line' ends with $?"
        smaller "$line"
        case $line in 'meopt generate'*) [ -s "$work/out" ] || fail "$1: '$line' prints nothing" ;; esac
    done 3<"$work/lines"
}
run classification '^## Classification' '^## Language models' 5
[ -s classes.csv ] && [ -e runs/digits/student.safetensors ] || [ -n "$(find runs/digits -maxdepth 1 -name '*.safetensors')" ] || fail "digits: no export"
run teachers '^## Several teachers' '^## Classification' 4
[ -s runs/radio/student.safetensors ] || fail "radio: no export"
run language '^## Language models' '^From conversations' 8
[ -s web.bin ] && [ -s web.idx ] || fail "web.jsonl: no token files"
run chat '^From conversations' '^BERT as a classifier' 7
[ -s my-qwen3/model.safetensors ] && [ -s my-qwen3/config.json ] && [ -s my-qwen3/tokenizer.json ] || fail "the merged model"
adapter=$(find runs/chat -name adapter_config.json | head -n 1)
[ -n "$adapter" ] || fail "no adapter"
run bert '^BERT as a classifier' '^## From PyTorch' 6
exported=$(find runs/reviews -maxdepth 2 -name config.json | head -n 1)
python3 -c 'import json, sys; c = json.load(open(sys.argv[1])); sys.exit(sorted(c["id2label"].values()) != ["bad", "good"])' "$exported" || fail "names of the classes in $exported"

# What transformers and PEFT make of the exports, where they are installed (MEOPT_PYTHON).
if "${MEOPT_PYTHON:-python3}" -c 'import transformers, peft' 2>/dev/null; then
    "${MEOPT_PYTHON:-python3}" - "$(dirname "$exported")" "$(dirname "$adapter")" >out 2>err <<'END' || fail "from_pretrained"
import sys, torch, transformers, peft
classifier = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
assert classifier(**tokenizer("light", return_tensors="pt")).logits.shape == (1, 2)
merged = transformers.AutoModelForCausalLM.from_pretrained("my-qwen3", dtype=torch.float32)
adapted = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained("Qwen3-0.6B", dtype=torch.float32), sys.argv[2])
tokens = torch.arange(20)[None]
a, b = merged(tokens).logits, adapted(tokens).logits
assert (a - b).abs().max() < 2e-2 * b.abs().max(), (a - b).abs().max()
transformers.AutoModelForCausalLM.from_pretrained([w for w in __import__("glob").glob("runs/bytes/*/") if "config.json" in __import__("os").listdir(w)][0])
END
fi

# Every configuration that README names, and the figures that plan computes.
grep -o 'configs: [a-z0-9_, ]*' "$MEOPT_SOURCE/README.md" | sed 's/configs: //; s/,//g' | tr ' ' '\n' | sort -u | while read -r name; do
    [ -z "$name" ] || meopt config new "$name" "named-$name.yaml" >"$work/out" 2>&1 || fail "README names the configuration $name"
done || exit 1
grep -o '`*configs/[a-z0-9_]*\.yaml' "$MEOPT_SOURCE/README.md" | tr -d '`' | sort -u | while read -r file; do
    [ -f "$MEOPT_SOURCE/$file" ] || fail "README names $file"
done || exit 1
planned() { # CONFIG PATTERN [KEY=VALUE]: the GiB in the match of the pattern in README are those of plan
    said=$(tr '\n' ' ' <"$MEOPT_SOURCE/README.md" | grep -o "$2" | head -n 1 | grep -o '[0-9.]* GiB' | grep -o '[0-9.]*')
    meopt plan "$MEOPT_SOURCE/configs/$1.yaml" ${3:+"$3"} --json >plan.json 2>err || fail "plan $1"
    python3 -c 'import json, sys; gib = json.load(open("plan.json"))["peak_bytes"] / 2**30; print(gib); sys.exit(abs(gib - float(sys.argv[1])) > 0.051)' \
        "${said:-0}" >out || fail "$1: plan has $(cat out) GiB, README ${said:-none}"
}
planned radio_like 'into ViT-B/16, needs [0-9.]* GiB' device.type=cuda
planned bert_base 'bert_base.yaml) *needs [0-9.]* GiB'
planned distilbert_classify 'distilbert_classify.yaml), a classifier, needs [0-9.]* GiB'
planned bigbird_classify 'bigbird_classify.yaml), with block-sparse attention, needs [0-9.]* GiB'
planned qwen3_8b_lora 'qwen3_8b_lora.yaml`: 8B in [0-9.]* GiB'
