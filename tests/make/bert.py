#!/usr/bin/env python3
"""Golden data of tests/golden/golden_bert.c: tests/data/bert/NAME, tests/data/encoders/NAME, and classifiers in tests/data/*_classify/NAME.

    env/bin/python tests/make/bert.py tests/data [FOLDER/NAME ...]

As tests/make/language.py, for ...ForMaskedLM: tokens, and labels at ROWS tokens of each sample (-1: none). Most have samples of
24, 17 and 9 tokens, whose attention_mask ends there: `ends` has their lengths. Classifiers are ...ForSequenceClassification.
Requires tests/tools/requirements.txt.
"""
import copy
import os
import sys

import torch
import transformers
from safetensors.torch import save_file

from language import DECAY, LR, STEPS, gradients_of, loss_of, redraw, state_of

BATCH, CONTEXT, VOCABULARY, ROWS = 3, 24, 97, 4


def bf16_errors(model, inputs, labels, loss, reference):
    """Of a run of PyTorch whose weights and activations are bf16, logits and loss float32."""
    narrow = copy.deepcopy(model).bfloat16()
    narrow.zero_grad()
    found = loss_of(narrow(**inputs).logits.float(), labels)
    found.backward()
    errors = []
    for (name, p), q in zip(narrow.named_parameters(), reference.parameters()):
        if name.endswith(("key.bias", "k_lin.bias")) or p.grad is None:  # has no gradient
            continue
        errors.append(((p.grad.double() - q.data).norm() / q.data.norm()).item())
    errors.sort()
    return torch.tensor([abs(found.item() - loss) / loss, errors[-1], errors[len(errors) // 2]], dtype=torch.float64)


def adamw_of(model):
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0}]
    return torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)


def config_of(kind, **more):
    """kind: the name of the class without its end; sizes of its own, where it has other names for them."""
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, hidden_dropout_prob=0,
                 attention_probs_dropout_prob=0, max_position_embeddings=32)
    if kind == "DistilBert":
        sizes = dict(dim=32, n_layers=2, n_heads=4, hidden_dim=48, dropout=0, attention_dropout=0, seq_classif_dropout=0,
                     max_position_embeddings=32)
    if kind == "Roberta":
        more = dict(type_vocab_size=1, layer_norm_eps=1e-5) | more
        sizes["max_position_embeddings"] = 34
    return getattr(transformers, kind + "Config")(vocab_size=VOCABULARY, attn_implementation="eager", **sizes, **more)


def tokens_of(kind):
    """BERT's kin give the padding's number no gradient, and RoBERTa no position."""
    return torch.randint(0 if kind == "Bert" else 4, VOCABULARY, (BATCH, CONTEXT), dtype=torch.int32)


def labels_of(tokens, lengths, rows):
    """Labels at `rows` tokens of each sample, at one less of the second; -1: none."""
    labels = torch.full_like(tokens, -1)
    for i, length in enumerate(lengths):
        for at in torch.randperm(length)[:rows - (i == 1)]:
            labels[i, at] = torch.randint(0, VOCABULARY, (1,)).item()
    return labels


def train(model, outputs, first, steps=STEPS):
    """outputs() gives logits and loss; first(logits, loss) is called with the gradients of the first step. The losses."""
    optimizer = adamw_of(model)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        logits, loss = outputs()
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            first(logits.detach(), loss.item())
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64)


def train_masked(model, inputs, labels, files, gradients_of=gradients_of, steps=STEPS, bf16=True):
    """Adds the gradient of the first step to `files`, and logits, bf16 and the losses to its golden data."""
    golden, picked = files["golden"], labels >= 0

    def outputs():
        logits = model(**inputs).logits
        return logits, loss_of(logits, labels)

    def first(logits, loss):
        golden["logits"] = logits[picked].float()
        golden["correct"] = (logits.argmax(-1) == labels)[picked].sum().int().reshape(1)
        gradients = gradients_of(model)
        if bf16:
            golden["bf16"] = bf16_errors(model, inputs, labels, loss, gradients)
        files["gradient"] = state_of(gradients)
    golden["loss"] = train(model, outputs, first, steps)


def train_classifier(model, inputs, labels, files, gradients_of=gradients_of):
    """Likewise for classes."""
    def outputs():
        logits = model(**inputs).logits
        return logits, torch.nn.functional.cross_entropy(logits, labels.long())

    def first(logits, _):
        files["golden"]["logits"] = logits.float()
        files["gradient"] = state_of(gradients_of(model))
    files["golden"]["loss"] = train(model, outputs, first)


def save(directory, files):
    for file, tensors in files.items():
        save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(directory, file + ".safetensors"))


def make(path, lengths, kind, root, **config):
    name, directory = os.path.basename(path), os.path.join(root, path)
    torch.manual_seed(1)
    model = getattr(transformers, kind + "ForMaskedLM")(config_of(kind, **config))
    redraw(model, seed=sum(map(ord, name)))
    model.eval()
    os.makedirs(directory, exist_ok=True)
    state = state_of(model, directory)
    tokens = tokens_of(kind)
    tokens[:, 5:9] = tokens[:, 1:5]
    labels, ends = labels_of(tokens, lengths, ROWS), torch.tensor(lengths, dtype=torch.int32)
    inputs = {"input_ids": tokens.long(), "attention_mask": (torch.arange(CONTEXT) < ends[:, None]).long()}
    files = {"model": state, "golden": {"tokens": tokens, "labels": labels, "ends": ends}}
    model.double()
    train_masked(model, inputs, labels, files)
    save(directory, files | {"final": state_of(model)})
    golden = files["golden"]
    print(name, sum(p.numel() for p in model.parameters()), *golden["loss"][[0, -1]].tolist(), golden["bf16"].tolist())


def make_classifier(path, kind, root, **config):
    """Tokens, classes, the logits and gradients of the first step, the losses of all."""
    root = os.path.join(root, path)
    torch.manual_seed(2)
    model = getattr(transformers, kind + "ForSequenceClassification")(config_of(kind, num_labels=5, **config))
    redraw(model, seed=7 if kind == "Bert" else sum(map(ord, path)))
    model.eval()
    os.makedirs(root, exist_ok=True)
    files = {"model": state_of(model, root)}
    tokens = tokens_of(kind)
    ends, labels = torch.tensor([24, 17, 9], dtype=torch.int32), torch.tensor([4, 0, 2], dtype=torch.int32)
    inputs = {"input_ids": tokens.long(), "attention_mask": (torch.arange(CONTEXT) < ends[:, None]).long()}
    files["golden"] = {"tokens": tokens, "ends": ends, "labels": labels}
    model.double()
    train_classifier(model, inputs, labels, files)
    save(root, files | {"final": state_of(model)})


ALL, ENDS = (24, 24, 24), (24, 17, 9)
CASES = {"bert/bert": (ALL, "Bert", {}), "bert/padded": (ENDS, "Bert", {}), "encoders/distilbert": (ENDS, "DistilBert", {}),
         "encoders/roberta": (ENDS, "Roberta", {}), "encoders/electra": (ENDS, "Electra", dict(embedding_size=16)),
         "encoders/generator": (ENDS, "Electra", dict(embedding_size=48)),  # of base and large: wider than the blocks
         "bert_classify/bert": (None, "Bert", {}), "encoders_classify/distilbert": (None, "DistilBert", {}),
         "encoders_classify/roberta": (None, "Roberta", {}), "encoders_classify/electra": (None, "Electra", dict(embedding_size=16))}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[2:] or CASES:
        lengths, kind, config = CASES[case]
        if lengths:
            make(case, lengths, kind, sys.argv[1], **config)
        else:
            make_classifier(case, kind, sys.argv[1], **config)
