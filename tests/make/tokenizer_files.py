#!/usr/bin/env python3
"""Golden data of tests/unit/tokenizer.c: small tokenizers in the form of those of published models, trained here, and what Hugging Face's
`tokenizers` (0.23.3) makes of texts with them. Usage: tokenizer_files.py TEXT... (files to train on; tests/data/tokenizers is written); without
files the tokenizers stay, and the texts alone are written"""
import json
import os
import random
import sys

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers, Regex

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "tokenizers")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
SIZE = 900


def train(tokenizer, trainer, files):
    tokenizer.train(files, trainer)
    return tokenizer


def byte_level(files, pattern, normalizer, special, prefix_space=False):
    t = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=pattern is None)
    split = pattern and pre_tokenizers.Split(Regex(pattern), "isolated")
    t.pre_tokenizer = pre_tokenizers.Sequence([split, level]) if pattern else level
    t.decoder = decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return train(t, trainers.BpeTrainer(vocab_size=SIZE, initial_alphabet=alphabet, special_tokens=special, show_progress=False), files)


def llama3(files):
    t = byte_level(files, LLAMA3, None, ["<|begin_of_text|>", "<|end_of_text|>"])
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))])])
    data = json.loads(t.to_str())
    data["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(data))


def llama2(files):
    special = ["<unk>", "<s>", "</s>"]
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Split("\n", "isolated") # for the trainer, which otherwise sees one word
    train(t, trainers.BpeTrainer(vocab_size=SIZE, special_tokens=special + ["<0x%02X>" % b for b in range(256)], show_progress=False,
                                 limit_alphabet=150, max_token_length=12), files)
    data = json.loads(t.to_str())
    data["pre_tokenizer"] = None
    data["added_tokens"] = data["added_tokens"][:3]
    data["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    t = Tokenizer.from_str(json.dumps(data))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def bert(files):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    train(t, trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], limit_alphabet=200,
                                       show_progress=False), files)
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return t


def texts(name):
    """Texts with characters that Unicode had in version 12, which all libraries know; but for BERT's, newer ones as well."""
    r = random.Random(1)
    odd = "\u180e\x85\xa0\u2028\ufeff\u200b\u200d\u0130\u017f\u212a\u1e9e\ufb01\u0301\u0308\u0323\ufffd\ud7a3\u1100\u1161\u11a8\u2126\x00\x1f\x7f"
    pieces = ["  ", " ", "\n", "\r\n", "'s", "'S", "'ſ", "'LL", "ab", "1234567", "!!", "é", "e\u0301", "汉字", "<|endoftext|>", "</s>",
              "<|end_of_text|>", "[MASK]", "token", " the", "，", "😀", "\t"]
    yield from ["", " ", "\n", "a", "Hello, world! It's 12345 o'clock.", "In the beginning God created the heaven and the earth.",
                "床前明月光，疑是地上霜。举头望明月，低头思故乡。", "for (int i = 0; i < 10; i++)\n\t\treturn x[i];\n\n\n", "a" * 300, "   \n\n   x",
                "naïve café Ångström ﬁn İstanbul STRASSE straße", "<s>x</s> <unk>", "ÀÉÎõü 你好 ok"]
    for _ in range(40):
        yield "".join(r.choice(pieces) for _ in range(r.randrange(40)))
    for _ in range(20):
        yield "".join(r.choice(odd + " aB1.") for _ in range(r.randrange(40)))
    for _ in range(20):
        yield "".join(chr(r.choice([r.randrange(32, 0x250), r.randrange(0x370, 0x520), r.randrange(0x4e00, 0x9f00), 0x1f600])) for _ in range(20))
    # letters, marks, digits and signs of versions 10 to 16: matched by 16, normalized by 9
    newer = "\u0560\u07fd\u0897\u1c89\u32ff\ua7da\U00010d40\U00010efc\U000119e0\U00011938\U00011f50\U0001e130\U0001e4ec\U0001fae9\U00031350\U0002ebf0"
    if name != "bert":
        for _ in range(30):
            yield "".join(r.choice(newer * 2 + " \u0301\u0323aeB1.") for _ in range(r.randrange(1, 30)))


def train_all(files):
    return {"gpt2": byte_level(files, None, None, ["<|endoftext|>"]),
            "roberta": byte_level(files, None, normalizers.NFC(), ["<|endoftext|>"], True),
            "llama3": llama3(files),
            "qwen": byte_level(files, LLAMA3.replace("{1,3}", ""), normalizers.NFC(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
            "llama2": llama2(files), "bert": bert(files)}


# Forms of a part that no published tokenizer has, each with a vocabulary that shows where words begin.
PATTERNS = [r"\p{Han}+|\p{L}+", r"\P{Han}+", r"[\p{^hiragana}\s]+", r"\p{Arabic}+", r"\b", r"\b\w+\b", r"\B.", "$", "^", r"\s*", "a*", "(?=b)", r"^\s+"]
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
SAMPLES = ["aab b  aa\n b", "\n a\n", "、漢字。「かな」カナ،عرب ", "e\u0301 x\u200dy don't", "नि\u0903मा u\u20dd", "é ü"]


def words(normalizer=None, splitter=None):
    characters = sorted(set("".join(SAMPLES) + "".join(map(normalizers.NFD().normalize_str, SAMPLES)) + "_"))
    vocabulary = {p + c: i for i, (c, p) in enumerate((c, p) for c in characters for p in ("", "##"))}
    t = Tokenizer(models.WordPiece({**vocabulary, "[UNK]": len(vocabulary)}, unk_token="[UNK]"))
    if normalizer:
        t.normalizer = normalizer
    if splitter:
        t.pre_tokenizer = splitter
    return t


def forms():
    for i, pattern in enumerate(PATTERNS):
        for k, behavior in enumerate(BEHAVIORS):
            yield words(splitter=pre_tokenizers.Split(Regex(pattern), behavior, (i + k) % 3 == 0))
    for pattern in ("a*", r"\s*", "$", r"\b"):
        yield words(normalizers.Replace(Regex(pattern), "_"))
    yield words(normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]))
    yield words(normalizers.BertNormalizer())
    for fuse in (False, True):
        few = {"<unk>": 0, "a": 1, "b": 2, **{"<0x%02X>" % b: 3 + i for i, b in enumerate((0xC3, 0xA9))}}
        yield Tokenizer(models.BPE(few, [], unk_token="<unk>", byte_fallback=True, fuse_unk=fuse))


def write_forms():
    with open(os.path.join(OUT, "forms.cases"), "w", encoding="utf-8") as f:
        for t in forms():
            form = json.loads(t.to_str())
            ids = [t.encode(s).ids for s in SAMPLES]
            json.dump({"tokenizer": form, "texts": SAMPLES, "ids": ids}, f, separators=(",", ":"))
            f.write("\n")


def main():
    write_forms()
    if sys.argv[1:]:
        os.makedirs(OUT, exist_ok=True)
        for name, t in train_all(sys.argv[1:]).items():
            with open(os.path.join(OUT, name + ".json"), "w", encoding="utf-8") as f:
                json.dump(json.loads(t.to_str()), f, ensure_ascii=False, separators=(",", ":"))
    for name in ("gpt2", "roberta", "llama3", "qwen", "llama2", "bert"):
        t = Tokenizer.from_file(os.path.join(OUT, name + ".json"))
        with open(os.path.join(OUT, name + ".cases"), "w", encoding="utf-8") as f:
            for text in texts(name):
                ids = t.encode(text).ids
                json.dump({"text": text, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)}, f, separators=(",", ":"))
                f.write("\n")


main()
