"""Called by tests/cli/real_tokenizers.sh, in an empty directory: texts of 10 MB (English, Chinese, random UTF-8; each character of Unicode),
tokenizers in the form of published ones, trained on them, and those of the directories below $MEOPT_TOKENIZERS, when it is set. Prints a
line for each pair of both, and ends with 1 unless meopt tokenize writes the tokens of `tokenizers` for every document.
Usage: compare_tokenizers.py MEOPT [MEGABYTES]"""
import glob
import json
import os
import random
import resource
import subprocess
import sys

import numpy
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

END = "<|the end of a document|>"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def english(size):
    """Files that every Debian has, over again if they are fewer."""
    documents, n = [], 0
    paths = sorted(glob.glob("/usr/share/common-licenses/*") + glob.glob("/usr/lib/python3*/**/*.py", recursive=True))
    for path in paths * 100:
        with open(path, encoding="utf-8", errors="replace", newline="") as f:
            text = f.read()
        documents += [text[i:i + 20000] for i in range(0, len(text), 20000)]
        n += len(text)
        if n > size:
            return documents
    raise SystemExit("no text below /usr")


def chinese(size):
    """The project's Chinese lines, and characters by Zipf's law with punctuation, digits and Latin words."""
    r, documents, n = random.Random(2), [], 0
    for path in sorted(glob.glob(os.path.join(os.environ["MEOPT_SOURCE"], "po", "*.po"))):
        with open(path, encoding="utf-8") as f:
            documents.append(f.read())
    common = [chr(c) for c in range(0x4E00, 0x9FA6)]
    r.shuffle(common)
    weights = [1 / (i + 3) for i in range(len(common))]
    while n < size:
        words = r.choices(common, weights, k=2000)
        for at in range(r.randrange(12), len(words), 13):
            words[at] = r.choice("，。、！？：；「」（）《》\n\u3000 ") + r.choice(["", "", "", "2026", "GPU", " 3.5 ", "㐀", "𠀀"])
        documents.append("".join(words))
        n += 6200
    return documents


def point(r):
    while True:
        c = r.choice([r.randrange(128), r.randrange(128, 0x3000), r.randrange(0x3000, 0x10000), r.randrange(0x10000, 0x110000),
                      r.randrange(0x1F000, 0x1FFFF), r.randrange(0x800, 0x1D00), r.randrange(0x10000, 0x12000)])
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def utf8(size):
    r, documents, n = random.Random(1), [], 0
    odd = ("\u180e\x85\xa0\u2028\ufeff\u200b\u200d\u0130\u017f\u212a\u1e9e\ufb01\u0301\u0308\u0323\u0345\ufffd\ud7a3\u1100\u1161\u11a8"
           "\u2126\u212b\u0958\x00\x1f\x7f \n\r\tabc'sS12.,")
    pieces = ["  ", " ", "\n", "\r\n", "'s", "'S", "'ſ", "'LL", "ab", "1234567", "!!", END[:5], "é", "e\u0301", "汉字"]
    while n < size:
        k = r.random()
        if k < .4:
            d = "".join(point(r) for _ in range(r.randrange(400)))
        elif k < .7:
            d = "".join(r.choice(odd) for _ in range(r.randrange(300)))
        elif k < .9:
            d = "".join(r.choice(pieces) for _ in range(300))
        else:
            d = "".join(r.choice("  \n\t\u3000a") for _ in range(200))
        n += len(d.encode())
        documents.append(d)
    return documents


def each_character():
    return ["a%sb 1%s2 .%s, %s\u0301%s" % ((chr(c),) * 5) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def byte_level(pattern, normalizer, ignore_merges=False, begin=None):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), level]) if pattern else level
    if normalizer:
        t.normalizer = normalizer
    return t, trainers.BpeTrainer(vocab_size=30000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  special_tokens=[begin] if begin else [])


def unigram():
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace()])
    return t, trainers.UnigramTrainer(vocab_size=60000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)


def train(texts):
    """Tokenizers by name: the forms of GPT-2, Llama 3, Qwen, GPT-4o and DeBERTa-v2."""
    begin = "<|begin_of_text|>"
    forms = {"gpt2": byte_level(None, None), "llama3": byte_level(LLAMA3, None, True, begin),
             "qwen": byte_level(LLAMA3.replace("{1,3}", ""), normalizers.NFC()), "gpt4o": byte_level(O200K, normalizers.NFKC()),
             "words": byte_level(r"\w+\d|[\w']+|\S\D|\s+", normalizers.NFD()), "unigram": unigram()}
    for name, (t, trainer) in forms.items():
        t.train_from_iterator([d.replace("\0", "") for documents in texts for d in documents[:300]], trainer) # a piece with NUL is refused
        if name == "llama3":
            t.post_processor = processors.TemplateProcessing(single=begin + " $A", special_tokens=[(begin, t.token_to_id(begin))])
    return {name: t for name, (t, _) in forms.items()}


def read(base):
    """The documents' tokens, one after the other, and where each ends."""
    with open(base + ".idx", "rb") as f:
        index = f.read()
    n = int.from_bytes(index[18:26], "little")
    lengths = numpy.frombuffer(index, "<i4", n, 34)
    return numpy.fromfile(base + ".bin", {8: "<u2", 4: "<i4"}[index[17]]).astype(numpy.int64), numpy.cumsum(lengths)


def compare(meopt, name, tokenizer, text, documents):
    """Prints how many documents differ; returns whether none does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([meopt, "tokenize", text + ".jsonl", "--tokenizer", name + ".json", "--end", END, "--threads", "1", "-o", "out", "--json"],
                   check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    tokens, ends = read("out")
    for path in glob.glob("out.*"):
        os.remove(path)
    end, begin, different, first = tokenizer.token_to_id(END), 0, 0, None
    documents = [d for d in documents if d]
    for i, (document, stop) in enumerate(zip(documents, ends)):
        expected = tokenizer.encode(document).ids + [end]
        if expected != tokens[begin:stop].tolist():
            first = first or ascii(document[:60])
            different += 1
        begin = stop
    size = sum(len(d.encode()) for d in documents)
    whole = len(ends) == len(documents) and not different
    print("%-10s %-14s %8d documents %5.1f MB %5.1f MB/s %s" % (name, text, len(documents), size / 1e6, size / 1e6 / seconds, "equal" if whole else
          "DIFFERENT: %d, of %d written, such as %s" % (different, len(ends), first)), flush=True)
    return whole


def main():
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    meopt, size = sys.argv[1], int(float(sys.argv[2] if len(sys.argv) > 2 else 10) * 1e6)
    texts = {"english": english(size), "chinese": chinese(size), "utf8": utf8(size), "each_character": each_character()}
    for text, documents in texts.items():
        with open(text + ".jsonl", "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"text": d}) + "\n" for d in documents if d)
    made = train([texts[t] for t in ("english", "chinese", "utf8")])
    for path in sorted(glob.glob(os.path.join(os.environ.get("MEOPT_TOKENIZERS", "."), "*", "tokenizer.json"))):
        made["published-" + os.path.basename(os.path.dirname(path))] = Tokenizer.from_file(path)
    equal = True
    for name, tokenizer in made.items():
        tokenizer.add_special_tokens([AddedToken(END, special=True)])
        tokenizer.save(name + ".json")
        for text, documents in texts.items():
            equal &= compare(meopt, name, tokenizer, text, documents)
    sys.exit(not equal)


main()
