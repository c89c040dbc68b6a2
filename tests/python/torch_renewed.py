"""meopt.torch keeps what TestOptimRenewed of PyTorch asks of each optimizer: five classes, their options."""
import copy
import unittest

import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.optim import optimizer as base

from torch_optimizers import DTYPES, PRESETS, RULES, make_model, through_file, train

# Options of every class, then those of one. A learning rate is large enough to show within 20 steps.
COMMON = ({}, {"lr": 0.01}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "maximize": True})
OWN = {
    "apadam": ({"betas": (0.8, 0.9), "eps": 1e-4}, {"betas": (torch.tensor(0.9), torch.tensor(0.99))}),
    "apadamw": ({"betas": (0.8, 0.9), "eps": 1e-4},),
    "apsgd": ({"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.5}, {"momentum": 0.9, "nesterov": True}),
    "lamb": ({"max_grad_norm": None}, {"trust_clip": True}, {"bias_correction": False},
             {"grad_averaging": False, "always_adapt": True}, {"decoupled_decay": True}),
    "lion": ({"betas": (0.95, 0.98)},),
}
CASES = [(rule, options) for rule in RULES for options in (*COMMON, *OWN[rule])]
FORMATS = [(dtype, preset) for dtype in DTYPES for preset in PRESETS]
SCHEDULERS = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: schedulers.StepLR(o, 2, 0.9),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 4], 0.9),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.4, 4),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.4, total_iters=4),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 8, 0.9),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 8),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 2e-3, 25, cycle_momentum=False),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 1e-4, 2e-3, 3, cycle_momentum=False),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o), schedulers.StepLR(o, 1)], [2]),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ExponentialLR(o, 0.9), schedulers.LinearLR(o)]),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0),
}
NOT_SCHEDULERS = {"LRScheduler"}
STRUCTURE = ("lr", "params")  # what the param_groups of the oldest files have


def problem(dtype=torch.float32, strided=False, seed=1):
    """Returns weight, bias and a function that computes |weight x + bias|^2 with its gradients."""
    torch.manual_seed(seed)
    last = (2,) if strided else ()
    weight, bias = (torch.randn(*shape, *last)[(..., 0) if strided else ...].to(dtype)
                    for shape in ((10, 5), (10,)))
    weight, bias, x = nn.Parameter(weight), nn.Parameter(bias), torch.randn(5).to(dtype)

    def loss():
        weight.grad = bias.grad = None
        value = (weight.mv(x) + bias).float().pow(2).sum()
        value.backward()
        return value.detach()

    return weight, bias, loss


def advance(scheduler, loss):
    scheduler.step(*([loss] if isinstance(scheduler, schedulers.ReduceLROnPlateau) else []))


class Case(unittest.TestCase):
    def same_states(self, one, other):
        """Fails unless two state dicts are equal to the last bit."""
        self.assertEqual(one["param_groups"], other["param_groups"])
        self.assertEqual(one["state"].keys(), other["state"].keys())
        for key, each in one["state"].items():
            self.assertEqual(each.keys(), other["state"][key].keys())
            for name, value in each.items():
                self.assertTrue(torch.equal(value, other["state"][key][name]), (key, name))

    def same_params(self, *models):
        for p, q in zip(*(model.parameters() for model in models)):
            self.assertTrue(torch.equal(p, q))


class Direction(Case):
    def run_down(self, optimizer, loss, steps=20, made=()):
        """Steps, and fails unless the loss went where the options send it."""
        before, up = loss().item(), optimizer.defaults["maximize"]
        for _ in range(steps):
            value = optimizer.step(loss)
            for scheduler in made:
                advance(scheduler, value)
        self.assertLess(*((before, loss().item()) if up else (loss().item(), before)))

    def test_loop(self):
        for rule, options in CASES:
            for strided in (False, True):
                with self.subTest(rule=rule, options=options, strided=strided):
                    weight, bias, loss = problem(strided=strided)
                    self.assertEqual(weight.is_contiguous(), not strided)
                    self.run_down(RULES[rule]([weight, bias], **options), loss)

    def test_loop_of_every_format(self):
        for rule, made in RULES.items():
            for dtype, preset in FORMATS:
                with self.subTest(rule=rule, dtype=dtype, preset=preset):
                    weight, bias, loss = problem(dtype)
                    self.run_down(made([weight, bias], lr=0.01, preset=preset), loss)

    def test_all_schedulers_are_in_the_table(self):
        self.assertEqual(set(schedulers.__all__) - NOT_SCHEDULERS - set(SCHEDULERS), set())

    def test_loop_with_scheduler(self):
        for rule, made in RULES.items():
            for name, scheduler in SCHEDULERS.items():
                with self.subTest(rule=rule, scheduler=name):
                    weight, bias, loss = problem()
                    optimizer = made([weight, bias], lr=1e-3)
                    self.run_down(optimizer, loss, made=[scheduler(optimizer)])
            weight, bias, loss = problem()
            optimizer = made([weight, bias], lr=1e-3)
            self.run_down(optimizer, loss, made=[SCHEDULERS[name](optimizer) for name in
                                                 ("StepLR", "ExponentialLR", "ReduceLROnPlateau")])

    def test_scheduled_steps_equal_torch(self):
        for ours, theirs in ((RULES["apadam"], torch.optim.Adam), (RULES["apadamw"], torch.optim.AdamW),
                             (RULES["apsgd"], torch.optim.SGD)):
            for name, scheduler in SCHEDULERS.items():
                found = []
                for made, options in ((ours, {"preset": "fp32"}), (theirs, {})):
                    weight, bias, loss = problem()
                    optimizer = made([weight, bias], lr=1e-3, **options)
                    schedule = scheduler(optimizer)
                    for _ in range(10):
                        advance(schedule, optimizer.step(loss))
                    found.append((weight, bias, optimizer.param_groups[0]["lr"]))
                torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6, msg=f"{ours} {name}")

    def test_cycled_momentum(self):
        for ours, theirs in ((RULES["apadamw"], torch.optim.AdamW), (RULES["apsgd"], torch.optim.SGD)):
            momentum = {"momentum": 0.9} if theirs is torch.optim.SGD else {}
            for made in (lambda o: schedulers.OneCycleLR(o, 2e-3, 25),
                         lambda o: schedulers.CyclicLR(o, 1e-4, 2e-3, 3)):
                found = []
                for cls, options in ((ours, {"preset": "fp32"}), (theirs, {})):
                    weight, bias, loss = problem()
                    optimizer = cls([weight, bias], lr=1e-3, **momentum, **options)
                    schedule = made(optimizer)
                    for _ in range(10):
                        optimizer.step(loss)
                        schedule.step()
                    found.append((weight, bias))
                torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)

    def test_tensor_lr(self):
        for rule, made in RULES.items():
            for name, scheduler in {"none": None, **SCHEDULERS}.items():
                if name == "SequentialLR" and torch.__version__.startswith("2.4."):
                    continue  # loses the initial rate that is a Tensor, also with torch's own optimizers
                with self.subTest(rule=rule, scheduler=name):
                    found = []
                    for lr in (1e-3, torch.tensor(1e-3)):
                        weight, bias, loss = problem()
                        optimizer = made([weight, bias], lr=lr)
                        schedule = scheduler and scheduler(optimizer)
                        for _ in range(5):
                            value = optimizer.step(loss)
                            schedule and advance(schedule, value)
                        now = optimizer.param_groups[0]["lr"]
                        self.assertEqual(isinstance(now, torch.Tensor), isinstance(lr, torch.Tensor))
                        found.append((weight, bias, float(now)))
                    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)

    def test_param_groups_lr(self):
        for rule, options in CASES:
            options = {key: value for key, value in options.items() if key != "lr"}
            for lrs in ((1e-2, {}), (1e-3, {"lr": 1e-2}), (None, {"lr": 1e-2})):
                with self.subTest(rule=rule, options=options, lrs=lrs):
                    weight, bias, loss = problem()
                    idle = nn.Parameter(torch.randn(2))
                    before = idle.clone()
                    groups = [{"params": [weight], **lrs[1]}, {"params": [bias]},
                              {"params": [idle], **lrs[1]}]
                    given = {} if lrs[0] is None else {"lr": lrs[0]}
                    optimizer = RULES[rule](groups, **given, **options)
                    self.run_down(optimizer, loss)
                    self.assertTrue(torch.equal(idle, before))

    def test_lr_of_zero_moves_nothing(self):
        for rule, options in CASES:
            for dtype in DTYPES:
                weight, bias, loss = problem(dtype)
                before = weight.detach().clone(), bias.detach().clone()
                optimizer = RULES[rule]([{"params": [weight]}, {"params": [bias], "lr": 0.0}],
                                        **{**options, "lr": 0.01})
                for _ in range(3):
                    optimizer.step(loss)
                self.assertFalse(torch.equal(weight, before[0]), (rule, options, dtype))
                self.assertTrue(torch.equal(bias, before[1]), (rule, options, dtype))

    def test_param_groups_weight_decay(self):
        for rule, options in CASES:
            options = {key: value for key, value in options.items() if key != "weight_decay"}
            with self.subTest(rule=rule, options=options):
                weight, bias, loss = problem()
                groups = [{"params": [weight], "weight_decay": 0.1}, {"params": [bias]}]
                optimizer = RULES[rule](groups, weight_decay=0, **options)
                self.assertEqual([group["weight_decay"] for group in optimizer.param_groups], [0.1, 0])
                self.run_down(optimizer, loss)


class Idle(Case):
    def unchanged(self, gradient):
        for rule, options in CASES:
            options = {**options, "weight_decay": 0} if gradient else options
            for dtype in DTYPES:
                with self.subTest(rule=rule, options=options, dtype=dtype):
                    model = make_model(dtype)
                    optimizer = RULES[rule](model.parameters(), **options)
                    before = copy.deepcopy(model)
                    for p in model.parameters():
                        p.grad = torch.zeros_like(p) if gradient else None
                    optimizer.step()
                    self.same_params(model, before)
                    steps = [each["step"].item() for each in optimizer.state_dict()["state"].values()]
                    self.assertEqual(steps, [float(gradient)] * 8)

    def test_no_gradients(self):
        self.unchanged(False)

    def test_zero_gradients(self):
        self.unchanged(True)

    def test_no_gradients_after_steps(self):
        for rule, options in CASES:
            model = make_model(torch.bfloat16)
            optimizer = RULES[rule](model.parameters(), **options)
            train(model, optimizer, 1)
            optimizer.zero_grad()
            before, state = copy.deepcopy(model), optimizer.state_dict()
            optimizer.step()
            self.same_params(model, before)
            self.same_states(state, optimizer.state_dict())


class States(Case):
    def trained(self, rule, options, dtype=torch.float32, steps=3):
        model = make_model(dtype)
        optimizer = RULES[rule](model.parameters(), **options)
        train(model, optimizer, steps)
        return model, optimizer

    def test_equal_after_file_with_weights_only(self):
        for rule, options in CASES:
            _, optimizer = self.trained(rule, options)
            state = optimizer.state_dict()
            loaded = through_file(state)[0]
            if not any(isinstance(value, tuple) and isinstance(value[0], torch.Tensor)
                       for value in options.values()):
                self.same_states(state, loaded)
            optimizer.load_state_dict(loaded)
            self.same_states(loaded, optimizer.state_dict())

    def test_deterministic(self):
        for rule, options in CASES:
            for dtype, preset in ((torch.float32, "fp32"), (torch.bfloat16, "balanced")):
                with self.subTest(rule=rule, options=options, dtype=dtype):
                    model, optimizer = self.trained(rule, {**options, "preset": preset}, dtype)
                    other = copy.deepcopy(model)
                    another = RULES[rule](other.parameters(), **options, preset=preset)
                    given = optimizer.state_dict()
                    kept = copy.deepcopy(given)
                    another.load_state_dict(given)
                    self.same_states(given, kept)  # loading changes no argument
                    for step in range(2):
                        for m, o in ((model, optimizer), (other, another)):
                            train(m, o, 1, step)
                        self.same_params(model, other)
                    self.same_states(optimizer.state_dict(), another.state_dict())
                    self.same_states(given, kept)  # nor do later steps
                    optimizer.param_groups.extend(optimizer.param_groups)
                    repeated = optimizer.state_dict()["param_groups"]
                    self.assertEqual(*repeated)

    def test_older_files(self):
        """Files have the options of the version that wrote them: the others get this optimizer's."""
        for rule, options in CASES:
            model, optimizer = self.trained(rule, options)
            state = optimizer.state_dict()
            names = set(state["param_groups"][0]) - set(STRUCTURE)
            for missing in ({"maximize"}, {"foreach"}, {"differentiable", "capturable", "fused"}, names):
                older = copy.deepcopy(state)
                for group in older["param_groups"]:
                    for name in missing:
                        group.pop(name, None)
                another = copy.deepcopy(model)
                loaded = RULES[rule](another.parameters(), **options)
                loaded.load_state_dict(older)
                self.same_states(loaded.state_dict(), state)
                for m, o in ((another, loaded), (copy.deepcopy(model), None)):
                    o = o or RULES[rule](m.parameters(), **options)
                    o.load_state_dict(state) if o is not loaded else None
                    train(m, o, 1, 7)
                    self.assertEqual(o.state_dict()["state"][0]["step"].item(), 4)

    def test_step_as_a_number(self):
        for rule, options in CASES:
            model, optimizer = self.trained(rule, options)
            for portable in (False, True):
                state = optimizer.state_dict(portable=portable)
                for each in state["state"].values():
                    each["step"] = each["step"].item()
                optimizer.load_state_dict(state)
                train(model, optimizer, 1, 9)
            self.assertEqual(optimizer.state[model[0].weight]["step"].item(), 5)

    def test_not_empty(self):
        for rule, options in CASES:
            model, optimizer = self.trained(rule, options, steps=1)
            self.assertEqual(len(optimizer.state_dict()["state"]), 8)
            self.assertTrue(all(optimizer.state[p] for p in model.parameters()))

    def test_copies_have_all_public_attributes(self):
        for rule, options in CASES:
            _, optimizer = self.trained(rule, options, steps=1)
            for each in (copy.deepcopy(optimizer), copy.copy(optimizer)):
                names = [{name for name in vars(o) if name[0] != "_"} for o in (optimizer, each)]
                self.assertEqual(*names)
            self.same_states(optimizer.state_dict(), copy.deepcopy(optimizer).state_dict())


class Hooks(Case):
    def test_steps(self):
        for made in RULES.values():
            weight, bias, loss = problem()
            optimizer = made([weight, bias])
            calls = []

            def note(name):
                return lambda *_: calls.append(name)

            handles = [optimizer.register_step_post_hook(note("after")),
                       optimizer.register_step_pre_hook(note("before")),
                       base.register_optimizer_step_pre_hook(note("all before")),
                       base.register_optimizer_step_post_hook(note("all after"))]
            order = ["all before", "before", "after", "all after"]
            try:
                optimizer.step(loss)
                self.assertEqual((set(calls[:2]), set(calls[2:])), (set(order[:2]), set(order[2:])))
            finally:
                for handle in handles:
                    handle.remove()
            optimizer.step(loss)
            self.assertEqual(len(calls), 4)

    def test_pre_hook_replaces_arguments(self):
        for made in RULES.values():
            weight, bias, loss = problem()
            optimizer = made([weight, bias])
            optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o, loss), {}))
            self.assertIsInstance(optimizer.step(lambda: self.fail("the replaced closure")), torch.Tensor)

    def test_states(self):
        for made in RULES.values():
            weight, bias, loss = problem()
            optimizer = made([weight, bias], lr=0.5)
            optimizer.step(loss)
            calls = []
            optimizer.register_state_dict_pre_hook(lambda o: calls.append(2))
            optimizer.register_state_dict_pre_hook(lambda o: calls.append(1), prepend=True)
            optimizer.register_state_dict_post_hook(lambda o, s: s["param_groups"][0].update(lr=3.0))
            optimizer.register_state_dict_post_hook(lambda o, s: {**s, "extra": 1})
            state = optimizer.state_dict()
            self.assertEqual((state["extra"], state["param_groups"][0]["lr"], calls), (1, 3.0, [1, 2]))
            self.assertEqual(optimizer.param_groups[0]["lr"], 0.5)

            def lower(_, given):
                groups = [{**group, "lr": 2.0} for group in given["param_groups"]]
                return {**given, "param_groups": groups}

            optimizer.register_load_state_dict_pre_hook(lower)
            optimizer.register_load_state_dict_pre_hook(lambda o, s: calls.append(
                s["state"][0]["meopt"].dtype), prepend=True)
            optimizer.register_load_state_dict_post_hook(
                lambda o: calls.append(o.state[weight]["step"].item()))
            optimizer.register_load_state_dict_post_hook(
                lambda o: calls.append(o.param_groups[0]["lr"]), prepend=True)
            optimizer.load_state_dict(state)
            self.assertEqual(calls[2:], [torch.uint8, 2.0, 1.0])
            self.assertEqual(state["param_groups"][0]["lr"], 3.0)


class Refusals(Case):
    def test_of_every_class(self):
        p, q = (nn.Parameter(torch.ones(3)) for _ in range(2))
        twice = [{"params": [p]}, {"params": [p, q]}]
        rows = (([], {}, ValueError), (torch.ones(3), {}, TypeError), ([0.5], {}, TypeError),
                ([p * 2], {}, ValueError), ([{"lr": 1.0}], {}, (KeyError, ValueError)),
                (twice, {}, ValueError), ([{"params": {p, q}}], {}, TypeError),
                ([p], {"lr": -0.1}, ValueError), ([p], {"lr": torch.tensor([0.001, 0.002])}, ValueError),
                ([p], {"weight_decay": -1}, ValueError), ([p], {"unknown": 1}, TypeError))
        for made in RULES.values():
            for params, options, expected in rows:
                with self.assertRaises(expected, msg=(made, params, options)):
                    made(params, **options)
            with self.assertRaises(TypeError):
                made([p]).add_param_group([q])
            optimizer = made([p])
            with self.assertRaises(TypeError):
                optimizer.add_param_group({"params": "parameter"})
            self.assertEqual(len(optimizer.param_groups), 1)

    def test_of_one_class(self):
        p = [nn.Parameter(torch.ones(3))]
        betas = [{"betas": value} for value in ((1.0, 0.0), (0.0, 1.0), (-0.1, 0.9))]
        rows = {"apadam": [*betas, {"eps": -1}], "apadamw": [*betas, {"eps": -1}], "lion": betas,
                "lamb": [*betas, {"eps": -1}],
                "apsgd": [{"momentum": -0.5}, {"nesterov": True},
                          {"nesterov": True, "momentum": 0.9, "dampening": 0.5}]}
        for rule, each in rows.items():
            for options in each:
                with self.assertRaises(ValueError, msg=(rule, options)):
                    RULES[rule](p, **options)

    def test_printing(self):
        for rule, options in CASES:
            p, q = (nn.Parameter(torch.ones(3)) for _ in range(2))
            optimizer = RULES[rule]([{"params": [p]}, {"params": [q], "lr": 0.25}], **options)
            self.assertIsInstance(optimizer, torch.optim.Optimizer)
            for each in (optimizer, copy.deepcopy(optimizer)):
                text = repr(each)
                for part in (type(optimizer).__name__, "Parameter Group 1", "lr: 0.25", "weight_decay: "):
                    self.assertIn(part, text)


if __name__ == "__main__":
    unittest.main()
