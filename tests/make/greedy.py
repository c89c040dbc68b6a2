#!/usr/bin/env python3
"""Golden data of tests/golden/golden_generate.sh: tests/data/language/greedy.json, made by transformers in float32.

    env/bin/python tests/make/greedy.py tests/data/language

For each model of tests/make/language.py: a prompt and the tokens that follow it greedily (GPT-2 has 32 positions); the mean loss of TEXT in
windows of CONTEXT tokens, each token but the first predicted once; and that of the documents of the first CONTEXT tokens, which end with END,
each computed alone.
"""
import json
import os
import sys

import torch
import torch.nn.functional as F
import transformers

CONTEXT, END = 30, 5
TEXT = [END if i in (7, 15, 24) else 6 + (i * i + 3 * i) % 91 for i in range(200)]


def answer(model):
    prompt = [(7 * i + 3) % model.config.vocab_size for i in range(6)]
    count = 26 if model.config.model_type == "gpt2" else 64
    out = model.generate(torch.tensor([prompt]), max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None,
                         pad_token_id=0)
    return {"prompt": prompt, "tokens": out[0, len(prompt):].tolist()}


def losses(model, tokens):
    """Of each token but the first."""
    t = torch.tensor([tokens])
    return F.cross_entropy(model(t).logits[0, :-1].double(), t[0, 1:], reduction="none") if len(tokens) > 1 else torch.zeros(0)


@torch.no_grad()
def make(directory):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    windows = [losses(model, TEXT[i:i + CONTEXT + 1]) for i in range(0, len(TEXT) - 1, CONTEXT)]
    documents, first = [], TEXT[:CONTEXT]
    while first:
        n = first.index(END) + 1 if END in first else len(first)
        documents.append(losses(model, first[:n]))
        first = first[n:]
    return dict(answer(model), loss=torch.cat(windows).mean().item(), apart=torch.cat(documents).mean().item())


if __name__ == "__main__":
    root = sys.argv[1]
    names = sorted(name for name in os.listdir(root) if os.path.isfile(os.path.join(root, name, "config.json")))
    models = ",\n".join(json.dumps(n) + ": " + json.dumps(make(os.path.join(root, n))) for n in names)
    text = json.dumps({"context": CONTEXT, "end": END, "tokens": TEXT})
    with open(os.path.join(root, "greedy.json"), "w") as f:
        f.write('{\n"text": %s,\n"models": {\n%s\n}\n}\n' % (text, models))
