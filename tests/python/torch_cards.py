"""meopt.torch on cards made up by tests (tests/gpu/fake_driver.cc): the bits of the CPU."""
import ctypes as C
import os
import unittest
from unittest import mock

import torch

import meopt.torch as mt
from meopt import _library as L
from meopt.torch._handle import Device, Memory
from torch_optimizers import DTYPES, NAMED, RULES, make_model, train


class Card(Device):
    """A card of the driver that is set in the environment, for tensors of torch's CPU in its memory."""

    def __init__(self, kind):
        self.pointer = C.c_void_p()
        L.library().device_open(C.byref(self.pointer), kind, 0, None, L.STREAM_DEFAULT)
        allocate = C.CDLL(L.library().path).meopt_device_allocate
        allocate.argtypes = [C.c_void_p, C.c_size_t, C.POINTER(C.c_void_p), C.c_void_p]
        self.allocate = allocate

    def empty(self, size):
        """Returns a uint8 tensor in the card's memory; freed with the process."""
        p = C.c_void_p()
        if self.allocate(self.pointer, size, C.byref(p), None):
            raise MemoryError
        return torch.frombuffer((C.c_char * size).from_address(p.value), dtype=torch.uint8)

    def move(self, model):
        for p in model.parameters():
            there = self.empty(p.numel() * p.element_size()).view(p.dtype).view(p.shape)
            p.data = there.copy_(p.data)
        return model

    def use_current_stream(self):
        L.library().device_stream(self.pointer, L.STREAM_DEFAULT)


@unittest.skipUnless("fake" in os.environ.get("MEOPT_HIP_LIBRARY", ""), "no made-up cards")
class Cards(unittest.TestCase):
    def test_bits_of_the_cpu(self):
        for kind in (L.DEVICE_HIP, L.DEVICE_CUDA):
            self.card = Card(kind)
            all_rules = kind == L.DEVICE_HIP or os.environ.get("MEOPT_LONG")
            for made in RULES.values() if all_rules else [RULES["apadamw"]]:
                for dtype in DTYPES:
                    for release in (False, True):
                        self.check(made, dtype, release)

    def on_card(self, made):
        def allocate(memory, _context, kind, size, name):
            block = self.card.empty(size)
            memory.blocks[block.data_ptr()] = block
            if kind in (L.MEMORY_CORRECTION, L.MEMORY_WEIGHTS):
                memory.residual[name] = block
            return block.data_ptr()

        patch = mock.patch.object(Memory, "_allocate", allocate)
        patch.start()
        self.addCleanup(patch.stop)
        return type("OnCard", (made,), {"_card": lambda *_: self.card})

    def check(self, on_cpu, dtype, release):
        pairs = []
        options = {"max_grad_norm": None} if on_cpu is RULES["lamb"] else {}
        for made in (on_cpu, self.on_card(on_cpu)):
            move = self.card.move if made is not on_cpu else lambda m: m
            model = move(make_model(dtype))
            optimizer = made(model.parameters(), lr=1e-2, **options)
            if release and made is not on_cpu:
                mt.release_gradients(model, optimizer)
            train(model, optimizer, 2)
            weights, state = model.state_dict(), optimizer.state_dict()
            model = move(make_model(dtype, 1))
            optimizer = made(model.parameters(), lr=1e-2, **options)
            optimizer.load_state_dict(state)
            model.load_state_dict(weights)
            train(model, optimizer, 2, 1)
            with torch.no_grad():
                model[0].weight.mul_(0.5)
            pairs.append((model, mt.fp32_state_dict(model, optimizer), optimizer.state_dict()))
        (a, x, s), (b, y, t) = pairs
        for name, value in x.items():
            self.assertTrue(torch.equal(value, y[name]), name)
        for key, each in s["state"].items():
            self.assertTrue(all(torch.equal(value, t["state"][key][name]) for name, value in each.items()))

    @unittest.skipUnless(NAMED, "named parameters: PyTorch 2.6")
    def test_not_finite(self):
        self.card = Card(L.DEVICE_HIP)
        model = self.card.move(make_model())
        optimizer = self.on_card(mt.AdamW)(model.named_parameters())
        train(model, optimizer, 1)
        model[3].weight.grad[5, 7] = float("inf")
        with self.assertRaisesRegex(FloatingPointError, "3.weight"):
            optimizer.step()
        self.assertTrue(all(bool(torch.isfinite(p).all()) for p in model.parameters()))
        train(model, optimizer, 1)


if __name__ == "__main__":
    unittest.main()
