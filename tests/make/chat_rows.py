#!/usr/bin/env python3
"""Golden data of tests/unit/text_record.c for each row of chat_templates: conversations as transformers (5.24.0) renders them by a published template
of the row, and what trl's training template of the row marks. Cases that meopt refuses by name are those that the template refuses, too; others
are left out. Usage: chat_rows.py BUILD/tests TEMPLATE.jinja... (tests/data/tokenizers/chat_rows.jsonl is written)"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tools"))
from compare_templates import ASKED, BOS, CONVERSATIONS, RECORDS, WITH_TOOLS, read, render, write  # noqa: E402

OUT = os.path.abspath(os.path.join(HERE, "..", "data", "tokenizers", "chat_rows.jsonl"))
CHATS = len(CONVERSATIONS)
FIRST_PARTS = CHATS + len(WITH_TOOLS)
CHOSEN = [0, 1, 2, 3, 6, 9, 12, 14, 15, 20] + [CHATS + i for i in (0, 2, 3, 4, 6, 7, 9)] + [FIRST_PARTS + i for i in (1, 3)] + [len(RECORDS) - 2]


def rows(tests, paths):
    """The templates of each row: the shortest first, then those that mark what is learnt."""
    found = {}
    lines = subprocess.run([os.path.join(tests, "test_chat_template"), *paths], capture_output=True, check=True).stdout.decode("utf-8")
    for line in lines.splitlines():
        _, row, path = line.split(" ", 2)
        found.setdefault(row, []).append(path)
    found.pop("-", None)
    return {row: sorted(files, key=lambda p: ("generation %}" in read(p), len(read(p)), read(p))) for row, files in sorted(found.items())}


def cases(test, row, files):
    template = read(files[0])
    marking = read(files[-1]) if "generation %}" in read(files[-1]) else None
    written = write(test, [{"template": row, "record": RECORDS[i]} for i in CHOSEN] + [{"template": row, "ask": m} for m in ASKED[:2]])
    refused = 0
    for i, result in zip(CHOSEN, written):
        text = render(template, RECORDS[i])[0]
        both = text is None and "error" in result
        if text != result.get("text") or (both and refused == 3):
            continue
        refused += both
        case = {"template": row, **RECORDS[i], "text": text}
        marks = render(marking, RECORDS[i], return_assistant_tokens_mask=True)[1] if marking and text is not None else None
        if marks is not None:
            case["learnt"] = "".join(marks)
        yield case
    for messages, result in zip(ASKED, written[len(CHOSEN):]):
        texts = [render(template, {"messages": messages}, add_generation_prompt=True, **k)[0] for k in ({"enable_thinking": False}, {})]
        if result.get("text") in texts and "text" in result:
            yield {"template": row, "ask": messages, "text": result["text"]}


def main():
    tests, paths = os.path.abspath(sys.argv[1]), [os.path.abspath(p) for p in sys.argv[2:]]
    os.chdir(tempfile.mkdtemp())
    with open(OUT, "w", encoding="utf-8") as f:
        for row, files in rows(tests, paths).items():
            for case in cases(os.path.join(tests, "test_text_record"), row, files):
                json.dump({**case, "bos": BOS}, f, separators=(",", ":"), ensure_ascii=False)
                f.write("\n")


main()
