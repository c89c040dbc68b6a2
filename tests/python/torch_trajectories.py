"""meopt.torch follows the trajectories that torchao, bitsandbytes and FlashOptim ask of their optimizers."""
import copy
import os
import unittest

import torch
from torch import nn

import meopt.torch as mt
from torch_optimizers import DTYPES, NAMED, PRESETS, RULES, make_model, through_file, train
from torch_release import Net, batch, loss_of

SHAPE = 128, 66  # more than 4096 elements; its last group of 64 is full, its rows end within groups
STEPS_OF = {torch.float32: (1e-6, 1e-5), torch.bfloat16: (1e-3, 1e-2), torch.float16: (1e-4, 1e-3)}
# Mean error of a stochastic rounding over that of one to nearest: 1/3 of a unit over 1/4.
STOCHASTIC = 4 / 3


class Rule:
    """The rules in plain torch with torch's names of moments. Defaults are those of the class."""

    def __init__(self, rule, p, **options):
        self.p, self.rule, self.step_count = p.detach().clone(), rule, 0
        self.o = {**RULES[rule]([nn.Parameter(torch.ones(1))], **options).defaults}
        names = RULES[rule]._moments
        self.state = {name: torch.zeros_like(self.p) for name in names if name}
        if rule == "apsgd" and not self.o["momentum"]:
            self.state = {}

    def step(self, g):
        o, p, t = self.o, self.p, self.step_count + 1
        self.step_count, g = t, -g if o["maximize"] else g
        getattr(self, "_" + self.rule)(o, p, g, t)

    def _adam(self, o, p, g, t):
        m, v, (b1, b2) = self.state["exp_avg"], self.state["exp_avg_sq"], o["betas"]
        m.lerp_(g, 1 - b1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)
        p.sub_(m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + o["eps"]) * o["lr"])

    def _apadam(self, o, p, g, t):
        self._adam(o, p, g + o["weight_decay"] * p, t)

    def _apadamw(self, o, p, g, t):
        p.mul_(1 - o["lr"] * o["weight_decay"])
        self._adam(o, p, g, t)

    def _apsgd(self, o, p, g, t):
        g = g + o["weight_decay"] * p
        if self.state:
            m = self.state["momentum_buffer"]
            m.copy_(g if t == 1 else o["momentum"] * m + (1 - o["dampening"]) * g)
            g = g + o["momentum"] * m if o["nesterov"] else m
        p.sub_(o["lr"] * g)

    def _lion(self, o, p, g, t):
        m, (b1, b2) = self.state["exp_avg"], o["betas"]
        p.mul_(1 - o["lr"] * o["weight_decay"]).sub_(o["lr"] * (b1 * m + (1 - b1) * g).sign())
        m.lerp_(g, 1 - b2)

    def _lamb(self, o, p, g, t):
        m, v, (b1, b2) = self.state["exp_avg"], self.state["exp_avg_sq"], o["betas"]
        if o["max_grad_norm"]:
            g = g / max(1.0, g.norm().item() / o["max_grad_norm"])
        m.lerp_(g, 1 - b1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)
        u = m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + o["eps"]) + o["weight_decay"] * p
        ratio = p.norm() / u.norm() if o["weight_decay"] or o["always_adapt"] else torch.tensor(1.0)
        p.sub_(o["lr"] * (ratio.clamp(max=1.0) if o["trust_clip"] else ratio) * u)


RULE_OPTIONS = (("apadam", {}), ("apadam", {"weight_decay": 0.1}), ("apadamw", {}), ("apsgd", {"lr": 0.01}),
                ("apsgd", {"lr": 0.01, "momentum": 0.9}), ("lion", {}), ("lion", {"weight_decay": 0.1}),
                ("apsgd", {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
                ("lamb", {}), ("lamb", {"max_grad_norm": None, "trust_clip": True}),
                ("lamb", {"weight_decay": 0.1}))


def far(a, b, atol, rtol):
    """Returns the number of elements of a that are not close to those of b."""
    return int((~torch.isclose(a.float(), b.float(), atol=atol, rtol=rtol)).sum())


class Trajectories(unittest.TestCase):
    """bitsandbytes: gradients of 0.01, parameters of 0.1, tolerances by the gradients' dtype."""

    def start(self, rule, dtype, seed=0, **options):
        torch.manual_seed(seed)
        p = nn.Parameter((torch.randn(SHAPE) * 0.1).to(dtype))
        return p, RULES[rule]([p], **options)

    def test_of_32_bits(self):
        for rule, options in RULE_OPTIONS:
            for dtype in DTYPES:
                with self.subTest(rule=rule, options=options, dtype=dtype):
                    self.follow_32_bits(rule, dtype, {"preset": "fp32", **options})

    def follow_32_bits(self, rule, dtype, options):
        (p, optimizer), (atol, rtol) = self.start(rule, dtype, **options), STEPS_OF[dtype]
        theirs = Rule(rule, p.float(), **options)
        allowed = 15 if rule == "lion" else 0
        for step in range(20):
            p.grad = (torch.randn(SHAPE) * 0.01).to(dtype)
            theirs.step(p.grad.float())
            optimizer.step()
            if step % 4 == 0 and step:
                state, optimizer = through_file(optimizer.state_dict())[0], RULES[rule]([p], **options)
                optimizer.load_state_dict(state)
            state = optimizer.state_dict(portable=True)["state"][0]
            for name, value in theirs.state.items():
                self.assertLessEqual(far(state[name], value, atol, rtol), 0, (step, name))
            self.assertLessEqual(far(p, theirs.p, atol, rtol), allowed, step)
            if dtype != torch.float32:  # the moments are compared; weights are kept together
                theirs.p.copy_(theirs.p.to(dtype))
                with torch.no_grad():
                    p.copy_(theirs.p)

    def test_of_8_bits(self):
        for rule, options in RULE_OPTIONS:
            for dtype in DTYPES:
                for preset in ("quality", "balanced", "minimal"):
                    with self.subTest(rule=rule, options=options, dtype=dtype, preset=preset):
                        self.follow_8_bits(rule, dtype, {"preset": preset, **options})

    def follow_8_bits(self, rule, dtype, options):
        limits = (1.7e-4, 1.6e-3) if dtype == torch.bfloat16 else (6e-5, 6e-4)
        if dtype == torch.bfloat16 and options["preset"] == "minimal":
            limits = [limit * STOCHASTIC for limit in limits]
        p, optimizer = self.start(rule, dtype, **options)
        theirs = Rule(rule, p.float(), **options)
        for step in range(50 if os.environ.get("MEOPT_LONG") else 20):
            p.grad = (torch.randn(SHAPE) * 0.01).to(dtype)
            theirs.step(p.grad.float())
            optimizer.step()
            state = optimizer.state_dict(portable=True)["state"][0]
            for name, value in theirs.state.items():
                self.assertLess(far(state[name], value, 3e-3, 1e-3), 20, (step, name))
            error = (p.float() - theirs.p).abs()
            relative = error / (theirs.p.abs() + 1e-9)
            self.assertLess(error.mean().item(), limits[0], step)
            self.assertLess(relative.mean().item(), limits[1], step)
            if step % 10 == 0 and step:
                record, optimizer = optimizer.state_dict(), RULES[rule]([p], **options)
                optimizer.load_state_dict(through_file(record)[0])
                for name, value in record["state"][0].items():
                    self.assertTrue(torch.equal(value, optimizer.state_dict()["state"][0][name]), name)
            theirs.p.copy_(theirs.p.to(dtype))
            with torch.no_grad():
                p.copy_(theirs.p)
            for name, value in theirs.state.items():
                value.copy_(state[name])

    def test_limits_change_updates_of_lamb(self):
        for option, values in (("max_grad_norm", (1e-4, None)), ("trust_clip", (False, True)),
                               ("always_adapt", (False, True))):
            found = []
            for value in values:
                torch.manual_seed(0)
                p = nn.Parameter(torch.randn(SHAPE) * 10)
                optimizer = mt.LAMB([p], lr=0.1, weight_decay=0.0 if option == "always_adapt" else 0.01,
                                    **{option: value})
                for scale in (5.0, 0.1):  # one gradient's size alone is divided out
                    p.grad = torch.randn(SHAPE) * scale
                    optimizer.step()
                found.append(p.detach())
            self.assertFalse(torch.allclose(*found), option)


class Rounding(unittest.TestCase):
    """torchao: default dtype, stochastic rounding."""

    def test_default_dtype_and_device(self):
        for rule, made in RULES.items():
            for dtype in DTYPES:
                pair = []
                for default, device in ((torch.float32, "cpu"), (torch.bfloat16, "meta")):
                    model = make_model(dtype)
                    gradients = [torch.ones_like(p) for p in model.parameters()]
                    torch.set_default_dtype(default)
                    try:
                        with torch.device(device):
                            optimizer = made(model.parameters(), lr=1e-3)
                            for p, g in zip(model.parameters(), gradients):
                                p.grad = g
                            optimizer.step()
                            state = optimizer.state_dict()
                            optimizer.load_state_dict(state)
                            optimizer.load_state_dict(optimizer.state_dict(portable=True))
                            optimizer.step()
                            weights = mt.fp32_state_dict(model, optimizer)
                            mt.load_fp32_state_dict(model, optimizer, weights)
                            optimizer = copy.deepcopy((model, optimizer))[1]
                    finally:
                        torch.set_default_dtype(torch.float32)
                    pair.append((weights, state["state"], optimizer.state_dict()["state"]))
                self.assertTrue(all(value.dtype == torch.float32 for value in pair[1][0].values()))
                torch.testing.assert_close(*pair, rtol=0, atol=0)

    @unittest.skipUnless(NAMED, "named parameters: PyTorch 2.6")
    def test_mean_of_stochastic_rounding(self):
        """The mean of 100000 roundings is the fp32 result: no rule loses updates below half a unit."""
        torch.manual_seed(1)
        repeats, values = 100_000, (torch.rand(32) * 100).bfloat16()
        gradient = (torch.rand(32) * 0.02 + 0.01).bfloat16()
        options = {"apsgd": {"lr": 1.0}, "lamb": {"lr": 1e-4, "max_grad_norm": None}}
        for rule, made in RULES.items():
            for weights in ("fp32", "bf16_sr", "bf16+4", "bf16+8"):
                dtype = torch.float32 if weights == "fp32" else torch.bfloat16
                p = nn.Parameter(values.to(dtype).repeat(repeats, 1))
                optimizer = made([("p", p)], **{"lr": 0.01, **options.get(rule, {})}, preset="fp32",
                                 weights=weights)
                p.grad = gradient.to(dtype).repeat(repeats, 1)
                optimizer.step()
                model = nn.ParameterDict({"p": p})
                mean = mt.fp32_state_dict(model, optimizer)["p"].double().mean(0)
                if weights == "fp32":
                    expected = mean
                    self.assertTrue(bool((mean.float() != values).any()))
                    continue
                torch.testing.assert_close(mean, expected, atol=3e-5, rtol=3e-5, msg=f"{rule} {weights}")

    def test_losses_of_fp32(self):
        """Five small steps in bf16 with stochastic rounding have the losses of mixed precision in torch."""
        for weights in ("bf16_sr", "bf16+4", "bf16+8", "bf16+16"):
            torch.manual_seed(2024)
            model = nn.Sequential(nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 128))
            half = copy.deepcopy(model).bfloat16()
            theirs = torch.optim.AdamW(model.parameters(), lr=1e-5)
            ours = mt.AdamW(half.parameters(), lr=1e-5, weights=weights)
            if weights != "bf16_sr":  # else small updates show only after weights leave the middle of a unit
                mt.load_fp32_state_dict(half, ours, model.state_dict())
            x = torch.randn(4, 32)
            for step in range(5):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(x)
                losses = loss.float().sum(), half(x.bfloat16()).float().sum()
                for each, optimizer in zip(losses, (theirs, ours)):
                    optimizer.zero_grad()
                    each.backward()
                    optimizer.step()
                torch.testing.assert_close(*losses, rtol=1.6e-2, atol=1e-5, msg=f"{weights}, step {step}")

    def test_param_groups(self):
        """Groups keep their own options through steps, schedules and files."""
        for rule, made in RULES.items():
            model = make_model(torch.bfloat16)
            rows = ({"lr": 1e-3}, {"lr": 1e-4, "weight_decay": 0.1}, {"preset": "fp32"})
            groups = [{"params": list(layer.parameters()), **row}
                      for layer, row in zip((model[0], model[3], model[4]), rows)]
            optimizer = made(groups, lr=1e-2)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            train(nn.Sequential(model[0], model[1], model[2], model[3], model[4]), optimizer, 2)
            schedule.step()
            found = through_file(optimizer.state_dict())[0]["param_groups"]
            self.assertEqual([group["lr"] for group in found], [5e-4, 5e-5, 5e-3])
            self.assertEqual(found[1]["weight_decay"], 0.1)
            self.assertEqual([group["preset"] for group in found], ["balanced", "balanced", "fp32"])


class Flash(unittest.TestCase):
    """FlashOptim: gradient release, shared and frozen parameters, checkpoints of torch, mixed precision."""

    def test_release_equals_steps(self):
        for rule, made in RULES.items():
            more = {"max_grad_norm": None} if rule == "lamb" else {}
            for dtype, preset in ((torch.float32, "fp32"), *((torch.bfloat16, name) for name in PRESETS)):
                found = []
                for released in (False, True):
                    model = Net(dtype)
                    model.odd.requires_grad_(False)
                    frozen = copy.deepcopy(model.odd.state_dict())
                    optimizer = made(model.parameters(), lr=1e-2, preset=preset, **more)
                    handle = mt.release_gradients(model, optimizer) if released else None
                    for step in range(3):
                        loss_of(model, batch(step)).backward()
                        optimizer.step()
                        optimizer.zero_grad()
                    for name, value in frozen.items():
                        self.assertTrue(torch.equal(value, model.odd.state_dict()[name]))
                    handle and handle.remove()
                    self.assertIs(model.tied.weight, model.first.weight)
                    found.append((model.state_dict(), optimizer.state_dict()["state"]))
                torch.testing.assert_close(*found, rtol=0, atol=0, msg=f"{rule} {dtype} {preset}")

    def test_checkpoints_of_torch(self):
        eps = {"eps": 1e-4}  # 1e-8 is 0 in the fp16 of torch's own steps
        rows = (("apadam", torch.optim.Adam, eps), ("apadamw", torch.optim.AdamW, eps),
                ("apsgd", torch.optim.SGD, {"momentum": 0.9}))
        for rule, theirs, options in rows:
            for dtype in DTYPES:
                for preset in PRESETS:
                    with self.subTest(rule=rule, dtype=dtype, preset=preset):
                        model = make_model(dtype)
                        vanilla = theirs(model.parameters(), **options)
                        for _ in range(2):
                            for p in model.parameters():
                                p.grad = torch.rand_like(p)
                            vanilla.step()
                        ours = RULES[rule](model.parameters(), preset=preset, **options)
                        ours.load_state_dict(through_file(vanilla.state_dict())[0])
                        back = theirs(model.parameters(), **options)
                        back.load_state_dict(through_file(ours.state_dict(portable=True))[0])
                        for p in model.parameters():
                            for name in filter(None, ours._moments):
                                a, b = (o.state[p][name].double().ravel() for o in (vanilla, back))
                                self.assertGreater(torch.cosine_similarity(a, b, 0).item(), 0.99)
                        train(model, back, 1), train(model, ours, 1)

    def test_fp32_round_trip(self):
        for rule, made in RULES.items():
            for dtype in DTYPES:
                for preset in PRESETS:
                    model = make_model(dtype)
                    optimizer = made(model.parameters(), lr=1e-3, preset=preset)
                    train(model, optimizer, 2)
                    saved = through_file(mt.fp32_state_dict(model, optimizer))[0]
                    other = make_model(dtype, 1)
                    another = made(other.parameters(), preset=preset)
                    mt.load_fp32_state_dict(other, another, saved)
                    again = mt.fp32_state_dict(other, another)
                    torch.testing.assert_close(again, saved, rtol=0, atol=0, msg=f"{rule} {dtype} {preset}")
                    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)

    def losses(self, made, mode, steps=20, **options):
        dtype = {"bf16": torch.bfloat16, "fp16 scaled": torch.float16}.get(mode)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 80), nn.ReLU(), nn.Linear(80, 5))
        model = model.bfloat16() if mode == "bf16 model" else model
        scaler = torch.amp.GradScaler("cpu", enabled=mode == "fp16 scaled")
        optimizer, found = made(model.parameters(), lr=1e-3, **options), []
        for step in range(steps):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step % 4))
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                y = model(x.to(next(model.parameters()).dtype))
            loss = (y.float() - x.sum(1, keepdim=True)).pow(2).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            found.append(loss.item())
        return torch.tensor(found)

    def test_mixed_precision(self):
        for rule, made in RULES.items():
            for preset in ("fp32", "balanced"):
                exact = self.losses(made, "fp32", preset="fp32")
                self.assertLess(exact[-4:].mean().item(), exact[:4].mean().item())
                for mode in ("bf16", "fp16 scaled", "bf16 model"):
                    found = self.losses(made, mode, preset=preset)
                    error = ((found - exact) ** 2).mean() / exact.var(correction=0)
                    correlation = torch.corrcoef(torch.stack((found, exact)))[0, 1]
                    self.assertGreater(correlation.item(), 0.9999, (rule, preset, mode))
                    self.assertLess(error.item(), 5e-4, (rule, preset, mode))


if __name__ == "__main__":
    unittest.main()
