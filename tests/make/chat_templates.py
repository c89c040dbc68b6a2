#!/usr/bin/env python3
"""Golden data of tests/unit/text_record.c: conversations as transformers (5.24.0) renders them by published templates; the templates below, which
must render the same, mark what is learnt. Usage: chat_templates.py ROW=FILE.jinja... (tests/data/tokenizers/chats.jsonl is written)"""
import json
import os
import random
import sys

from transformers.utils.chat_template_utils import render_jinja_template

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "tokenizers", "chats.jsonl")
TURN = """{{- '<|im_start|>' + message.role + '\\n' }}{%- if message.role == 'assistant' %}{% generation %}{{- message.content + '<|im_end|>\\n' }}\
{% endgeneration %}{%- else %}{{- message.content + '<|im_end|>\\n' }}{%- endif %}"""
EACH = "{%- for message in messages %}" + TURN + "{%- endfor %}"


def system(text):
    return "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\n" + text + "<|im_end|>\\n' }}{%- endif %}"


def default(text):
    return EACH if text is None else system(text) + EACH


# Thoughts before the last question are left out; after it they are written in one form, and the last answer has one.
QWEN3 = """{%- set ns = namespace(query=messages|length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- if ns.open and message.role == 'user' and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.open = false %}
        {%- set ns.query = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role != 'assistant' %}""" + TURN + """
    {%- else %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.query and (loop.last or thought) %}
            {%- set written = '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' %}
            {%- set content = content.lstrip('\\n') %}
            {%- if thought or (message.reasoning_content is not string and '</think>' in message.content) %}
                {%- set content = written + content %}
            {%- else %}
                {{- written }}
            {%- endif %}
        {%- endif %}
        {% generation %}{{- content + '<|im_end|>\\n' }}{% endgeneration %}
    {%- endif %}
{%- endfor %}"""
LLAMA3 = """{%- for message in messages %}
    {%- if loop.first %}{{- '<|begin_of_text|>' }}{%- endif %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {%- if message.role == 'assistant' %}{% generation %}{{- message.content | trim + '<|eot_id|>' }}{% endgeneration %}
    {%- else %}{{- message.content | trim + '<|eot_id|>' }}{%- endif %}
{%- endfor %}"""
REFUSE = """{%- if ns.open %}{{- raise_exception('no question') }}{%- endif %}{%- for message in messages[1:] if message.role == 'system' %}\
{{- raise_exception('not first') }}{%- endfor %}"""
QWEN35 = QWEN3.replace("message.content.startswith", "message.content|trim is string and (message.content|trim).startswith")
QWEN35 = QWEN35.replace("message.content.endswith", "(message.content|trim).endswith").replace("message.content +", "message.content|trim +")
QWEN35 = QWEN35.replace("set content = message.content %", "set content = message.content|trim %").replace(" and (loop.last or thought)", "")
QWEN35 = QWEN35.replace("thought.strip('\\n')", "thought|trim").replace("            {%- set content = content.lstrip('\\n') %}\n        {%- endif", "        {%- endif")
QWEN35 = QWEN35.replace("{%- set content = content.lstrip('\\n') %}", "").replace("{%- for message in messages %}", REFUSE + "{%- for message in messages %}", 1)
QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
LFM2 = "{{- bos_token }}{%- if messages[0].role == 'system' and not messages[0].content %}{%- set messages = messages[1:] %}{%- endif %}" + EACH
SMOLLM2 = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TEMPLATES = {"chatml": EACH, "qwen2": default("You are a helpful assistant."), "qwen2.5": default(QWEN), "qwen3": QWEN3, "llama3": LLAMA3,
             "chatml-bos": "{{- bos_token }}" + EACH, "qwen3-thinking": QWEN3, "qwen3.5": QWEN35, "smollm2": default(SMOLLM2), "lfm2": LFM2}
THINKING = "qwen3", "qwen3-thinking", "qwen3.5"
THOUGHT = "<think>\n\nLet me see.\n\n</think>\n\n"


def conversations():
    turn = lambda role, content, **more: {"role": role, "content": content, **more}
    ask, say = lambda c: turn("user", c), lambda c, thought=None: turn("assistant", c, **({"reasoning_content": thought} if thought is not None else {}))
    yield [ask("Hi"), say("Hello")]
    yield [turn("system", "Be kind."), ask("Hi"), say("Hello")]
    yield [turn("system", ""), ask(""), say("")]
    yield [ask("1+1?"), say("2"), ask("2+2?"), say("4"), ask("3+3?"), say("6")]
    yield [ask("1+1?"), say("2"), ask("2+2?")]
    yield [ask(" \n Hi\t"), say("\n\n Hello \n")]
    yield [ask("床前明月光"), say("\u3000疑是地上霜\xa0\x1c\x85\u2003")]
    yield [say("I begin.")]
    yield [say("I begin."), say("And go on.")]
    yield [ask("Hi"), say("One."), say("Two.")]
    yield [ask("Hi"), turn("system", "Be brief."), say("Yes")]
    yield [ask("1+1?"), say(THOUGHT + "2"), ask("2+2?"), say(THOUGHT + "4")]
    yield [ask("2+2?"), say(THOUGHT + "4"), say(THOUGHT + "\n5\n"), say("6")]
    yield [ask("2+2?"), say("<think>\n\n</think>\n\n4")]
    yield [ask("2+2?"), say("</think>4"), ask("3"), say("a<think>b<think>c</think>d</think>\n\ne")]
    yield [ask("2+2?"), say("I call"), ask("<tool_response>4</tool_response>"), say("It is 4.")]
    yield [ask("2+2?"), say(THOUGHT + "I call"), ask("<tool_response>\n4\n</tool_response>"), say(THOUGHT + "It is 4.")]
    yield [ask("<tool_response>4"), say(THOUGHT)]
    yield [ask("<|im_end|>\n<|im_start|>assistant\n"), say("<|eot_id|>")]
    yield [ask("2+2?"), say("\n4", "\n Let me see. \n"), ask("3"), say("\n5\n", "\n\nSo\n")]
    yield [ask("2+2?"), say("4", ""), say("</think>5", "no"), say("\n6", "")]
    yield [ask("2+2?"), say("I call"), ask(" <tool_response>\n4\n</tool_response>"), say("It is 4.", "\n")]
    r = random.Random(1)
    pieces = ["a", " ", "\n", "</think>", "<think>", "é", "\u3000", "<tool_response>", "</tool_response>", "b"]
    for _ in range(25):
        roles = [r.choice(["system", "user", "user", "assistant", "assistant"]) for _ in range(r.randrange(1, 7))]
        yield [turn(role, "".join(r.choice(pieces) for _ in range(r.randrange(7)))) for role in roles + ["assistant"]]


def render(template, messages, **more):
    try:
        (text,), marked = render_jinja_template([messages], chat_template=template, bos_token="<|begin_of_text|>", eos_token="<|endoftext|>", **more)
        return text, marked[0] if marked else []
    except Exception:
        return None, []


def main():
    published = dict(a.split("=", 1) for a in sys.argv[1:])
    assert published.keys() == TEMPLATES.keys(), TEMPLATES.keys() - published.keys()
    with open(OUT, "w", encoding="utf-8") as f:
        for name, template in TEMPLATES.items():
            with open(published[name], encoding="utf-8", newline="") as file:
                original = file.read()
            for given in (None, "Be kind.", ""):
                messages = [{"role": "system", "content": given}] * (given is not None) + [{"role": "user", "content": " 1+1?\n"}]
                text = render(original, messages, add_generation_prompt=True, enable_thinking=False)[0]
                json.dump({"template": name, "system": given, "question": " 1+1?\n", "text": text}, f, separators=(",", ":"))
                f.write("\n")
            for messages in conversations():
                if name not in THINKING and any("reasoning_content" in m for m in messages):
                    continue
                text, marked = render(template, messages, return_assistant_tokens_mask=True)
                assert text == render(original, messages)[0], (name, messages, text, render(original, messages)[0])
                labels = text and [text[a:b] for a, b in marked]
                json.dump({"template": name, "messages": messages, "text": text, "labels": labels}, f, separators=(",", ":"))
                f.write("\n")


main()
