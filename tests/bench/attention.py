"""Milliseconds of PyTorch's scaled_dot_product_attention, full and causal, one thread: see attention.sh."""
import time

import torch
from torch.nn.functional import scaled_dot_product_attention as attention


def best(call, seconds=0.5):
    times = []
    while len(times) < 5 or sum(times) < seconds:
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return min(times) * 1e3


torch.set_num_threads(1)
print("# PyTorch", torch.__version__)
for B, N, H, G, dh in (1, 1024, 2, 2, 64), (1, 1024, 2, 2, 96), (1, 1024, 4, 1, 128), (4, 256, 4, 4, 64), (1, 4096, 2, 1, 64):
    for dtype in torch.float32, torch.bfloat16:
        q, k, v = (torch.randn(B, heads, N, dh, dtype=dtype, requires_grad=True) for heads in (H, G, G))
        rows = []
        for causal in False, True:
            call = lambda: attention(q, k, v, is_causal=causal, enable_gqa=H != G)
            with torch.no_grad():
                rows.append(best(call))
            out = call()
            rows.append(best(lambda: torch.autograd.grad(out, (q, k, v), torch.ones_like(out), retain_graph=True)))
        f, b, fc, bc = rows
        print(f"{str(dtype)[6:]:8} {B:3} {N:5} {H:3} {G:3} {dh:4} {f:9.2f} {fc:9.2f} {fc / f:6.3f} {b:9.2f} {bc:9.2f} {bc / b:6.3f}", flush=True)
