"""meopt.torch.AdamWScheduleFree: the trajectories of schedulefree's class, its modes, states and release."""
import copy
import json
import os
import struct
import unittest

import torch

import meopt.torch as mt
from torch_optimizers import DTYPES, PRESETS, make_model, through_file

try:
    import schedulefree
except ImportError:
    schedulefree = None

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "optim", "schedule_free")


def golden():
    """Returns the tensors that tests/make/schedule_free.py wrote."""
    with open(os.path.join(GOLDEN, "trajectories.safetensors"), "rb") as file:
        data = file.read()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, row in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in row["data_offsets"])
            tensors[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).view(row["shape"])
    return tensors


def steps(model, optimizer, first, last):
    dtype = next(model.parameters()).dtype
    for k in range(first, last):
        x = torch.randn(16, 48, generator=torch.Generator().manual_seed(k))
        optimizer.zero_grad()
        (model(x.to(dtype)).float() - x[:, :10].sin()).pow(2).mean().backward()
        optimizer.step()


def made(dtype, preset="balanced", seed=0, **options):
    model = make_model(dtype, seed)
    return model, mt.AdamWScheduleFree(model.parameters(), lr=0.01, preset=preset, **options)


def gap(a, b):
    return max(((p - q).norm() / q.norm()).item() for p, q in zip(a.parameters(), b.parameters()))


class ScheduleFree(unittest.TestCase):
    def same(self, a, b):
        for p, q in zip(a.parameters(), b.parameters()):
            self.assertTrue(torch.equal(p, q))

    def test_each_option_follows_the_class(self):
        tensors = golden()
        with open(os.path.join(GOLDEN, "index.json")) as file:
            index = json.load(file)
        for name, config in index["configs"].items():
            options = {k: v for k, v in config.items() if k not in ("lr_late", "eval_at")}
            params = [torch.nn.Parameter(tensors[f"init.p{i}"].clone()) for i in range(2)]
            optimizer = mt.AdamWScheduleFree(params, preset="fp32", **options)
            optimizer.train()
            for k in range(index["steps"]):
                if k == 10 and "lr_late" in config:
                    optimizer.param_groups[0]["lr"] = config["lr_late"]
                for i, p in enumerate(params):
                    p.grad = tensors[f"grad.p{i}"][k].clone()
                optimizer.step()
                if config.get("eval_at") == k + 1:
                    optimizer.eval()
                    optimizer.train()
            for i, p in enumerate(params):
                y = tensors[f"{name}.y.p{i}"]
                self.assertLess((p - (y if i else y[-1])).norm() / p.norm(), 1e-5, name)
            optimizer.eval()
            for i, p in enumerate(params):
                self.assertLess((p - tensors[f"{name}.x.p{i}"]).norm() / p.norm(), 1e-5, name)

    def test_steps_and_exports_need_their_mode(self):
        model, optimizer = made(torch.bfloat16)
        with self.assertRaises(RuntimeError):
            steps(model, optimizer, 0, 1)  # a new optimizer is in eval mode
        optimizer.train()
        steps(model, optimizer, 0, 3)
        with self.assertRaises(RuntimeError):
            mt.fp32_state_dict(model, optimizer)
        optimizer.eval()
        self.assertGreater(optimizer.held_bytes()["point"], 0)
        exact = mt.fp32_state_dict(model, optimizer)
        for name, p in model.named_parameters():
            torch.testing.assert_close(exact[name], p.float(), rtol=2**-7, atol=0)
        release = mt.release_gradients(model, optimizer)
        with self.assertRaises(RuntimeError):
            steps(model, optimizer, 3, 4)
        release.remove()

    def test_evaluation_and_release_leave_no_trace(self):
        for dtype in DTYPES:
            for preset in PRESETS[:5]:
                (a, optimizer), (b, plain), (c, released) = (made(dtype, preset) for _ in range(3))
                mt.release_gradients(c, released)
                for each in (optimizer, plain, released):
                    each.train()
                steps(a, optimizer, 0, 4)
                optimizer.eval()
                optimizer.train()
                steps(a, optimizer, 4, 7)
                steps(b, plain, 0, 7)
                steps(c, released, 0, 7)
                self.same(a, b)
                self.same(c, b)

    def test_values_written_in_eval_mode_are_the_new_average(self):
        for dtype in DTYPES:
            model, optimizer = made(dtype)
            optimizer.train()
            steps(model, optimizer, 0, 4)
            optimizer.eval()
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.5)
            written = copy.deepcopy(model)
            optimizer.param_groups[0]["preset"] = "quality"  # also where formats change
            optimizer.train()
            self.assertGreater(gap(model, written), 1e-4)
            optimizer.eval()
            self.assertLess(gap(model, written), 2**-8)

    def test_states_resume_in_both_modes(self):
        for dtype in DTYPES:
            for preset in ("balanced", "quality", "fp32"):
                for mode in ("train", "eval"):
                    for model_first in (False, True):
                        a, optimizer = made(dtype, preset)
                        optimizer.train()
                        steps(a, optimizer, 0, 4)
                        getattr(optimizer, mode)()
                        of_model, of_optimizer = through_file(a.state_dict(), optimizer.state_dict())
                        b, other = made(dtype, preset, seed=1)
                        if model_first:
                            b.load_state_dict(of_model)
                        other.load_state_dict(of_optimizer)
                        if not model_first:
                            b.load_state_dict(of_model)
                        self.same(a, b)
                        both = copy.deepcopy((a, optimizer))
                        for each in (optimizer, other, both[1]):
                            each.train()
                        steps(a, optimizer, 4, 7)
                        steps(b, other, 4, 7)
                        steps(*both, 4, 7)
                        self.same(a, b)
                        self.same(both[0], b)

    @unittest.skipUnless(schedulefree, "no schedulefree here")
    def test_portable_states_are_those_of_the_class(self):
        for options in ({}, {"weight_decay": 0.1, "warmup_steps": 9, "r": 1.0}):
            a, optimizer = made(torch.float32, "fp32", **options)
            b = copy.deepcopy(a)
            theirs = schedulefree.AdamWScheduleFree(b.parameters(), lr=0.01, **options)
            for mode in ("train", "eval"):
                for each, model in ((optimizer, a), (theirs, b)):
                    each.train()
                    steps(model, each, 0, 5)
                    getattr(each, mode)()
                self.assertLess(gap(a, b), 1e-5)
                c, d = copy.deepcopy(a), copy.deepcopy(b)
                of_ours = schedulefree.AdamWScheduleFree(c.parameters(), lr=0.01, **options)
                of_ours.load_state_dict(through_file(optimizer.state_dict(portable=True))[0])
                of_theirs = mt.AdamWScheduleFree(d.parameters(), lr=0.01, preset="fp32", **options)
                of_theirs.load_state_dict(through_file(theirs.state_dict())[0])
                for each, model in ((of_ours, c), (of_theirs, d)):
                    each.train()
                    steps(model, each, 5, 9)
                reference = copy.deepcopy((b, theirs))
                reference[1].train()
                steps(*reference, 5, 9)
                self.assertLess(gap(c, reference[0]), 1e-5)
                self.assertLess(gap(d, reference[0]), 1e-5)


if __name__ == "__main__":
    unittest.main()
