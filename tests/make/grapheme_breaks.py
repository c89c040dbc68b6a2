#!/usr/bin/env python3
"""Rows of core/text/graphemes.c, from src/tables.rs of the crate unicode-segmentation that Hugging Face's `tokenizers` is built with (1.13.3 in
0.23.3, Unicode 17). Syllables of Hangul are computed; regional indicators have no rule, because two of them have more than five bytes.
Usage: grapheme_breaks.py TABLES.RS"""
import re
import sys

NAMES = {"Control": "CONTROL", "CR": "CONTROL", "LF": "CONTROL", "Extend": "EXTEND", "ZWJ": "ZWJ", "SpacingMark": "SPACING",
         "Prepend": "PREPEND", "L": "L", "V": "V", "T": "T", "InCB_Consonant": "CONSONANT", "Extended_Pictographic": "PICTURE"}


def point(text):
    return int(text[3:-1], 16) if text.startswith("\\u") else ord({"\\r": "\r", "\\n": "\n"}.get(text, text))


def table(source, name, rest):
    body = source[source.index("const " + name):]
    return re.findall(r"\(\s*'([^']+)',\s*'([^']+)'" + rest + r"\s*\)", body[:body.index("];")])


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        source = f.read()
    extends = {p for a, b in table(source, "InCB_Extend_table", "") for p in range(point(a), point(b) + 1)}
    linkers = set(map(point, re.findall(r"'([^']+)'", re.search(r"fn is_incb_linker.*?\n(.*?)\n", source).group(1))))
    rows = []
    for a, b, name in table(source, "grapheme_cat_table", r",\s*GC_(\w+)"):
        if name not in NAMES:
            continue
        for p in range(point(a), point(b) + 1):
            kind = "LINKER" if p in linkers else "OUTSIDE" if name == "Extend" and p not in extends else NAMES[name]
            if rows and rows[-1][1] == p - 1 and rows[-1][2] == kind:
                rows[-1][1] = p
            else:
                rows.append([p, p, kind])
    for first, last, kind in rows:
        print("{0x%X, 0x%X, %s}," % (first, last, kind))


main()
