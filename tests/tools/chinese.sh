#!/bin/sh
# Pages in Chinese say what the English ones say. By section, NAME.zh_CN.md has the commands and code of NAME.md (but for comments), its
# numbers, its words in `code` and its links. Chinese and Latin words have a space between them, and punctuation is Chinese. By section, a
# page of man/zh_CN has the options, keys, variables, files, commands, examples, references and numbers of the page in man.
set -eu
SOURCE=${MEOPT_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
command -v python3 >/dev/null || { echo "python3 is missing"; exit 77; }
cd "$SOURCE"
exec python3 - <<'PYTHON'
import collections, os, re, sys

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CHINESE = "\u3400-\u9fff"
SPACING = re.compile(f"[{CHINESE}][A-Za-z0-9]|[A-Za-z0-9][{CHINESE}]|[{CHINESE}] ?[,;:?!()]|[{CHINESE}]\\.(?=\\s|$)|\u3000"
                     f"|[{CHINESE}] +[{CHINESE}]|[，。；：、（）] (?!\\|)| [，。；：、（）]")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def without_comment(line):
    return re.sub(r"( {2,}| +#).*", "", line.strip())


def spacing(text):
    """Lines with Chinese and Latin words, or punctuation, set as no Chinese page sets them; column gaps in code blocks are well."""
    for line in text.splitlines():
        line = re.sub(r"^ +", "", line) if not line.startswith("    ") else re.sub(r"^ {4}.*? {2,}", "", line)
        for found in SPACING.finditer(re.sub(r"`[^`]*`", "`", line)):
            yield f"spacing or punctuation at '{line[max(0, found.start() - 8):found.end() + 8]}'"


def markdown_sections(text):
    """[(level, facts)] of the headings; facts: what a translation keeps."""
    sections = []
    for line in text.splitlines():
        heading = re.match(r"(#+) ", line)
        if heading:
            sections.append((len(heading[1]), collections.defaultdict(collections.Counter)))
        facts = sections[-1][1]
        if "简体中文" in line and "English" in line:
            continue
        if line.startswith("    "):
            facts["code"][without_comment(line)] += 1
            facts["order"].update({f"{len(facts['order'])}: {without_comment(line)}": 1})
        for link in LINK.findall(line):
            facts["link"][link.replace(".zh_CN.md", ".md")] += 1
        for number in NUMBER.findall(line.replace("zh_CN", "")):
            facts["number"][number] += 1
        if not line.startswith("    "):
            for code in re.findall(r"`([^`]+)`", line):
                facts["code"][code] += 1
    return sections


def slugs(path):
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)", read(path), re.M)}


def links(path, text):
    for link in LINK.findall(text):
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        if target and not os.path.exists(target):
            yield f"link to {target}, which is missing"
        elif anchor and anchor not in slugs(target or path):
            yield f"link to #{anchor}, which is missing"


def differences(english, chinese, facts=markdown_sections):
    one, two = facts(english), facts(chinese)
    if [level for level, _ in one] != [level for level, _ in two]:
        yield f"{len(one)} headings in English, {len(two)} in Chinese, or other levels"
        return
    for number, ((_, a), (_, b)) in enumerate(zip(one, two), 1):
        for kind in sorted(set(a) | set(b)):
            for name, missing in (("Chinese", a[kind] - b[kind]), ("English", b[kind] - a[kind])):
                for fact in missing:
                    yield f"heading {number}: the {name} page lacks the {kind} {fact}"


def manual_sections(text):
    """As markdown_sections, of a manual page in mdoc; its text may have another order, so that a fact counts once."""
    sections = []
    literal = False
    for line in text.splitlines():
        if re.match(r"\.(Sh|Ss) ", line):
            sections.append((line[1:3], collections.defaultdict(collections.Counter)))
        if not sections:
            continue
        facts = sections[-1][1]
        literal = not line.startswith(".Ed") and (literal or line.startswith(".Bd -literal"))
        if literal or line.startswith(".Dl "):
            facts["code"][without_comment(line)] = 1
            continue
        for number in NUMBER.findall(line):
            facts["number"][number] = 1
        for key in re.findall(r"\b[a-z]+_[a-z_]+\b", line):
            facts["key"][key] = 1
        macro = None
        for word in line[1:].split() if line.startswith(".") else ():
            if word in ("Fl", "Ic", "Cm", "Ev", "Pa", "Li", "Xr", "Ar", "Ql"):
                macro = word
            elif re.fullmatch("[A-Z][a-z]|[|]", word) or (word in ",;" and line.startswith(".Pq")):
                macro = None
            elif macro and word.isascii() and not re.fullmatch("[,.;:()]+", word):
                facts[macro][word] = 1
                macro = None if macro == "Xr" and word.isdigit() else macro
    return sections


failed = []
names = sorted(f[:-9] for f in os.listdir(".") if f.endswith(".zh_CN.md"))
assert {"README", "INSTALL"} <= set(names), names
for name in names:
    english, chinese = read(f"{name}.md"), read(f"{name}.zh_CN.md")
    findings = [*differences(english, chinese), *spacing(chinese), *links(f"{name}.md", english), *links(f"{name}.zh_CN.md", chinese)]
    for page, other in ((english, f"{name}.zh_CN.md"), (chinese, f"{name}.md")):
        if f"]({other})" not in page:
            findings.append(f"no link to {other}")
    failed += [f"{name}.zh_CN.md: {f}" for f in findings]
pages = [f"{folder}/{name}" for folder in ("man1", "man5", "man7") for name in sorted(os.listdir(f"man/zh_CN/{folder}"))]
for name in pages:
    page = read(f"man/zh_CN/{name}")
    text = re.sub(r"^\..*", "", page, flags=re.M)
    enclosed = re.findall(rf"^\.(?:Pq|Brq|Dq|Sq|Ql) .* Ns [，。；：、（）].*", page, re.M)
    failed += [f"man/zh_CN/{name}: punctuation inside the enclosure: {line}" for line in enclosed]
    same = differences(read(f"man/{os.path.basename(name)}"), page, manual_sections)
    failed += [f"man/zh_CN/{name}: {f}" for f in [*same, *spacing(text)]]
    try:
        page.encode("gbk")
    except UnicodeEncodeError as error:
        failed.append(f"man/zh_CN/{name}: {error}")
# each kind of change on one side alone is found
text = read("README.md")
changes = [(r"^    meopt plan", "    meopt plam"), (r"\d\d\d\.\d MiB", "1.5 MiB"), (r"\]\(man/meopt-t", "](man/meopt-u"), (r"`meopt plan", "`meopt p"),
           (r"^## ", "### "), (r"^    meopt config new digits.*\n(.*\n)", r"\1")]
for pattern, new in changes:
    changed = re.sub(pattern, new, text, count=1, flags=re.M)
    assert changed != text, pattern
    if not list(differences(changed, text)) or not list(differences(text, changed)):
        failed.append(f"a change of {pattern} in README.md remains undetected")
text = read("man/meopt-sbatch.1")
for pattern, new in ((r"^\.It Fl -gres", ".It Fl -gras"), (r"^\.Dl sbatch", ".Dl sbatsch"), (r"\(default 180\)", "(default 200)")):
    changed = re.sub(pattern, new, text, count=1, flags=re.M)
    if changed == text or not list(differences(changed, text, manual_sections)):
        failed.append(f"a change of {pattern} in meopt-sbatch(1) remains undetected")
for wrong in ("用PyTorch 打开", "打开, 然后", "显存 和内存", "打开 ，然后"):
    if not list(spacing(wrong)):
        failed.append(f"'{wrong}' is not found")
print("\n".join(failed) or f"{len(names) + len(pages)} pages")
sys.exit(1 if failed else 0)
PYTHON
