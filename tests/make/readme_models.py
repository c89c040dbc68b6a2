#!/usr/bin/env python3
"""The models that README names, tiny, by the real classes: Qwen3ForCausalLM with Qwen2Tokenizer and Qwen3's published chat template (of the
package trl), BertForMaskedLM with BertTokenizer. transformers 5.24.0, tokenizers 0.23.3, trl 1.16.0. tests/data/readme is written, for
tests/cli/readme_blocks.sh. Usage: readme_models.py"""
import os
import shutil

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
OUT = os.path.join(SOURCE, "tests", "data", "readme")
TEXT = ["What is MEOpt? the light, and darkness. 光 and 暗.", "It trains large transformers in a fraction of the usual card memory."] * 4
TEXT += open(os.path.join(SOURCE, "LICENSE"), encoding="utf-8").read().split("\n\n")[:40]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
           "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
WORDS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


def template(name):
    import trl

    path = os.path.join(os.path.dirname(trl.__file__), "chat_templates", name)
    return open(path, encoding="utf-8").read()


def qwen3(path):
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=480, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    trained.save(path + ".json")
    import json

    bpe = json.load(open(path + ".json", encoding="utf-8"))["model"]
    os.remove(path + ".json")
    tokenizer = transformers.Qwen2Tokenizer(vocab=bpe["vocab"], merges=[tuple(pair) for pair in bpe["merges"]], eos_token="<|im_end|>",
                                            pad_token="<|endoftext|>", unk_token=None, model_max_length=131072)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.add_tokens(WORDS)
    tokenizer.chat_template = template("qwen3.jinja")
    config = transformers.Qwen3Config(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, head_dim=16, max_position_embeddings=40960, rope_theta=1000000.0,
                                      tie_word_embeddings=True, bos_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
                                      eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    torch.manual_seed(0)
    transformers.Qwen3ForCausalLM(config).bfloat16().save_pretrained(path)
    tokenizer.save_pretrained(path)
    shown = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert shown == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", shown


def bert(path):
    words = sorted({word for text in TEXT for word in text.lower().replace(".", " ").replace(",", " ").split() if word.isalpha()})[:300]
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,?!", *("##" + c for c in "abcdefghijklmnopqrstuvwxyz"), *words]
    vocab = list(dict.fromkeys(vocab))
    tokenizer = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(vocab)}, model_max_length=512)
    config = transformers.BertConfig(vocab_size=len(vocab), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                                     max_position_embeddings=512)
    torch.manual_seed(0)
    transformers.BertForMaskedLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)


shutil.rmtree(OUT, ignore_errors=True)
os.makedirs(OUT)
qwen3(os.path.join(OUT, "Qwen3-0.6B"))
bert(os.path.join(OUT, "bert-base-uncased"))
for directory, _, files in os.walk(OUT):
    for name in files:
        os.chmod(os.path.join(directory, name), 0o644)
