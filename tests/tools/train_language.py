"""Models of transformers' classes: meopt's loss is theirs to 1e-6, and an export after a step with lr 0 is the model.

    MEOPT=PROGRAM python train_language.py      in an empty directory
"""

import json
import os
import subprocess

import torch
import transformers as hf

SIZES = dict(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2, intermediate_size=96,
    vocab_size=80, max_position_embeddings=128, initializer_range=0.2,
)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16)
CONFIGS = {
    "gpt2": hf.GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=48, vocab_size=80, initializer_range=0.2),
    "gpt2-gelu": hf.GPT2Config(
        n_embd=64, n_layer=1, n_head=2, n_positions=48, vocab_size=80, n_inner=96, activation_function="gelu"
    ),
    "llama": hf.LlamaConfig(**SIZES),
    "llama3": hf.LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=LLAMA3),
    "yarn": hf.LlamaConfig(**SIZES, rope_parameters=YARN, rms_norm_eps=1e-3),
    "mistral": hf.MistralConfig(**SIZES, sliding_window=7),
    "qwen2": hf.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": hf.Qwen3Config(**SIZES, head_dim=16),
}
CONTEXT, ROWS = 32, 8
YAML = """
model: {{weight: {0}, context: 32}}
train: {{objective: language, steps: 1, batch_size: 4, precision: fp32}}
optim: {{lr: 0}}
data: {{root: tokens.bin, val: tokens.bin, tokens: uint16}}
device: {{type: cpu}}
"""


def meopt(*arguments):
    done = subprocess.run([os.environ["MEOPT"], *arguments], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def randomize(model):
    """Biases and norms, too, which the classes begin with 0 and 1."""
    for p in model.parameters():
        if p.ndim == 1:
            p.data += 0.3 * torch.randn(p.shape)


torch.manual_seed(1)
tokens = torch.randint(0, 80, (ROWS * CONTEXT + 1,))
open("tokens.bin", "wb").write(tokens.to(torch.int16).numpy().tobytes())
for name, config in CONFIGS.items():
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    randomize(model)
    model.save_pretrained(name, max_shard_size="60KB" if name in ("llama", "qwen3") else "5GB")
    open(name + ".yaml", "w").write(YAML.format(name))
    with torch.no_grad():
        logits = model(tokens[:-1].view(ROWS, CONTEXT)).logits
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), tokens[1:]).item()
    loss = json.loads(meopt("eval", name + ".yaml", "--json"))["val_loss"]
    assert abs(loss / expected - 1) < 1e-6, (name, loss, expected)
    meopt("train", name + ".yaml", "--name", name)
    meopt("export", "runs/" + name, "--format", "hf", "--shard-size", "0.0001", "-o", name + "-hf")
    back, info = hf.AutoModelForCausalLM.from_pretrained(name + "-hf", output_loading_info=True)
    assert not {k: v for k, v in info.items() if v}, (name, info)
    assert type(back) is type(model), (name, type(back))
    before, after = model.state_dict(), back.state_dict()
    assert before.keys() == after.keys(), name
    for key in before:
        assert torch.equal(before[key], after[key]), (name, key)
    for key in ("hidden_act", "activation_function", "rms_norm_eps", "sliding_window", "rope_parameters"):
        was, now = getattr(config, key, None), getattr(back.config, key, None)
        if isinstance(was, dict):
            assert {k: now[k] for k in was} == was, (name, was, now)
        else:
            assert was == now, (name, key, was, now)
    print(f"{name}: loss {loss:.6f}, off by {abs(loss / expected - 1):.1g}; export equal")
