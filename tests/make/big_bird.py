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
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

from bert import VOCABULARY, labels_of, save, train_classifier, train_masked
from language import STEPS, gradients_of, redraw, state_of

ROWS = 5
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
    labels = labels_of(tokens, lengths, ROWS)
    golden = files["golden"] = {"tokens": tokens, "labels": labels, "ends": torch.tensor(lengths, dtype=torch.int32)}
    model.double()
    model.eval()
    golden["evaluation"] = model(**inputs).logits[labels >= 0].detach().float()
    model.train()
    train_masked(model, inputs, labels, files, all_gradients_of, steps, bf16=name != "long")
    if name != "long":
        files["final"] = state_of(model)
    save(directory, files)
    print(name, sum(p.numel() for p in model.parameters()), *golden["loss"][[0, -1]].tolist())


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
    files["golden"] = {"tokens": tokens, "ends": torch.tensor(lengths, dtype=torch.int32), "labels": labels}
    model.double()
    train_classifier(model, inputs, labels, files, all_gradients_of)
    save(directory, files | {"final": state_of(model)})
    print("classes", files["golden"]["loss"].tolist())


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
