"""meopt.torch.Muon next to torch.optim.Muon: arguments, trajectories, state, groups with other rules, release."""
import copy
import inspect
import unittest
from unittest import mock

import torch
from torch import nn

import meopt.torch as mt
from torch_optimizers import through_file

SHAPES = (64, 96), (96, 48), (80, 80), (8, 256)


def matrices(dtype=torch.float32):
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def steps(params, optimizer, first, last):
    for step in range(first, last + 1):
        generator = torch.Generator().manual_seed(step)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()


class Several:
    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


class Exact:
    """torch.optim.Muon with its products in float64 in place of bf16."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        with mock.patch.object(torch, "bfloat16", torch.float64):
            self.optimizer.step()


def net(dtype=torch.bfloat16):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 192), nn.Tanh(), nn.Linear(192, 100)).to(dtype)
    others = [p for name, p in model.named_parameters() if name != "1.weight"]
    groups = [{"params": [model[1].weight], "rows": [64, 96, 32]}, {"params": others, "use_muon": False}]
    return model, mt.Muon(groups, lr=1e-3, adjust_lr_fn="match_rms_adamw")


def train(model, optimizer, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randint(100, (32,), generator=generator)
        loss = nn.functional.cross_entropy(model(x).float(), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return mt.fp32_state_dict(model, optimizer)


@unittest.skipUnless(hasattr(torch.optim, "Muon"), "torch.optim.Muon came with 2.9")
class LikeTorch(unittest.TestCase):
    def test_arguments_are_those_of_torch(self):
        own = inspect.signature(mt.Muon).parameters
        theirs = inspect.signature(torch.optim.Muon).parameters
        for name, p in theirs.items():
            self.assertEqual((own[name].kind, own[name].default), (p.kind, p.default), name)
        self.assertEqual(list(own)[: len(theirs)], list(theirs))

    def test_trajectories_of_each_option(self):
        rows = ({}, {"nesterov": False}, {"momentum": 0.0}, {"momentum": 0.8, "weight_decay": 0.0},
                {"ns_steps": 3}, {"ns_coefficients": (2.0, -1.5, 0.5)}, {"adjust_lr_fn": "match_rms_adamw"},
                {"adjust_lr_fn": "spectral_unclamped"})
        for options in rows:
            theirs = [nn.Parameter(p.detach().double()) for p in matrices()]
            steps(theirs, Exact(torch.optim.Muon(theirs, lr=0.02, **options)), 1, 20)
            for dtype, most in (("fp32", 1e-5), ("bf16", 2e-3)):
                ours = matrices()
                steps(ours, mt.Muon(ours, lr=0.02, preset="fp32", ns_dtype=dtype, **options), 1, 20)
                for p, q in zip(ours, theirs):
                    error = float((p.double() - q).norm() / q.norm())
                    self.assertLess(error, most, f"{options} {dtype} {tuple(p.shape)}")

    def test_states_go_to_torch_and_back(self):
        ours, theirs = matrices(), matrices()
        mine = mt.Muon(ours, lr=0.02, preset="fp32")
        steps(ours, mine, 1, 3)
        other = torch.optim.Muon(theirs, lr=0.02)
        other.load_state_dict(mine.state_dict(portable=True))
        again = mt.Muon(matrices(), lr=0.02, preset="fp32")
        again.load_state_dict(other.state_dict())
        for i, state in mine.state_dict(portable=True)["state"].items():
            found = again.state_dict(portable=True)["state"][i]["momentum_buffer"]
            self.assertTrue(torch.equal(found, state["momentum_buffer"]))


class Muon(unittest.TestCase):
    def test_a_loaded_state_continues_with_the_same_bits(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            one, two = matrices(dtype), matrices(dtype)
            first, second = mt.Muon(one, lr=0.02), mt.Muon(two, lr=0.02)
            steps(one, first, 1, 3)
            for p, q in zip(one, two):
                q.data.copy_(p.data)
            second.load_state_dict(*through_file(first.state_dict()))
            third = copy.deepcopy(first)
            three = [p for group in third.param_groups for p in group["params"]]
            for params, optimizer in ((one, first), (two, second), (three, third)):
                steps(params, optimizer, 4, 6)
            for others in (two, three):
                self.assertTrue(all(torch.equal(p, q) for p, q in zip(one, others)), dtype)

    def test_groups_with_adamw(self):
        model, optimizer = net()
        reference, _ = net()
        others = [p for name, p in reference.named_parameters() if name != "1.weight"]
        adamw = mt.AdamW([{"params": others, "weight_decay": 0.1}], lr=1e-3)
        for p, q in zip(model.parameters(), reference.parameters()):
            torch.manual_seed(p.numel())
            p.grad = torch.randn(p.shape).to(p.dtype)
            q.grad = p.grad.clone()
        optimizer.step()
        adamw.step()
        names = {p: name for name, p in reference.named_parameters()}
        for name, p in model.named_parameters():
            if name != "1.weight" and p.ndim == 1:  # the others' random numbers have another tensor's name
                self.assertTrue(torch.equal(p, next(q for q in names if names[q] == name)), name)
        self.assertIn("workspace", optimizer.held_bytes())
        self.assertIn("exp_avg", optimizer.state_dict(portable=True)["state"][1])
        self.assertIn("momentum_buffer", optimizer.state_dict(portable=True)["state"][0])

    def test_groups_with_adafactor(self):
        made = [[nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(4))) for shape in
                 ((64, 96), (100, 64), (7,))] for _ in range(3)]
        options = {"lr": 1e-3, "weight_decay": 0.1, "preset": "fp32"}
        both, resumed = ([{"params": p[:1]}, {"params": p[1:], "use_muon": False, "factored": True}]
                         for p in (made[0], made[1]))
        first, second = mt.Muon(both, **options), mt.Muon(resumed, **options)
        muon = mt.Muon(made[2][:1], **options)
        adafactor = mt.TransformersAdafactor(made[2][1:], beta1=0.9, scale_parameter=False, relative_step=False,
                                             **options)
        steps(made[0], first, 1, 3)
        steps(made[2], Several(muon, adafactor), 1, 3)
        for p, q in zip(made[0], made[2]):
            self.assertTrue(torch.equal(p, q))
        state = first.state_dict(portable=True)
        self.assertIn("exp_avg_sq_row", state["state"][1])
        for p, q in zip(made[1], made[0]):
            p.data.copy_(q.data)
        second.load_state_dict(*through_file(first.state_dict()))
        steps(made[0], first, 4, 6)
        steps(made[1], second, 4, 6)
        for p, q in zip(made[0], made[1]):
            self.assertTrue(torch.equal(p, q))
        with self.assertRaises(ValueError):
            mt.Muon(made[0][:1], factored=True, **options)

    def test_released_gradients_have_the_same_bits(self):
        model, optimizer = net()
        expected = train(model, optimizer, 3)
        for clip in (None, "exact"):
            model, optimizer = net()
            mt.release_gradients(model, optimizer, clip=clip, max_norm=1e9 if clip else None)
            found = train(model, optimizer, 3)
            for name, value in expected.items():
                self.assertTrue(torch.equal(found[name], value), name)

    def test_a_bad_gradient_moves_no_weight_of_its_matrix(self):
        params = matrices()
        before = [p.detach().clone() for p in params]
        for i, p in enumerate(params):
            p.grad = torch.ones_like(p)
        params[1].grad[3, 5] = float("nan")
        optimizer = mt.Muon(params, lr=0.02)
        with self.assertRaises(FloatingPointError):
            optimizer.step()
        self.assertEqual([torch.equal(p, q) for p, q in zip(params, before)], [False, True, False, False])

    def test_what_does_not_fit_is_refused(self):
        for shape, options in (((64,), {}), ((4, 5, 6), {}), ((64, 96), {"rows": [30, 30]}),
                               ((64, 96), {"rows": [1, 2, 3, 4, 54]}), ((64, 96), {"ns_steps": 0}),
                               ((64, 96), {"ns_coefficients": (1, 2)}), ((64, 96), {"adjust_lr_fn": "most"}),
                               ((64, 96), {"ns_schedule": "cubic"}), ((64, 96), {"ns_dtype": "fp8"}),
                               ((1, 96), {})):
            with self.assertRaises(ValueError, msg=f"{shape} {options}"):
                mt.Muon([nn.Parameter(torch.zeros(shape))], **options)


if __name__ == "__main__":
    unittest.main()
