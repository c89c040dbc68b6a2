"""chinese_check.py CATALOGUE ENGLISH CHINESE GBK: compares what every command shows in a terminal in three locales.

Each argument but the first names two captures of one screen: FILE as it is, FILE.joined with the lines that the terminal had wrapped as
one. A line '@@@ ARGUMENTS' begins a command, '@@@ status N' ends it. Checked are:
  - the exit codes are the same in all
  - nothing is left in English: no message of the catalogue with a different translation, and no three English words in a row
  - no broken character, and in GBK no '?' for a character
  - no line is wider than the terminal, but for errors, logs, commands to type, and paths
  - columns that are aligned in English are aligned in Chinese, by display width
"""
import gettext
import re
import sys
import unicodedata

CONVERSION = re.compile(r"%(?:\d+\$)?[-+ #0]*[\d*.]*(?:hh|h|ll|l|z|j)?[diouxXcsaefgEFGp]|%%")
COMMANDS = re.compile(r"  [a-z]+( [a-z]+)?  +\S*[\u4e00-\u9fff]")  # a command or topic of the help, and what it does
PROSE = re.compile(r"(?<![\w./=<'-])[a-z]{2,}(?: [a-z]{2,}){2,}(?![\w./=-])")
VERBATIM = re.compile(r"^\s*(meopt|mpirun|srun|sbatch|#|>|\$) ?|^[\w.]+ = |^\s*[{}\[\]\"]|^a line of")  # commands, configurations, JSON, a log
LOGS = re.compile("meopt (train|embed|eval) |page")
LIBC = re.compile(r"\s+".join("cannot open shared object file: No such file or directory".split()))
LIBC_IS_ENGLISH = not gettext.find("libc", "/usr/share/locale", ["zh_CN"])  # as on Ubuntu without its language pack
SCRIPT = re.compile("meopt sbatch quick")
found = []


def width(text):
    return len(text) if text.isascii() else sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def sections(path):
    """[(arguments, lines, exit code)]"""
    all = []
    for line in open(path, encoding="utf-8"):
        line = line.rstrip()
        if line.startswith("@@@ status "):
            all[-1] = (all[-1][0], all[-1][1], line[11:])
        elif line.startswith("@@@ "):
            all.append((line[4:], [], None))
        elif all and all[-1][2] is None:
            all[-1][1].append(line)
    return all


def plain(text):
    return re.sub(r"\s+", " ", text)


def messages(catalogue):
    """[(first part, regular expression, message)] of those with several words; {message} of one word."""
    texts, words = [], set()
    for message, translation in catalogue.items():
        if not isinstance(message, str) or not message or message == translation:
            continue
        parts = [plain(part) for part in CONVERSION.split(message)]
        longest = max(parts, key=len)
        if re.fullmatch(r"[a-zA-Z]+", message):
            words.add(message)
        if len(longest.strip()) < 4 or " " not in longest.strip() or not re.search("[a-z]{2}", longest):
            continue
        expression = ".{0,80}?".join(re.escape(part) for part in parts)
        expression = (r"(?<![\w.-])" if parts[0][:1].isalnum() else "") + expression
        texts.append((longest, expression + (r"(?![\w=-])" if parts[-1][-1:].isalnum() else ""), message))
    return texts, words


def english_left(name, lines, texts, words, english):
    kept = [line for line in lines if not VERBATIM.match(line)]
    if SCRIPT.match(name):  # its comments
        kept = [line[2:] for line in lines if re.match("# [^ ]", line)]
    if LIBC_IS_ENGLISH:
        kept = LIBC.sub("", "\n".join(kept)).split("\n")
    text = plain(" ".join(kept))
    for longest, expression, message in texts:
        if longest in text and re.search(expression, text):
            found.append(f"{name}: in English: {message!r}")
    for line in kept if not SCRIPT.match(name) else []:
        for field in re.split(r"\s{2,}|│", line.strip()):
            if field in words and not name.startswith(("form", "config list")) and not (COMMANDS.match(line) and line.startswith(f"  {field} ")):
                found.append(f"{name}: in English: {field!r} in {line!r}")
        prose = PROSE.search(re.sub(r"'[^']*'|meopt [a-z]+ [a-z]+|Emulated card of wave \d+", "", line))
        if prose:
            found.append(f"{name}: in English: {prose[0]!r} in {line!r}")


def fields(line):
    """[(begin, end)] of the fields between two blanks or more, in columns. A field that begins with a number ends with it."""
    return [(width(line[: m.start()]), width(line[: m.start() + len(re.match(r"-?[\d.e+-]+|.*", m[0])[0])]))
            for m in re.finditer(r"\S+(?: \S+)*", line)]


def alignment(name, english, chinese):
    if len(english) != len(chinese):
        return
    tables, count = [], 0
    for i, line in enumerate(english):
        n = len(fields(line))
        if not re.search(r"\w", line):  # of a plot
            n = 0
        if n < 2 or n != count:
            tables.append([])
        tables[-1].append(i)
        count = n if n > 1 else 0
    for table in tables:
        before, now = [fields(english[i]) for i in table], [fields(chinese[i]) for i in table]
        if len(table) < 2 or len({len(f) for f in now}) != 1 or len(now[0]) != len(before[0]):
            continue
        for k in range(len(before[0])):
            sides = [side for side in (0, 1) if len({f[k][side] for f in before}) == 1]
            if sides and all(len({f[k][side] for f in now}) > 1 for side in sides):
                found.append(f"{name}: column {k + 1} is not aligned:\n" + "\n".join(chinese[i] for i in table))


with open(sys.argv[1], "rb") as file:
    texts, words = messages(gettext.GNUTranslations(file)._catalog)
english, chinese, gbk = (sections(f) for f in sys.argv[2:5])
joined = sections(sys.argv[3] + ".joined")
if not len(english) == len(chinese) == len(gbk) == len(joined) or len(english) < 90:
    sys.exit(f"{len(english)} commands in English, {len(chinese)} in Chinese, {len(gbk)} in GBK")
shown = before = 0
for (name, lines, code), (_, split, zh_code), (_, whole, _), (_, gbk_lines, gbk_code) in zip(english, chinese, joined, gbk):
    if name == "end":
        continue
    if not code == zh_code == gbk_code or code is None:
        found.append(f"{name}: exit codes {code}, {zh_code} and {gbk_code}")
    texts_of = " ".join(split), " ".join(gbk_lines)
    asked, after_key = texts_of[0].count("?"), re.match(r"(list of runs|dashboard|form) \S", name)  # a slow machine may still show the page before
    if any("\ufffd" in t for t in texts_of) or texts_of[1].count("?") > (max(asked, before) if after_key else asked):
        found.append(f"{name}: broken characters: " + next((l for l in gbk_lines if "?" in l or "\ufffd" in l), ""))
    before = asked
    shown += bool(re.search("[\u4e00-\u9fff]", texts_of[0]))
    english_left(name, whole, texts, words, lines)
    if not after_key:
        alignment(name, lines, split)
        alignment(name + " in GBK", lines, gbk_lines)
    for line in whole:
        if width(line) > 100 and code == "0" and not (LOGS.match(name) or SCRIPT.match(name)) and not line.startswith("meopt: ") and not re.search(r"\S{60}", line) and not VERBATIM.match(line):
            found.append(f"{name}: wider than the terminal: {line}")
if shown < 0.9 * len(english):
    found.append(f"only {shown} of {len(english)} screens are Chinese")
print("\n".join(found) or f"{len(english)} screens")
sys.exit(1 if found else 0)
