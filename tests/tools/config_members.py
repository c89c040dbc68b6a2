"""Each member of config.json, changed one at a time: meopt computes the class's loss to 1e-5, or refuses the member by its name.

    MEOPT=PROGRAM python config_members.py      in an empty directory
"""

import json
import os
import random
import shutil
import subprocess

import torch
import transformers as hf

NAMES, WORDS = ["bad", "good", "other"], "light land gold bread father sin earth wind fire dust men sons daughters and the of in".split()
SIZES = dict(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2, intermediate_size=96,
    vocab_size=80, max_position_embeddings=128, initializer_range=0.2,
)
CONFIGS = {
    "gpt2": hf.GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=48, vocab_size=80, initializer_range=0.2),
    "llama": hf.LlamaConfig(**SIZES),
    "mistral": hf.MistralConfig(**SIZES, sliding_window=7),
    "qwen2": hf.Qwen2Config(**SIZES),
    "qwen3": hf.Qwen3Config(**SIZES, head_dim=16),
}
ENCODER = dict(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=8, intermediate_size=96, vocab_size=900, max_position_embeddings=64,
    initializer_range=0.2, num_labels=3, id2label=dict(enumerate(NAMES)), label2id={n: i for i, n in enumerate(NAMES)},
)
ENCODERS = {
    "bert": hf.BertConfig(**ENCODER),
    "distilbert": hf.DistilBertConfig(**{k: v for k, v in ENCODER.items() if k != "intermediate_size"}, hidden_dim=96),
    "roberta": hf.RobertaConfig(**ENCODER, type_vocab_size=1),
    "electra": hf.ElectraConfig(**ENCODER, embedding_size=48),
    "big_bird": hf.BigBirdConfig(**ENCODER, sep_token_id=2), # texts have one block: with more they depend on the padding
}
ROPES = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.5},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 16.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False},
    {"rope_type": "yarn", "original_max_position_embeddings": 16},
    {"type": "linear", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 16},
    {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16},
    {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
    {"rope_type": "default", "made_up": 3},
]
# Members that some class or library has, and values other than its default.
FOREIGN = {
    "made_up": [1, "text", True, [1], {"a": 1}],
    "layer_norm_eps": [1e-2], "layer_norm_epsilon": [1e-2], "rms_norm_eps": [1e-2], "norm_eps": [1e-2],
    "hidden_act": ["gelu", "relu", "swish"], "activation_function": ["gelu", "relu", "silu"], "hidden_activation": ["gelu"],
    "sliding_window": [8, 0], "use_sliding_window": [True], "max_window_layers": [0, 1, 2],
    "layer_types": [["sliding_attention"] * 2, ["full_attention"] * 2, ["full_attention"], ["full_attention", "sliding_attention"]],
    "attention_bias": [True], "mlp_bias": [True], "qkv_bias": [True], "use_bias": [True, False], "bias": [True],
    "attention_type": ["original_full", "other"], "block_size": [0, 128], "num_random_blocks": [0, 1, -1], "rescale_embeddings": [True],
    "rope_theta": [500000.0], "rope_scaling": ROPES, "rope_parameters": ROPES, "partial_rotary_factor": [0.5], "rotary_pct": [0.5],
    "original_max_position_embeddings": [16], "rope_interleaved": [True], "no_rope_layers": [[0, 1]], "rope_local_base_freq": [100.0],
    "attn_logit_softcapping": [5.0], "final_logit_softcapping": [5.0], "logit_scale": [0.5], "logits_scaling": [2.0],
    "embedding_multiplier": [2.0], "residual_multiplier": [0.5], "attention_multiplier": [0.5], "scale_emb": [2], "query_pre_attn_scalar": [64],
    "tie_word_embeddings": [True, False], "scale_attn_weights": [False], "scale_attn_by_inverse_layer_idx": [True],
    "reorder_and_upcast_attn": [True], "add_cross_attention": [True], "is_decoder": [True], "parallel_attn": [True],
    "use_parallel_residual": [True], "use_qk_norm": [True], "qk_layernorm": [True], "num_key_value_heads": [1, 4],
    "num_attention_heads": [2, 0], "n_head": [2], "head_dim": [8, 16], "n_inner": [96], "intermediate_size": [96, 128], "hidden_size": [128],
    "n_embd": [128], "n_layer": [1], "num_hidden_layers": [1], "n_positions": [64], "max_position_embeddings": [64, 256],
    "vocab_size": [81], "pretraining_tp": [2], "attention_dropout": [0.1], "resid_pdrop": [0.3], "attn_pdrop": [0.3],
    "quantization_config": [{"quant_method": "gptq", "bits": 4}], "compression_config": [{"format": "int"}], "num_local_experts": [4],
    "use_cache": [False], "initializer_range": [0.3], "torch_dtype": ["bfloat16"], "bos_token_id": [3], "unsloth_version": ["2026.1"],
    "position_embedding_type": ["relative_key", "relative_key_query"], "embedding_size": [32, 64], "type_vocab_size": [1, 2, 3],
    "chunk_size_feed_forward": [8], "sinusoidal_pos_embds": [True], "tie_weights_": [False], "dim": [32], "n_heads": [2], "n_layers": [1],
    "hidden_dim": [128], "activation": ["relu", "gelu_new", "gelu_fast"], "pad_token_id": [0, 3], "dropout": [0.3], "seq_classif_dropout": [0.3],
    "problem_type": ["regression", "multi_label_classification"], "summary_activation": ["tanh"], "classifier_dropout": [0.3],
    "pooler_num_fc_layers": [3], "use_bfloat16": [True], "pruned_heads": [{"0": [1]}], "tie_encoder_decoder": [True],
    "temperature": [0.5], "architectures": [["Other"]], "model_type": ["gemma2", "dots1", "made_up"],
}
CONTEXT, ROWS = 32, 8
YAML = """
model: {{weight: {0}, context: 32}}
train: {{objective: language, steps: 1, batch_size: 4, precision: fp32}}
data: {{val: tokens.bin, root: tokens.bin, tokens: uint16}}
device: {{type: cpu}}
"""


def real_loss(directory, data):
    """The class's loss; None: transformers does not load it, or not all of its tensors."""
    try:
        model, info = (hf.AutoModelForCausalLM if torch.is_tensor(data) else hf.AutoModelForSequenceClassification).from_pretrained(
            directory, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
        )
        if info["missing_keys"] or info["mismatched_keys"]:
            return None
        with torch.no_grad():
            if not torch.is_tensor(data):
                logits = torch.cat([model.eval()(torch.tensor([ids])).logits for ids, _ in data])
                return torch.nn.functional.cross_entropy(logits.double(), torch.tensor([label for _, label in data])).item()
            logits = model.eval()(data[:-1].view(ROWS, CONTEXT)).logits
    except Exception:
        return None
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), data[1:]).item()


def make_texts(tokenizer):
    """Writes texts.bin; returns the tokens and the class of each."""
    random.seed(2)
    records = [{"text": " ".join(random.choices(WORDS, k=random.randrange(2, 25))), "label": NAMES[i % 3]} for i in range(24)]
    open("texts.jsonl", "w").writelines(json.dumps(r) + "\n" for r in records)
    subprocess.run([os.environ["MEOPT"], "tokenize", "texts.jsonl", "--tokenizer", tokenizer, "--label", "label", "-o", "texts"], check=True,
                   capture_output=True)
    encode = hf.PreTrainedTokenizerFast(tokenizer_file=tokenizer)
    return [(encode(r["text"], truncation=True, max_length=CONTEXT)["input_ids"], NAMES.index(r["label"])) for r in records]


def meopt_loss(directory, kind):
    open("case.yaml", "w").write((CLASSIFY if kind in ENCODERS else YAML).format(directory, kind))
    done = subprocess.run([os.environ["MEOPT"], "eval", "case.yaml", "--json"], capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout)["val_loss"], done.stderr
    assert done.returncode == 7, (directory, done.returncode, done.stderr)
    return None, done.stderr


CLASSIFY = """
model: {{weight: {0}, family: {1}, context: 32}}
train: {{objective: classify, batch_size: 4, precision: fp32}}
data: {{val: texts.bin, root: texts.bin}}
device: {{type: cpu}}
"""


def changes(config):
    """Each member's other values, and each member left out."""
    for name in sorted(set(config) | set(FOREIGN)):
        for value in FOREIGN.get(name, []):
            if config.get(name, FOREIGN) != value:
                yield name, {**config, name: value}
        if name in config and name != "model_type":
            yield name, {k: v for k, v in config.items() if k != name}


torch.manual_seed(1)
hf.logging.set_verbosity_error()
hf.utils.logging.disable_progress_bar()
tokens = torch.randint(0, 80, (ROWS * CONTEXT + 1,))
open("tokens.bin", "wb").write(tokens.to(torch.int16).numpy().tobytes())
right = named = loads = 0
wrong, misleading = [], []
texts = make_texts(os.path.join(os.environ["MEOPT_SOURCE"], "tests/data/tokenizers/bert.json"))
for kind, config in (CONFIGS | ENCODERS).items():
    data = texts if kind in ENCODERS else tokens
    model = (hf.AutoModelForSequenceClassification if kind in ENCODERS else hf.AutoModelForCausalLM).from_config(config, attn_implementation="eager").eval()
    for p in model.parameters():
        if p.ndim == 1:
            p.data += 0.3 * torch.randn(p.shape)
    shutil.rmtree("case", ignore_errors=True)
    model.save_pretrained("case")
    saved = json.load(open("case/config.json"))
    for name, changed in changes(saved):
        json.dump(changed, open("case/config.json", "w"))
        expected = real_loss("case", data)
        loss, message = meopt_loss("case", kind)
        case = (kind, name, changed.get(name, "left out"), expected, loss, message.strip().splitlines()[:1])
        if loss is None:
            if name in message or str(changed.get(name)) in message or (name not in changed and expected is None):
                named += 1
            else:
                misleading.append(case)
        elif expected is None:
            loads += 1
            print("loads what transformers refuses:", case)
        elif abs(loss / expected - 1) < 1e-5:
            right += 1
        else:
            wrong.append(case)
for case in wrong:
    print("WRONG:", case)
for case in misleading:
    print("misleading:", case)
print(f"config members: right {right}, refused by name {named}, misleading {len(misleading)}, loads {loads}, wrong {len(wrong)}")
assert not wrong
