# What PyTorch does on the same machine, a JSON object a line.
#   train_torch.py SECONDS            on the card, for gpu.sh: the optimizer step of 1e9 parameters (fused AdamW, fp32 and bf16), and distillation
#                                     steps of the three workloads' shapes (bf16 autocast, SDPA, fused AdamW, torch.compile)
#   train_torch.py cpu NAME BATCH [FORM [DEPTH]]    on the processor: one workload, AdamW; memory is what the process held. FORM: bf16 (all
#                                     of it, the default), fp32 or autocast, with +compile through torch.compile; DEPTH: that many blocks
#                                     of each tower. cpu_s: processor time of the best step, which other load on the machine touches less
import json, resource, sys, time, torch
import torch.nn as nn, torch.nn.functional as F


def best(f, n):
    f(); torch.cuda.synchronize(); t = 1e9
    for _ in range(n):
        b = time.perf_counter(); f(); torch.cuda.synchronize(); t = min(t, time.perf_counter() - b)
    return t


def optimizer(dtype, count=10**9):
    ps = [nn.Parameter(torch.zeros(1024, 4096, device="cuda", dtype=dtype)) for _ in range(count // 4194304 + 1)]
    for p in ps: p.grad = torch.full_like(p, 1e-3)
    opt = torch.optim.AdamW(ps, lr=1e-4, fused=True)
    t, n = best(opt.step, 5), sum(p.numel() for p in ps)
    moved = {torch.float32: 28, torch.bfloat16: 14}[dtype]
    print(json.dumps({"optimizer": "fused AdamW", "dtype": str(dtype), "step_ms": t * 1e3, "gb_per_s": moved * n / t * 1e-9}), flush=True)


class Block(nn.Module):
    def __init__(s, w, h, f, swiglu):
        super().__init__()
        s.h, s.swiglu = h, swiglu
        s.n1, s.n2 = nn.LayerNorm(w), nn.LayerNorm(w)
        s.qkv, s.proj = nn.Linear(w, 3 * w), nn.Linear(w, w)
        s.fc1, s.fc2 = nn.Linear(w, 2 * f if swiglu else f), nn.Linear(f, w)

    def forward(s, x):
        b, n, w = x.shape
        q, k, v = s.qkv(s.n1(x)).view(b, n, 3, s.h, w // s.h).permute(2, 0, 3, 1, 4)
        x = x + s.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, w))
        y = s.fc1(s.n2(x))
        y = F.silu(y.chunk(2, -1)[0]) * y.chunk(2, -1)[1] if s.swiglu else F.gelu(y)
        return x + s.fc2(y)


class Tower(nn.Module):
    def __init__(s, w, d, h, f, out, swiglu=False, image=224, patch=14):
        super().__init__()
        s.patch, s.cls = nn.Conv2d(3, w, patch, patch), nn.Parameter(torch.zeros(1, 1, w))
        s.pos = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, w))
        s.blocks = nn.ModuleList(Block(w, h, f, swiglu) for _ in range(d))
        s.norm, s.head = nn.LayerNorm(w), nn.Linear(w, out)

    def forward(s, x):
        x = s.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([s.cls.expand(len(x), -1, -1), x], 1) + s.pos
        for b in s.blocks: x = b(x)
        return s.head(s.norm(x[:, 0]))


# teacher, student: width, depth, heads, hidden, out, swiglu (the geometries of configs/*.yaml)
WORKLOADS = {
    "eva_clip": ((1408, 40, 16, 6144, 1024), (1408, 40, 16, 6144, 1024)),
    "open_clip": ((1408, 40, 16, 6144, 1024), (1280, 32, 16, 5120, 1024)),
    "dinov2": ((1536, 40, 24, 4096, 1536, True), (1024, 24, 16, 4096, 1536)),
}


def workload(name, batch=32, compile=True):
    torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
    teacher, student = (Tower(*g).cuda() for g in WORKLOADS[name])
    teacher.requires_grad_(False)
    opt = torch.optim.AdamW(student.parameters(), lr=1e-5, fused=True)
    run_t, run_s = (torch.compile(m) if compile else m for m in (teacher, student))
    x = torch.randn(batch, 3, 224, 224, device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            with torch.no_grad(): want = run_t(x)
            loss = F.mse_loss(run_s(x).float(), want.float())
        loss.backward(); opt.step(); opt.zero_grad(set_to_none=True)

    t = best(step, 4)
    print(json.dumps({"workload": name, "compiled": compile, "images_per_s": batch / t, "peak_bytes": torch.cuda.max_memory_allocated()}), flush=True)


def on_cpu(name, batch, form="bf16", depth=None):
    kind, _, how = form.partition("+")
    cut = lambda g: g[:1] + (depth or g[1],) + g[2:]
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    teacher, student = (Tower(*cut(g)).to(dtype) for g in WORKLOADS[name])
    teacher.requires_grad_(False)
    run_t, run_s = (torch.compile(m) if how == "compile" else m for m in (teacher, student))
    opt = torch.optim.AdamW(student.parameters(), lr=1e-5, fused=True)
    x, best, least = torch.randn(batch, 3, 224, 224, dtype=dtype), 1e9, 1e9
    for _ in range(3):
        begin, used = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            with torch.no_grad(): want = run_t(x)
            loss = F.mse_loss(run_s(x).float(), want.float())
        loss.backward()
        opt.step(); opt.zero_grad(set_to_none=True)
        best, least = min(best, time.perf_counter() - begin), min(least, time.process_time() - used)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"torch": torch.__version__, "workload": name, "batch": batch, "form": form, "depth": depth, "threads": torch.get_num_threads(),
                      "images_per_s": batch / best, "cpu_s": least, "resident_mib": held}))


def on_card(seconds):
    deadline = time.time() + seconds
    print(json.dumps({"torch": torch.__version__, "card": torch.cuda.get_device_name()}), flush=True)
    for job in [lambda: optimizer(torch.float32), lambda: optimizer(torch.bfloat16)] + [lambda n=n, c=c: workload(n, compile=c) for c in (False, True) for n in WORKLOADS]:
        if time.time() > deadline: break
        try: job()
        except Exception as e: print(json.dumps({"error": str(e)[:200]}), flush=True)
        torch.cuda.empty_cache()


if sys.argv[1] == "cpu": on_cpu(sys.argv[2], int(sys.argv[3]), *sys.argv[4:5], *(int(a) for a in sys.argv[5:6]))
else: on_card(float(sys.argv[1]))
