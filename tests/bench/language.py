"""Steps of language models next to transformers' on the processor: the same model, tokens per step and AdamW, strictly in turn.

    OMP_NUM_THREADS=1 PYTHON tests/bench/language.py [--meopt FILE] [--rounds 2] [--steps 3] [--rows gpt2_small qwen3]

gpt2_small: GPT-2 small, 4 x 128 tokens. bert_base: BERT-base by masked tokens, 4 x 128. qwen3: Qwen3-0.6B's widths with 2 blocks, 1 x 1,024 tokens. PyTorch: AdamW fused, fp32, and bf16 autocast
over fp32 parameters; its attention is SDPA. The best step of all rounds counts, in processor seconds, which other load changes least. Memory is
the peak resident size of the process, of PyTorch's what its imports take subtracted.
"""
import argparse, json, os, resource, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
ROWS = {"gpt2_small": (4, 128, ["model.context=128"]),
        "bert_base": (4, 128, ["model.context=128"]),
        "qwen3": (1, 1024, ["model.context=1024", "model.depth=2"])}
CONFIGS = {"gpt2_small": "gpt2_small", "bert_base": "bert_base", "qwen3": "qwen3_0_6b"}
OURS = {"MEOpt": [], "MEOpt, offloaded": ["optim.offload=nvme", "model.place=streamed"]}


def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def torch_run(row, form, steps):
    import torch, transformers
    imported = peak()
    batch, tokens, _ = ROWS[row]
    torch.manual_seed(0)
    if row == "gpt2_small":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="sdpa"))
    elif row == "bert_base":
        model = transformers.BertForMaskedLM(transformers.BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation="sdpa"))
    else:
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
            vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=8,
            head_dim=128, tie_word_embeddings=True, attn_implementation="sdpa"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    ids, best = torch.randint(0, model.config.vocab_size, (batch, tokens)), None
    masked = torch.rand(ids.shape) < 0.15
    for _ in range(steps):
        begin = time.process_time(), time.monotonic()
        with torch.autocast("cpu", torch.bfloat16, enabled=form == "autocast"):
            if row == "bert_base":  # logits of the masked tokens alone, as here
                logits = model.cls(model.bert(ids).last_hidden_state[masked])
                loss = torch.nn.functional.cross_entropy(logits, ids[masked])
            else: loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        took = time.process_time() - begin[0], time.monotonic() - begin[1]
        best = took if best is None else min(best, took)
    print(json.dumps({"processor_s": best[0], "wall_s": best[1], "resident": peak() - imported,
                      "versions": torch.__version__ + ", transformers " + transformers.__version__}))


def our_run(o, row, form):
    batch, _, keys = ROWS[row]
    done = subprocess.run([o.meopt, "bench", "train", os.path.join(ROOT, "configs", CONFIGS[row] + ".yaml"), "--random-weights", "--no-peak", "--json",
                           "--steps", str(o.steps), "device.type=cpu", "train.batch_size=%d" % batch, "train.micro_batch=%d" % batch, *keys,
                           *OURS[form]], capture_output=True, text=True)
    if done.returncode: sys.exit(done.stderr)
    said = json.loads(done.stdout)
    return {"processor_s": said["processor_s"], "wall_s": said["step_ms"] * 1e-3, "resident": said["resident_bytes"]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--meopt", default=os.path.join(ROOT, "build-ci", "meopt"))
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    o = p.parse_args()
    for row in o.rows:
        found = {}
        for _ in range(o.rounds):
            for form in [*OURS, "fp32", "autocast"]:
                if form in OURS: run = our_run(o, row, form)
                else:
                    child = [sys.executable, os.path.abspath(__file__), "torch", row, form, str(o.steps)]
                    run = json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
                old = found.setdefault(form, run)
                found[form] = run if run["processor_s"] < old["processor_s"] else old
        best = min((f for f in found if f not in OURS), key=lambda f: found[f]["processor_s"])
        print("%s, %d x %d tokens; torch %s" % (row, *ROWS[row][:2], found[best]["versions"]))
        for form, run in found.items():
            print("  %-18s %7.3f processor s  %7.3f s  %7.0f MB  %.2f of PyTorch %s" % (
                form, run["processor_s"], run["wall_s"], run["resident"] * 1e-6, run["processor_s"] / found[best]["processor_s"], best))


if sys.argv[1:2] == ["torch"]: torch_run(sys.argv[2], sys.argv[3], int(sys.argv[4]))
else: main()
