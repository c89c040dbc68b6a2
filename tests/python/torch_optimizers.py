"""meopt.torch on the CPU: bits of the C library, torch's results, state_dict, copies, options."""
import copy
import ctypes as C
import io
import unittest

import torch
from torch import nn

import meopt
import meopt.torch as mt
from meopt import _library as L
from meopt.apadam import ApAdam
from meopt.apadamw import ApAdamW
from meopt.apsgd import ApSGD
from meopt.lamb import LAMB
from meopt.lion import Lion

RULES = {"apadam": ApAdam, "apadamw": ApAdamW, "apsgd": ApSGD, "lamb": LAMB, "lion": Lion}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NAMED = not torch.__version__.startswith(("2.4.", "2.5."))  # constructors take named_parameters()
PRESETS = ("quality", "balanced", "minimal", "fp32", "amp", "pure_bf16")
SIZES = (48, 96, 80, 10)


def make_model(dtype=torch.float32, seed=0):
    """A network whose matrices have more than 4096 elements, with norms and a small matrix."""
    torch.manual_seed(seed)
    a, b, c, d = SIZES
    layers = nn.Linear(a, b), nn.LayerNorm(b), nn.GELU(), nn.Linear(b, c), nn.Linear(c, d)
    return nn.Sequential(*layers).to(dtype)


def train(model, optimizer, steps, seed=0, set_to_none=True):
    torch.manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        x = torch.randn(16, SIZES[0])
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = (model(x.to(dtype)).float() - x[:, : SIZES[-1]].sin()).pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def through_file(*states):
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Reference:
    """The C interface on the same tensors: fp32 gradients of each step, tensor by tensor."""

    def __init__(self, rule, preset, params, lr, **options):
        self.lib, self.opt, self.count = L.library(), C.c_void_p(), 0
        self.params, self.lr = [p.detach().clone() for p in params], lr
        o = L.Options()
        number = self.lib.number("rule", rule)
        self.lib.options_init_sized(C.sizeof(L.Tensor), C.byref(o), C.sizeof(o), number)
        self.lib.options_preset(C.byref(o), preset.encode())
        bf16 = params[0].dtype == torch.bfloat16
        if not bf16:
            o.weights = 0
        for name, value in options.items():
            setattr(o, name, value)
        table = (L.Tensor * len(params))()
        for i, (row, p) in enumerate(zip(table, self.params)):
            row.name, row.ndim, row.flags, row.weights = b"p%d" % i, p.dim(), 16 if bf16 else 0, p.data_ptr()
            row.shape[: p.dim()] = p.shape
        self.lib.create(C.byref(self.opt), C.byref(o), table, len(params))

    def step(self, gradients):
        self.count += 1
        rows = (L.Gradient * len(self.params))()
        for row, g in zip(rows, gradients):
            row.data, row.dtype = g.data_ptr(), int(g.dtype == torch.bfloat16)
        self.lib.step_sized(C.sizeof(L.Stats), self.opt, self.count, self.lr, 1.0, rows, None)

    def __del__(self):
        self.lib.destroy(self.opt)


class Bits(unittest.TestCase):
    """The package adds nothing to the library's arithmetic."""

    def check(self, rule, preset, dtype):
        model = make_model(dtype)
        options = {"weight_decay": 0.1, **({"momentum": 0.9} if rule == "apsgd" else {})}
        clip = {"max_grad_norm": None} if rule == "lamb" else {}
        optimizer = RULES[rule](model.parameters(), lr=0.01, preset=preset, **options, **clip)
        reference = Reference(rule, preset, list(model.parameters()), 0.01, **options)
        for _ in range(3):
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            optimizer.step()
            reference.step([p.grad for p in model.parameters()])
        for p, q in zip(model.parameters(), reference.params):
            self.assertTrue(torch.equal(p, q), (rule, preset, dtype))

    def test_bits_of_the_library(self):
        for rule in RULES:
            for preset in PRESETS:
                for dtype in (torch.float32, torch.bfloat16):
                    self.check(rule, preset, dtype)

    def test_fp32_equals_torch(self):
        pairs = ((mt.Adam, torch.optim.Adam, {"weight_decay": 0.1}), (mt.AdamW, torch.optim.AdamW, {}),
                 (mt.SGD, torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
                 (mt.SGD, torch.optim.SGD, {"lr": 0.1}), (mt.AdamW, torch.optim.AdamW, {"maximize": True}))
        for ours, theirs, options in pairs:
            models = make_model(), make_model()
            train(models[0], ours(models[0].parameters(), preset="fp32", **options), 8)
            train(models[1], theirs(models[1].parameters(), **options), 8)
            for p, q in zip(models[0].parameters(), models[1].parameters()):
                torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-6)


class States(unittest.TestCase):
    def same(self, model, other, optimizer=None, another=None):
        for p, q in zip(model.parameters(), other.parameters()):
            self.assertTrue(torch.equal(p, q))
        if optimizer is not None:
            ours, theirs = mt.fp32_state_dict(model, optimizer), mt.fp32_state_dict(other, another)
            for name, value in ours.items():
                self.assertTrue(torch.equal(value, theirs[name]), name)

    def test_reload_is_bit_exact_in_either_order(self):
        for rule, made in RULES.items():
            for dtype in DTYPES:
                model = make_model(dtype)
                optimizer = made(model.parameters(), lr=1e-3)
                train(model, optimizer, 4)
                weights, state = through_file(model.state_dict(), optimizer.state_dict())
                models = make_model(dtype, 1), make_model(dtype, 2)
                others = [(m, made(m.parameters(), lr=1)) for m in models]
                (first, optimizer1), (second, optimizer2) = others
                first.load_state_dict(weights)
                optimizer1.load_state_dict(state)
                optimizer2.load_state_dict(state)
                second.load_state_dict(weights)
                for m, o in ((model, optimizer), *others):
                    train(m, o, 3, seed=1)
                for m, o in others:
                    self.same(model, m, optimizer, o)

    def test_records_cast_to_the_parameters_dtype(self):
        for cast in DTYPES:
            model = make_model(torch.bfloat16)
            optimizer = mt.AdamW(model.parameters())
            train(model, optimizer, 3)
            state, weights = optimizer.state_dict(), copy.deepcopy(model.state_dict())
            for each in state["state"].values():
                each.update({name: value.to(cast) for name, value in each.items() if name != "step"})
            other = make_model(torch.bfloat16)
            another = mt.AdamW(other.parameters())
            another.load_state_dict(state)
            other.load_state_dict(weights)
            train(model, optimizer, 2), train(other, another, 2)
            self.same(model, other, optimizer, another)

    def test_copies(self):
        for dtype in DTYPES:
            model = make_model(dtype)
            optimizer = mt.AdamW(model.parameters())
            train(model, optimizer, 3)
            pairs = [copy.deepcopy((model, optimizer))]
            file = io.BytesIO()
            torch.save((model, optimizer), file)
            file.seek(0)
            pairs.append(torch.load(file, weights_only=False))
            train(model, optimizer, 2)
            for m, o in pairs:
                train(m, o, 2)
                self.same(model, m, optimizer, o)

    def test_written_weights_are_accepted(self):
        model = make_model(torch.bfloat16)
        optimizer = mt.AdamW(model.parameters(), lr=1e-4)
        train(model, optimizer, 3)
        with torch.no_grad():
            model[0].weight.fill_(0.5)
        written = mt.fp32_state_dict(model, optimizer)
        self.assertTrue(torch.equal(written["0.weight"], torch.full((96, 48), 0.5)))
        self.assertFalse(torch.equal(written["3.weight"], model[3].weight.float()))

    def test_written_data(self):
        for dtype in DTYPES:
            model = make_model(dtype)
            optimizer = mt.AdamW(model.parameters(), lr=1e-4)
            train(model, optimizer, 2)
            weight = model[0].weight
            for write in (lambda x: weight.data.copy_(x), lambda x: setattr(weight, "data", x)):
                write(torch.full_like(weight, 0.5))
                found = mt.fp32_state_dict(model, optimizer)["0.weight"]
                torch.testing.assert_close(found, torch.full((96, 48), 0.5), rtol=2**-8, atol=0)
                train(model, optimizer, 1)
                torch.testing.assert_close(weight.float(), torch.full((96, 48), 0.5), rtol=2**-7, atol=0)

    def test_moved_weights(self):
        model, other = make_model(torch.bfloat16), make_model(torch.bfloat16)
        optimizers = mt.AdamW(model.parameters()), mt.AdamW(other.parameters())
        train(model, optimizers[0], 2), train(other, optimizers[1], 2)
        for p in model.parameters():
            p.data = p.data.clone()
        train(model, optimizers[0], 2), train(other, optimizers[1], 2)
        self.same(model, other, *optimizers)

    def test_views_of_the_same_memory(self):
        """p.data becomes a part of its memory, which is refused, or another layout of it, which is stepped as
        torch does; in both cases nothing else is written."""
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
        for release in (False, True):
            ours = torch.nn.Linear(16, 16, bias=False)
            theirs = copy.deepcopy(ours)
            optimizers = mt.AdamW(ours.parameters(), preset="fp32"), torch.optim.AdamW(theirs.parameters())
            if release:
                mt.release_gradients(ours, optimizers[0])
            for model, optimizer in zip((ours, theirs), optimizers):
                for step in range(4):
                    if step == 2:
                        model.weight.data = model.weight.data.t()
                    model(x).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
            torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-7)
            memory = ours.weight.data
            ours.weight.data = ours.weight.data[:2]
            before = memory.clone()
            with self.assertRaises((ValueError, RuntimeError)):
                ours.weight.square().sum().backward()
                optimizers[0].step()
            self.assertTrue(torch.equal(memory, before))

    def test_torch_states(self):
        pairs = ((mt.AdamW, torch.optim.AdamW, {}), (mt.Adam, torch.optim.Adam, {}),
                 (mt.SGD, torch.optim.SGD, {"momentum": 0.9}), (mt.SGD, torch.optim.SGD, {}))
        for ours, theirs, options in pairs:
            model, other = make_model(), make_model()
            optimizer = ours(model.parameters(), preset="fp32", **options)
            torchs = theirs(other.parameters(), **options)
            train(model, optimizer, 3)
            other.load_state_dict(model.state_dict())
            torchs.load_state_dict(*through_file(optimizer.state_dict(portable=True)))
            third = make_model()
            back = ours(third.parameters(), preset="fp32", **options)
            back.load_state_dict(torchs.state_dict())
            third.load_state_dict(other.state_dict())
            for m, o in ((model, optimizer), (other, torchs), (third, back)):
                train(m, o, 3, seed=1)
            for p, q, r in zip(model.parameters(), other.parameters(), third.parameters()):
                torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-6)
                self.assertTrue(torch.equal(p, r))

    def test_fp32_weights(self):
        model = make_model(torch.bfloat16)
        optimizer = mt.AdamW(model.parameters())
        train(model, optimizer, 3)
        saved = mt.fp32_state_dict(model, optimizer)
        self.assertTrue(all(value.dtype == torch.float32 for value in saved.values()))
        other = make_model(torch.bfloat16)
        another = mt.AdamW(other.parameters())
        mt.load_fp32_state_dict(other, another, saved)
        another.load_state_dict({**optimizer.state_dict()})
        train(model, optimizer, 2), train(other, another, 2)
        self.same(model, other, optimizer, another)


class Options(unittest.TestCase):
    def test_refused(self):
        p = [nn.Parameter(torch.ones(4))]
        cases = (dict(amsgrad=True), dict(fused=True), dict(capturable=True), dict(lr=-1),
                 dict(betas=(1.0, 0.999)), dict(weight_decay=-1), dict(eps=-1), dict(preset="none"),
                 dict(weights="bf8"))
        for options in cases:
            with self.assertRaises(ValueError, msg=options):
                mt.AdamW(p, **options)
        for dtype in (torch.float64, torch.complex64):
            with self.assertRaisesRegex(ValueError, "p0"):
                mt.AdamW([nn.Parameter(torch.ones(4, dtype=dtype))])

        zeros = torch.zeros(4, 4)
        for t in (zeros.to_sparse(), zeros.int(), zeros.to("meta")):
            with self.assertRaises(ValueError):
                mt.AdamW([nn.Parameter(t, requires_grad=False)])

    def test_refused_after_steps(self):
        """A refused option of a group is so at each step until it is allowed; moments are kept."""
        refused = [{name: True} for name in ("amsgrad", "foreach", "fused", "capturable", "differentiable",
                                             "caution", "corrected_weight_decay")]
        for dtype in DTYPES:
            pairs = []
            for change in ({}, {"preset": "none"}, {"second_moment": "none"}, *refused):
                model = make_model(dtype)
                groups = [{"params": list(layer.parameters())} for layer in (model[0], model[3])]
                optimizer = mt.AdamW(groups)
                train(model, optimizer, 2)
                group, kept = optimizer.param_groups[1], dict(optimizer.param_groups[1])
                if change:
                    group.update(change)
                    for use in (optimizer.step, optimizer.step, optimizer.state_dict):
                        with self.assertRaises(ValueError, msg=change):
                            use()
                    group.clear()
                    group.update(kept)
                train(model, optimizer, 2)
                pairs.append((mt.fp32_state_dict(model, optimizer), optimizer.state_dict()["state"]))
            for pair in pairs[1:]:
                torch.testing.assert_close(pair, pairs[0], rtol=0, atol=0)

    @unittest.skipUnless(NAMED, "named parameters: PyTorch 2.6")
    def test_not_finite(self):
        """All names are reported; groups of 64 with such a gradient keep their values, all others step."""
        for rule, made in RULES.items():
            for dtype in DTYPES:
                for release in (False, True):
                    model = nn.ModuleDict({name: nn.Linear(128, 80, bias=False) for name in "abc"}).to(dtype)
                    groups = [{"params": list(model[name].named_parameters(name))} for name in "abc"]
                    optimizer = made(groups, lr=0.1, **({"max_grad_norm": None} if rule == "lamb" else {}))
                    if release:
                        mt.release_gradients(model, optimizer)
                    before = copy.deepcopy(model)
                    gradient = torch.ones(80, 128, dtype=dtype)
                    gradient[3, 70], where = float("nan"), {"a": 7, "c": 7}
                    factors = {name: gradient if name in where else 1 for name in "abc"}
                    loss = sum((model[name].weight * factors[name]).sum() for name in "abc")
                    with self.assertRaises(FloatingPointError) as raised:
                        loss.backward()
                        optimizer.step()
                    said = str(raised.exception)
                    for name in "abc":
                        self.assertEqual(f"{name}.weight" in said, name in where, said)
                        same = (model[name].weight == before[name].weight).view(-1, 64).all(1)
                        kept = same.nonzero().flatten().tolist()
                        self.assertEqual(kept, [where[name]] if name in where else [])

    def test_changed_options(self):
        model, other = make_model(), make_model()
        ours, theirs = mt.SGD(model.parameters(), preset="fp32"), torch.optim.SGD(other.parameters())
        for m, o in ((model, ours), (other, theirs)):
            train(m, o, 2)
            o.param_groups[0].update(lr=torch.tensor(0.05), momentum=0.5, weight_decay=0.1)
            train(m, o, 2)
            o.param_groups[0].update(nesterov=True)
            train(m, o, 2)
        for p, q in zip(model.parameters(), other.parameters()):
            torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-6)

    def test_parameters_come_later(self):
        model = make_model(torch.bfloat16)
        p = list(model.parameters())
        p.append(nn.Parameter(torch.empty(0, 5)))
        optimizer = mt.AdamW(p[:2])
        optimizer.add_param_group({"params": p[2:4], "lr": 0.1})
        optimizer.param_groups[1]["params"].extend(p[4:])
        before = [each.clone() for each in p]
        train(model, optimizer, 3)
        self.assertTrue(all(not torch.equal(a, b) for a, b in zip(before, p) if a.numel()))
        for each in p[:-1]:
            self.assertEqual(optimizer.state[each]["step"].item(), 3)

    def test_layouts(self):
        torch.manual_seed(0)
        strided, plain = nn.Parameter(torch.randn(80, 90).t()), nn.Parameter(torch.empty(90, 80))
        plain.data.copy_(strided)
        for dtype in DTYPES:
            pair = [nn.Parameter(strided.to(dtype)), nn.Parameter(plain.to(dtype))]
            self.assertFalse(pair[0].is_contiguous())
            for p in pair:
                torch.manual_seed(1)
                optimizer = mt.AdamW([p])
                for _ in range(3):
                    p.grad = torch.randn(90, 80).to(dtype)
                    optimizer.step()
            self.assertTrue(torch.equal(*pair), dtype)

    def test_bytes(self):
        p = nn.Parameter(torch.zeros(1024, 1024, dtype=torch.bfloat16))
        expected_bytes = {"quality": 5.0625, "balanced": 4.5625, "minimal": 4.0625, "fp32": 12}
        for preset, expected in expected_bytes.items():
            self.assertAlmostEqual(mt.AdamW([p], preset=preset).held_bytes()["per_param"], expected)

    def held(self, *shape, dtype=torch.bfloat16, **options):
        """Returns bytes per element of weights, residual bits, moments and shadows."""
        optimizer = mt.AdamW([nn.Parameter(torch.zeros(shape, dtype=dtype))], **options)
        held, count = optimizer.held_bytes(), torch.Size(shape).numel()
        each = [held[name] for name in ("weights", "residual", "moments", "shadows")]
        self.assertEqual(held["total"], sum(each))
        self.assertAlmostEqual(held["per_param"], held["total"] / count)
        return [round(size / count, 2) for size in each]

    def test_bytes_of_formats(self):
        for shape in ((63, 65), (8192,), (1, 8192)):  # fewer than 4096 elements, or one dimension
            for preset in ("balanced", "minimal", "pure_bf16"):
                self.assertEqual(self.held(*shape, preset=preset), [2, 2, 8, 0], (shape, preset))
            self.assertEqual(self.held(*shape, dtype=torch.float32), [4, 0, 8, 0])
        self.assertEqual(self.held(64, 64, preset="minimal"), [2, 0, 2.06, 0])
        for weights in ("fp32", "fp32+copy"):
            self.assertEqual(self.held(64, 64, weights=weights), [2, 2, 2.06, 0])
        self.assertEqual(self.held(64, 64, dtype=torch.float32, weights="bf16_sr"), [4, 0, 2.06, 0])
        strided = mt.AdamW([nn.Parameter(torch.zeros(64, 128).t())])
        self.assertEqual(strided.held_bytes()["shadows"], 64 * 128 * 4)

    def test_weights_beyond_the_parameter(self):
        """bf16+16 has the bits of fp32; a parameter is its weight, rounded to its dtype."""
        units = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
        for dtype, unit in units.items():
            for weights in ("fp32", "fp32+copy", "bf16+16", "bf16+8", "bf16+4"):
                torch.manual_seed(0)
                p = nn.Parameter(torch.randn(80, 90).to(dtype))
                q = nn.Parameter(p.detach().float())
                pair = mt.AdamW([p], weights=weights), mt.AdamW([q])
                for _ in range(3):
                    p.grad = torch.randn(80, 90).to(dtype)
                    q.grad = p.grad.float()
                    for optimizer in pair:
                        optimizer.step()
                    found = mt.fp32_state_dict(nn.ParameterDict({"p": p}), pair[0])["p"]
                    torch.testing.assert_close(p.float(), found, rtol=unit, atol=1e-7)
                    self.assertFalse(torch.equal(p.float(), found))
                if dtype == torch.float16 or weights not in ("bf16+8", "bf16+4"):
                    self.assertTrue(torch.equal(found, q), (dtype, weights))

    def test_written_between_steps(self):
        """All residual bits become 0, except after a write through .data: they stay."""
        for through_data in (False, True):
            model = make_model(torch.bfloat16)
            optimizer = mt.AdamW(model.parameters(), lr=1e-2)
            train(model, optimizer, 3)
            weight = model[0].weight
            before = mt.fp32_state_dict(model, optimizer)["0.weight"] - weight.float()
            self.assertGreater(before.count_nonzero().item(), 0.9 * weight.numel())
            with torch.no_grad():
                (weight.data if through_data else weight)[0, 0] += 0
            after = mt.fp32_state_dict(model, optimizer)["0.weight"] - weight.float()
            self.assertTrue(torch.equal(after, before if through_data else torch.zeros_like(before)))

    @unittest.skipUnless(NAMED, "named parameters: PyTorch 2.6")
    def test_keys_of_random_numbers(self):
        found = []
        for seed, name in ((0, "p0"), (0, None), (1, None), (0, "w"), (0, "w")):
            torch.manual_seed(0)
            p = nn.Parameter(torch.randn(128, 128).bfloat16())
            optimizer = mt.AdamW([(name, p)] if name else [p], preset="minimal", seed=seed)
            p.grad = torch.randn_like(p)
            optimizer.step()
            found.append(p)
        same = [torch.equal(a, b) for a, b in zip(found, found[1:])]
        self.assertEqual(same, [True, False, False, True])

    def test_preset_of_a_group_changes(self):
        for dtype in DTYPES:
            model = make_model(dtype)
            optimizer = mt.AdamW(model.parameters())
            train(model, optimizer, 3)
            before, held = optimizer.state_dict(portable=True)["state"], optimizer.held_bytes()["moments"]
            optimizer.param_groups[0]["preset"] = "fp32"
            torch.testing.assert_close(optimizer.state_dict(portable=True)["state"], before, rtol=0, atol=0)
            self.assertGreater(optimizer.held_bytes()["moments"], 2 * held)

    def test_state_is_there_from_construction(self):
        for dtype, more in ((torch.float32, set()), (torch.bfloat16, {"residual"})):
            model = make_model(dtype)
            states = mt.AdamW(model.parameters()).state_dict()["state"]
            self.assertEqual(len(states), 8)
            for state in states.values():
                self.assertEqual(set(state), {"step", "meopt"} | more)
                self.assertEqual((state["step"].dim(), state["meopt"].dtype), (0, torch.uint8))

    def test_keys_of_fp32_weights(self):
        model = make_model(torch.bfloat16)
        optimizer = mt.AdamW(model.parameters())
        weights = mt.fp32_state_dict(model, optimizer)
        for change in ({"0.weight": torch.zeros(2, 2)}, {"more": torch.zeros(2)}):
            with self.assertRaises(RuntimeError):
                mt.load_fp32_state_dict(model, optimizer, {**weights, **change})

    def test_version(self):
        self.assertRegex(meopt.__version__, r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
