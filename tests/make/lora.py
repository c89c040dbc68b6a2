#!/usr/bin/env python3
"""Golden data of tests/golden/golden_lora.c: tests/data/lora/NAME.

    env/bin/python tests/make/lora.py tests/data [NAME ...]

Each case is a model of tests/data/language in PEFT, with adapters of random values. adapter_model.safetensors and
adapter_config.json are what save_pretrained writes; gradient.safetensors and final.safetensors have the same keys: the
gradients of the first step, and the adapters after STEPS steps of torch.optim.AdamW on one batch, in float64.
golden.safetensors has the tokens, the labels (-1: none), the losses, and the logits of the last token of each sample;
outliers: the loss with one column of the embedding 3,000 times as large, whose gradients are in outliers.safetensors.
timm-vit-scale is an image classifier with LayerScale, whose classifier is trained besides the adapters; it has the files of
tests/make/classifiers.py, and is read by golden_classify.c. Requires tests/tools/requirements.txt and peft.
"""
import copy
import os
import sys
import tempfile

import peft
import torch
import transformers
import classifiers
from language import BATCH, CONTEXT, DECAY, LR, STEPS, VOCABULARY, loss_of
from safetensors.torch import load_file, save_file

OUTLIER, COLUMN = 3000, 5
CASES = {
    "gpt2": dict(r=3, lora_alpha=6, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True),
    "llama": dict(r=4, lora_alpha=8, target_modules="all-linear"),
    "qwen3": dict(r=2, lora_alpha=3, target_modules=["q_proj", "v_proj", "down_proj"]),
}


def adapters_of(model):
    with tempfile.TemporaryDirectory() as d:
        copy.deepcopy(model).float().save_pretrained(d)
        return load_file(os.path.join(d, "adapter_model.safetensors"))


def gradients_of(model):
    gradients = copy.deepcopy(model)
    for p, q in zip(gradients.parameters(), model.parameters()):
        if q.grad is not None:
            p.data = q.grad.clone()
    return adapters_of(gradients)


def outliers(model, tokens, labels):
    other = copy.deepcopy(model)
    other.zero_grad()
    table = other.get_base_model().get_input_embeddings().weight
    table.data = table.data.clone()
    table.data[:, COLUMN] *= OUTLIER
    loss = loss_of(other(tokens).logits, labels)
    loss.backward()
    return loss.detach().reshape(1), gradients_of(other)


def make(name, options, root):
    torch.manual_seed(2)
    directory = os.path.join(root, "lora", name)
    os.makedirs(directory, exist_ok=True)
    base = transformers.AutoModelForCausalLM.from_pretrained(
        os.path.join(root, "language", name), attn_implementation="eager", dtype=torch.float32)
    base.config._name_or_path = base.name_or_path = ""
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    for key, p in model.named_parameters():
        if p.requires_grad:
            p.data = torch.randn(p.shape) * (0.1 if "lora_B" in key else 0.2)
    model.save_pretrained(directory)
    os.remove(os.path.join(directory, "README.md"))
    tokens = torch.randint(0, VOCABULARY, (BATCH, CONTEXT), dtype=torch.int32)
    labels = torch.roll(tokens, -1, 1)
    labels[0, 3:9] = labels[1, -4:] = -1
    model.double()
    golden = {"tokens": tokens, "labels": labels}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=DECAY)
    losses = []
    golden["outliers"], of_outliers = outliers(model, tokens.long(), labels)
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = model(tokens.long()).logits
        loss = loss_of(logits, labels)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            golden["last"] = logits[:, -1].detach().float().contiguous()
            gradient = gradients_of(model)
        optimizer.step()
    golden["loss"] = torch.tensor(losses, dtype=torch.float64)
    files = {"gradient": gradient, "final": adapters_of(model), "golden": golden, "outliers": of_outliers}
    for file, tensors in files.items():
        save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(directory, file + ".safetensors"))
    print(name, losses[0], losses[-1], golden["outliers"].item())


def make_image(name, root):
    torch.manual_seed(3)
    directory = os.path.join(root, "lora", name)
    os.makedirs(directory, exist_ok=True)
    base = classifiers.timm_vit(init_values=0.5)
    classifiers.redraw(base, seed=5)
    state = classifiers.state_of(base)[0]
    golden = {k: v for k, v in load_file(os.path.join(root, "classify/timm-vit/golden.safetensors")).items()
              if k in ("images", "labels", "labels2", "share")}
    model = peft.get_peft_model(base, peft.LoraConfig(r=3, lora_alpha=6, target_modules=["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"],
                                                      modules_to_save=["head"])).eval()
    for key, p in model.named_parameters():
        if p.requires_grad and "lora_" in key:
            p.data = torch.randn(p.shape) * (0.1 if "lora_B" in key else 0.2)
    begin = adapters_of(model)
    model.double()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([{"params": [p for p in trained if p.dim() > 1], "weight_decay": classifiers.DECAY},
                                   {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0}],
                                  lr=classifiers.LR, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(classifiers.STEPS):
        optimizer.zero_grad()
        logits = model(golden["images"].double())
        loss = classifiers.loss_of(logits, golden)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            golden["logits"] = logits.detach().clone()
            gradient = gradients_of(model)
        optimizer.step()
    golden["loss"] = torch.tensor(losses, dtype=torch.float64)
    files = {"model": state, "adapter_model": begin, "gradient": gradient, "final": adapters_of(model), "golden": golden}
    for file, tensors in files.items():
        save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(directory, file + ".safetensors"))
    print(name, losses[0], losses[-1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[2:] or [*CASES, "timm-vit-scale"]:
        if case in CASES:
            make(case, CASES[case], sys.argv[1])
        else:
            make_image(case, sys.argv[1])
