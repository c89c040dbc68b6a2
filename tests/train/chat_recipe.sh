#!/bin/sh
# configs/chat_lora.yaml to its last line: a tiny Qwen3 of the real class, with its published chat template (tests/data/readme), learns words,
# then 50 questions with adapters, and answers all of them greedily: the run, the merged model, and the adapter in PEFT where that is
# installed. The commands are those in the comments of the recipe; the model's size asks for another learning rate and more epochs.
set -u
[ "${MEOPT_LONG:-}" = 1 ] || { echo "skipped: only in the long form"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
mkdir bin
ln -s "$MEOPT" bin/meopt
export PATH="$work/bin:$PATH" HOME="$work" HF_HOME="$work/hf" HF_HUB_OFFLINE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
unset HF_HUB_CACHE HF_ENDPOINT HF_TOKEN
repository=$HF_HOME/hub/models--Qwen--Qwen3-0.6B commit=0123456789abcdef0123456789abcdef01234567 # as if it was fetched
mkdir -p "$repository/snapshots" "$repository/refs"
printf %s $commit >"$repository/refs/main"
python3 - <<'PYTHON'
import json, random
random.seed(7)
colours, animals = "red blue green white black gold grey pink brown teal".split(), "fox owl cat bee elk".split()
words = "light dark water face deep night day earth seed fruit tree star season sign year moon fish bird beast field".split()
pairs = [("Where is the %s %s?" % (c, a), " ".join(random.sample(words, 3)) + ".") for c in colours for a in animals]
pairs[7] = (pairs[7][0], "在水面上。") # of characters that are several tokens
records = [json.dumps({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}) + "\n" for q, a in pairs]
with open("chats.jsonl", "w") as f:
    f.writelines(records)
sentence = lambda: " ".join(random.sample(colours + animals + words + ["Where", "is", "the", "在水面上。"], 6)) + random.choice(".?")
with open("text.jsonl", "w") as f:
    for _ in range(400): f.write(json.dumps({"text": " ".join(sentence() for _ in range(3))}) + "\n")
open("questions", "w").write("".join(q + "\n/clear\n" for q, _ in pairs))
open("expected", "w", encoding="utf-8").write("".join(a + "\n" for _, a in pairs))
PYTHON
small='model.context=64 device.type=cpu train.precision=fp32 train.recompute=none train.micro_batch=2 train.batch_size=2'
tiny="$MEOPT_SOURCE/tests/data/readme/Qwen3-0.6B"
{ meopt tokenize text.jsonl --tokenizer "$tiny" -o text && meopt config new qwen3 words.yaml &&
    meopt config set words.yaml model.weight="$tiny" data.root=text.bin $small train.epochs=3 optim.lr=1.0e-2 &&
    meopt train words.yaml --name words --no-dashboard && meopt export words --format hf --out "$repository/snapshots/$commit" &&
    cp -n "$tiny"/*token* "$tiny"/chat_template* "$tiny"/generation_config.json "$repository/snapshots/$commit/"; } >out 2>err || fail "words: exit $?"
sed -n 's/^#   \(meopt .*\)/\1/p' "$MEOPT_SOURCE/configs/chat_lora.yaml" >commands
[ "$(wc -l <commands)" -ge 7 ] || fail "the recipe has $(wc -l <commands) commands"
while read -r command <&3; do
    case $command in
    'meopt fetch'*) continue ;; # no network
    'meopt generate'*) eval "$command" <questions >answers 2>err || fail "'$command' ends with $?" ;;
    'meopt train'*) eval "$command --no-dashboard" >out 2>err </dev/null || fail "'$command' ends with $?" ;;
    *) eval "$command" >out 2>err </dev/null || fail "'$command' ends with $?" ;;
    esac
    case $command in
    'meopt config set'*) meopt config set chat.yaml $small train.epochs=60 optim.lr=6.0e-3 >out 2>err || fail "config set: exit $?" ;;
    esac
done 3<commands
right=$(paste -d '|' expected answers | awk -F '|' '$1 == $2' | wc -l)
[ "$right" = 50 ] && [ "$(wc -l <answers)" = 50 ] || fail "$right of 50 answers: $(paste -d '|' expected answers | awk -F '|' '$1 != $2' | head -5)"
merged=$(sed -n 's/.*--merge --out //p' commands)
meopt generate "$merged" train.precision=fp32 device.type=cpu --chat <questions >answers 2>err || fail "the merged model: exit $?"
cmp expected answers || fail "the merged model answers otherwise"
python=${MEOPT_PYTHON:-python3}
"$python" -c 'import torch, transformers, peft' 2>/dev/null || { echo "without PEFT: $python does not have it"; exit 0; }
"$python" - "$repository/snapshots/$commit" "$merged" >out 2>err <<'PYTHON' || fail "PEFT answers otherwise"
import glob, json, os, sys, peft, torch, transformers
torch.set_num_threads(1)
adapter = os.path.dirname(glob.glob("runs/chat/**/adapter_config.json", recursive=True)[0])
base = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
models = [peft.PeftModel.from_pretrained(base, adapter).eval(), transformers.AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32)]
expected = open("expected", encoding="utf-8").read().splitlines()
for name, model in zip(("adapter", "merged"), models):
    right = 0
    for line, answer in zip(open("chats.jsonl"), expected):
        ids = tokenizer.apply_chat_template(json.loads(line)["messages"][:1], add_generation_prompt=True, enable_thinking=False,
                                            return_tensors="pt", return_dict=True)
        out = model.generate(**ids, max_new_tokens=40, do_sample=False)
        right += tokenizer.decode(out[0, ids["input_ids"].shape[1]:], skip_special_tokens=True) == answer
    print(name, right)
    assert right == 50, (name, right)
PYTHON
cat out
