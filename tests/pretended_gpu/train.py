"""Trains on a pretended GPU, where tensors have shapes but no numbers, and prints as JSON what a step waits for.

LD_PRELOAD=libcuda.so.1 python train.py FOLDER OPTIMIZER DROPOUT ACCUMULATION
"""

import collections
import json
import sys
from collections.abc import Iterator

import torch
from tiny import TinyStore, tiny_config, tiny_tokenizer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from bert_hf import BertForPreTraining, DataCollatorForPreTraining, PreTrainer, PreTrainingExamples
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.data.examples.samplers import Phase

FIRST, LAST = 4, 7  # steps that are watched; what happens once happens before


class Watch(TorchDispatchMode):
    """Counts copies between host and device, and reads of a number, which it answers with 1."""

    def __init__(self):
        super().__init__()
        self.on = False
        self.counts = collections.Counter({"copies": 0, "blocking copies": 0, "reads": 0, "operations": 0})

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, before = str(func), _devices((args, kwargs))
        if "_local_scalar_dense" in name:
            if "cuda" in before:
                self._count("reads")
            return 1.0 if args[0].is_floating_point() else 1
        out = func(*args, **(kwargs or {}))
        if {"cpu", "cuda"} <= before | _devices(out) and "copy" in name:
            self._count("copies" if (kwargs or {}).get("non_blocking") else "blocking copies")
        if "cuda" in before:
            self._count("operations")
        return out

    def _count(self, what: str) -> None:
        self.counts[what] += self.on


def _devices(tree) -> set[str]:
    return {leaf.device.type for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}


class Steps(TrainerCallback):
    def __init__(self, watch: Watch):
        self._watch = watch

    def on_step_end(self, args, state, control, **kwargs):
        self._watch.on = FIRST - 1 <= state.global_step < LAST


def _real_batches(loader: DataLoader, make_iterator=DataLoader.__iter__) -> Iterator:
    """Make batches of real numbers, as in a worker process."""
    with _disable_current_modes():
        batches = make_iterator(loader)
    while True:
        with _disable_current_modes():
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def main(folder: str, optim: str, dropout: str, accumulation: str) -> None:
    DataLoader.__iter__ = _real_batches
    torch.Tensor.pin_memory = lambda self, *ignored: self
    BertForPreTraining.to = lambda self, *ignored, **also: self  # it is on the device already
    config = tiny_config(float(dropout), hidden_size=64, num_attention_heads=1)
    config._attn_implementation = "sdpa"
    examples = PreTrainingExamples(TinyStore(documents=400), (Phase(48, None),), seed=1)
    collator = DataCollatorForPreTraining(tiny_tokenizer(), max_seq_length=48)
    with torch.device("meta"):
        model = BertForPreTraining(config)

    with FakeTensorMode(allow_non_fake_inputs=True), Watch() as watch:
        args = PreTrainingArguments(
            output_dir=folder, max_steps=LAST + 1, per_device_train_batch_size=8, optim=optim, bf16=True,
            gradient_accumulation_steps=int(accumulation), logging_steps=1000, save_strategy="no", report_to="none",
            disable_tqdm=True, dataloader_num_workers=0, dataloader_pin_memory=False, warmup_steps=0,
            torch_compile=False,
        )  # fmt: skip
        model = model.to_empty(device="cuda").train()
        trainer = PreTrainer(model, args, collator, examples, callbacks=[Steps(watch)])
        trainer._measure_peak_flops = lambda: 1e15
        trainer.train()
    print(json.dumps(watch.counts | {"device": str(args.device)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
