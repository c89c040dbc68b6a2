"""Called by tests/cli/real_templates.sh, in an empty directory: chat templates of installed packages and of the directories that $MEOPT_TEMPLATES
names, rendered by transformers and written by meopt tokenize. Prints a line for each template that meopt knows and one for the others together,
and ends with 1 if a conversation is written in another form. Usage: compare_templates.py MEOPT"""
import glob
import importlib.util
import json
import os
import shutil
import subprocess
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.utils.chat_template_utils import render_jinja_template

BOS, END = "<the first token>", "<|endoftext|>"
SPECIAL = [BOS, END, "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
THOUGHT = "<think>\n\nLet me see.\n\n</think>\n\n"


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def ask(content):
    return turn("user", content)


def say(content, **more):
    return turn("assistant", content, **more)


CONVERSATIONS = [
    [ask("Hi"), say("Hello")],
    [turn("system", "Be kind."), ask("Hi"), say("Hello")],
    [turn("system", ""), ask("Hi"), say("Hello")],
    [turn("system", " \n Be kind. \n"), ask(" \n Hi\t"), say("\n\n Hello \n"), ask("  x "), say(" y ")],
    [ask("1+1?"), say("2"), ask("2+2?"), say("4"), ask("3+3?"), say("6")],
    [turn("system", "Be kind."), ask("1+1?"), say("2"), ask("2+2?")],
    [ask("1+1?"), say(THOUGHT + "2"), ask("2+2?"), say(THOUGHT + "4")],
    [ask("2+2?"), say("<think>\n\n</think>\n\n4")],
    [ask("2+2?"), say("</think>4"), ask("3"), say("a<think>b<think>c</think>d</think>\n\ne")],
    [ask("2+2?"), say("\n4", reasoning_content="\n Let me see. \n"), ask("3"), say("\n5\n", reasoning_content="\n\nSo\n")],
    [ask("2+2?"), say("4", reasoning_content=""), say("</think>5", reasoning_content="no")],
    [ask("床前明月光"), say("\u3000疑是地上霜\xa0\x1c\x85\u2003")],
    [ask(""), say("")],
    [say("I begin.")],
    [ask("Hi"), say("One."), say("Two.")],
    [ask("Hi"), turn("system", "Be brief."), say("Yes")],
    [ask("2+2?"), say("I call"), ask(" <tool_response>\n4\n</tool_response>"), say("It is 4.")],
    [ask("2+2?"), say("I call"), ask("<tool_response>\n4\n</tool_response>"), say("It is 4.")],
    [ask("a"), ask("b"), say("c")],
]


def templates():
    """Paths of Jinja templates."""
    directories = os.environ.get("MEOPT_TEMPLATES", "").split(":")
    for package in ("trl", "axolotl"):
        spec = importlib.util.find_spec(package)
        directories += spec.submodule_search_locations if spec else []
    return sorted({path for d in directories if d for path in glob.glob(os.path.join(d, "**", "*.jinja"), recursive=True)})


def render(template, messages):
    """None: the template refuses them."""
    try:
        return render_jinja_template([messages], chat_template=template, bos_token=BOS, eos_token=END)[0][0]
    except Exception:
        return None


def write_tokenizer():
    t = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True) for s in SPECIAL])
    os.mkdir("model")
    t.save("model/tokenizer.json")
    with open("model/tokenizer_config.json", "w", encoding="utf-8") as f:
        json.dump({"bos_token": BOS, "eos_token": END}, f)
    return t


def write(meopt, tokenizer, messages):
    """What meopt writes; None with its message: it refuses them."""
    with open("chat.jsonl", "w", encoding="utf-8") as f:
        f.write(json.dumps({"messages": messages}) + "\n")
    done = subprocess.run([meopt, "tokenize", "chat.jsonl", "--tokenizer", "model", "-o", "out"], capture_output=True, text=True)
    if done.returncode:
        return None, done.stderr
    with open("out.bin", "rb") as f:
        data = f.read()
    for path in glob.glob("out.*"):
        os.remove(path)
    return tokenizer.decode([int.from_bytes(data[i:i + 2], "little") for i in range(0, len(data), 2)], skip_special_tokens=False), ""


def compare(meopt, tokenizer, path):
    """Prints what is different; returns whether nothing is, None: the template is unknown."""
    with open(path, encoding="utf-8", newline="") as f:
        template = f.read()
    shutil.copy(path, "model/chat_template.jinja")
    right = refused = 0
    equal = True
    for i, messages in enumerate(CONVERSATIONS):
        text, message = write(meopt, tokenizer, messages)
        if i == 0 and text is None and "chat_template.jinja" in message:
            return None
        expected = render(template, messages)
        if text is None:
            refused += 1
            if expected is not None:
                print("   refused:", message.splitlines()[0])
        elif text == expected:
            right += 1
        else:
            equal = False
            print("   conversation %d: meopt %r, expected %r" % (i, text, expected))
    print("%s %d right, %d refused of %d: %s" % ("equal" if equal else "DIFFERENT", right, refused, len(CONVERSATIONS), path), flush=True)
    return equal


def main():
    meopt, tokenizer = sys.argv[1], write_tokenizer()
    results = [compare(meopt, tokenizer, path) for path in templates()]
    print("%d templates, %d equal, %d unknown" % (len(results), results.count(True), results.count(None)))
    sys.exit(False in results)


main()
