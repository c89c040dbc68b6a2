"""The Python programs of README and meopt-torch(7), as they are written there."""
import inspect
import os
import re
import textwrap
import unittest

import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("MEOPT_SOURCE") or os.path.join(HERE, "..", "..")


def read(*names):
    with open(os.path.join(SOURCE, *names), encoding="utf-8") as file:
        return file.read()


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 70), nn.Tanh(), nn.Linear(70, 50))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch).float().flatten(0, 1), batch.flatten())


def batches(count):
    return [torch.arange(40).view(4, 10) + i % 5 for i in range(count)]


class Programs(unittest.TestCase):
    def run_program(self, text, **names):
        names.setdefault("model", make())
        exec(compile(textwrap.dedent(text), "program", "exec"), names)
        return names

    def train(self, model, optimizer, steps=20, clip=None):
        losses = []
        for _ in range(steps):
            batch, = batches(1)
            losses.append(loss(model, batch))
            losses[-1].backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        self.assertLess(losses[-1].item(), losses[0].item())

    def test_readme(self):
        for page in ("README.md", "README.zh_CN.md"):
            text = read(page)[read(page).index("import meopt.torch") - 40:]
            block = re.search(r"\n\n((?:    (?:import|model|optimizer|meopt)\b.*\n)+)", text)
            made = self.run_program(block[1])
            self.train(made["model"], made["optimizer"])
            self.assertEqual(next(made["model"].parameters()).dtype, torch.bfloat16)
            with self.assertRaisesRegex(RuntimeError, "clip="):
                self.train(made["model"], made["optimizer"], 1, clip=1.0)
            call, = re.findall(r"`release_gradients\(\.\.\., (.*?)\)`", read(page))
            made = self.run_program(block[1].replace("(model, optimizer)", f"(model, optimizer, {call})"))
            self.train(made["model"], made["optimizer"])

    def test_bytes_per_parameter(self):
        """README's and the page's bytes: of AdamW with balanced, the parameter included."""
        pairs = re.findall(r"([0-9.]+) \((bfloat16|float32|float16)\)", read("man", "meopt-torch.7"))
        said = {name: float(value) for value, name in pairs}
        self.assertIn("%.2f bytes per parameter" % said["bfloat16"], read("README.md"))
        import meopt.torch

        for name, value in said.items():
            p = nn.Parameter(torch.zeros(1024, 1024, dtype=getattr(torch, name)))
            self.assertAlmostEqual(meopt.torch.AdamW([p]).held_bytes()["per_param"], value, delta=0.005)

    def test_limits(self):
        """The page's numbers: elements with fp32 moments, |m| / sqrt(v), errors of minimal."""
        import meopt.torch as mt

        page = read("man", "meopt-torch.7")
        small, = map(int, re.findall(r"fewer than (\d+) elements", page))
        ratio, = map(float, re.findall(r"at most (\d+) sqrt\(v\)", page))
        errors = re.search(r"has (\d)/(\d) of the mean .*\n.* within (\S+) of", page)
        times, by, mean = map(float, errors.groups())
        for rows, fp32 in ((small // 64 - 1, True), (small // 64, False)):
            p = nn.Parameter(torch.zeros(rows, 64, dtype=torch.bfloat16))
            self.assertEqual(mt.AdamW([p]).held_bytes()["moments"] == 8 * p.numel(), fp32)

        optimizer = mt.AdamW([nn.Parameter(torch.zeros(128, 64))])
        state = optimizer.state_dict(portable=True)
        for m, v, expected in ((1.0, 1e-4, 1.0), (1.0, 1e-6, ratio * 1e-3), (1e-3, 0.0, 0.0)):
            state["state"][0].update(step=torch.tensor(5.0), exp_avg=torch.full((128, 64), m),
                                     exp_avg_sq=torch.full((128, 64), v))
            optimizer.load_state_dict(state)
            found = optimizer.state_dict(portable=True)["state"][0]["exp_avg"]
            torch.testing.assert_close(found, torch.full((128, 64), expected), rtol=5e-3, atol=1e-12)

        torch.manual_seed(0)
        start, gradient = (torch.rand(512, 512) + 1).bfloat16(), torch.rand(512, 512).bfloat16()
        found = []
        for dtype, preset in ((torch.float32, "fp32"), (torch.bfloat16, "minimal")):
            p = nn.Parameter(start.to(dtype))
            p.grad = gradient.to(dtype)
            mt.SGD([p], lr=0.1, preset=preset).step()
            found.append(p.detach().float())
        exact, rounded = found
        nearest = (exact.bfloat16().float() - exact).abs().mean()
        self.assertAlmostEqual(float((rounded - exact).abs().mean() / nearest), times / by, delta=0.02)
        self.assertLess(abs(float((rounded - exact).double().mean())), mean)

    def test_cast_from_fp32(self):
        """First small updates change the bits of the library alone; fp32 weights keep theirs."""
        import meopt.torch as mt

        torch.manual_seed(0)
        weights = {"p": torch.randn(128, 128)}
        model = nn.ParameterDict({"p": nn.Parameter(weights["p"].bfloat16())})
        optimizer, before = mt.AdamW(model.parameters(), lr=1e-6, weights="bf16+16"), model["p"].clone()
        model["p"].grad = torch.ones_like(before)
        optimizer.step()
        self.assertGreater((model["p"] == before).float().mean(), 0.99)
        found = mt.fp32_state_dict(model, optimizer)["p"]
        self.assertEqual((found == before.float()).count_nonzero(), 0)
        mt.load_fp32_state_dict(model, optimizer, weights)
        self.assertTrue(torch.equal(mt.fp32_state_dict(model, optimizer)["p"], weights["p"]))

    def test_pages(self):
        for page in (("man", "meopt-torch.7"), ("man", "zh_CN", "man7", "meopt-torch.7")):
            text = read(*page)
            blocks = text.split(".Bd -literal")[1:]
            synopsis, example = (block.split(".Ed")[0].split("\n", 1)[1] for block in blocks)
            made = self.run_program(synopsis)
            self.train(made["model"], made["optimizer"])
            model = make()
            embeddings = list(model[0].parameters())
            rest = list(model[1:].parameters())
            before = loss(model, batches(1)[0]).item()
            made = self.run_program(example, model=model, embeddings=embeddings, rest=rest, steps=10,
                                    batches=batches, loss=loss, meopt=made["meopt"])
            self.assertLess(loss(model, batches(1)[0]).item(), before)
            self.assertEqual(made["optimizer"].param_groups[0]["steps"], 10)

    def test_arguments(self):
        """What the page says of a class: names, formats, options of groups, refusals."""
        import importlib

        import meopt.torch

        row = re.compile(r"^\.It (\w+) Ta (\w+) Ta (?:torch|timm)\.optim\.\w+$", re.M)
        table = row.findall(read("man", "meopt-torch.7"))
        self.assertEqual(len(table), 5)
        refused, = re.findall(r"^(amsgrad[^.]*) are refused", read("man", "meopt-torch.7"), re.M)
        refused = re.findall(r"\w+_\w+|\w{5,}", refused)
        self.assertEqual(len(refused), 8)
        for name, original in table:
            made = getattr(meopt.torch, name)
            self.assertIs(made, getattr(meopt.torch, original))
            self.assertIs(made, getattr(importlib.import_module("meopt." + original.lower()), original))
            p, known = [nn.Parameter(torch.zeros(4))], inspect.signature(made).parameters
            for option in refused:
                if option not in known:  # torch's has no such argument
                    self.assertRaises(TypeError, made, p, **{option: True})
                elif (option, original) != ("decoupled_weight_decay", "ApAdamW"):
                    self.assertRaises(ValueError, made, p, **{option: True})
                    made(p, **{option: False})
        p = nn.Parameter(torch.zeros(128, 128, dtype=torch.bfloat16))
        plain = meopt.torch.AdamW([p]).held_bytes()["moments"]
        self.assertGreater(meopt.torch.AdamW([p], first_moment="fp32").held_bytes()["moments"], plain)
        self.assertEqual(meopt.torch.AdamW([p], preset="balanced").held_bytes()["moments"], plain)
        for dtype in (torch.float64, torch.complex64):
            with self.assertRaises(ValueError):
                meopt.torch.AdamW([nn.Parameter(torch.zeros(4, dtype=dtype))])


if __name__ == "__main__":
    unittest.main()
