"""meopt.torch next to torch and timm: defaults, files, other types and layouts, distributed checkpoints."""
import copy
import inspect
import unittest
import warnings

import torch
from torch import nn

import meopt.torch as mt

try:
    import timm.optim
except ImportError:
    timm = None
from torch_optimizers import make_model, through_file, train


TORCH = ((mt.Adam, torch.optim.Adam), (mt.AdamW, torch.optim.AdamW), (mt.SGD, torch.optim.SGD))
TIMM = ((mt.LAMB, timm.optim.Lamb), (mt.Lion, timm.optim.Lion)) if timm else ()
# Options that a group changes after three steps, and what the optimizer was made with.
CHANGES = {
    mt.Adam: ({}, {"betas": (0.5, 0.6)}, {"eps": 0.1}, {"weight_decay": 0.5}, {"maximize": True}),
    mt.AdamW: ({}, {"betas": (0.5, 0.6)}, {"eps": 0.1}, {"weight_decay": 0.5}, {"lr": 0.1}),
    mt.SGD: ({"momentum": 0.9}, {"dampening": 0.5}, {"momentum": 0.1}, {"momentum": 0.0}, {"nesterov": True}),
    mt.LAMB: ({"weight_decay": 0.1}, {"betas": (0.5, 0.6)}, {"eps": 0.1}, {"bias_correction": False},
              {"grad_averaging": False}, {"max_grad_norm": 1e-3}, {"trust_clip": True},
              {"decoupled_decay": True}, {"weight_decay": 0.0}, {"weight_decay": 0.0, "always_adapt": True}),
    mt.Lion: ({}, {"betas": (0.5, 0.6)}, {"weight_decay": 0.5}, {"maximize": True}),
}


class Contract(unittest.TestCase):
    def test_arguments_are_those_of_torch(self):
        for ours, theirs in (*TORCH, *TIMM):
            ours, theirs = (list(inspect.signature(each).parameters.values()) for each in (ours, theirs))
            own = {p.name: p for p in ours}
            for p in theirs:
                self.assertEqual((own[p.name].kind, own[p.name].default), (p.kind, p.default), p)
            places = [[p.name for p in each if p.kind != p.KEYWORD_ONLY] for each in (ours, theirs)]
            self.assertEqual(*places)
            self.assertEqual((own["preset"].default, own["seed"].default), ("balanced", 0))

    def test_options_of_groups_may_change(self):
        for ours, theirs in (*TORCH, *TIMM):
            first, *changes = CHANGES[ours]
            for change in changes:
                found = []
                for made, more in ((ours, {"preset": "fp32"}), (theirs, {})):
                    torch.manual_seed(0)
                    p = nn.Parameter(torch.randn(80, 70))
                    optimizer = made([p], **{"lr": 1e-2, **first, **more})
                    for step in range(5):
                        if step == 3:
                            optimizer.param_groups[0].update(change)
                        p.grad = torch.randn_like(p)
                        optimizer.step()
                    found.append(p)
                torch.testing.assert_close(*found, rtol=2e-5, atol=2e-6, msg=f"{ours} {change}")

    def test_defaults_are_those_of_torch(self):
        p = [nn.Parameter(torch.ones(4))]
        for ours, theirs in TORCH:
            ours, theirs = ours(p).defaults, theirs(p).defaults
            theirs.pop("decoupled_weight_decay", None)
            self.assertEqual({name: ours[name] for name in theirs}, theirs)

    @unittest.skipUnless(timm, "no timm")
    def test_equals_timm(self):
        cases = ((mt.LAMB, "Lamb", {}), (mt.LAMB, "Lamb", {"max_grad_norm": None, "trust_clip": True}),
                 (mt.LAMB, "Lamb", {"decoupled_decay": True, "always_adapt": True, "weight_decay": 0.0}),
                 (mt.Lion, "Lion", {"weight_decay": 0.1}))
        for ours, name, options in cases:
            theirs = getattr(timm.optim, name)
            pair = []
            for made, more in ((ours, {"preset": "fp32"}), (theirs, {})):
                model = make_model()
                optimizer = made(model.parameters(), **options, **more)
                train(model, optimizer, 4)
                pair.append((model, optimizer))
            for p, q in zip(*(model.parameters() for model, _ in pair)):
                torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-6)
            given = [ours(p[0].parameters()).defaults if i == 0 else theirs(p[0].parameters()).defaults
                     for i, p in enumerate(pair)]
            given[1].pop("max_lr_snapshot", None)
            self.assertEqual({key: given[0][key] for key in given[1]}, given[1])
            pair[0][1].load_state_dict(pair[1][1].state_dict())
            pair[0][0].load_state_dict(pair[1][0].state_dict())
            for model, optimizer in pair:
                train(model, optimizer, 2, 1)
            for p, q in zip(*(model.parameters() for model, _ in pair)):
                torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-6)

    def test_loads_other_formats(self):
        for dtype in (torch.float32, torch.bfloat16):
            model = make_model(dtype)
            optimizer = mt.AdamW(model.parameters(), preset="balanced")
            train(model, optimizer, 3)
            state = through_file(optimizer.state_dict())[0]
            for preset in ("fp32", "quality", "minimal"):
                other = copy.deepcopy(model)
                another = mt.AdamW(other.parameters(), preset=preset)
                another.load_state_dict(state)
                self.assertEqual(another.param_groups[0]["preset"], preset)
                whole = mt.fp32_state_dict(other, another)
                if dtype == torch.bfloat16:  # residual bits of a matrix are dropped, those of the others kept
                    self.assertTrue(torch.equal(whole["0.weight"], other[0].weight.float()))
                    self.assertFalse(torch.equal(whole["0.bias"], other[0].bias.float()))
                moments = [o.state_dict(portable=True)["state"] for o in (optimizer, another)]
                torch.testing.assert_close(*moments, rtol=0.02, atol=1e-6)
                train(other, another, 1)
                self.assertEqual(another.state[other[0].weight]["step"].item(), 4)

    def test_damaged_states(self):
        model = make_model()
        optimizer = mt.AdamW(model.parameters())
        train(model, optimizer, 1)
        state = optimizer.state_dict()
        for damage in (lambda r: r[:-1], lambda r: torch.cat([r[:200], r[200:201] ^ 1, r[201:]])):
            bad = copy.deepcopy(state)
            bad["state"][0]["meopt"] = damage(bad["state"][0]["meopt"])
            with self.assertRaises(ValueError):
                optimizer.load_state_dict(bad)
        bad = copy.deepcopy(state)
        bad["param_groups"][0]["params"].pop()
        with self.assertRaises(ValueError):
            optimizer.load_state_dict(bad)
        bad = torch.optim.AdamW(make_model().parameters(), amsgrad=True).state_dict()
        with self.assertRaisesRegex(ValueError, "amsgrad"):
            optimizer.load_state_dict(bad)
        optimizer.load_state_dict(torch.optim.AdamW(make_model().parameters(), fused=True).state_dict())

    def test_duplicates(self):
        p = nn.Parameter(torch.ones(4))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            optimizer = mt.AdamW([p, p])
        self.assertTrue(found)
        p.grad = torch.ones(4)
        optimizer.step()
        with self.assertRaises(ValueError):
            optimizer.add_param_group({"params": [p]})

    def test_grad_scaler(self):
        model = make_model()
        optimizer, scaler = mt.AdamW(model.parameters(), lr=1e-2), torch.amp.GradScaler("cpu", init_scale=8.0)
        for scale in (1.0, float("inf")):
            before = copy.deepcopy(model.state_dict())
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 48)).mean() * scale).backward()
            scaler.step(optimizer)
            scaler.update()
            moved = not torch.equal(before["0.weight"], model[0].weight)
            self.assertEqual(moved, scale == 1.0)

    def test_state_before_weights(self):
        """What is saved after the optimizer's state was loaded, and before the weights, is that state."""
        model = make_model(torch.bfloat16)
        optimizer = mt.AdamW(model.parameters())
        train(model, optimizer, 3)
        weights, state = copy.deepcopy(model.state_dict()), optimizer.state_dict()
        other = make_model(torch.bfloat16, 1)
        another = mt.AdamW(other.parameters())
        another.load_state_dict(state)
        again = another.state_dict()["state"]
        for key, each in state["state"].items():
            for name, value in each.items():
                self.assertTrue(torch.equal(value, again[key][name]), name)
        other.load_state_dict(weights)
        train(model, optimizer, 2), train(other, another, 2)
        for p, q in zip(model.parameters(), other.parameters()):
            self.assertTrue(torch.equal(p, q))

    def test_dtype_changes(self):
        model = make_model()
        optimizer = mt.AdamW(model.parameters())
        train(model, optimizer, 2)
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            model.to(dtype)
            train(model, optimizer, 1)
            self.assertTrue(all(p.dtype == dtype for p in optimizer.state))
        self.assertEqual(optimizer.state[model[0].weight]["step"].item(), 5)

    def test_averaged_models(self):
        model = make_model(torch.bfloat16)
        optimizer = mt.AdamW(model.parameters())
        average = torch.optim.swa_utils.AveragedModel(model)
        train(model, optimizer, 2)
        average.update_parameters(model)
        kept = copy.deepcopy(model.state_dict())
        model.load_state_dict(average.module.state_dict())
        model.load_state_dict(kept)
        train(model, optimizer, 2)

    def test_gradients_of_other_types(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            ours, theirs = (nn.Parameter(torch.ones(70, 80)) for _ in range(2))
            pair = mt.AdamW([ours], preset="fp32"), torch.optim.AdamW([theirs])
            gradient = torch.randn(80, 70).to(dtype).t()
            self.assertFalse(gradient.is_contiguous())
            if dtype != torch.float32 and not hasattr(ours, "grad_dtype"):
                continue
            for p, optimizer in zip((ours, theirs), pair):
                if dtype != torch.float32:
                    p.grad_dtype = dtype if p is ours else torch.float32
                p.grad = gradient if p is ours else gradient.float()
                optimizer.step()
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
        sparse = nn.Parameter(torch.ones(3, 4))
        sparse.grad = torch.ones(3, 4).to_sparse()
        with self.assertRaisesRegex(RuntimeError, "sparse"):
            mt.AdamW([sparse]).step()

    def two_groups(self, model):
        return mt.AdamW([{"params": list(each.parameters())} for each in (model[0], model[1:])])

    def test_distributed_checkpoint(self):
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        model = make_model(torch.bfloat16)
        optimizer = self.two_groups(model)
        train(model, optimizer, 2)
        weights, state = copy.deepcopy(get_state_dict(model, optimizer))
        other = make_model(torch.bfloat16, 1)
        another = self.two_groups(other)
        set_state_dict(other, another, model_state_dict=weights, optim_state_dict=state)
        train(model, optimizer, 2), train(other, another, 2)
        for p, q in zip(model.parameters(), other.parameters()):
            self.assertTrue(torch.equal(p, q))


if __name__ == "__main__":
    unittest.main()
