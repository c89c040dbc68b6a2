"""Called by tests/cli/real_templates.sh, in an empty directory: chat templates of installed packages and of the directories that $MEOPT_TEMPLATES
names, rendered by transformers and written by meopt (test_text_record). Prints a line for each template that meopt knows and one for all together, and ends with 1 if
a conversation is written in another form. Labels are compared with the masks of templates that have {% generation %}.
Usage: compare_templates.py TEST_TEXT_RECORD"""
import glob
import importlib.util
import json
import os
import subprocess
import sys

from transformers.utils.chat_template_utils import render_jinja_template

BOS, END = "<the first token>", "<|endoftext|>"
DATE = "26 Jul 2024"
THOUGHT = "<think>\n\nLet me see.\n\n</think>\n\n"


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def ask(content):
    return turn("user", content)


def say(content, **more):
    return turn("assistant", content, **more)


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


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
    [ask("<|channel>a<channel|>b /think"), say("<|channel>a<channel|>b <|im_end|>")],
    [turn("system", "/no_think x"), ask("a"), say("<think>b"), ask("c"), say("d</think>")],
]
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Wetter für \"Ort\" <b>'x'</b>\n\x7f\x01", "parameters": {
        "type": "object", "properties": {"z": {"type": "number", "default": 0.1}, "a": {"enum": [1, 2.5e-7, 1e16, -0.0, 123.0, None, True, [], {}]}}}}},
    {"type": "function", "function": {"name": "f2", "description": "é", "parameters": {}}},
]
WITH_TOOLS = [
    {"messages": [ask("w?"), say("ok")], "tools": TOOLS},
    {"messages": [turn("system", "Be kind."), ask("w?"), say("ok")], "tools": TOOLS[:1]},
    {"messages": [turn("system", ""), ask("w?"), say("ok")], "tools": TOOLS[:1]},
    {"messages": [ask("w?"), say("", tool_calls=[call("get_weather", {"z": 1.5, "a": "Köln \"x\"\n"})]), turn("tool", "{\"t\": 3}"), say("3.")],
     "tools": TOOLS},
    {"messages": [ask("w?"), say("I call.", tool_calls=[call("get_weather", {"z": 1}), call("f2", {})]), turn("tool", "3"), turn("tool", "4"),
                  say("It is 3."), ask("more"), say("no")], "tools": TOOLS},
    {"messages": [ask("w?"), say("x", tool_calls=[call("f2", "{\"a\": 1}")]), turn("tool", "3"), say("It is 3.")]},
    {"messages": [ask("w?"), say(THOUGHT + "x", tool_calls=[call("f2", {"a": {"b": [1, "c"]}})]), turn("tool", "3"), say(THOUGHT + "It is 3.")]},
    {"messages": [ask("w?"), say("x", reasoning_content="hm", tool_calls=[call("f2", {"a": 1}, id="abcdefghi")]),
                  turn("tool", "3", tool_call_id="abcdefghi"), say("It is 3.", reasoning_content="so")]},
    {"messages": [ask("w?"), turn("tool", "3"), say("It is 3.")]},
    {"messages": [turn("developer", "Be kind."), ask("w?"), say("It is 3.")]},
]


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


RECORDS = [{"messages": m} for m in CONVERSATIONS] + WITH_TOOLS
RECORDS += [{"messages": [dict(m, content=parts(m["content"])) for m in c]} for c in CONVERSATIONS]
RECORDS += [{"messages": [ask(parts(" Hi ", " there ")), say(parts("Hello ", "you"))]},
            {"messages": [turn("system", parts("Be", " kind.")), ask(parts("Hi")), say("Hello")]}]
ASKED = [[ask(" 1+1?\n")], [turn("system", "Be kind."), ask("1")], [turn("system", ""), ask("1")], [ask("1"), say("2"), ask("3")],
         [turn("system", "S"), ask("1"), say("2"), ask("3")]]


def templates():
    """Paths of Jinja templates."""
    directories = os.environ.get("MEOPT_TEMPLATES", "").split(":")
    for package in ("trl", "axolotl", "vllm", "unsloth"):
        spec = importlib.util.find_spec(package)
        directories += spec.submodule_search_locations if spec else []
    return sorted({path for d in directories if d for path in glob.glob(os.path.join(d, "**", "*.jinja"), recursive=True)})


def read(path):
    with open(path, encoding="utf-8", newline="") as f:
        return f.read()


def render(template, record, **more):
    """The text, and what the template marks as generated after the header; (None, None): it refuses the record."""
    try:
        (text,), marks = render_jinja_template([json.loads(json.dumps(record["messages"]))], chat_template=template, tools=record.get("tools"),
                                               bos_token=BOS, eos_token=END, date_string=DATE, **more)
        return text, [text[after_header(text, a) : b] for a, b in marks[0]] if marks else None
    except Exception:
        return None, None


def after_header(text, begin):
    """Where a mark begins without what it has of the assistant's header: trl's marks of Qwen 2.5 and DeepSeek begin in it."""
    for header in ("<｜Assistant｜>", "<|im_start|>assistant\n"):
        for n in range(len(header), 0, -1):
            if begin + n >= len(header) and text.startswith(header, begin + n - len(header)):
                return begin + n
    return begin


def write(test, requests):
    """What meopt makes of each request: {"text", "labels"} or {"error"}."""
    with open("requests.jsonl", "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"bos": BOS, "eos": END, **r}) + "\n" for r in requests)
    done = subprocess.run([test, "requests.jsonl"], capture_output=True, check=True)
    return [json.loads(line) for line in done.stdout.decode("utf-8").split("\n") if line]


def compare(test, path):
    """Prints what is different; returns the numbers of equal, refused and different texts and of equal labels; None: the template is unknown."""
    template = read(path)
    written = write(test, [{"jinja": template, "record": r} for r in RECORDS] + [{"jinja": template, "ask": m} for m in ASKED])
    if written[0].get("error") == "unknown":
        return None
    equal = refused = different = marked = 0
    for i, result in enumerate(written):
        if i < len(RECORDS):
            text, marks = render(template, RECORDS[i], return_assistant_tokens_mask="generation %}" in template)
            expected = (text,)
        else:
            record, marks = {"messages": ASKED[i - len(RECORDS)]}, None
            expected = [render(template, record, add_generation_prompt=True, **k)[0] for k in ({"enable_thinking": False}, {})]
        if "error" in result:
            refused += expected[0] is not None
        elif result["text"] not in expected:
            different += 1
            print("   %d: meopt %r, expected %r" % (i, result["text"], expected[0]))
        elif marks is not None and "".join(marks) != "".join(result["labels"]):
            different += 1
            print("   %d: labels %r, expected %r" % (i, result["labels"], marks))
        else:
            equal += 1
            marked += marks is not None
    print("%s %d equal, %d refused of %d, %d with labels: %s" % ("DIFFERENT" if different else "equal", equal, refused, len(written), marked, path))
    return equal, refused, different, marked


def main():
    found = [compare(sys.argv[1], path) for path in templates()]
    known = [f for f in found if f]
    total = [sum(f[i] for f in known) for i in range(4)]
    print("%d templates, %d known; conversations: %d equal, %d refused, %d different; %d with labels" % (len(found), len(known), *total))
    sys.exit(total[2] > 0)


if __name__ == "__main__":
    main()
