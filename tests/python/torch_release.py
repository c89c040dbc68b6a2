"""meopt.torch.release_gradients: the bits of a step without it, and gradients freed during backward."""
import copy
import io
import os
import tempfile
import unittest
from unittest import mock

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import meopt.torch as mt

WIDTH = 72


class Net(nn.Module):
    """Matrices of more than 4096 elements; one of them is used twice, one in odd passes only."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.twice = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.tied, self.odd = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.tied.weight = self.first.weight
        self.norm = nn.LayerNorm(WIDTH)
        self.to(dtype)

    def forward(self, x, odd=True):
        x = self.norm(self.tied(self.twice(torch.tanh(self.twice(self.first(x))))))
        return self.odd(x) if odd else x


def batch(step, micro=0):
    generator = torch.Generator().manual_seed(100 * step + micro)
    return torch.randn(8, WIDTH, generator=generator)


def loss_of(model, x, odd=True):
    dtype = next(model.parameters()).dtype
    return (model(x.to(dtype), odd).float() - x.sin()).pow(2).mean()


def make(rule, dtype, **options):
    model = Net(dtype)
    names = dict(model.named_parameters())
    norm = [p for name, p in names.items() if "norm" in name]
    rest = [p for name, p in names.items() if "norm" not in name]
    groups = [{"params": rest}, {"params": norm, "weight_decay": 0.0}]
    return model, rule(groups, lr=1e-2, **options)


def run(model, optimizer, steps, accumulate=1, sometimes=False, plain=None):
    for step in range(steps):
        for micro in range(accumulate):
            odd = not sometimes or (step + micro) % 2 == 1
            loss_of(model, batch(step, micro), odd).backward()
        if plain is not None:
            plain(model)
        optimizer.step()
        optimizer.zero_grad()


class Release(unittest.TestCase):
    def same(self, pair):
        (a, x), (b, y) = pair
        for p, q in zip(a.parameters(), b.parameters()):
            self.assertTrue(torch.equal(p, q))
        ours, theirs = x.state_dict(), y.state_dict()
        for key, value in ours["state"].items():
            for name, tensor in value.items():
                self.assertTrue(torch.equal(tensor, theirs["state"][key][name]), name)
        return ours, theirs

    def test_bits_of_a_plain_step(self):
        for rule, options in ((mt.AdamW, {}), (mt.SGD, {"momentum": 0.9}), (mt.LAMB, {"max_grad_norm": None}),
                              (mt.Lion, {"maximize": True})):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                for accumulate, sometimes in ((1, False), (1, True), (2, False), (3, True)):
                    pair = [make(rule, dtype, **options) for _ in range(2)]
                    mt.release_gradients(*pair[0], accumulate=accumulate)
                    for model, optimizer in pair:
                        run(model, optimizer, 3, accumulate, sometimes)
                    ours, theirs = self.same(pair)
                    self.assertEqual(ours["param_groups"], theirs["param_groups"])

    def test_gradients_are_freed_in_backward(self):
        model, optimizer = make(mt.AdamW, torch.bfloat16)
        handle = mt.release_gradients(model, optimizer)
        plain = make(mt.AdamW, torch.bfloat16)
        run(*plain, 2)
        for step in range(2):  # zero_grad ends a step as well
            loss_of(model, batch(step)).backward()
            for p in model.parameters():  # no memory, and no use
                self.assertEqual(p.grad.data_ptr(), 0)
                self.assertRaisesRegex(RuntimeError, "clip=", p.grad.norm)
            if step:
                handle.remove()
            optimizer.zero_grad()
            self.assertTrue(all(p.grad is None for p in model.parameters()))
        self.same(((model, optimizer), plain))
        run(model, optimizer, 1), run(*plain, 1)
        self.same(((model, optimizer), plain))

    def test_two_gradients_in_one_step(self):
        """Also where the first backward has reached all parameters; with accumulate, after the last."""
        for odd in (False, True):
            for accumulate in (1, 3):
                model, optimizer = make(mt.AdamW, torch.float32)
                mt.release_gradients(model, optimizer, accumulate=accumulate)
                for micro in range(accumulate):
                    loss_of(model, batch(micro), odd).backward()
                before = [p.clone() for p in model.parameters()]
                with self.assertRaisesRegex(RuntimeError, "second gradient"):
                    loss_of(model, batch(9), odd).backward()
                self.assertTrue(all(map(torch.equal, before, model.parameters())))
                model.zero_grad()  # the model's own does not end the step
                with self.assertRaisesRegex(RuntimeError, "second gradient"):
                    loss_of(model, batch(9), odd).backward()

    def test_no_clipping_of_released_gradients(self):
        """What a loop, a Trainer or a GradScaler does with gradients is refused, not done to none."""
        for dtype in (torch.float32, torch.bfloat16):
            uses = [lambda ps: nn.utils.clip_grad_norm_(ps, 1.0),
                    lambda ps: nn.utils.clip_grad_norm_(ps, 1.0, foreach=False),
                    lambda ps: nn.utils.clip_grad_value_(ps, 1.0),
                    lambda ps: [p.grad.mul_(0.5) for p in ps],
                    lambda ps: [p.grad.data.norm() for p in ps],
                    lambda ps: sum(float(p.grad.detach().abs().sum()) for p in ps)]
            for use in uses:
                model, optimizer = make(mt.AdamW, dtype)
                mt.release_gradients(model, optimizer)
                loss_of(model, batch(0)).backward()
                with self.assertRaisesRegex(RuntimeError, "clip="):
                    use(list(model.parameters()))
                optimizer.step()
                self.assertTrue(all(p.grad is None for p in model.parameters()))
                run(model, optimizer, 1)
        pair = [make(mt.SGD, torch.float32) for _ in range(2)]
        mt.release_gradients(*pair[0])
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(loss_of(pair[0][0], batch(0))).backward()
        with self.assertRaisesRegex(RuntimeError, "clip="):
            scaler.step(pair[0][1])
        (loss_of(pair[1][0], batch(0)) * 8).backward()
        pair[1][1].step()  # the parameters have stepped, with scaled gradients
        self.assertTrue(all(map(torch.equal, *(model.parameters() for model, _ in pair))))

    def test_no_values(self):
        model, optimizer = make(mt.AdamW, torch.float32)
        mt.release_gradients(model, optimizer)
        loss_of(model, batch(0)).backward()
        for use in (lambda g: g.view(-1).tolist(), lambda g: g.cpu().numpy(), lambda g: g[0, 0].item(),
                    lambda g: g.zero_(), lambda g: torch.zeros(WIDTH, WIDTH).copy_(g), lambda g: g.double(),
                    lambda g: g == 0, lambda g: torch.stack([g]), copy.deepcopy, torch.from_dlpack,
                    lambda g: torch.save(g, io.BytesIO()), lambda g: g.share_memory_()):
            with self.assertRaises(RuntimeError):
                use(model.first.weight.grad)
        self.assertEqual(model.first.weight.grad.shape, (WIDTH, WIDTH))

    def test_norms(self):
        """clip_grad_norm_ returns the norm that it has without release, and raises where it would clip."""
        for dtype in (torch.float32, torch.bfloat16):
            pair = [make(mt.AdamW, dtype) for _ in range(2)]
            mt.release_gradients(*pair[0], norms=True)
            for step in range(3):
                norms = []
                for model, _ in pair:
                    loss_of(model, batch(step)).backward()
                    norms.append(nn.utils.clip_grad_norm_(model.parameters(), float("inf")))
                    norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1e6, foreach=False))
                self.assertEqual(len(set(map(float, norms))), 1, norms)
                self.assertGreater(float(norms[0]), 0)
                for use in (lambda ps: nn.utils.clip_grad_norm_(ps, float(norms[0]) / 2),
                            lambda ps: nn.utils.clip_grad_norm_(ps, 1e6, norm_type=1),
                            lambda ps: [p.grad.abs() for p in ps]):
                    with self.assertRaisesRegex(RuntimeError, "clip="):
                        use(list(pair[0][0].parameters()))
                for _, optimizer in pair:
                    optimizer.step()
                    optimizer.zero_grad()
            self.same(pair)

        model, optimizer = make(mt.AdamW, torch.float32)
        mt.release_gradients(model, optimizer, norms=True)
        loss_of(model, batch(0) * float("inf")).backward()
        nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        self.assertRaises(FloatingPointError, optimizer.step)

    def test_interrupted_backward(self):
        """An exception in backward: what has stepped stays so, and zero_grad lets the next batch begin."""
        for accumulate in (1, 2):
            model, optimizer = make(mt.AdamW, torch.float32)
            mt.release_gradients(model, optimizer, accumulate=accumulate)
            run(model, optimizer, 1, accumulate)
            before = copy.deepcopy(model.state_dict())

            def fail(_):
                raise KeyError("interrupted")

            for micro in range(accumulate):
                loss = loss_of(model, batch(1, micro))
                broken = model.first.weight.register_hook(fail) if micro == accumulate - 1 else None
                if broken is None:
                    loss.backward()
                else:
                    self.assertRaises(KeyError, loss.backward)
                    broken.remove()
            after = model.state_dict()
            moved = {name for name in after if not torch.equal(after[name], before[name])}
            self.assertTrue(moved and "first.weight" not in moved, moved)
            optimizer.zero_grad()
            steps = optimizer.param_groups[0]["steps"]
            run(model, optimizer, 1, accumulate)
            self.assertEqual(optimizer.param_groups[0]["steps"], steps + 1)
            self.assertEqual(int(optimizer.state[model.first.weight]["step"]), 2)
            self.assertEqual(int(optimizer.state[model.odd.weight]["step"]), 3)

    def test_exact_clip(self):
        pair = [make(mt.AdamW, torch.float32, preset="fp32", eps=1e-3) for _ in range(2)]
        mt.release_gradients(*pair[0], clip="exact", max_norm=0.1)
        self.assertRaises(ValueError, mt.release_gradients, *pair[0])
        loss_of(pair[0][0], batch(0)).backward()
        self.assertTrue(all(float(p.grad.norm()) > 0 for p in pair[0][0].parameters()))  # gradients stay
        pair[0][1].zero_grad()
        run(*pair[0], 4)
        run(*pair[1], 4, plain=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        for p, q in zip(pair[0][0].parameters(), pair[1][0].parameters()):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)

    def test_previous_clip(self):
        norms = [1e9]

        def clip(model):
            grads = [p.grad for p in model.parameters()]
            scale = min(1.0, 0.1 / (norms[-1] + 1e-6)) if len(norms) > 1 else 1.0
            norms.append(torch.linalg.vector_norm(torch.stack([g.norm() for g in grads])).item())
            for g in grads:
                g.mul_(scale)

        pair = [make(mt.AdamW, torch.float32, preset="fp32", eps=1e-3) for _ in range(2)]
        mt.release_gradients(*pair[0], clip="previous", max_norm=0.1)
        run(*pair[0], 4)
        run(*pair[1], 4, plain=clip)
        for p, q in zip(pair[0][0].parameters(), pair[1][0].parameters()):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)

    def test_not_finite(self):
        model, optimizer = make(mt.AdamW, torch.float32)
        mt.release_gradients(model, optimizer)
        with self.assertRaises(FloatingPointError):
            loss_of(model, batch(0) * float("inf")).backward()
            optimizer.step()
        self.assertTrue(all(bool(torch.isfinite(p).all()) for p in model.parameters()))
        run(model, optimizer, 1)

    def test_refused(self):
        for options in ({"clip": "block"}, {"clip": "exact"}, {"max_norm": 1.0}, {"accumulate": 0}):
            with self.assertRaises(ValueError):
                mt.release_gradients(*make(mt.AdamW, torch.float32), **options)
        with self.assertRaises(ValueError):
            mt.release_gradients(*make(mt.LAMB, torch.float32))


def ddp_rank(rank, directory, release):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/store-{release}", rank=rank,
                                         world_size=2)
    model, optimizer = make(mt.AdamW, torch.float32)
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.03)
    if release:
        mt.release_gradients(parallel, optimizer)
    for step in range(4):
        with parallel.no_sync():
            loss_of(parallel, batch(step, rank)).backward()
        loss_of(parallel, batch(step, 2 + rank)).backward()
        if release:
            with unittest.TestCase().assertRaisesRegex(RuntimeError, "clip="):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    torch.save((model.state_dict(), optimizer.state_dict()), os.path.join(directory, f"{release}-{rank}"))
    torch.distributed.destroy_process_group()


def unused_rank(rank, directory, release):
    """"odd" has gradients on no rank in step 0, on rank 1 in step 1, in the first pass only in step 2. With
    release, each bucket costs one small all-reduce more."""
    check_unused(rank, directory, release, "find_unused_parameters", (
        (False, False), (False, rank == 1), (rank == 0, False)))


def static_rank(rank, directory, release):
    check_unused(rank, directory, release, "static_graph", ((None, False),) * 3)


def check_unused(rank, directory, release, option, passes):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/unused-{release}",
                                         rank=rank, world_size=2)
    model, optimizer = make(mt.AdamW, torch.float32, weight_decay=0.1)
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.03, **{option: True})
    torch.distributed.all_reduce = counted = mock.Mock(wraps=torch.distributed.all_reduce)
    if release:
        mt.release_gradients(parallel, optimizer)
    for step, (first, last) in enumerate(passes):
        if first is not None:
            with parallel.no_sync():
                loss_of(parallel, batch(step, rank), first).backward()
        loss_of(parallel, batch(step, 2 + rank), last).backward()
        optimizer.step()
        optimizer.zero_grad()
    small = [call[0][0].dtype == torch.int32 for call in counted.call_args_list]
    unittest.TestCase().assertEqual(sum(small), len(small) / 2)
    unittest.TestCase().assertEqual(bool(small), bool(release))
    torch.save((model.state_dict(), optimizer.state_dict()), os.path.join(directory, f"{release}-{rank}"))
    torch.distributed.destroy_process_group()


@unittest.skipUnless(torch.distributed.is_available() and torch.distributed.is_gloo_available(), "no gloo")
class Ranks(unittest.TestCase):
    def test_bits_of_a_plain_step(self):
        self.same_on_ranks(ddp_rank)

    def test_unused_parameters(self):
        self.same_on_ranks(unused_rank)
        self.same_on_ranks(static_rank)

    def same_on_ranks(self, rank_main):
        with tempfile.TemporaryDirectory() as directory:
            for release in (0, 1):
                torch.multiprocessing.start_processes(rank_main, (directory, release), 2,
                                                      start_method="fork")
            names = [f"{release}-{rank}" for release in (0, 1) for rank in (0, 1)]
            files = [torch.load(os.path.join(directory, name)) for name in names]
        for weights, state in files[1:]:
            for name, value in files[0][0].items():
                self.assertTrue(torch.equal(value, weights[name]), name)
            for key, each in files[0][1]["state"].items():
                self.assertTrue(torch.equal(each["meopt"], state["state"][key]["meopt"]))
                self.assertEqual(each["step"], state["state"][key]["step"])


if __name__ == "__main__":
    unittest.main()
