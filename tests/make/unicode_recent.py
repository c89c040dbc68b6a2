#!/usr/bin/env python3
"""Rows of core/text/recent.c: characters that Unicode assigned after version 9, by the category that Hugging Face's `tokenizers` (0.23.3,
Unicode 16) gives them, and a character of version 9 with this category and as many bytes. perl knows version 9. Usage: unicode_recent.py"""
import subprocess

from tokenizers import Regex, pre_tokenizers

POINTS = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cf".split()


def matches(pattern):
    split, rest = pre_tokenizers.Split(Regex(pattern), "removed"), set()
    for at in range(0, len(POINTS), 20000):
        for text, _ in split.pre_tokenize_str("".join(map(chr, POINTS[at:at + 20000]))):
            rest.update(map(ord, text))
    return set(POINTS) - rest


def size(p):
    return len(chr(p).encode())


def main():
    script = r'for (0 .. 0x10ffff) { next if 0xd800 <= $_ && $_ < 0xe000; print "$_\n" if chr($_) =~ /\p{Present_In: 9.0}/ }'
    old = set(map(int, subprocess.run(["perl", "-e", script], capture_output=True, text=True, check=True).stdout.split()))
    han, rows = matches(r"\p{Han}"), []
    known = {c: matches(r"\p{%s}" % c) for c in CATEGORIES}
    same = {}
    for category in CATEGORIES: # in four bytes there was no Pd, Ps or Pe
        for q in sorted(known[category] & old, reverse=True):
            same[category, size(q), q in han] = q
    for category, members in known.items():
        for p in sorted(members - old):
            like = same.get((category, size(p), p in han)) or same["Po", size(p), False]
            if rows and rows[-1][1] == p - 1 and rows[-1][2] == like:
                rows[-1][1] = p
            else:
                rows.append([p, p, like])
    for first, last, like in sorted(rows):
        print("{0x%X, 0x%X, 0x%X}," % (first, last, like))


main()
