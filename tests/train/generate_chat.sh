#!/bin/sh
# A dialogue from a pipe and at a terminal: turns as context, one process for many questions, a context that is full, draws that repeat,
# pasted lines, Ctrl-C. The model learns its answers by heart, with adapters and the recipe configs/chat_lora.yaml.
set -u
. "$MEOPT_SOURCE/tests/lib.sh"
export OMP_NUM_THREADS=1 # the model is so small that a second thread spins for half of the processor time
cd "$work"
mkdir chat
cp "$MEOPT_SOURCE/tests/data/tokenizers/qwen.json" chat/tokenizer.json
cat >pairs <<'END'
What is MEOpt?	a program
Who are you?	the waters 光。
Say light	light
1+1?	2
光?	the light
Good night	sleep well
Where?	upon the face
END
python3 - <<'PYTHON'
import json
pairs = [line.rstrip("\n").split("\t") for line in open("pairs", encoding="utf-8")]
record = lambda *turns: json.dumps({"messages": [{"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(turns)]})
with open("chats.jsonl", "w") as f:
    for question, answer in pairs: f.write((record(question, answer) + "\n") * 12)
    for question, answer in pairs: f.write((record("Say light", "light", question, answer) + "\n") * 4)
turn = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
open("chat/chat_template.jinja", "w").write(
    "{% for message in messages %}" + turn + "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
json.dump({"eos_token": "<|im_end|>"}, open("chat/tokenizer_config.json", "w"))
json.dump({"eos_token_id": [2], "do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1},
          open("chat/generation_config.json", "w"))
PYTHON
"$MEOPT" tokenize chats.jsonl --tokenizer chat -o chats >out 2>log || fail "tokenize: exit $?"
cat >begin.yaml <<END
model: {family: llama, init: random, vocabulary: 900, context: 96, width: 64, depth: 2, heads: 4, kv_heads: 2, hidden: 96}
data: {root: chats.bin}
train: {objective: language, batch_size: 16, steps: 60, precision: fp32}
optim: {lr: 1.0e-2, warmup_steps: 5}
device: {type: cpu}
END
"$MEOPT" train begin.yaml --run-dir . --name begin --no-dashboard >out 2>log || fail "train: exit $?"
"$MEOPT" export begin --format hf --out base >out 2>log || fail "export: exit $?"
cp chat/* base/
"$MEOPT" config new chat_lora chat.yaml >out 2>log || fail "the recipe: exit $?"
"$MEOPT" train chat.yaml --run-dir . --name run --no-dashboard model.weight=base model.context=96 device.type=cpu train.precision=fp32 \
    train.epochs=16 train.batch_size=4 train.recompute=none optim.lr=1.0e-2 >out 2>log || fail "train with adapters: exit $?"
# One process answers all; each answer is that of a process of its own.
cut -f 1 pairs | sed 's/$/\n\/clear/' >questions
"$MEOPT" generate run --chat <questions >answers 2>log || fail "a dialogue from a pipe: exit $?"
cut -f 2 pairs | cmp - answers || fail "$(cat answers)"
"$MEOPT" generate run --chat "Who are you?" >one 2>log || fail "one question: exit $?"
[ "$(cat one)" = "the waters 光。" ] || fail "one question: $(cat one)"
grep -q -- '--temperature 0.6 --top-k 20' log && grep -q 'repetition_penalty 1.1' log || fail "generation_config.json: $(cat log)"
echo 'Who are you?' | "$MEOPT" generate run --system "Be kind." --chat --json >system.json 2>log || fail "--system: exit $?"
# Turns are context, which is computed once; the oldest ones are left out, and the system message stays.
printf '\357\273\277Say light\r\n\nWho are you?\n /where\n1+1?\nGood night\nWhere?\n/exit\nno question\n' >dialogue
"$MEOPT" generate run --chat --json --max-new-tokens 12 <dialogue >lines.json 2>log || fail "--json: exit $?"
python3 - "$MEOPT" <<'PYTHON' || fail "a dialogue"
import json, subprocess, sys
lines = [json.loads(line) for line in open("lines.json")]
assert [l["question"] for l in lines] == ["Say light", "Who are you?", " /where", "1+1?", "Good night", "Where?"], lines
assert lines[0]["text"] == "light" and lines[1]["text"] == "the waters 光。" and lines[0]["finish_reason"] == "stop", lines
assert lines[1]["prompt"][:len(lines[0]["prompt"])] == lines[0]["prompt"], lines
dropped = [l["dropped_turns"] for l in lines]
assert dropped[0] == 0 < dropped[-1] and dropped == sorted(dropped), dropped
for l in lines:
    assert len(l["prompt"]) + len(l["tokens"]) <= 96 and ("seed" not in l), l
    alone = subprocess.run([sys.argv[1], "generate", "run", "--tokens", ",".join(map(str, l["prompt"])), "--json",
                            "--max-new-tokens", "12", "--tokenizer", "chat"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    assert json.loads(alone.stdout)["tokens"] == l["tokens"], (l, alone)
system = json.loads(open("system.json").read())
assert len(system["prompt"]) > len(lines[0]["prompt"]) and system["question"] == "Who are you?", system
PYTHON
grep -q 96 log || fail "no word about turns that are left out: $(cat log)"
# A question that the context does not hold, a mistyped command, NUL: refused with the number of the line.
refused() { # CODE WORD ARGUMENT...: of the text in the file `asked`
    want=$1 word=$2
    shift 2
    exits "$want" "$MEOPT" generate run "$@" <asked >out 2>log && grep -q -- "$word" log || fail "$*: exit $code: $(cat log)"
}
{ echo 'Say light' && yes 'face of the waters' | head -60 | tr '\n' ' ' && echo; } >asked
refused 2 ':2:.*96' --chat
[ "$(cat out)" = light ] || fail "the question before it: $(cat out)"
printf '/claer\n' >asked && refused 2 claer --chat
printf 'a\0b\n' >asked && refused 2 ':1:.*NUL' --chat
printf 'a\n\377\n' >asked && refused 2 ':2:.*UTF-8' --chat
refused 2 model.context --chat model.context=64
refused 2 --system --prompt light --system 'Be kind.'
refused 2 --max-new-tokens --prompt light --count 3 --max-new-tokens 4
refused 0 --top-k --prompt light --tokenizer chat --top-k 3
# Draws: the same seed the same answers, top-k 1 is the likeliest; an answer that is cut says so.
"$MEOPT" generate run --chat --json --temperature 3 --seed 5 <dialogue >drawn.json 2>log && "$MEOPT" generate run --chat --json --temperature 3 --seed 5 \
    <dialogue >again.json 2>log && "$MEOPT" generate run --chat --json --temperature 3 --seed 6 <dialogue >other.json 2>log || fail "draws"
cmp drawn.json again.json || fail "another answer with the same seed"
grep -q '"seed":5' drawn.json && ! cmp -s drawn.json other.json || fail "the same answer with another seed"
"$MEOPT" generate run --chat --temperature 3 --top-k 1 <questions >answers 2>log && cut -f 2 pairs | cmp - answers || fail "--top-k 1"
"$MEOPT" generate run --chat "Who are you?" --max-new-tokens 3 >out 2>log && grep -q -- --max-new-tokens log || fail "an answer that is cut"
# A pipe that stays open: each answer at once. SIGTERM ends it.
mkfifo pipe
"$MEOPT" generate run --chat <pipe >out 2>log &
process=$!
echo $process >left
exec 9>pipe
echo 'Say light' >&9
wait_for 60 grep -q light out || fail "no answer while the pipe is open"
kill -TERM $process
wait $process
code=$?
: >left
exec 9>&-
[ $code = 143 ] || fail "SIGTERM: exit $code"
# At a terminal.
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
paste() { # bracketed TEXT, where the program has asked for that, or: plain TEXT
    server set-buffer -b pasted "$2"
    if [ "$1" = bracketed ]; then set -- -p; else set --; fi
    in_terminal paste-buffer "$@" -b pasted
}
prompted() { # waits until the program reads keys: before, Left, Up and BSpace would be the terminal's
    wait_for 60 eval 'screen | grep -v "^$" | tail -n 1 | grep -q "^>>>$"' || { screen; fail "no prompt"; }
}
ask() { # TEXT ANSWER
    keys -l "$1"
    keys Enter
    await "$2"
    prompted
}
chat() { # ARGUMENTS: opens a dialogue
    terminal 60 24 C.UTF-8 "OMP_NUM_THREADS=1" "'$MEOPT' generate $1"
    await '^>>>'
}
cleared() { # asks /clear, and waits for the prompt after it
    keys -l /clear
    keys Enter
    wait_for 60 eval 'screen | grep -v "^$" | tail -n 2 | tr "\n" "|" | grep -qx ">>> /clear|>>>|"' || { screen; fail "no prompt after /clear"; }
}
usual() { # the terminal shows what is typed
    in_terminal send-keys -l 'echo shown'
    await 'echo shown'
}
chat 'run --chat'
ask 'Say light' '^light'
keys -l 'Whoo are you?' # edited: 10 to the left, one away, to the end
for key in Left Left Left Left Left Left Left Left Left BSpace End Enter; do keys $key; done
await '^the waters 光。'
cleared
keys -l '光光?'
keys Left
keys BSpace
keys Enter
await '^the light'
prompted
on_screen '^>>> 光?' || fail "the line as it was edited"
keys Up
keys Up
await '^>>> /clear$'
keys C-c # removes the line
ask '/nowhere' nowhere
cleared
paste bracketed '1+1?
Where?
'
await '^>>> 1+1?.Where?'
[ "$(screen | grep -c 'upon the face')" = 0 ] || fail "a pasted line was asked"
keys Enter
wait_for 60 eval '[ "$(screen | grep -c "^>>>")" -ge 7 ]' || fail "the pasted text"
keys -l '/exit'
keys Enter
await 'status 0'
usual
stop
"$MEOPT" train begin.yaml --run-dir . --name endless --no-dashboard train.steps=1 optim.lr=1.0e-9 >out 2>log || fail "train: exit $?"
answers() { # text follows the question
    last=$(screen | grep -v "^$" | tail -n 1)
    [ "${last#>>>}" = "$last" ]
}
chat 'endless --tokenizer chat --max-new-tokens 15000 model.context=16000 --chat' # a model that has learnt nothing
keys -l 'Where?'
keys Enter
wait_for 60 answers || fail "no answer"
keys C-c
prompted # Ctrl-C ends the answer
keys -l "$(yes 'face of the waters' | head -40 | tr '\n' ' ')"
keys C-u
paste plain 'What is MEOpt?
Where?'
await 'MEOpt?.Where?'
keys C-c
keys C-c
await 'status 130'
usual
stop
# Lines that were typed during an answer are two; the program is stopped so that all are there before it asks.
chat 'endless --tokenizer chat --max-new-tokens 3000 model.context=3100 --chat'
keys -l 'Where?'
keys Enter
wait_for 60 answers || fail "no answer"
program=$(pgrep -P "$(in_terminal display -p '#{pane_pid}')")
kill -STOP "$program"
for text in /clear /exit; do
    keys -l $text
    keys Enter
done
kill -CONT "$program"
await 'status 0'
usual
stop
chat 'run --chat'
keys C-d
await 'status 0'
usual
stop
# Ctrl-Z: the shell has its terminal, and the dialogue continues.
terminal 60 24 C.UTF-8 "OMP_NUM_THREADS=1 PS1='shell '" "sh -i"
await '^shell'
keys -l "'$MEOPT' generate run --chat"
keys Enter
await '^>>>'
keys C-z
wait_for 60 eval 'screen | grep -v "^$" | tail -n 1 | grep -q "^shell"' || fail "Ctrl-Z"
keys -l 'fg'
keys Enter
ask 'Say light' '^light'
stop
