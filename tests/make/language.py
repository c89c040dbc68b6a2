#!/usr/bin/env python3
"""Golden data of tests/golden/golden_language.c: tests/data/language/NAME.

    env/bin/python tests/make/language.py tests/data/language [NAME ...]

Each case is a causal language model of transformers, every parameter redrawn. model.safetensors and config.json are what
save_pretrained writes; gradient.safetensors and final.safetensors have the same keys: the gradients of the first step, and
the parameters after STEPS steps of torch.optim.AdamW on one batch, in float64. golden.safetensors has the tokens, the
labels (-1: none), the losses, the number of labels with the largest logit, the logits of the last token of each sample,
bf16: the relative errors of PyTorch's own bf16 run: loss, worst and median gradient, and in the cases SMOOTHED smoothed: the
first loss with label_smoothing SMOOTHING, whose gradients are in smoothed.safetensors. Requires
tests/tools/requirements.txt.
"""
import copy
import os
import shutil
import sys
import tempfile

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

BATCH, CONTEXT, VOCABULARY, STEPS = 3, 24, 97, 6
LR, DECAY = 1e-3, 0.05
SMOOTHING, SMOOTHED = 0.1, ("gpt2", "qwen3")  # a tied head, and one of its own


def redraw(model, seed):
    """Norm weights 1 + N(0, 0.2), everything else N(0, 0.2)."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        norm = name.endswith("weight") and p.dim() == 1
        p.data = torch.randn(p.shape, generator=g) * 0.2 + (1 if norm else 0)


def state_of(model, directory=None):
    """What transformers saves, in float32."""
    model = copy.deepcopy(model).float()
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        if directory:
            shutil.copy(os.path.join(d, "config.json"), directory)
        return load_file(os.path.join(d, "model.safetensors"))


def loss_of(logits, labels, smoothing=0):
    labels = labels.flatten().long()
    return F.cross_entropy(logits.flatten(0, 1), labels.where(labels >= 0, -100), label_smoothing=smoothing)


def gradients_of(model):
    gradients = copy.deepcopy(model)
    for p, q in zip(gradients.parameters(), model.parameters()):
        p.data = q.grad.clone()
    return gradients


def bf16_errors(model, tokens, labels, loss, reference):
    """Of a run of PyTorch whose weights and activations are bf16, logits and loss float32."""
    narrow = copy.deepcopy(model).bfloat16()
    narrow.zero_grad()
    found = loss_of(narrow(tokens).logits.float(), labels)
    found.backward()
    errors = []
    for p, q in zip(narrow.parameters(), reference.parameters()):
        errors.append(((p.grad.double() - q.data).norm() / q.data.norm()).item())
    errors.sort()
    return torch.tensor([abs(found.item() - loss) / loss, errors[-1], errors[len(errors) // 2]], dtype=torch.float64)


def smoothed(model, tokens, labels):
    """Loss and gradients with label smoothing."""
    other = copy.deepcopy(model)
    other.zero_grad()
    loss = loss_of(other(tokens).logits, labels, SMOOTHING)
    loss.backward()
    return loss.detach().reshape(1), state_of(gradients_of(other))


def make(name, model, root):
    torch.manual_seed(1)
    redraw(model, seed=sum(map(ord, name)))
    model.eval()
    directory = os.path.join(root, name)
    os.makedirs(directory, exist_ok=True)
    state = state_of(model, directory)
    tokens = torch.randint(0, VOCABULARY, (BATCH, CONTEXT), dtype=torch.int32)
    tokens[:, 5:9] = tokens[:, 1:5]
    labels = torch.roll(tokens, -1, 1)
    labels[:, -1] = torch.randint(0, VOCABULARY, (BATCH,))
    labels[0, 3:9] = labels[1, -4:] = -1
    golden = {"tokens": tokens, "labels": labels}
    model.double()
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = model(tokens.long()).logits
        loss = loss_of(logits, labels)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            golden["last"] = logits[:, -1].detach().float().contiguous()
            golden["correct"] = (logits.argmax(-1) == labels).sum().int().reshape(1)
            gradients = gradients_of(model)
            golden["bf16"] = bf16_errors(model, tokens.long(), labels, losses[0], gradients)
            gradient = state_of(gradients)
            if name in SMOOTHED:
                golden["smoothed"], of_smoothed = smoothed(model, tokens.long(), labels)
        optimizer.step()
    golden["loss"] = torch.tensor(losses, dtype=torch.float64)
    files = {"model": state, "gradient": gradient, "final": state_of(model), "golden": golden}
    if name in SMOOTHED:
        files["smoothed"] = of_smoothed
    for file, tensors in files.items():
        save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(directory, file + ".safetensors"))
    print(name, sum(p.numel() for p in model.parameters()), losses[0], losses[-1], golden["bf16"].tolist())


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4, n_inner=48, bos_token_id=0, eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        attn_implementation="eager"))


def llama(kind, **more):
    options = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                   num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False, attn_implementation="eager")
    config = getattr(transformers, kind + "Config")(**{**options, **more})
    return getattr(transformers, kind + "ForCausalLM")(config)


CASES = {
    "gpt2": gpt2,
    "llama": lambda: llama("Llama"),
    "llama3": lambda: llama("Llama", tie_word_embeddings=True, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}),
    "qwen2": lambda: llama("Qwen2", num_key_value_heads=1),
    "qwen3": lambda: llama("Qwen3", head_dim=16),
    "qwen3-tied": lambda: llama("Qwen3", head_dim=16, tie_word_embeddings=True),
    "mistral": lambda: llama("Mistral", sliding_window=7),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[2:] or CASES:
        make(case, CASES[case](), sys.argv[1])
