"""The loss of a language model's head on the processor, forward and backward, in turn with PyTorch: linear and cross_entropy.

    OMP_NUM_THREADS=1 PYTHON tests/bench/lm_loss.py [R [D [V [PART]]]]    PART: bytes of logits in memory, of all of them (8: an eighth)

For each type: the least time of all rounds, by processor time (under other load) and by the clock. MEOPT_BUILD: folder of the build."""
import os, subprocess, sys, time

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIBRARIES = "-fopenmp -ljpeg -lpng -lwebp -lwebpdemux -lz -lyaml -ljansson -lpcre2-8 -lutf8proc -lcrypto -lm -ldl".split()
ROUNDS = int(os.environ.get("ROUNDS", "5"))


def build():
    folder = os.environ.get("MEOPT_BUILD", os.path.join(ROOT, "build"))
    program = os.path.join(folder, "bench_lm_loss")
    subprocess.check_call(["cc", "-O2", "-D_GNU_SOURCE", "-I" + ROOT, os.path.join(HERE, "lm_loss.c"),
                           os.path.join(folder, "libmeopt.a"), "-o", program] + LIBRARIES)
    return program


def theirs(x, w, labels, upcast):
    x.grad = w.grad = None
    logits = F.linear(x, w)
    loss = F.cross_entropy(logits.float() if upcast else logits, labels)
    loss.backward()
    return loss.item()


def timed(call):
    processor, clock = time.process_time(), time.monotonic()
    call()
    return time.process_time() - processor, time.monotonic() - clock


def compare(program, dtype, R, D, V, part):
    name = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
    ours = subprocess.Popen([program, name, str(R), str(D), str(V), str(R * (V + 63) // 64 * 64 * 4 // part)], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    form, bytes_ = ours.stdout.readline().split()
    x = (torch.rand(R, D) * 3 - 1.5).to(dtype).requires_grad_()
    w = (torch.rand(V, D) * 0.1 - 0.05).to(dtype).requires_grad_()
    labels = torch.arange(R) * 7919 % V
    forms = {"torch": False} if dtype == torch.float32 else {"torch": False, "torch, float logits": True}
    best = {}
    for _ in range(ROUNDS + 1):
        ours.stdin.write("\n")
        ours.stdin.flush()
        times = {"ours": tuple(float(v) for v in ours.stdout.readline().split()[:2])}
        for form_name, upcast in forms.items():
            times[form_name] = timed(lambda: theirs(x, w, labels, upcast))
        if _ == 0:
            continue
        for k, t in times.items():
            best[k] = tuple(min(a, b) for a, b in zip(best.get(k, t), t))
    ours.stdin.close()
    ours.wait()
    print(f"{name} R {R} D {D} V {V}: {form}, scratch {int(bytes_) / (R * V * 4):.3f} of the logits in fp32")
    for k, (processor, clock) in best.items():
        ratio = f"  ours / this {best['ours'][0] / processor:.2f}, by the clock {best['ours'][1] / clock:.2f}"
        print(f"  {k:22} {processor:7.3f} s {clock:7.3f} s" + (ratio if k != "ours" else ""), flush=True)


if __name__ == "__main__":
    sizes = [int(a) for a in sys.argv[1:]] + [1024, 768, 50257, 8][len(sys.argv) - 1:]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    made = build()
    for dtype in (torch.bfloat16, torch.float32):
        compare(made, dtype, *sizes)
