"""meopt.torch.Adafactor and TransformersAdafactor against their originals: trajectories, states both ways, bytes."""
import copy
import unittest

import torch
from torch import nn

import meopt.torch as mt
from torch_optimizers import make_model, through_file, train

try:
    from transformers.optimization import Adafactor as Original
except ImportError:
    Original = None

SHAPES = (7,), (70, 66), (130, 70), (3, 5, 7), (4, 2, 3, 3), (1, 12), (12, 1)
FIXED = {"lr": 1e-3, "relative_step": False, "scale_parameter": False}
CASES = [(getattr(torch.optim, "Adafactor", None), mt.Adafactor, options) for options in (
    {}, {"lr": 0.1, "weight_decay": 0.1, "d": 2.0, "beta2_decay": -0.5, "maximize": True},
    {"eps": (1e-4, 0.1)})] + [(Original, mt.TransformersAdafactor, options) for options in (
        {}, FIXED, {**FIXED, "weight_decay": 0.1, "clip_threshold": 0.7, "decay_rate": -0.6},
        {"beta1": 0.9, "warmup_init": True},
        {"lr": 1e-2, "relative_step": False, "beta1": 0.5, "eps": (1e-10, 0.01), "weight_decay": 0.1})]


def gradients(params, other):
    for p, q in zip(params, other):
        g = torch.randn_like(p)
        p.grad = torch.where(torch.rand_like(p) < 0.01, g * 1000, g)
        q.grad = p.grad.clone()


class Adafactors(unittest.TestCase):
    def test_trajectories_and_states(self):
        for original, ours, options in CASES:
            if original is None:
                continue  # torch 2.4 has none; transformers is not there
            with self.subTest(ours=ours.__name__, options=options):
                torch.manual_seed(0)
                self.follow(original, lambda params, o=options, c=ours: c(params, **o, preset="fp32"), options)

    def follow(self, original, ours, options):
        theirs = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
        mine = [nn.Parameter(p.detach().clone()) for p in theirs]
        a, b = original(theirs, **options), ours(mine)
        for step in range(20):
            gradients(theirs, mine)
            a.step()
            b.step()
            state = {5: b, 10: a}.get(step)
            if state is not None:  # of ours, and of the original
                b, saved = ours(mine), copy.deepcopy(state.state_dict())
                b.load_state_dict(through_file(saved)[0] if state is not a else saved)
        for p, q in zip(theirs, mine):
            self.assertLessEqual(((p - q).norm() / p.norm()).item(), 1e-5)
        expected, found = a.state_dict()["state"], b.state_dict(portable=True)["state"]
        for i, values in found.items():
            for name, value in values.items():
                other = torch.as_tensor(expected[i][name], dtype=torch.float32)
                self.assertEqual(tuple(value.shape), tuple(other.shape), name)
                self.assertLessEqual((value - other).norm().item(), 1e-5 * other.norm().item(), name)
        a.load_state_dict(b.state_dict(portable=True))

    def test_bytes_of_minimal(self):
        model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).bfloat16()
        optimizer = mt.Adafactor(model.parameters(), preset="minimal")
        self.assertLessEqual(optimizer.held_bytes()["per_param"], 2.1)

    def test_release_has_the_bits(self):
        for dtype in (torch.float32, torch.bfloat16):
            models = [make_model(dtype) for _ in range(2)]
            optimizers = [mt.Adafactor(m.parameters(), lr=1e-2, beta1=0.9) for m in models]
            mt.release_gradients(models[1], optimizers[1])
            for model, optimizer in zip(models, optimizers):
                train(model, optimizer, 4)
            for p, q in zip(*(m.parameters() for m in models)):
                self.assertTrue(torch.equal(p, q))

    def test_a_first_moment_that_appears_keeps_the_second(self):
        p, v = nn.Parameter(torch.randn(130, 70)), nn.Parameter(torch.randn(70))
        optimizer = mt.TransformersAdafactor([p, v], **FIXED)
        for _ in range(3):
            p.grad, v.grad = torch.randn_like(p), torch.randn_like(v)
            optimizer.step()
        before = optimizer.state_dict(portable=True)["state"]
        optimizer.param_groups[0]["beta1"] = 0.9
        p.grad, v.grad = torch.zeros_like(p), torch.zeros_like(v)
        optimizer.step()
        after = optimizer.state_dict(portable=True)["state"]
        for i in range(2):
            self.assertEqual(after[i]["step"], 4)
            for name in set(before[i]) - {"step"}:
                ratio = after[i][name] / before[i][name]
                self.assertLessEqual((ratio - (1 - 4**-0.8)).abs().max().item(), 1e-5, name)

    def test_what_is_refused(self):
        p = nn.Parameter(torch.randn(8, 8))
        for ours, options in ((mt.TransformersAdafactor, {"lr": 1e-3}), (mt.Adafactor, {"d": 0.5}),
                              (mt.TransformersAdafactor, {"lr": 1e-3, "relative_step": False, "warmup_init": True}),
                              (mt.TransformersAdafactor, {"relative_step": False}), (mt.Adafactor, {"beta1": 1.0}),
                              (mt.Adafactor, {"foreach": True}), (mt.Adafactor, {"beta2_decay": 0.1}),
                              (mt.Adafactor, {"lr": -1.0}), (mt.Adafactor, {"eps": (None, 2.0)})):
            with self.subTest(options=options), self.assertRaises(ValueError):
                ours([p], **options)
        with self.assertRaises(ValueError):
            mt.Adafactor([nn.Parameter(torch.randn([1] * 8 + [4]))])


if __name__ == "__main__":
    unittest.main()
