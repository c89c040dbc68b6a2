"""A terminal as SVG: `tmux capture-pane -e -p | python3 screen_svg.py COLUMNS > FILE`.

Blocks, lines and braille are drawn, not written, so that the picture does not hang on the reader's fonts; text is stretched to its
cells. Python's own library is all it takes."""
import re
import sys
import unicodedata
from xml.sax.saxutils import escape

W, H, FONT = 8.4, 17.0, 14
BACK, FORE = "#16181c", "#d8dade"
BASE = ["#2b2e34", "#e0635c", "#5fb56b", "#d8b14a", "#5b9bd8", "#b781d0", "#4fb3b3", "#c8ccd2",
        "#6b7078", "#f28b82", "#86d292", "#f0cd6a", "#85bbf0", "#d3a4e8", "#7dd3d3", "#ffffff"]


def indexed(n):
    if n < 16:
        return BASE[n]
    if n >= 232:
        return "#%02x%02x%02x" % ((8 + 10 * (n - 232),) * 3)
    levels = [0, 95, 135, 175, 215, 255]
    return "#%02x%02x%02x" % (levels[(n - 16) // 36], levels[(n - 16) // 6 % 6], levels[(n - 16) % 6])


class Style:
    def __init__(self):
        self.reset()

    def reset(self):
        self.fore, self.back, self.bold, self.dim, self.reverse, self.under = None, None, False, False, False, False

    def take(self, text):
        codes = [int(c or 0) for c in re.split("[;:]", text)]
        while codes:
            c = codes.pop(0)
            if c == 0: self.reset()
            elif c == 1: self.bold = True
            elif c == 2: self.dim = True
            elif c == 4: self.under = True
            elif c == 7: self.reverse = True
            elif c == 22: self.bold = self.dim = False
            elif c == 24: self.under = False
            elif c == 27: self.reverse = False
            elif 30 <= c <= 37: self.fore = BASE[c - 30]
            elif 90 <= c <= 97: self.fore = BASE[c - 82]
            elif 40 <= c <= 47: self.back = BASE[c - 40]
            elif 100 <= c <= 107: self.back = BASE[c - 92]
            elif c == 39: self.fore = None
            elif c == 49: self.back = None
            elif c in (38, 48):
                color = None
                if codes and codes[0] == 5: color, codes = indexed(codes[1]), codes[2:]
                elif codes and codes[0] == 2: color, codes = "#%02x%02x%02x" % tuple(codes[1:4]), codes[4:]
                if c == 38: self.fore = color
                else: self.back = color

    def key(self):
        fore, back = self.fore or FORE, self.back or BACK
        if self.reverse: fore, back = back, fore
        return fore, back, self.bold, self.dim, self.under


def cells(line):
    style, x = Style(), 0
    for part in re.split("(\x1b\\[[0-9;:]*m|\x1b[()][A-Z0-9]|\x0e|\x0f)", line):
        if part.startswith("\x1b["): style.take(part[2:-1])
        elif part[:1] not in ("\x1b", "\x0e", "\x0f"):
            for c in part:
                wide = 2 if unicodedata.east_asian_width(c) in "WF" else 1
                yield x, c, wide, style.key()
                x += wide


def shape(c):
    """(x, y, width, height, opacity) in parts of a cell, of what is drawn; None for text."""
    n = ord(c)
    if c == "█": return 0, 0, 1, 1, 1
    if 0x2589 <= n <= 0x258f: return 0, 0, (0x2590 - n) / 8, 1, 1
    if 0x2581 <= n <= 0x2587: return 0, 1 - (n - 0x2580) / 8, 1, (n - 0x2580) / 8, 1
    if 0x2591 <= n <= 0x2593: return 0, 0, 1, 1, (n - 0x2590) / 4
    if c == "│": return 0.45, 0, 0.1, 1, 1
    if c == "─": return 0, 0.47, 1, 0.06, 1
    return None


def draw(lines, columns):
    boxes, texts, dots = [], [], {}
    for row, line in enumerate(lines):
        y, run = row * H, None
        last = ground = None
        for x, c, wide, key in cells(line):
            fore, back, bold, dim, under = key
            if back != BACK and ground and ground[4] == back and abs(ground[0] + ground[2] - x * W) < .01:
                ground[2] += wide * W
            elif back != BACK:
                ground = [x * W, y, wide * W, H, back, 1]
                boxes.append(ground)
            if 0x2800 <= ord(c) <= 0x28ff:
                at = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
                for bit, (i, j) in enumerate(at):
                    if ord(c) - 0x2800 >> bit & 1:
                        dots.setdefault((fore, dim), []).append("M%.1f %.1fh2v2h-2z" % (x * W + 1.2 + i * W / 2, y + 1.2 + j * H / 4))
                run = None
            elif shape(c):
                a, b, w, h, o = shape(c)
                if o * (0.6 if dim else 1) < 1: o = o * (0.6 if dim else 1)
                box = [x * W + a * W, y + b * H, w * W, h * H, fore, o]
                if last and last[4:] == box[4:] and last[1:2] == box[1:2] and last[3] == box[3] and abs(last[0] + last[2] - box[0]) < .01:
                    last[2] += box[2]
                else:
                    boxes.append(box)
                    last = box
                run = None
            elif c == " " and not under:
                if run and run[4].endswith(" "): run = None
                elif run: run[4] += c; run[3] += 1
            else:
                if not run or run[2] != key or run[0] + run[3] != x:
                    run = [x, y, key, 0, ""]
                    texts.append(run)
                run[4] += c
                run[3] += wide
    width, height = columns * W, len(lines) * H
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -8 %g %g" width="%g" height="%g">' % (width + 16, height + 16, width + 16, height + 16),
           '<rect x="-8" y="-8" width="100%%" height="100%%" rx="6" fill="%s"/>' % BACK]
    out += ['<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"%s/>' % (*b[:5], "" if b[5] == 1 else ' opacity="%.2f"' % b[5]) for b in boxes]
    out += ['<path fill="%s"%s d="%s"/>' % (f, ' opacity=".6"' if d else "", "".join(p)) for (f, d), p in dots.items()]
    out.append('<g font-family="DejaVu Sans Mono,Menlo,Consolas,monospace" font-size="%d" xml:space="preserve">' % FONT)
    for x, y, (fore, _, bold, dim, under), n, text in texts:
        text, n = text.rstrip(), n - (len(text) - len(text.rstrip()))
        out.append('<text x="%.1f" y="%.1f" textLength="%.1f" lengthAdjust="spacingAndGlyphs" fill="%s"%s%s%s>%s</text>' % (
            x * W, y + 13, n * W, fore, ' font-weight="bold"' if bold else "", ' opacity=".6"' if dim else "",
            ' text-decoration="underline"' if under else "", escape(text)))
    return "\n".join(out + ["</g></svg>", ""])


if __name__ == "__main__":
    lines = sys.stdin.read().split("\n")
    while lines and not lines[-1].strip(): lines.pop()
    sys.stdout.write(draw(lines, int(sys.argv[1])))
