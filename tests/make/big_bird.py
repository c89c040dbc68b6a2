#!/usr/bin/env python3
"""Golden data of tests/golden/golden_bert.c and tests/unit/blocks.c: tests/data/big_bird*, blocks.

    env/bin/python tests/make/big_bird.py tests/data [NAME ...]

As tests/make/bert.py, for BigBirdForMaskedLM in training, where the class draws random blocks; `evaluation` has the
logits of eval(). `full` has attention_type original_full; `long` has 4,096 tokens, one step and no final.safetensors.
`classes` is a BigBirdForSequenceClassification. `lists` has the random blocks (heads, blocks - 2, random) that the class
draws, named CONTEXT.BLOCK.RANDOM.HEADS.POSITIONS.LAYER. Requires tests/tools/requirements.txt.
"""
import os
import sys

import numpy
import torch
import transformers
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

from bert import adamw_of, bf16_errors
from language import STEPS, gradients_of, loss_of, redraw, state_of

VOCABULARY, ROWS = 97, 5
# lengths of the samples, the first of which is N; block, random blocks, width, and what else differs
CASES = {"ragged": ((120, 120, 120), 16, 1, {}), "padded": ((150, 97, 20), 16, 2, {}), "three": ((192, 192, 192), 16, 3, {}),
         "full": ((120, 70, 120), 16, 1, {"attention_type": "original_full"}),
         "long": ((4096,), 64, 3, {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16})}
LISTS = [(208, 16, 3, 2, 512, 0), (200, 16, 3, 2, 512, 5), (144, 16, 1, 3, 512, 2), (1024, 64, 3, 2, 4096, 1),
         (1000, 64, 2, 1, 4096, 2), (3072, 64, 3, 2, 4096, 11), (4096, 64, 3, 2, 4096, 7), (1024, 16, 2, 1, 1024, 3),
         (2048, 64, 3, 2, 4096, 4)]


def config_of(lengths, block, random, more, **rest):
    padded = -(-lengths[0] // block) * block
    return transformers.BigBirdConfig(**{
        "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": padded, "hidden_dropout_prob": 0, "block_size": block,
        "attention_probs_dropout_prob": 0, "num_random_blocks": random, "sep_token_id": 2, **more, **rest})


def batch_of(lengths):
    tokens = torch.randint(1, VOCABULARY, (len(lengths), lengths[0]), dtype=torch.int32)  # 0, padding, has no gradient
    mask = (torch.arange(lengths[0]) < torch.tensor(lengths)[:, None]).double()
    return tokens, {"input_ids": tokens.long(), "attention_mask": mask}


def all_gradients_of(model):
    """No class uses the pooler: its gradients are none, here zeros."""
    unused = [p for p in model.parameters() if p.grad is None]
    for p in unused:
        p.grad = torch.zeros_like(p)
    gradients = gradients_of(model)
    for p in unused:
        p.grad = None
    return gradients


def save(directory, files):
    for file, tensors in files.items():
        save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(directory, file + ".safetensors"))


def make(name, root):
    lengths, block, random, more = CASES[name]
    steps = 1 if name == "long" else STEPS
    torch.manual_seed(1)
    model = transformers.BigBirdForMaskedLM(config_of(lengths, block, random, more))
    redraw(model, seed=sum(map(ord, name)))
    model.train()
    directory = os.path.join(root, "big_bird_long" if name == "long" else "big_bird", name)
    os.makedirs(directory, exist_ok=True)
    files = {"model": state_of(model, directory)}
    tokens, inputs = batch_of(lengths)
    labels = torch.full_like(tokens, -1)
    for i, length in enumerate(lengths):
        for at in torch.randperm(length)[:ROWS - (i == 1)]:
            labels[i, at] = torch.randint(0, VOCABULARY, (1,)).item()
    picked = labels >= 0
    golden = {"tokens": tokens, "labels": labels, "ends": torch.tensor(lengths, dtype=torch.int32)}
    model.double()
    model.eval()
    golden["evaluation"] = model(**inputs).logits[picked].detach().float()
    model.train()
    optimizer = adamw_of(model)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        logits = model(**inputs).logits
        loss = loss_of(logits, labels)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            golden["logits"] = logits[picked].detach().float()
            golden["correct"] = (logits.argmax(-1) == labels)[picked].sum().int().reshape(1)
            gradients = all_gradients_of(model)
            if name != "long":
                golden["bf16"] = bf16_errors(model, inputs, labels, losses[0], gradients)
            files["gradient"] = state_of(gradients)
        optimizer.step()
    golden["loss"] = torch.tensor(losses, dtype=torch.float64)
    if name != "long":
        files["final"] = state_of(model)
    save(directory, {**files, "golden": golden})
    print(name, sum(p.numel() for p in model.parameters()), losses[0], losses[-1])


def make_classifier(root):
    lengths, block, random, more = CASES["padded"]
    torch.manual_seed(2)
    model = transformers.BigBirdForSequenceClassification(config_of(lengths, block, random, more, num_labels=5))
    redraw(model, seed=7)
    model.train()
    directory = os.path.join(root, "big_bird_classify", "padded")
    os.makedirs(directory, exist_ok=True)
    files = {"model": state_of(model, directory)}
    tokens, inputs = batch_of(lengths)
    labels = torch.tensor([4, 0, 2], dtype=torch.int32)
    model.double()
    optimizer = adamw_of(model)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = model(**inputs).logits
        loss = torch.nn.functional.cross_entropy(logits, labels.long())
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            files["gradient"] = state_of(all_gradients_of(model))
            first = logits.detach().float()
        optimizer.step()
    files["final"] = state_of(model)
    files["golden"] = {"tokens": tokens, "ends": torch.tensor(lengths, dtype=torch.int32), "labels": labels,
                       "logits": first, "loss": torch.tensor(losses, dtype=torch.float64)}
    save(directory, files)
    print("classes", losses)


def make_lists(root):
    lists = {}
    for context, block, random, heads, positions, layer in LISTS:
        config = transformers.BigBirdConfig(hidden_size=8 * heads, num_attention_heads=heads, block_size=block,
                                            num_random_blocks=random, max_position_embeddings=positions)
        attention = BigBirdBlockSparseAttention(config, seed=layer).train()
        tokens = -(-context // block) * block
        numpy.random.seed(layer)
        if tokens in (1024, 3072, 4096):
            drawn = [attention._bigbird_block_rand_mask(positions, positions, block, block, random,
                                                        last_idx=1024)[:tokens // block - 2] for _ in range(heads)]
        else:
            plan = attention._get_rand_attn_plan(tokens, block, random)
            drawn = attention._bigbird_block_rand_mask_with_head(tokens, tokens, block, block, heads, *plan)
        lists[f"{context}.{block}.{random}.{heads}.{positions}.{layer}"] = numpy.stack(drawn).astype(numpy.int32)
    os.makedirs(os.path.join(root, "blocks"), exist_ok=True)
    save_arrays(lists, os.path.join(root, "blocks", "drawn.safetensors"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[2:] or [*CASES, "classes", "lists"]:
        if case in CASES:
            make(case, sys.argv[1])
        else:
            {"classes": make_classifier, "lists": make_lists}[case](sys.argv[1])
