#!/usr/bin/env python3
"""Golden data of tests/cli/generate.sh: tests/data/language/greedy.json, greedy answers of transformers' generate.

    env/bin/python tests/make/greedy.py tests/data/language

For each model of tests/make/language.py: a prompt, and the tokens that follow it, in float32. GPT-2 has 32 positions.
"""
import json
import os
import sys

import torch
import transformers


def answer(directory):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    prompt = [(7 * i + 3) % model.config.vocab_size for i in range(6)]
    count = 26 if model.config.model_type == "gpt2" else 64
    out = model.generate(torch.tensor([prompt]), max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None,
                         pad_token_id=0)
    return {"prompt": prompt, "tokens": out[0, len(prompt):].tolist()}


if __name__ == "__main__":
    root = sys.argv[1]
    names = sorted(name for name in os.listdir(root) if os.path.isfile(os.path.join(root, name, "config.json")))
    with open(os.path.join(root, "greedy.json"), "w") as f:
        f.write("{\n" + ",\n".join(json.dumps(n) + ": " + json.dumps(answer(os.path.join(root, n))) for n in names) + "\n}\n")
