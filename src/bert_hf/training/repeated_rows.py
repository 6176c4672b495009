"""Removes the rows that accelerate repeats at the end of an epoch, so that its last batch is full on every rank."""

from collections.abc import Iterator
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_utils import has_length

from bert_hf.models.functional import IGNORE_INDEX
from bert_hf.models.micro_batches import split_micro_batch


def without_repeated_rows(trainer: Trainer, batches: Iterator[dict]) -> Iterator[dict]:
    """Yield the micro-batches of an epoch without the rows that accelerate repeats to fill the last ones.

    Of 17 rows, in batches of eight on two ranks, the last batches are made of the rows

        rank 0    16, 0, 1, 2, 3, 4, 5, 6     →  16
        rank 1    7, 8, 9, 10, 11, 12, 13, 14 →  7, without labels, since every rank takes part in each step
    """
    args: Any = trainer.args
    dataset: Any = trainer.train_dataset
    size = own_rows = args.per_device_train_batch_size
    if args.world_size > 1 and has_length(dataset):
        last = len(dataset) % (size * args.world_size) or size * args.world_size  # rows of the last batches of all
        own_rows = min(max(0, last - args.process_index * size), size)
    for batch in batches:  # not `yield from`, which would close the iterator of the epoch with this one
        filled = own_rows < size and trainer.accelerator.gradient_state.end_of_dataloader
        yield _first_rows(batch, own_rows) if filled else batch


def _first_rows(batch: dict, rows: int) -> dict:
    """Return the first rows of a batch; for zero rows the first one without its labels."""
    without_layout = {name: value for name, value in batch.items() if name != "layout"}  # it has the masked positions
    result = next(split_micro_batch(without_layout, max(1, rows)))
    for name in [name for name in result if "label" in name and not rows]:
        result[name] = torch.full_like(result[name], torch.nan if result[name].is_floating_point() else IGNORE_INDEX)
    if not rows and "masked_positions" in result:
        result["masked_positions"] = result["masked_positions"][:0]
    return result
