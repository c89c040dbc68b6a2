"""Encoders of transformers in and out of meopt, in an empty directory: a masked model whose training has lr 0 is exported as the same class with the same
values; models without a head, TensorFlow's names of norms and a pytorch_model.bin of an older version are read; what cannot be is refused by its name.

    MEOPT=PROGRAM python encoders.py
"""
import json
import os
import subprocess

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

SIZES = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, vocab_size=300, max_position_embeddings=66, initializer_range=0.2)
CONFIGS = {
    "bert": hf.BertConfig(**SIZES), "distilbert": hf.DistilBertConfig(dim=48, n_layers=2, n_heads=4, hidden_dim=96, vocab_size=300, max_position_embeddings=66),
    "roberta": hf.RobertaConfig(**SIZES, type_vocab_size=1), "xlm-roberta": hf.XLMRobertaConfig(**SIZES, type_vocab_size=2, hidden_act="gelu_new"),
    "camembert": hf.CamembertConfig(**SIZES, type_vocab_size=1, bos_token_id=5, eos_token_id=6),
    "electra": hf.ElectraConfig(**SIZES, embedding_size=24), "generator": hf.ElectraConfig(**SIZES, embedding_size=80), "base": hf.ElectraConfig(**SIZES, embedding_size=48),
}
YAML = """
model: {{weight: {0}, {1}context: 24}}
train: {{objective: {2}, steps: 1, batch_size: 4, precision: fp32}}
optim: {{lr: 0}}
data: {{root: {3}, val: {3}{4}}}
device: {{type: cpu}}
"""


def meopt(*arguments, code=0):
    done = subprocess.run([os.environ["MEOPT"], *arguments], capture_output=True, text=True)
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done.stdout + done.stderr


def write(directory, model, **config):
    """As save_pretrained, but with the mask and special tokens of a tokenizer."""
    model.save_pretrained(directory)
    mask = 299 if "oberta" in type(model).__name__ or "Camem" in type(model).__name__ else 103
    special = [("<s>", 0), ("<pad>", 1), ("</s>", 2)] if mask == 299 else [("[PAD]", 0), ("[CLS]", 101), ("[SEP]", 102)]
    added = [dict(id=i, content=text, special=True) for text, i in special + [("<mask>" if mask == 299 else "[MASK]", mask)]]
    json.dump(dict(added_tokens=added), open(os.path.join(directory, "tokenizer.json"), "w"))


def masked(name, config):
    torch.manual_seed(3)
    model = hf.AutoModelForMaskedLM.from_config(config).eval()
    for p in model.parameters():
        if p.ndim == 1:
            p.data += 0.3 * torch.randn(p.shape)
    write(name, model)
    open(name + ".yaml", "w").write(YAML.format(name, "", "masked", "tokens.bin", ", tokens: uint16"))
    meopt("train", name + ".yaml", "--name", name)
    text = open(os.path.join("runs", name, "config.yaml")).read()
    high = config.model_type in ("roberta", "xlm-roberta", "camembert")
    assert f"mask_token: {299 if high else 103}" in text and f"special_tokens: {3 if high else 104}" in text, text
    meopt("export", "runs/" + name, "--format", "hf", "-o", name + "-hf")
    os.remove(os.path.join(name + "-hf", "tokenizer.json"))  # has no model
    back, info = hf.AutoModelForMaskedLM.from_pretrained(name + "-hf", output_loading_info=True)
    assert not {k: v for k, v in info.items() if v}, (name, info)
    assert type(back) is type(model), (name, type(back))
    before, after = model.state_dict(), back.eval().state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before), name
    tokens = torch.randint(4, 300, (2, 20))
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, back(tokens).logits), name
    for key in ("hidden_act", "activation", "layer_norm_eps", "type_vocab_size", "embedding_size", "max_position_embeddings", "pad_token_id", "bos_token_id"):
        was, now = getattr(config, key, None), getattr(back.config, key, None)
        assert was == now, (name, key, was, now)
    return model


def classified(directory, family, expected=0):
    """A training of a classifier on the model in `directory`; returns its messages."""
    open("case.yaml", "w").write(YAML.format(directory, f"family: {family}, ", "classify", "texts.bin", ""))
    return meopt("train", "case.yaml", "--name", directory, "--no-dashboard", code=expected)


tokens = torch.randint(4, 298, (2000,), generator=torch.Generator().manual_seed(1))
open("tokens.bin", "wb").write(tokens.to(torch.int16).numpy().tobytes())
subprocess.run(["sh", "-c", 'i=0; while [ $i -lt 20 ]; do echo "{\\"text\\": \\"a b c\\", \\"label\\": \\"$((i % 2))\\"}"; i=$((i + 1)); done >texts.jsonl'], check=True)
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
words = Tokenizer(models.BPE({"a": 7, "b": 8, "c": 9}, []))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.save("words.json")
meopt("tokenize", "texts.jsonl", "--tokenizer", "words.json", "--label", "label", "--end", "none", "-o", "texts")
for name, config in CONFIGS.items():
    model = masked(name, config)
    family = {"xlm-roberta": "roberta", "camembert": "roberta", "generator": "electra", "base": "electra"}.get(name, name)
    # without a head, whose names are BERT's: config.json says what it is
    hf.AutoModel.from_pretrained(name).save_pretrained(name + "-alone")
    classified(name + "-alone", family)
    if name in ("roberta", "camembert"):  # and without it, that it is no BERT
        os.remove(name + "-alone/config.json")
        classified(name + "-alone", "bert", 7)
    # an older version's file: positions, copies of the head, TensorFlow's names
    state = {k: v.clone() for k, v in model.state_dict().items()}
    if family != "distilbert":
        state = {k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v for k, v in state.items()}
    state[next(k for k in state if k.endswith("word_embeddings.weight")).replace("word_embeddings.weight", "position_ids")] = torch.arange(66)[None]
    os.makedirs(name + "-old")
    os.rename(name + "/config.json", name + "-old/config.json")
    torch.save(state, name + "-old/pytorch_model.bin")
    open("old.yaml", "w").write(YAML.format(name + "-old", "", "masked", "tokens.bin", ", tokens: uint16, mask_token: 299, special_tokens: 4"))
    meopt("train", "old.yaml", "--name", name + "-old", "--no-dashboard")
    meopt("export", "runs/" + name + "-old", "--format", "hf", "-o", name + "-old-hf")
    back = hf.AutoModelForMaskedLM.from_pretrained(name + "-old-hf").state_dict()
    assert all(torch.equal(v, back[k]) for k, v in model.state_dict().items()), name
    print(f"{name}: {type(model).__name__}, export equal")
# a head of its own, other than the token table
for name, copy in (("roberta", "lm_head.decoder.weight"), ("distilbert", "vocab_projector.weight"), ("electra", "generator_lm_head.weight")):
    state = load_file(name + "-hf/model.safetensors")
    state[copy] = next(v for k, v in state.items() if k.endswith("word_embeddings.weight")) + 1
    save_file(state, name + "-hf/model.safetensors", {"format": "pt"})
    open("case.yaml", "w").write(YAML.format(name + "-hf", "", "masked", "tokens.bin", ", tokens: uint16, mask_token: 299, special_tokens: 4"))
    assert copy in meopt("train", "case.yaml", "--name", "copy", "--no-dashboard", code=7)
# a discriminator classifies texts, and has no head of masked tokens
hf.ElectraForPreTraining(CONFIGS["electra"]).save_pretrained("discriminator")
classified("discriminator", "electra")
open("case.yaml", "w").write(YAML.format("discriminator", "", "masked", "tokens.bin", ", tokens: uint16, mask_token: 299, special_tokens: 4"))
assert "generator_predictions.dense.weight" in meopt("train", "case.yaml", "--name", "copy", "--no-dashboard", code=7)
print("refused: heads apart, a discriminator's masked tokens")
