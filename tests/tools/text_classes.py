"""Part of tests/cli/real_text_classes.sh, in an empty directory: `make KIND TOKENIZER` writes model/, train.jsonl and val.jsonl; `compare KIND` trains
the same in PyTorch. KIND is the name of the class without its end. RoBERTa has a byte-level tokenizer of its own, made of the texts."""
import json
import os
import random
import shutil
import sys

import torch
import transformers

NAMES, CONTEXT, BATCH = ["bad", "good", "other"], 24, 12
OWN = {"good": "light land gold bread blessed come give take house father", "bad": "sin earth wind under shall not offer fire dust",
       "other": "men sons daughters children people brother wife"}
COMMON = "and the of in to he it was with they".split()


def rows(count):
    """Texts of 1 to 30 words: some are cut, most are padded."""
    for _ in range(count):
        name = random.choice(NAMES)
        words = [random.choice(OWN[name].split() if random.random() < 0.6 else COMMON) for _ in range(random.randrange(1, 30))]
        yield {"text": " ".join(words).capitalize() + ".", "label": name}


def class_of(kind):
    return getattr(transformers, kind + "ForSequenceClassification")


def config_of(kind):
    common = dict(vocab_size=900, num_labels=3, max_position_embeddings=66, initializer_range=0.08, id2label=dict(enumerate(NAMES)),
                  label2id={n: i for i, n in enumerate(NAMES)})
    if kind == "DistilBert":
        return transformers.DistilBertConfig(dim=48, n_layers=2, n_heads=4, hidden_dim=96, dropout=0, attention_dropout=0, seq_classif_dropout=0, **common)
    blocks = dict(block_size=2, num_random_blocks=1, sep_token_id=2)
    more = dict(embedding_size=24) if kind == "Electra" else blocks if kind == "BigBird" else dict(type_vocab_size=1) if "Roberta" in kind else {}
    return getattr(transformers, kind + "Config")(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, hidden_dropout_prob=0,
                                                  attention_probs_dropout_prob=0, **more, **common)


def byte_level(path, processing):
    """A tokenizer as RoBERTa's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    t.train_from_iterator([r["text"] for r in rows(400)], trainers.BpeTrainer(vocab_size=899, special_tokens=special, show_progress=False,
                                                                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens(["<mask>"])
    t.post_processor = (processors.RobertaProcessing(("</s>", 2), ("<s>", 0)) if processing == "Roberta" else
                        processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]))
    t.save(path)


def make(kind, tokenizer):
    torch.manual_seed(5)
    random.seed(5)
    class_of(kind)(config_of(kind)).save_pretrained("model")
    if "Roberta" in kind:
        byte_level(os.path.join("model", "tokenizer.json"), kind)
    else:
        shutil.copy(tokenizer, os.path.join("model", "tokenizer.json"))
    for part, count in (("train", 120), ("val", 31)):
        with open(part + ".jsonl", "w", encoding="utf-8") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows(count))


def encoded(part, model):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join("model", "tokenizer.json"), pad_token="<pad>" if "Roberta" in type(model).__name__ else "[PAD]")
    records = [json.loads(line) for line in open(part + ".jsonl", encoding="utf-8")]
    inputs = tokenizer([r["text"] for r in records], truncation=True, max_length=CONTEXT, padding=True, return_tensors="pt",
                       return_token_type_ids=False)
    return inputs, torch.tensor([model.config.label2id[r["label"]] for r in records])


def load(directory, kind):
    model, info = class_of(kind).from_pretrained(directory, output_loading_info=True, dtype=torch.float64)
    found = {k: v for k, v in info.items() if v}
    assert not found, (directory, found)
    return model.eval()


def compare(kind):
    lines = [json.loads(line) for line in open(os.path.join("run", "metrics.jsonl"))]
    model = load("model", kind).train()  # in which BigBird draws blocks; there is no dropout
    inputs, labels = encoded("train", model)
    assert (inputs["attention_mask"].sum(1) < CONTEXT).any() and (inputs["attention_mask"].sum(1) == CONTEXT).any()
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.05},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    worst = 0
    for line in lines:
        at = (line["step"] - 1) * BATCH % len(labels)
        for group in optimizer.param_groups:
            group["lr"] = line["lr"]
        optimizer.zero_grad()
        logits = model(**{k: v[at:at + BATCH] for k, v in inputs.items()}).logits
        loss = torch.nn.functional.cross_entropy(logits, labels[at:at + BATCH])
        loss.backward()
        worst = max(worst, abs(line["loss"] / loss.item() - 1))
        optimizer.step()
    exported, model = load("hf", kind), model.eval()
    assert exported.config.architectures == [class_of(kind).__name__], exported.config.architectures
    assert exported.config.id2label == dict(enumerate(NAMES)), exported.config.id2label
    inputs, labels = encoded("val", exported)
    with torch.no_grad():
        ours, theirs = exported(**inputs).logits, model(**inputs).logits
    loss = torch.nn.functional.cross_entropy(ours, labels).item()
    right = (ours.argmax(1) == labels).double().mean().item()
    trained = ((ours - theirs).norm() / theirs.norm()).item()
    print(f"losses of {len(lines)} steps {worst:.1e}, logits of the export {trained:.1e}, val_loss {abs(lines[-1]['val_loss'] / loss - 1):.1e}")
    assert len(lines) == 40 and lines[-1]["loss"] < lines[0]["loss"]
    assert worst < 1e-4 and trained < 1e-3 and abs(lines[-1]["val_loss"] / loss - 1) < 1e-5 and abs(lines[-1]["val_top1"] - right) < 1e-6


make(*sys.argv[2:]) if sys.argv[1] == "make" else compare(sys.argv[2])
