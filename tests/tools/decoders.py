"""Every causal language model of transformers at a tiny width: meopt computes its loss to 1e-5, or refuses it by its model_type.

    MEOPT=PROGRAM python decoders.py      in an empty directory
"""

import json
import os
import shutil
import subprocess
import sys

import torch
import transformers as hf
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

# Sizes under the names that classes have for them.
TINY = dict(
    hidden_size=64, n_embd=64, d_model=64, dim=64, word_embed_proj_dim=64, embedding_size=64, num_hidden_layers=2, n_layer=2, n_layers=2,
    num_layers=2, decoder_layers=2, encoder_layers=2, num_attention_heads=4, n_head=4, n_heads=4, decoder_attention_heads=4,
    encoder_attention_heads=4, num_key_value_heads=2, intermediate_size=96, ffn_dim=96, decoder_ffn_dim=96, encoder_ffn_dim=96, d_inner=128,
    vocab_size=80, max_position_embeddings=128, n_positions=128, head_dim=16, d_head=16, rotary_dim=8, moe_intermediate_size=32,
    n_routed_experts=4, num_experts=4, num_local_experts=4, num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1,
    q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, first_k_dense_replace=1, initializer_range=0.2,
    bos_token_id=1, eos_token_id=2, pad_token_id=0, decoder_start_token_id=1, state_size=8, conv_kernel=4, expand=2, mamba_d_state=8,
    mamba_n_heads=4, mamba_d_head=32, time_step_rank=4, attention_window=[8, 8], num_buckets=8, moe_num_experts=4, moe_layers=1,
)
CONTEXT, ROWS = 16, 8
YAML = """
model: {weight: case, context: 16}
train: {objective: language, batch_size: 4, precision: fp32}
data: {val: tokens.bin, root: tokens.bin, tokens: uint16}
device: {type: cpu}
"""


def tiny(kind):
    config = hf.AutoConfig.for_model(kind)
    for key, value in TINY.items():
        if hasattr(config, key) and getattr(config, key) is not None:
            try:
                setattr(config, key, value)
            except Exception:
                pass
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:2]
    return config


def save(kind, tokens):
    """Saves the model, and returns its loss; None: this program cannot make it tiny."""
    with torch.device("meta"):
        model = hf.AutoModelForCausalLM.from_config(tiny(kind))
    if sum(p.numel() for p in model.parameters()) > 3_000_000:
        return None
    model = hf.AutoModelForCausalLM.from_config(tiny(kind), attn_implementation="eager").eval()
    for p in model.parameters():
        if p.ndim == 1:
            p.data += 0.3 * torch.randn(p.shape)
    model.save_pretrained("case")
    with torch.no_grad():
        logits = model(tokens[:-1].view(ROWS, CONTEXT)).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), tokens[1:]).item()


torch.manual_seed(1)
hf.logging.set_verbosity_error()
hf.utils.logging.disable_progress_bar()
tokens = torch.randint(3, 80, (ROWS * CONTEXT + 1,))
open("tokens.bin", "wb").write(tokens.to(torch.int16).numpy().tobytes())
open("case.yaml", "w").write(YAML)
right, refused, wrong, misleading, skipped = [], [], [], [], []
for kind in sorted(NAMES):
    shutil.rmtree("case", ignore_errors=True)
    try:
        loss = save(kind, tokens)
    except Exception:
        loss = None
    if loss is None and not os.path.exists("case/config.json"):
        skipped.append(kind)
        continue
    done = subprocess.run([os.environ["MEOPT"], "eval", "case.yaml", "--json"], capture_output=True, text=True)
    if done.returncode == 0:
        ours = json.loads(done.stdout)["val_loss"]
        (right if loss and abs(ours / loss - 1) < 1e-5 else wrong).append((kind, loss, ours))
    elif done.returncode == 7:
        said = json.load(open("case/config.json"))["model_type"]
        (refused if said in done.stderr else misleading).append((kind, done.stderr.strip().splitlines()[0]))
    else:
        wrong.append((kind, done.returncode, done.stderr))
for name, cases in (("WRONG", wrong), ("misleading", misleading), ("right", right)):
    for case in cases:
        print(name, *case)
print("not made tiny:", " ".join(skipped))
print(f"decoders: right {len(right)}, refused by type {len(refused)}, misleading {len(misleading)}, wrong {len(wrong)}")
sys.exit(bool(wrong))
