#!/usr/bin/env python3
"""Golden data of tests/unit/tokenizer.c: tests/data/tokenizers/unigram.cases. SentencePiece's models, trained here on TEXT... with a few rules of
normalization, as transformers' converters write them (5.24), and what `tokenizers` (0.23.3) makes of texts with them. Other parts of
tokenizer.json stand around a small model. Needs sentencepiece and protobuf. Usage: unigram_files.py TEXT..."""
import importlib
import json
import os
import random
import sys
import tempfile

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "tokenizers", "unigram.cases")
slow = importlib.import_module("transformers.convert_slow_tokenizer")
RULES = {"ﬁ": "fi", "①": "1", "ｶ": "カ", "ｶﾞ": "ガ", "e\u0301": "é", "Å": "å", "\t": " ", "\n": " ", "\u3000": " ", "\x01": "", "\u200b": " ",
         "，": ",", "\u1100\u1161": "가", "™": "tm", "\u2126": "ω", "\u0958": "\u0915\u093c", "½": "1⁄2"}


class Merges:
    def __init__(self, path):
        pass

    def extract(self, scores):
        vocabulary = {word: i for i, (word, _) in enumerate(scores)}
        return vocabulary, slow.generate_merges(vocabulary, dict(scores))


class Slow:
    """What a converter asks of transformers' slow tokenizer."""
    keep_accents, do_lower_case, split_by_punct, _extra_ids = False, True, True, 3

    def __init__(self, path, special, **more):
        self.vocab_file, self.special = path, special
        self.__dict__.update(more)

    def convert_tokens_to_ids(self, token):
        return self.special[token]


def train(directory, name, files, **more):
    rules = os.path.join(directory, "rules.tsv")
    with open(rules, "w", encoding="utf-8") as f:
        for a, b in RULES.items():
            f.write(" ".join("%X" % ord(c) for c in a) + "\t" + " ".join("%X" % ord(c) for c in b) + "\n")
    sentencepiece.SentencePieceTrainer.train(input=",".join(files), model_prefix=os.path.join(directory, name), normalization_rule_tsv=rules,
                                             character_coverage=.98, minloglevel=2, num_threads=1, **more)
    return os.path.join(directory, name + ".model")


def convert(name, path, special, **more):
    """Converts with special tokens that are pieces, or come after them."""
    maker = getattr(slow, name + "Converter")
    pieces = [piece for piece, _ in maker(Slow(path, {}, **more)).vocab(maker(Slow(path, {}, **more)).proto)]
    after = [str(t) for t in special if str(t) not in pieces]
    numbers = {str(t): pieces.index(str(t)) if str(t) in pieces else len(pieces) + after.index(str(t)) for t in special}
    t = maker(Slow(path, numbers, **more)).converted()
    t.add_special_tokens(special)
    return t


def converted(directory, files):
    slow.SpmConverter.SpmExtractor = Merges
    unigram = train(directory, "unigram", files, vocab_size=330)
    merged = train(directory, "bpe", files, vocab_size=330, model_type="bpe")
    fallback = train(directory, "bytes", files, vocab_size=560, byte_fallback=True)

    def tokens(mask, *names):
        return [AddedToken(n, special=True) for n in names] + [AddedToken(mask, lstrip=True, special=True)]
    fairseq, bert = tokens("<mask>", "<s>", "<pad>", "</s>", "<unk>"), tokens("[MASK]", "<unk>", "<pad>", "[CLS]", "[SEP]")
    yield convert("XLMRoberta", unigram, fairseq)
    yield convert("Camembert", unigram, fairseq)
    yield convert("BigBird", unigram, bert)
    yield convert("BigBird", merged, bert)
    yield convert("T5", unigram, tokens("<extra_id_0>", "</s>", "<unk>"), legacy=False)
    first = json.loads(convert("T5", unigram, tokens("<mask>", "</s>", "<unk>"), legacy=False).to_str())
    first["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"}, first["pre_tokenizer"]]}
    yield Tokenizer.from_str(json.dumps(first))
    yield convert("Albert", unigram, bert)
    yield convert("DebertaV2", unigram, bert)
    slow.SpmConverter.handle_byte_fallback = True
    yield convert("BertGeneration", fallback, tokens("</s>", "<s>", "<unk>"))


def small(normalizer=None, splitter=None, unknown=0, more=(), fallback=False):
    r = random.Random(4)
    pieces = {"<unk>": 0., "▁": -3., "▁▁": -4.5, **{c: -r.uniform(3, 9) for c in "abcdABCe.,!1 é汉字…"}}
    for _ in range(120):
        pieces["".join(r.choice("▁aabcd") for _ in range(r.randrange(2, 6)))] = -round(r.uniform(2, 12), r.choice([0, 1, 17]))
    if fallback:
        pieces.update({"<0x%02X>" % b: -20. for b in range(256)})
    t = Tokenizer(models.Unigram(list(pieces.items()) + list(more), unknown, fallback))
    if normalizer:
        t.normalizer = normalizer
    if splitter:
        t.pre_tokenizer = splitter
    t.decoder = decoders.Metaspace()
    t.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("</s>", rstrip=True)])
    t.add_tokens([AddedToken("[MASK]", single_word=True)])
    return t


def forms():
    n, p = normalizers, pre_tokenizers
    for scheme in ("always", "first", "never"):
        yield small(n.Sequence([n.Nmt(), n.Strip()]), p.Metaspace(prepend_scheme=scheme, split=scheme != "first"))
        yield small(n.Sequence([n.NFKD(), n.StripAccents(), n.Lowercase()]),
                    p.Sequence([p.Punctuation(), p.Metaspace(prepend_scheme=scheme)]), fallback=scheme == "first")
        yield small(n.Sequence([n.Replace(Regex("^ +"), ""), n.Replace("..", "…"), n.NFKC()]),
                    p.Sequence([p.Digits(True), p.WhitespaceSplit(), p.Metaspace(prepend_scheme=scheme)]))
    yield small(n.Prepend("▁"), p.Whitespace())
    yield small(n.Sequence([n.NFKD(), n.NFD()]), p.Metaspace(prepend_scheme="first"))
    yield small(n.BertNormalizer(), p.BertPreTokenizer(), fallback=True)
    yield small(None, p.Metaspace(), 3, [("ab", -1.), ("a", -30.), ("▁b", -.5)]) # pieces that are there twice


def texts():
    r = random.Random(1)
    odd = "\u0301\u0300\u093c\u094d\u0915\u0958\u200d\u200b\u0600\u0d4e\u0903\u00a9\ufe0f\U0001f469\U0001f1e6\u1100\u1161\u11a8\uac00ﬁÅ①ｶﾞe,，\r\n \t\x00\x01™½"
    pieces = ["<mask>", "[MASK]", "</s>", "<s>", "<unk>", "[SEP]", " ", "  ", "\n", "▁", "▁▁", "..", "1", "a", "ab", "B.", "!", "é", "ﬁ", "汉字", "``", "''"]
    yield from ["", " ", "a", " a", "  abc dé", "\x01a", "Hello, world! It's 12345.", "In the beginning God created the heaven and the earth.",
                "床前明月光，疑是地上霜。", "naïve café Ångström ﬁn", "a <mask> b", "x[MASK]y [MASK]", "\ue000\ue001 \U0001f600", "e\u0301\u0301"]
    for _ in range(30):
        yield "".join(r.choice(pieces) for _ in range(r.randrange(1, 16)))
    for _ in range(40):
        yield "".join(r.choice(odd) for _ in range(r.randrange(1, 24)))
    for _ in range(10):
        yield "".join(chr(r.choice([r.randrange(32, 0x250), r.randrange(0x4e00, 0x9f00), 0x1f600])) for _ in range(16))
    yield from ["\u0301\u1dc2ab", " \u0301a", "\u203cab", "\U00011f02\u203c", "a\u08d4\u1734b", "\u1c89\ua7cb\U00010d50\U00016ea0", "a\u2e43b\u166dc\U000111c9d"]


def main():
    samples = list(texts())
    with tempfile.TemporaryDirectory() as directory, open(OUT, "w", encoding="utf-8") as f:
        for i, t in enumerate([*converted(directory, sys.argv[1:]), *forms()]):
            ids = [t.encode(s).ids for s in samples]
            json.dump({"tokenizer": json.loads(t.to_str()), **({} if i else {"texts": samples}), "ids": ids, # the texts of all rows
                       "decoded": [t.decode(i, skip_special_tokens=False) for i in ids]}, f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")


main()
