# What PyTorch does on the same machine, a JSON object a line.
#   train_torch.py SECONDS            on the card, for the card kit: the optimizers of meopt.torch on CUDA tensors, attention alone (SDPA), steps
#                                     of the three distillations and of Qwen3-0.6B (bf16 autocast, SDPA, fused AdamW; eager, then each block
#                                     compiled), and the optimizer step of 1e9 parameters (fused AdamW, fp32 and bf16)
#   train_torch.py cpu NAME BATCH [FORM [DEPTH [STEPS [LIMIT]]]]    on the processor: one workload, the best of STEPS (3); FORM: bf16 (all of
#                                     it, the default), fp32 or autocast (the teacher held in bf16), with +compile through torch.compile;
#                                     DEPTH: that many blocks of each tower (0: all). cpu_s: processor time of the best step, which other
#                                     load on the machine touches less; resident_mib: what the process held at most, import_mib: of it
#                                     before there was a model. A step of more than LIMIT processor seconds ends it with "cut_off_s".
# A step is what 'meopt bench train' does with configs/NAME.yaml: the teacher's forward without gradient, the student's forward and backward,
# the same model shape, parts, loss, clipping and weight decay.
import json, resource, signal, sys, time, torch
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


class Scale(nn.Module):
    def __init__(s, w):
        super().__init__()
        s.gamma = nn.Parameter(torch.full((w,), 0.1))

    def forward(s, x): return x * s.gamma


class Block(nn.Module):
    def __init__(s, w, h, f, parts):
        super().__init__()
        s.h, s.swiglu = h, "swiglu" in parts
        s.n1, s.n2 = nn.LayerNorm(w), nn.LayerNorm(w)
        s.qkv, s.proj = nn.Linear(w, 3 * w), nn.Linear(w, w)
        s.fc1, s.fc2 = nn.Linear(w, 2 * f if s.swiglu else f), nn.Linear(f, w)
        s.s1, s.s2 = (Scale(w) if "scale" in parts else nn.Identity() for _ in range(2))

    def forward(s, x):
        b, n, w = x.shape
        q, k, v = s.qkv(s.n1(x)).view(b, n, 3, s.h, w // s.h).permute(2, 0, 3, 1, 4)
        x = x + s.s1(s.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, w)))
        y = s.fc1(s.n2(x))
        y = F.silu(y.chunk(2, -1)[0]) * y.chunk(2, -1)[1] if s.swiglu else F.gelu(y)
        return x + s.s2(s.fc2(y))


class Tower(nn.Module):
    def __init__(s, w, d, h, f, out, parts="", image=224, patch=14):
        super().__init__()
        s.grid, known = image // patch, 37 if "resized" in parts else image // patch
        s.patch, s.cls = nn.Conv2d(3, w, patch, patch, bias="pre" not in parts), nn.Parameter(torch.zeros(1, 1, w))
        s.pos = nn.Parameter(torch.randn(1, known**2 + 1, w) * 0.02)
        s.pre = nn.LayerNorm(w) if "pre" in parts else nn.Identity()
        s.blocks = nn.ModuleList(Block(w, h, f, parts) for _ in range(d))
        s.norm, s.head = nn.LayerNorm(w), nn.Linear(w, out, bias="pre" not in parts) if out else nn.Identity()

    def positions(s):
        known = int(s.pos.shape[1] ** 0.5)
        if known == s.grid: return s.pos
        cls, grid = s.pos[:, :1], s.pos[:, 1:].float().view(1, known, known, -1).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, (s.grid, s.grid), mode="bicubic").flatten(2).transpose(1, 2)
        return torch.cat([cls, grid.to(cls.dtype)], 1)

    def forward(s, x):
        x = s.patch(x).flatten(2).transpose(1, 2)
        x = s.pre(torch.cat([s.cls.expand(len(x), -1, -1).to(x.dtype), x], 1) + s.positions().to(x.dtype))
        for b in s.blocks: x = b(x)
        return s.head(s.norm(x[:, 0]))


# teacher, student: width, depth, heads, hidden, out (0: the class token as it is), parts (the model shapes of configs/*.yaml)
WORKLOADS = {
    "eva_clip": ((1408, 40, 16, 6144, 1024), (1408, 40, 16, 6144, 1024)),
    "open_clip": ((1408, 40, 16, 6144, 1024, "pre"), (1280, 32, 16, 5120, 1024, "pre")),
    "dinov2": ((1536, 40, 24, 4096, 0, "swiglu scale resized"), (1024, 24, 16, 4096, 1536, "scale resized")),
}


def adamw(student):
    matrices = [p for p in student.parameters() if p.dim() > 1]
    rest = [p for p in student.parameters() if p.dim() <= 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0}], lr=2e-5, fused=True)


def loss_of(name, got, want):
    got, want = got.float(), want.float()
    if name == "eva_clip": got, want = F.normalize(got, dim=-1), F.normalize(want, dim=-1)
    return F.mse_loss(got, want)


def update(student, opt):
    nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    opt.step(); opt.zero_grad(set_to_none=True)


def say(**what): print(json.dumps(what), flush=True)


def measure(name, batch, compiled, step):
    torch.cuda.reset_peak_memory_stats()
    t = best(step, 4)
    say(workload=name, batch=batch, blocks_compiled=compiled, step_ms=t * 1e3, peak_bytes=torch.cuda.max_memory_allocated())


def workload(name, compiled, batch=32):
    teacher, student = (Tower(*g).cuda() for g in WORKLOADS[name])
    teacher.requires_grad_(False).bfloat16()
    opt = adamw(student)
    if compiled: [b.compile() for m in (teacher, student) for b in m.blocks]
    x = torch.randn(batch, 3, 224, 224, device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            with torch.no_grad(): want = teacher(x)
            loss = loss_of(name, student(x), want)
        loss.backward(); update(student, opt)

    measure(name, batch, compiled, step)


def qwen(compiled, batch=4, tokens=2048):
    import transformers
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, tie_word_embeddings=True, attn_implementation="sdpa")).cuda()
    if compiled: [b.compile() for b in model.model.layers]
    opt = adamw(model)
    ids = torch.randint(0, 151936, (batch, tokens), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16): loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward(); update(model, opt)

    measure("qwen3_0_6b", batch, compiled, step)


def attention():
    for b, n, h, dh, causal in ((32, 257, 16, 64, False), (32, 257, 24, 64, False), (32, 257, 16, 88, False), (4, 2048, 16, 128, True)):
        q, k, v = (torch.randn(b, h, n, dh, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        forward = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        grad = torch.randn_like(forward())
        t, both, work = best(forward, 20), best(lambda: forward().backward(grad), 20), 4 * b * h * n * n * dh / (2 if causal else 1) * 1e-12
        say(attention=[b, n, h, dh, causal], forward_ms=t * 1e3, forward_tflops=work / t, backward_ms=(both - t) * 1e3, backward_tflops=2.5 * work / (both - t))


def same_bits():
    import meopt.torch
    models = [nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict()); models[1].cuda()
    optimizers = [meopt.torch.AdamW(m.parameters(), lr=1e-3) for m in models]
    for _ in range(10):
        for p, q in zip(*(m.parameters() for m in models)): p.grad = torch.randn_like(p); q.grad = p.grad.cuda()
        for o in optimizers: o.step()
    say(meopt_torch_same_bits=all(torch.equal(p, q.cpu()) for p, q in zip(*(m.parameters() for m in models))))


def over(*_): raise TimeoutError


def on_cpu(name, batch, form="bf16", depth=0, steps=3, limit=0):
    resident = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    kind, _, how = form.partition("+")
    cut = lambda g: g[:1] + (depth or g[1],) + g[2:]
    says = {"torch": torch.__version__, "workload": name, "batch": batch, "form": form, "depth": depth or None,
            "threads": torch.get_num_threads(), "import_mib": resident()}
    low = torch.bfloat16
    teacher = Tower(*cut(WORKLOADS[name][0])).requires_grad_(False).to(torch.float32 if kind == "fp32" else low)
    student = Tower(*cut(WORKLOADS[name][1])).to(low if kind == "bf16" else torch.float32)
    run_t, run_s = (torch.compile(m) if how == "compile" else m for m in (teacher, student))
    opt = adamw(student)
    x, best, least = torch.randn(batch, 3, 224, 224, dtype=low if kind == "bf16" else torch.float32), 1e9, 1e9
    signal.signal(signal.SIGPROF, over)
    try:
        for step in range(steps):
            # the first is not held to it: it compiles, and makes the optimizer's states
            if limit and step: signal.setitimer(signal.ITIMER_PROF, limit)
            begin, used = time.perf_counter(), time.process_time()
            with torch.autocast("cpu", low, enabled=kind == "autocast"):
                with torch.no_grad(): want = run_t(x)
                loss = loss_of(name, run_s(x), want)
            loss.backward(); update(student, opt)
            best, least = min(best, time.perf_counter() - begin), min(least, time.process_time() - used)
            signal.setitimer(signal.ITIMER_PROF, 0)
    except TimeoutError:
        print(json.dumps(says | {"cut_off_s": limit}))
        return
    print(json.dumps(says | {"images_per_s": batch / best, "step_ms": best * 1e3, "cpu_s": least, "resident_mib": resident()}))


def on_card(seconds):
    deadline = time.time() + seconds
    print(json.dumps({"torch": torch.__version__, "card": torch.cuda.get_device_name()}), flush=True)
    steps = [lambda n=n, c=c: n == "qwen" and qwen(c) or n != "qwen" and workload(n, c) for c in (False, True) for n in ("dinov2", "qwen", "eva_clip", "open_clip")]
    for job in [same_bits, attention, *steps, lambda: optimizer(torch.float32), lambda: optimizer(torch.bfloat16)]:
        if time.time() > deadline: break
        try: job()
        except Exception as e: say(error=str(e)[:200])
        torch.cuda.empty_cache()


if sys.argv[1] == "cpu": on_cpu(sys.argv[2], int(sys.argv[3]), *sys.argv[4:5], *(int(a) for a in sys.argv[5:7]), *(float(a) for a in sys.argv[7:8]))
else: on_card(float(sys.argv[1]))
