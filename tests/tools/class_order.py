"""Part of tests/cli/real_class_order.sh: `make TOKENIZER` writes models whose id2label is not sorted, and data; `compare` computes the losses."""
import json
import os
import random
import shutil
import struct
import sys
import zlib

import torch
import transformers

TEXT, IMAGE = ["positive", "negative", "neutral"], ["zebra", "ant"]
WORDS = {"positive": "light land gold bread", "negative": "sin earth wind under", "neutral": "men sons daughters children"}
MEAN, STD = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.3, 0.2, 0.25])


def names(of):
    return dict(id2label=dict(enumerate(of)), label2id={n: i for i, n in enumerate(of)})


def pixels(part, name, i):
    source = random.Random(f"{part}/{name}/{i}")
    return bytes(source.randrange(256) // (1 if name == "ant" else 2) for _ in range(28 * 28 * 3))


def write_png(path, rgb):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + rgb[84 * y:84 * y + 84] for y in range(28))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 28, 28, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def make(tokenizer):
    torch.manual_seed(6)
    random.seed(6)
    config = transformers.BertConfig(vocab_size=900, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                                     max_position_embeddings=64, hidden_dropout_prob=0, attention_probs_dropout_prob=0, initializer_range=0.3, **names(TEXT))
    transformers.BertForSequenceClassification(config).save_pretrained("bert")
    shutil.copy(tokenizer, os.path.join("bert", "tokenizer.json"))
    for part in "train", "val":
        with open(part + ".jsonl", "w", encoding="utf-8") as f:
            for i in range(24):
                name = TEXT[i % 3]
                f.write(json.dumps({"text": " ".join(random.choices(WORDS[name].split(), k=random.randrange(2, 9))), "label": name}) + "\n")
    config = transformers.Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2, image_size=28, patch_size=14,
                                       initializer_range=0.3, **names(IMAGE))
    transformers.Dinov2ForImageClassification(config).save_pretrained("dinov2")
    for part in "train", "val":
        for name in IMAGE:
            os.makedirs(os.path.join(part, name))
            for i in range(6):
                write_png(os.path.join(part, name, f"{i}.png"), pixels(part, name, i))


def text_loss(directory):
    model = transformers.BertForSequenceClassification.from_pretrained(directory, dtype=torch.float64).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join("bert", "tokenizer.json"), pad_token="[PAD]")
    records = [json.loads(line) for line in open("val.jsonl", encoding="utf-8")]
    inputs = tokenizer([r["text"] for r in records], padding=True, return_tensors="pt", return_token_type_ids=False)
    return measure(model(**inputs).logits, [model.config.label2id[r["label"]] for r in records])


def image_loss(directory):
    model = transformers.Dinov2ForImageClassification.from_pretrained(directory, dtype=torch.float64).eval()
    images = [(name, i) for name in IMAGE for i in range(6)]
    values = torch.tensor([list(pixels("val", name, i)) for name, i in images], dtype=torch.float64).view(-1, 28, 28, 3) / 255
    return measure(model(((values - MEAN) / STD).permute(0, 3, 1, 2)).logits, [model.config.label2id[name] for name, _ in images])


def measure(logits, labels):
    labels = torch.tensor(labels)
    return torch.nn.functional.cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).double().mean().item()


def compare():
    with torch.no_grad():
        for file, of in ("text", text_loss("bert")), ("image", image_loss("dinov2")), ("text_run", text_loss("text-hf")), ("image_run", image_loss("image-hf")):
            found = json.load(open(file + ".json"))
            print(file, of, found["val_loss"], found["val_top1"])
            assert abs(found["val_loss"] / of[0] - 1) < 1e-5 and abs(found["val_top1"] - of[1]) < 1e-6, (file, of, found)
    for run, order in ("text", TEXT), ("image", IMAGE):
        assert json.load(open(os.path.join(run, "meta.json")))["classes"] == order
        assert json.load(open(os.path.join(run + "-hf", "config.json")))["id2label"] == {str(i): n for i, n in enumerate(order)}


make(sys.argv[2]) if sys.argv[1] == "make" else compare()
