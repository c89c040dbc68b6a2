"""Loads exported language models with transformers and compares their logits with a plain computation.

    python load_language.py DIRECTORY      each directory in it next to a file NAME.safetensors of MEOpt
"""

import json
import math
import os
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

TOKENS = torch.tensor([[3, 79, 0, 41, 41, 7, 12, 60, 33, 5, 18, 2, 77, 64, 9, 50, 31, 22, 8, 3]])  # without RoBERTa's padding, 1


def norm(x, w, b, eps):
    if b is not None:
        return torch.nn.functional.layer_norm(x, (x.shape[-1],), w, b, eps)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def rotate(x, inverse, scale):
    angles = torch.arange(x.shape[-2]).float()[:, None] * inverse[None]
    cos, sin = torch.cat([angles.cos()] * 2, -1) * scale, torch.cat([angles.sin()] * 2, -1) * scale
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def logits(t, c, rope):
    """The definition, with the names and the layout of MEOpt's own files."""
    gpt = c["model_type"] == "gpt2"
    names = {
        True: ("transformer.h.{}.", "ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"),
        False: ("model.layers.{}.", "input_layernorm", "self_attn.qkv_proj", "self_attn.o_proj",
                "post_attention_layernorm", "mlp.gate_up_proj", "mlp.down_proj"),
    }[gpt]
    table = t["transformer.wte.weight" if gpt else "model.embed_tokens.weight"]
    depth = c["n_layer"] if gpt else c["num_hidden_layers"]
    heads = c["n_head"] if gpt else c["num_attention_heads"]
    groups = heads if gpt else c["num_key_value_heads"]
    dim = c["n_embd"] // heads if gpt else c["head_dim"]
    eps = c["layer_norm_epsilon"] if gpt else c["rms_norm_eps"]
    n = TOKENS.shape[1]
    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    window = c.get("sliding_window") or n
    mask = (j <= i) & (j > i - window)
    x = table[TOKENS[0]]
    if gpt:
        x = x + t["transformer.wpe.weight"][:n]
    for block in range(depth):
        get = lambda name, end: t.get(names[0].format(block) + name + end)
        linear = lambda x, name: torch.nn.functional.linear(x, get(name, ".weight"), get(name, ".bias"))
        y = norm(x, get(names[1], ".weight"), get(names[1], ".bias"), eps)
        qkv = linear(y, names[2]).view(n, heads + 2 * groups, dim).transpose(0, 1)
        q, k, v = qkv[:heads], qkv[heads:heads + groups], qkv[heads + groups:]
        if get("self_attn.q_norm", ".weight") is not None:
            q = norm(q, get("self_attn.q_norm", ".weight"), None, eps)
            k = norm(k, get("self_attn.k_norm", ".weight"), None, eps)
        if rope is not None:
            q, k = rotate(q, *rope), rotate(k, *rope)
        k, v = (z.repeat_interleave(heads // groups, 0) for z in (k, v))
        scores = (q @ k.transpose(1, 2) / math.sqrt(dim)).masked_fill(~mask, -math.inf)
        x = x + linear((scores.softmax(-1) @ v).transpose(0, 1).reshape(n, -1), names[3])
        y = linear(norm(x, get(names[4], ".weight"), get(names[4], ".bias"), eps), names[5])
        if gpt:
            tanh = c["activation_function"] == "gelu_new"
            y = torch.nn.functional.gelu(y, approximate="tanh" if tanh else "none")
        else:
            y = torch.nn.functional.silu(y[:, : y.shape[1] // 2]) * y[:, y.shape[1] // 2 :]
        x = x + linear(y, names[6])
    end = "transformer.ln_f" if gpt else "model.norm"
    x = norm(x, t[end + ".weight"], t.get(end + ".bias"), eps)
    return x @ t.get("lm_head.weight", table).T


ENCODERS = {
    "bert": ("bert.", "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    "big_bird": ("bert.", "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    "distilbert": ("distilbert.", "vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    "roberta": ("roberta.", "lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "electra": ("electra.", "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"),
}


def seen(c):
    """How often tokens see tokens: in BigBird's evaluation the first block once more for each random one."""
    n, block, random = TOKENS.shape[1], c.get("block_size", 0), c.get("num_random_blocks", 0)
    if c.get("attention_type") != "block_sparse" or n <= (5 + 2 * random) * block:
        return torch.ones(n, n)
    i, j = torch.arange(n)[:, None] // block, torch.arange(n)[None] // block
    last = (n - 1) // block
    every = (i == 0) | (i == last)
    return torch.where(every, 1, ((j == 0) | (j == last) | ((i - j).abs() <= 1)) + random * (j == 0)).float()


def masked_logits(t, c):
    """An encoder's, likewise."""
    functional, n, eps, kind = torch.nn.functional, TOKENS.shape[1], c.get("layer_norm_eps", 1e-12), c["model_type"]
    linear = lambda x, name: functional.linear(x, t[name + ".weight"], t[name + ".bias"])
    ended = lambda x, name: norm(x, t[name + ".weight"], t[name + ".bias"], eps)
    gelu = lambda x, tanh: functional.gelu(x, approximate="tanh" if tanh else "none")
    other = kind == "distilbert"
    tanh = c["activation" if other else "hidden_act"] == "gelu_new"
    prefix, dense, last, bias = ENCODERS[kind]
    blocks, names = (("transformer.layer.{}.", ("attention.qkv", "attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"))
                     if other else
                     ("encoder.layer.{}.", ("attention.self.qkv", "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense",
                                            "output.dense", "output.LayerNorm")))
    at = prefix + "embeddings."
    table, first = t[at + "word_embeddings.weight"], 2 if kind == "roberta" else 0
    x = table[TOKENS[0]] + t[at + "position_embeddings.weight"][first:][:n]
    if not other:
        x = x + t[at + "token_type_embeddings.weight"][0]
    x = ended(x, at + "LayerNorm")
    if prefix + "embeddings_project.weight" in t:
        x = linear(x, prefix + "embeddings_project")
    heads = c["n_heads" if other else "num_attention_heads"]
    for block in range(c["n_layers" if other else "num_hidden_layers"]):
        qkv, proj, norm1, fc1, fc2, norm2 = (prefix + blocks.format(block) + name for name in names)
        q, k, v = linear(x, qkv).view(n, 3, heads, -1).permute(1, 2, 0, 3)
        a = (q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) + seen(c).log()).softmax(-1) @ v
        x = ended(x + linear(a.transpose(0, 1).reshape(n, -1), proj), norm1)
        x = ended(x + linear(gelu(linear(x, fc1), tanh), fc2), norm2)
    x = ended(gelu(linear(x, dense), tanh and kind in ("bert", "distilbert", "big_bird")), last)
    return x @ table.T + t[bias]


for name in sorted(os.listdir(sys.argv[1])):
    path = os.path.join(sys.argv[1], name)
    if not os.path.isdir(path) or not os.path.exists(path + ".safetensors"):
        continue
    config = json.load(open(os.path.join(path, "config.json")))
    encoder = config["model_type"] in ENCODERS
    model, info = (AutoModelForMaskedLM if encoder else AutoModelForCausalLM).from_pretrained(
        path, output_loading_info=True, dtype=torch.float32, attn_implementation="eager"
    )
    model.eval()
    found = {k: v for k, v in info.items() if v}
    assert not found, (name, found)
    assert type(model).__name__ == config["architectures"][0], (name, type(model))
    rotary = getattr(model.model if hasattr(model, "model") else model, "rotary_emb", None)
    rope = None if rotary is None else (rotary.inv_freq.float(), rotary.attention_scaling)
    with torch.no_grad():
        out = model(TOKENS).logits[0]
        tensors = load_file(path + ".safetensors")
        own = masked_logits(tensors, config) if encoder else logits(tensors, config, rope)
    worst = (out - own).abs().max().item()
    print(f"{name}: {type(model).__name__}, largest difference {worst:.2g}")
    assert worst < 1e-4 * max(1, own.abs().max().item()), name
