"""DTensor parameters (FSDP2): the bits of parameters that are not sharded; torch.distributed.checkpoint."""
import os
import re
import tempfile
import unittest

import torch
import torch._dynamo  # before the ranks are forked: each would import it, for seconds
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.device_mesh import init_device_mesh

import meopt.torch as mt

try:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
except ImportError:
    raise unittest.SkipTest("DTensor requires PyTorch 2.5")
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before 2.6
    from torch.distributed._composable.fsdp import fully_shard

RULES = ((mt.AdamW, {}), (mt.Adam, {"weight_decay": 0.1}), (mt.SGD, {"momentum": 0.9}), (mt.Lion, {}),
         (mt.LAMB, {}), (mt.AdamWScheduleFree, {"weight_decay": 0.1, "warmup_steps": 2}), (mt.Adafactor, {}),
         (mt.Adafactor, {"beta1": 0.9}))
NORMS = mt.LAMB, mt.Adafactor  # of whole tensors, by chunks
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STEPS = 3


def mode(optimizer, evaluate):
    if isinstance(optimizer, mt.AdamWScheduleFree):
        (optimizer.eval if evaluate else optimizer.train)()


def full(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def same(case, found, expected, **tolerance):
    for name, value in expected.items():
        if tolerance:
            torch.testing.assert_close(full(found[name]), full(value), **tolerance)
        else:
            case.assertTrue(torch.equal(full(found[name]), full(value)), name)


class Rows(nn.Module):
    """Parameters of these shapes."""

    def __init__(self, shapes, dtype, place):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for i, shape in enumerate(shapes):
            value = torch.randn(shape, generator=generator).to(dtype)
            setattr(self, f"w{i}", nn.Parameter(place(value)))


def steps(model, optimizer, place, count=STEPS, seed=7):
    generator = torch.Generator().manual_seed(seed)
    mode(optimizer, False)
    for _ in range(count):
        for p in model.parameters():
            p.grad = place(torch.randn(p.shape, generator=generator).to(p.dtype))
        optimizer.step()


def pair(shapes, dtype, rule, options, place):
    """Returns the fp32 weights after steps of plain and of placed parameters."""
    found = []
    for each in (lambda t: t.clone(), place):
        model = Rows(shapes, dtype, each)
        optimizer = rule(model.parameters(), lr=1e-2, **options)
        steps(model, optimizer, each)
        mode(optimizer, True)
        found.append(mt.fp32_state_dict(model, optimizer))
    return found


def rows(case, mesh, world):
    def place(t):
        return distribute_tensor(t, mesh, [Shard(0)])

    whole = [(256 * world, 128)]
    for rule, options in RULES:
        for dtype in DTYPES if rule is mt.AdamW else DTYPES[1:2]:
            shapes = whole if rule in NORMS else [*whole, (64 * world,), (world, 4096), (1, 6400)]
            expected, found = pair(shapes, dtype, rule, options, place)
            same(case, found, expected)
            uneven = [(100, 70), (7, 33), (2, 40), (5,), (67, 65, 2)]
            expected, found = pair(uneven, dtype, rule, {**options, "preset": "fp32"}, place)
            same(case, found, expected, rtol=1e-5, atol=1e-6)
            expected, found = pair(uneven, dtype, rule, options, place)
            for name, value in expected.items():  # different groups of 64 round differently
                error = (full(found[name]) - value).pow(2).mean().sqrt()
                case.assertLess(float(error), 5e-3, name)
    for shapes, options in ((whole + [(64 * world, 70)], {}), ([(100, 70), (7, 33)], {"preset": "fp32"})):
        same(case, *reversed(pair(shapes, torch.bfloat16, mt.Muon, options, place)))
    divided_products(case, place, world)
    expected, found = pair(whole, torch.bfloat16, mt.AdamW, {},
                           lambda t: distribute_tensor(t, mesh, [Replicate()]))
    same(case, found, expected)
    for rule, options in ((mt.AdamW, {}), (mt.LAMB, {}), (mt.Adafactor, {})):  # all ranks report one rank's gradient
        model = Rows(whole, torch.float32, place)
        optimizer = rule(model.parameters(), **options)
        model.w0.grad = place(torch.zeros(whole[0]).index_fill_(0, torch.tensor([0]), float("nan")))
        with case.assertRaises(FloatingPointError):
            optimizer.step()
    layouts(case, world)


def divided_products(case, place, world):
    """Each rank orthogonalizes 1 / world of Muon's matrices, with the bits of whole ones; a last one alone."""
    shapes = [(64 * world, 64 * (1 + i // 2)) for i in range(2 * world + 1)]
    models = [Rows(shapes, torch.bfloat16, each) for each in (lambda t: t.clone(), place)]
    optimizers = [mt.Muon(model.parameters(), lr=1e-2) for model in models]
    for model, optimizer, each in zip(models, optimizers, (lambda t: t, place)):
        steps(model, optimizer, each)
    same(case, mt.fp32_state_dict(models[1], optimizers[1]), mt.fp32_state_dict(models[0], optimizers[0]))
    products = [sum(handle.stats.matrices for handle in optimizer._handles()) for optimizer in optimizers]
    case.assertEqual(products, [2 * world + 1, 2 + 1])


def layouts(case, world):
    """Rows in one dimension of the mesh, replicas in the others; all else is refused."""
    for shape in ((1, world), (world, 1)):
        mesh = init_device_mesh("cpu", shape)
        for placements in ([Replicate(), Shard(0)], [Shard(0), Replicate()]):
            expected, found = pair([(64 * world, 64)], torch.bfloat16, mt.AdamW, {},
                                   lambda t: distribute_tensor(t, mesh, placements))
            same(case, found, expected)
        for placements in ([Shard(0), Shard(0)], [Shard(0), Shard(1)], [Replicate(), Shard(1)],
                           [Replicate(), Partial()]):
            with case.assertRaises(ValueError):
                local = torch.zeros(world, world)
                mt.AdamW([nn.Parameter(DTensor.from_local(local, mesh, placements, run_check=False))])


class Net(nn.Module):
    def __init__(self, dtype, width=70):
        super().__init__()
        torch.manual_seed(3)
        body = nn.Linear(width, 192), nn.Tanh(), nn.Linear(192, width), nn.LayerNorm(width)
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(width, 2, bias=False)
        self.to(dtype)

    def forward(self, x):
        return self.head(self.body(x))


def train(model, optimizer, count=STEPS, micro=1, sync=True):
    """sync: FSDP2 reduces the gradients of every micro-batch, else those of the last."""
    mode(optimizer, False)
    generator = torch.Generator().manual_seed(5 + dist.get_rank() * (micro > 1))
    for _ in range(count):
        for each in range(micro):
            if micro > 1:
                model.set_requires_gradient_sync(sync or each == micro - 1)
            x = torch.randn(16, model.head.in_features, generator=generator)
            model(x.to(next(model.parameters()).dtype)).float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def make(dtype, rule, options, mesh=None, width=70):
    model = Net(dtype, width)
    if mesh is not None:
        fully_shard(model.body, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, rule(model.parameters(), lr=1e-2, **options)


def is_released(case, p):
    with case.assertRaisesRegex(RuntimeError, "clip="):
        nn.utils.clip_grad_norm_([p], 1.0)
    return True


def released(case, mesh):
    """Gradients of FSDP2 step after their reduction: the bits of a plain step."""
    for rule, options, dtype, micro, accumulate in (
            (mt.AdamW, {}, torch.float32, 2, 1), (mt.AdamW, {}, torch.bfloat16, 2, 2),
            (mt.Lion, {}, torch.float16, 1, 1), (mt.LAMB, {"max_grad_norm": None}, torch.bfloat16, 1, 1),
            (mt.Adafactor, {}, torch.bfloat16, 1, 1)):
        plain, (model, optimizer) = (make(dtype, rule, options, mesh) for _ in range(2))
        mt.release_gradients(model, optimizer, accumulate=accumulate)
        freed = []
        optimizer.register_step_pre_hook(
            lambda *_: freed.append(all(is_released(case, p) for p in model.parameters())))
        train(*plain, micro=micro, sync=accumulate > 1)
        train(model, optimizer, micro=micro, sync=accumulate > 1)
        same(case, values(model, optimizer), values(*plain))
        case.assertEqual(freed, [True] * STEPS)
    norms, pairs = [], [make(torch.float32, mt.AdamW, {}, mesh) for _ in range(2)]
    mt.release_gradients(*pairs[1], norms=True)
    for model, _ in pairs:
        model(torch.ones(16, 70)).pow(2).sum().backward()
        norms.append(full(nn.utils.clip_grad_norm_(model.parameters(), 1e9)))
    case.assertTrue(torch.equal(*norms), norms)
    for clip, max_norm in (("previous", 1e9), ("exact", 1e-3)):
        options, norms = {"eps": 1e-3, "preset": "fp32"}, []
        plain, (model, optimizer) = (make(torch.float32, mt.AdamW, options, mesh) for _ in range(2))
        mt.release_gradients(model, optimizer, clip=clip, max_norm=max_norm)
        plain[1].register_step_pre_hook(lambda *_: norms.append(full(
            nn.utils.clip_grad_norm_(plain[0].parameters(), max_norm))))
        train(*plain)
        train(model, optimizer)
        same(case, values(model, optimizer), values(*plain), rtol=1e-5, atol=1e-8)
        if clip == "previous":
            case.assertAlmostEqual(optimizer.param_groups[0]["grad_norm"], float(norms[-1]), places=6)
    model, optimizer = make(torch.float32, mt.AdamW, {}, mesh)
    mt.release_gradients(model, optimizer)
    model(torch.ones(16, 70)).sum().backward()
    with case.assertRaisesRegex(RuntimeError, "second gradient"):
        model(torch.ones(16, 70)).sum().backward()
    model, optimizer = make(torch.float32, mt.AdamW, {}, mesh)
    mt.release_gradients(model, optimizer)
    with case.assertRaises(FloatingPointError):  # on all ranks, of one rank's rows
        model(torch.full((16, 70), float("inf"))).sum().backward()
        optimizer.step()


def cases():
    """Moments are saved as fp32, as fp32 in place of codes (rows of 70 elements), and as codes."""
    for rule, options in RULES:
        for dtype in DTYPES if rule is mt.AdamW else DTYPES[1:2]:
            for preset, width in (("fp32", 70), ("balanced", 64)):
                if preset == "balanced" or rule is mt.AdamW:
                    yield dtype, rule, {**options, "preset": preset}, width
    yield torch.bfloat16, mt.AdamW, {"preset": "balanced"}, 70
    yield torch.bfloat16, mt.AdamW, {"first_moment": "4bit", "second_moment": "4bit"}, 64


def name_of(dtype, rule, options, width):
    return f"{rule.__name__}-{str(dtype)[6:]}-{width}-" + "-".join(map(str, options.values()))


def exact(options, width):
    return options.get("preset") == "fp32" or width == 64


def read(model, optimizer, path, weights_first):
    """Loads a checkpoint of torch.distributed.checkpoint into the model and the optimizer."""
    state = {"model": dcp_state.get_model_state_dict(model),
             "optimizer": dcp_state.get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, checkpoint_id=path)
    if weights_first:
        dcp_state.set_model_state_dict(model, state["model"])
    dcp_state.set_optimizer_state_dict(model, optimizer, state["optimizer"])
    if not weights_first:
        dcp_state.set_model_state_dict(model, state["model"])


def values(model, optimizer):
    mode(optimizer, True)
    found = {name: full(value) for name, value in mt.fp32_state_dict(model, optimizer).items()}
    for i, state in optimizer.state_dict()["state"].items():
        found.update((f"{i}.{name}", full(value)) for name, value in state.items())
    mode(optimizer, False)
    return found


def loaded(case, found, whole, exact):
    """Compares values after loading: fp32 moments in place of codes were rounded once more."""
    coded = [] if exact else [key for key in whole if "exp_avg" in key or "momentum" in key]
    case.assertEqual(found.keys(), whole.keys())
    same(case, found, {key: value for key, value in whole.items() if key not in coded})
    for key in coded:
        size = float(whole[key].abs().max())
        torch.testing.assert_close(found[key], whole[key], rtol=0, atol=0.08 * size + 1e-12)


def save(case, mesh, directory):
    for dtype, rule, options, width in cases():
        model, optimizer = make(dtype, rule, options, mesh, width)
        train(model, optimizer)
        if options.get("preset") == "fp32" and dtype == torch.float32:
            plain = make(dtype, rule, options)
            train(*plain)
            same(case, dict(model.state_dict()), plain[0].state_dict(), rtol=1e-4, atol=1e-5)
        path = os.path.join(directory, name_of(dtype, rule, options, width))
        dcp.save({"model": dcp_state.get_model_state_dict(model),
                  "optimizer": dcp_state.get_optimizer_state_dict(model, optimizer)}, checkpoint_id=path)
        whole = values(model, optimizer)
        if dist.get_rank() == 0:
            torch.save(whole, path + ".whole")
        for weights_first in (True, False) if rule is mt.AdamW else (False,):  # as many ranks: the same bits
            again = make(dtype, rule, options, mesh, width)
            train(*again, count=1)
            read(*again, path, weights_first)
            loaded(case, values(*again), whole, exact(options, width))
        if exact(options, width):
            train(model, optimizer), train(*again)
            same(case, values(*again), values(model, optimizer))


def codes(case, mesh):
    """Codes of moments are reloaded, also where a rank has no rows; damaged ones are refused."""
    def place(t):
        return distribute_tensor(t, mesh, [Shard(0)])

    state_bytes(case, place)
    rounded_once_more(case, place)
    for options in ({}, {"second_moment": "4bit"}, {"first_moment": "fp32"}):
        pairs = []
        for _ in range(2):
            model = Rows([(2, 4096), (65, 128)], torch.bfloat16, place)
            pairs.append((model, mt.AdamW(model.parameters(), **options)))
        (model, optimizer), (other, another) = pairs
        steps(model, optimizer, place)
        state = optimizer.state_dict()
        case.assertIn("codes4_scales", state["state"][0])
        case.assertNotIn("exp_avg", state["state"][0])
        other.load_state_dict(model.state_dict())
        another.load_state_dict(state)
        same(case, values(other, another), values(model, optimizer))
        with case.assertRaises(ValueError):
            mt.AdamW(other.parameters(), preset="fp32").load_state_dict(state)
        state["state"][1]["codes4_scales"].to_local().zero_()[:, 0] = 1
        with case.assertRaises(ValueError):
            another.load_state_dict(state)


def state_bytes(case, place):
    """A state has a copy of the moments, and 2 or 4 bytes per element of what the weight has."""
    for dtype, each in zip(DTYPES, (0, 2, 4)):
        model = Rows([(64 * dist.get_world_size(), 128)], dtype, place)
        optimizer = mt.AdamW(model.parameters())
        state = optimizer.state_dict()["state"][0]
        case.assertEqual({value.device for value in state.values()}, {model.w0.device})
        size = sum(value.to_local().nbytes for name, value in state.items() if name != "step")
        case.assertEqual(size, optimizer.held_bytes()["moments"] + 64 * 128 * each)


def rounded_once_more(case, place):
    """The page's errors of moments whose groups depend on the number of ranks, saved under torch's key."""
    source = os.environ.get("MEOPT_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
    with open(os.path.join(source, "man", "meopt-torch.7"), encoding="utf-8") as page:
        said, = re.findall(r"up to (\d+) percent .* AdamW, and (\d+) percent .* of 32768", page.read())
    for rule, percent in zip((mt.AdamW, mt.Lion), said):
        models = [Rows([(1024, 32)], torch.float32, place) for _ in range(2)]
        optimizers = [rule(model.parameters(), lr=1e-2) for model in models]
        steps(models[0], optimizers[0], place)
        optimizers[1].load_state_dict(optimizers[0].state_dict())
        before, after = (full(each.state_dict()["state"][0]["exp_avg"]) for each in optimizers)
        error = float((before - after).abs().max() / before.abs().max())
        case.assertTrue(0 < error <= int(percent) / 100, error)


def load(case, mesh, directory):
    for dtype, rule, options, width in cases():
        path = os.path.join(directory, name_of(dtype, rule, options, width))
        model, optimizer = make(dtype, rule, options, mesh, width)
        read(model, optimizer, path, weights_first=False)
        whole = torch.load(path + ".whole")
        loaded(case, values(model, optimizer), whole, exact(options, width))
        moments = optimizer.state_dict(portable=True)["state"]
        for group in optimizer.param_groups:  # other formats from here on
            group["preset"] = "fp32" if options.get("preset") == "balanced" else "balanced"
        if options.get("preset") == "balanced" and rule is not mt.AdamWScheduleFree:  # fp32 moments have the values of codes
            for i, state in optimizer.state_dict()["state"].items():
                same(case, state, moments[i])
        train(model, optimizer)


def rank_main(rank, world, directory):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store-{world}", rank=rank,
                            world_size=world)
    try:
        case, mesh = unittest.TestCase(), init_device_mesh("cpu", (world,))
        every = os.environ.get("MEOPT_LONG")  # else each once: some of three ranks have no rows
        if world == 3 or (world == 2 and every):
            rows(case, mesh, world)
            codes(case, mesh)
        if world == 2 or (world == 3 and every):
            released(case, mesh)
        (save if world == 2 else load)(case, mesh, directory)
    finally:
        dist.destroy_process_group()


@unittest.skipUnless(dist.is_available() and dist.is_gloo_available(), "no gloo")
class Shards(unittest.TestCase):
    def test_ranks(self):
        """Bits of whole parameters on 2 and 3 ranks; checkpoints of 2 ranks on 2, 3 and 1."""
        with tempfile.TemporaryDirectory() as directory:
            for world in (2, 3):
                torch.multiprocessing.start_processes(rank_main, (world, directory), world,
                                                      start_method="fork")
            rank_main(0, 1, directory)


if __name__ == "__main__":
    unittest.main()
