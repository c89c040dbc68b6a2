"""Long: Hugging Face Trainer, accelerate, Lightning and DeepSpeed drive meopt.torch like torch's optimizers.

Each trains a tiny model, saves, resumes in new objects, and has the losses of a plain loop to the last bit.
"""
import logging
import os
import tempfile
import unittest
from unittest import mock

import accelerate
import deepspeed
import lightning
import torch
import transformers
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, Subset

import meopt.torch
from torch_optimizers import RULES

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
STEPS, HALF, ROWS = 6, 3, 4
CASES = [(rule, dtype, options) for rule, options in (
    ("apadam", {}), ("apadamw", {"weight_decay": 0.1}), ("apsgd", {"momentum": 0.9, "lr": 0.01}),
    ("lamb", {}), ("lion", {"lr": 1e-4})) for dtype in (torch.float32, torch.bfloat16)]


class Images(Dataset):
    def __len__(self):
        return STEPS * ROWS

    def __getitem__(self, i):
        x = torch.randn(48, generator=torch.Generator().manual_seed(i))
        return {"x": x, "labels": x[:10].sin()}


class Model(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Linear(48, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 10)
        self.layers = nn.Sequential(*layers).to(dtype)

    def forward(self, x, labels):
        found = self.layers(x.to(self.layers[0].weight.dtype)).float()
        return {"loss": (found - labels).pow(2).mean()}


def make(rule, dtype, options):
    model = Model(dtype)
    optimizer = RULES[rule](model.parameters(), **{"lr": 1e-3, **options})
    return model, optimizer, LambdaLR(optimizer, lambda step: 0.8**step)


def loader(first=0, last=STEPS):
    return DataLoader(Subset(Images(), range(first * ROWS, last * ROWS)), batch_size=ROWS)


def plain(case):
    """Returns the losses of a loop in torch, and the weights after it."""
    model, optimizer, schedule = make(*case)
    losses = []
    for batch in loader():
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model.state_dict()


def with_accelerate(case, directory, first, last):
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, schedule, data = accelerator.prepare(*make(*case), loader())
    if first:
        accelerator.load_state(directory)
    losses = []
    for batch in accelerator.skip_first_batches(data, first):
        if len(losses) == last - first:
            break
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    accelerator.save_state(directory, safe_serialization=False)
    return losses, accelerator.unwrap_model(model).state_dict()


class StopAndSave(transformers.TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_save = control.should_training_stop = state.global_step == self.step


class Trainer(transformers.Trainer):
    def compute_loss(self, model, inputs, *args, **more):
        loss = super().compute_loss(model, inputs, *args, **more)
        self.losses.append(loss.item())
        return loss


def with_trainer(case, directory, first, last):
    model, optimizer, schedule = make(*case)
    arguments = transformers.TrainingArguments(
        directory, per_device_train_batch_size=ROWS, num_train_epochs=1, use_cpu=True, report_to=[],
        save_strategy="no", logging_strategy="no", max_grad_norm=0.0, disable_tqdm=True,
        remove_unused_columns=False, train_sampling_strategy="sequential")
    trainer = Trainer(model, arguments, train_dataset=Images(), optimizers=(optimizer, schedule),
                      callbacks=[StopAndSave(last)])
    trainer.losses = []
    trainer.train(resume_from_checkpoint=bool(first))
    return trainer.losses, model.state_dict()


class Module(lightning.LightningModule):
    def __init__(self, case):
        super().__init__()
        self.model, self.optimizer, self.schedule = make(*case)
        self.losses = []

    def training_step(self, batch, _):
        loss = self.model(**batch)["loss"]
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return [self.optimizer], [{"scheduler": self.schedule, "interval": "step"}]


def with_lightning(case, directory, first, last):
    module, path = Module(case), directory + "/checkpoint"  # epochs of HALF steps: it resumes no loader
    trainer = lightning.Trainer(
        max_epochs=last // HALF, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=directory)
    trainer.fit(module, loader(first, last), ckpt_path=path if first else None)
    trainer.save_checkpoint(path)
    return module.losses, module.model.state_dict()


def with_deepspeed(case, directory, first, last, stage=0):
    model, optimizer, schedule = make(*case)
    config = {"train_micro_batch_size_per_gpu": ROWS, "zero_optimization": {"stage": stage},
              "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0}
    engine = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config,
                                  dist_init_required=False)[0]
    if first:
        engine.load_checkpoint(directory)
    losses = []
    for batch in loader(first, last):
        loss = engine(**batch)["loss"]
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.save_checkpoint(directory)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    engine.destroy()
    return losses, weights


def with_zero(*arguments):
    return with_deepspeed(*arguments, stage=1)


class DropIn(unittest.TestCase):
    def check(self, run, cases=CASES):
        for case in cases:
            with self.subTest(case=case), tempfile.TemporaryDirectory() as directory:
                losses, weights = plain(case)
                self.assertFalse(torch.equal(weights["layers.0.weight"], Model(case[1]).layers[0].weight))
                begun, _ = run(case, directory, 0, HALF)
                resumed, found = run(case, directory, HALF, STEPS)
                self.assertEqual(begun + resumed, losses)
                torch.testing.assert_close(found, weights, rtol=0, atol=0)

    def test_accelerate(self):
        self.check(with_accelerate)

    def test_trainer(self):
        self.check(with_trainer)

    def test_trainer_with_released_gradients(self):
        """The Trainer logs the norm of the gradients at every step: norms=True; else it is refused, and so is
        its max_grad_norm, which is 1.0 by default."""
        found, no_clip = [], {"max_grad_norm": 0.0}
        for options, clip in ((None, no_clip), ({"norms": True}, no_clip), ({}, no_clip), ({}, {}),
                              ({"clip": "exact", "max_norm": 1e9}, no_clip), ({"norms": True}, {})):
            with tempfile.TemporaryDirectory() as directory:
                model, optimizer, schedule = make("apadamw", torch.float32, {})
                if options is not None:
                    meopt.torch.release_gradients(model, optimizer, **options)
                arguments = transformers.TrainingArguments(
                    directory, per_device_train_batch_size=ROWS, num_train_epochs=1, use_cpu=True,
                    report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True,
                    remove_unused_columns=False, train_sampling_strategy="sequential", **clip)
                self.assertEqual(arguments.max_grad_norm, 0.0 if clip else 1.0)
                trainer = transformers.Trainer(model, arguments, train_dataset=Images(),
                                               optimizers=(optimizer, schedule))
                if options == {} or not clip:
                    self.assertRaisesRegex(RuntimeError, "norms=", trainer.train)
                    continue
                trainer.train()
                norms = [float(row["grad_norm"]) for row in trainer.state.log_history if "grad_norm" in row]
                self.assertEqual(len(norms), STEPS)
                found.append((norms, model.state_dict()))
        for norms, weights in found[1:]:
            self.assertEqual(norms, found[0][0])
            torch.testing.assert_close(weights, found[0][1], rtol=0, atol=0)

    def test_lightning(self):
        self.check(with_lightning)

    @mock.patch.dict(os.environ, LOCAL_RANK="0")
    def test_deepspeed(self):
        """Without ZeRO, and with its flat fp32 partitions, over which LAMB's norms would be others."""
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled for several ranks
        with tempfile.TemporaryDirectory() as directory:
            deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False, rank=0, world_size=1,
                                       init_method=f"file://{directory}/store")
            try:
                self.check(with_deepspeed)
                self.check(with_zero, [(rule, dtype, {**options, "preset": "fp32"})
                                       for rule, dtype, options in CASES
                                       if rule != "lamb" and dtype == torch.float32])
            finally:
                torch.distributed.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
