#!/usr/bin/env python3
"""Golden data of tests/unit/text_record.c: conversations as transformers (5.23.0) renders them by templates in the form of published ones, with
the assistant's part marked. Usage: chat_templates.py (tests/data/tokenizers/chats.jsonl is written)"""
import json
import os
import random

from transformers.utils.chat_template_utils import render_jinja_template

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "tokenizers", "chats.jsonl")
TURN = """{{- '<|im_start|>' + message.role + '\\n' }}{%- if message.role == 'assistant' %}{% generation %}{{- message.content + '<|im_end|>' }}\
{% endgeneration %}{%- else %}{{- message.content + '<|im_end|>' }}{%- endif %}{{- '\\n' }}"""
EACH = "{%- for message in messages %}" + TURN + "{%- endfor %}"


def system(text):
    return "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\n" + text + "<|im_end|>\\n' }}{%- endif %}"


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
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.query and (loop.last or thought) %}
            {%- set written = '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' %}
            {%- set content = content.lstrip('\\n') %}
            {%- if '</think>' in message.content %}
                {%- set content = written + content %}
            {%- else %}
                {{- written }}
            {%- endif %}
        {%- endif %}
        {% generation %}{{- content + '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}
    {%- endif %}
{%- endfor %}"""
LLAMA3 = """{%- for message in messages %}
    {%- if loop.first %}{{- '<|begin_of_text|>' }}{%- endif %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {%- if message.role == 'assistant' %}{% generation %}{{- message.content | trim + '<|eot_id|>' }}{% endgeneration %}
    {%- else %}{{- message.content | trim + '<|eot_id|>' }}{%- endif %}
{%- endfor %}"""
TEMPLATES = {"chatml": EACH, "qwen2": system("You are a helpful assistant.") + EACH,
             "qwen2.5": system("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.") + EACH, "qwen3": QWEN3, "llama3": LLAMA3}
THOUGHT = "<think>\n\nLet me see.\n\n</think>\n\n"


def conversations():
    turn = lambda role, content: {"role": role, "content": content}
    ask, say = lambda c: turn("user", c), lambda c: turn("assistant", c)
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
    r = random.Random(1)
    pieces = ["a", " ", "\n", "</think>", "<think>", "é", "\u3000", "<tool_response>", "</tool_response>", "b"]
    for _ in range(25):
        roles = [r.choice(["system", "user", "user", "assistant", "assistant"]) for _ in range(r.randrange(1, 7))]
        yield [turn(role, "".join(r.choice(pieces) for _ in range(r.randrange(7)))) for role in roles + ["assistant"]]


def main():
    with open(OUT, "w", encoding="utf-8") as f:
        for name, template in TEMPLATES.items():
            for messages in conversations():
                (text,), (marked,) = render_jinja_template([messages], chat_template=template, return_assistant_tokens_mask=True)
                labels = [text[a:b] for a, b in marked]
                json.dump({"template": name, "messages": messages, "text": text, "labels": labels}, f, separators=(",", ":"))
                f.write("\n")


main()
