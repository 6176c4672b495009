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
    batch_size = args.per_device_train_batch_size
    own_rows = batch_size  # rows of this rank's last batch that are not repeated
    if args.world_size > 1 and has_length(dataset):
        global_size = batch_size * args.world_size
        last_global_size = len(dataset) % global_size or global_size
        own_rows = min(max(0, last_global_size - args.process_index * batch_size), batch_size)

    for batch in batches:  # not `yield from`, which would close the iterator of the epoch with this one
        was_filled = own_rows < batch_size and trainer.accelerator.gradient_state.end_of_dataloader
        yield _first_rows(batch, own_rows) if was_filled else batch


def _first_rows(batch: dict, rows: int) -> dict:
    """Return the first rows of a batch, without a layout; for zero rows the first row, without its labels."""
    # Without the layout, which would keep the masked positions that are dropped below
    inputs = {name: value for name, value in batch.items() if name != "layout"}
    first = next(split_micro_batch(inputs, max(1, rows)))
    if rows:
        return first

    for name in [name for name in first if "label" in name]:
        no_label = torch.nan if first[name].is_floating_point() else IGNORE_INDEX
        first[name] = torch.full_like(first[name], no_label)
    if "masked_positions" in first:
        first["masked_positions"] = first["masked_positions"][:0]
    return first
