"""What is hung on the Trainer inside a forked run: faults at its events, and a record of what it did."""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import TrainerCallback

from bert_hf.data.collator import DataCollatorForPreTraining
from bert_hf.training.trainer import PreTrainer


class Happenings(TrainerCallback):
    """Lets each event happen once, and notes each finished step."""

    def __init__(self, events: Sequence, steps: Path | None):
        self.rank = int(os.environ.get("RANK", "0"))
        self.events = [event for event in events if event.rank == self.rank]
        self.steps = os.open(steps, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if steps and not self.rank else None

    def _at(self, name: str, state) -> None:
        for event in [event for event in self.events if event.name == name and event.step <= state.global_step]:
            self.events.remove(event)
            if self.steps is not None:
                os.write(self.steps, f"fault {time.monotonic()}\n".encode())
            event.happen()

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
    """Wraps the Trainer of this process, which is a forked one and has no other use."""
    make = PreTrainer.__init__

    def made(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.add_callback(Happenings(events, steps))

    PreTrainer.__init__ = made
    if batches:
        _record_batches(Path(f"{batches}.{os.environ.get('RANK', '0')}"))


def _record_batches(path: Path) -> None:
    """A line for each step: of each micro-batch the numbers of its examples, and what the masks made of them.

    The numbers travel in the batch, so that what is recorded is what is trained on, and not what was fetched.
    """
    collate = DataCollatorForPreTraining.__call__
    count, losses = PreTrainer._get_num_items_in_batch, PreTrainer._losses
    record = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def collated(self, features):
        batch = collate(self, features)
        batch["example_numbers"] = torch.tensor([list(feature["number"]) for feature in features])
        return batch

    def counted(self, batch_samples, device):
        if "example_numbers" in batch_samples[0]:
            rows = [[batch["example_numbers"].tolist(), _contents(batch)] for batch in batch_samples]
            os.write(record, (json.dumps([self.state.global_step, rows]) + "\n").encode())
        return count(self, batch_samples, device)

    def without_numbers(self, model, inputs):
        return losses(self, model, {name: value for name, value in inputs.items() if name != "example_numbers"})

    DataCollatorForPreTraining.__call__ = collated
    PreTrainer._get_num_items_in_batch, PreTrainer._losses = counted, without_numbers


def _contents(batch: dict) -> list[str]:
    """What each example of a micro-batch is after masking, whatever it was padded to."""
    found = []
    for ids, labels, real in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
        length = int(real.sum())
        data = ids[:length].numpy().tobytes() + labels[:length].numpy().tobytes()
        found.append(hashlib.sha256(data).hexdigest()[:12])
    return found
