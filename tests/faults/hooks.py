"""Hooks on the Trainer of a forked run: inject faults at its events, record its steps and batches."""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import TrainerCallback

from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.pretraining.trainer import PreTrainer


class InjectFaults(TrainerCallback):
    """Triggers each event once, and records each finished step."""

    def __init__(self, events: Sequence, steps: Path | None):
        rank = int(os.environ.get("RANK", "0"))
        self.events = [event for event in events if event.rank == rank]
        self.steps = None
        if steps and rank == 0:
            self.steps = os.open(steps, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _at(self, name: str, state) -> None:
        reached = [event for event in self.events if event.name == name and event.step <= state.global_step]
        for event in reached:
            self.events.remove(event)
            if self.steps is not None:
                os.write(self.steps, f"fault {time.monotonic()}\n".encode())
            event.trigger()

    def on_step_begin(self, args, state, control, **kwargs):
        self._at("step_begin", state)

    def on_step_end(self, args, state, control, **kwargs):
        if self.steps is not None:
            os.write(self.steps, f"{state.global_step}\n".encode())
        self._at("step_end", state)

    def on_prediction_step(self, args, state, control, **kwargs):
        self._at("prediction_step", state)

    def on_evaluate(self, args, state, control, **kwargs):
        self._at("evaluate", state)

    def on_save(self, args, state, control, **kwargs):
        self._at("save", state)


def install(events: Sequence, steps: Path | None, batches: Path | None) -> None:
    """Wraps the Trainer class of this process: a forked one, which ends with its run."""
    original = PreTrainer.__init__

    def initialize(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.add_callback(InjectFaults(events, steps))

    PreTrainer.__init__ = initialize
    if batches:
        _record_batches(Path(f"{batches}.{os.environ.get('RANK', '0')}"))


def _record_batches(path: Path) -> None:
    """Writes a line for each step: for each micro-batch its example numbers and digests of its masked rows.

    The numbers are part of the batch, so that the record is of trained examples, not of prefetched ones.
    """
    collate = DataCollatorForPreTraining.__call__
    count, losses = PreTrainer.count_items, PreTrainer._forward_losses
    record = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def collated(self, features):
        batch = collate(self, features)
        batch["example_numbers"] = torch.tensor([list(feature["number"]) for feature in features])
        return batch

    def counted(self, batches):
        if "example_numbers" in batches[0]:
            rows = [[batch["example_numbers"].tolist(), _digests(batch)] for batch in batches]
            os.write(record, (json.dumps([self.state.global_step, rows]) + "\n").encode())
        return count(self, batches)

    def without_numbers(self, model, inputs):
        return losses(self, model, {name: value for name, value in inputs.items() if name != "example_numbers"})

    DataCollatorForPreTraining.__call__ = collated
    PreTrainer.count_items, PreTrainer._forward_losses = counted, without_numbers


def _digests(batch: dict) -> list[str]:
    """Digest of each example of a micro-batch after masking, without padding."""
    digests = []
    for ids, labels, real in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
        length = int(real.sum())
        data = ids[:length].numpy().tobytes() + labels[:length].numpy().tobytes()
        digests.append(hashlib.sha256(data).hexdigest()[:12])
    return digests
