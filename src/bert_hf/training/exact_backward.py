"""Runs backward on exactly the loss of the rows of a step, whatever the installed Trainer and accelerate do to it.

`Trainer.training_step` divides the loss by the accumulation steps unless it is told that this was done already. How
it is told differs between versions (`loss_is_scaled_for_ga` exists from transformers 5.19 on), and a version without
that name divides silently. A loss that is a share of the whole global batch must never be divided. accelerate repeats
rows of an epoch so that its last batch is full on every rank; they must not count.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer
from transformers.trainer_utils import has_length

from bert_hf.models.functional import IGNORE_INDEX


def exact_training_step(trainer: Trainer, stock_step: Callable[..., Tensor], *inputs) -> Tensor:
    """`stock_step(*inputs)`, with `accelerator.backward` given exactly what `compute_loss` returned."""
    vars(trainer).setdefault("current_gradient_accumulation_steps", 1)  # Trainer sets it in `train` alone
    computed: list[Tensor] = []
    compute_loss: Callable[..., Any] = trainer.compute_loss
    backward = trainer.accelerator.backward

    def remember(*args, **kwargs) -> Tensor:
        computed.append(compute_loss(*args, **kwargs))
        return computed[-1]

    def backward_on_computed(_: Tensor, **kwargs) -> None:
        backward(computed[-1], **kwargs)

    exact_backward = replaced_attributes(trainer.accelerator, backward=backward_on_computed)
    with replaced_attributes(trainer, compute_loss=remember), exact_backward:
        stock_step(*inputs)
    return computed[-1].detach()


def without_repeated_rows(trainer: Trainer, batches: Iterator[dict]) -> Iterator[dict]:
    """The micro-batches of an epoch, without the rows that accelerate repeats to fill the last ones on every rank.

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
        yield _first_rows(batch, size, own_rows) if filled else batch


def _first_rows(batch: dict, size: int, rows: int) -> dict:
    """The first rows of a batch of `size` rows; of no rows the first one without its labels."""
    rows_left = max(1, rows)
    result = {name: value for name, value in batch.items() if name != "layout"}  # that of all rows
    for name, value in result.items():
        if name in ("masked_positions", "token_positions"):  # indices into the flattened batch (B·L)
            result[name] = value[value < rows_left * batch["input_ids"].shape[1]]
        elif isinstance(value, Tensor) and value.dim() and len(value) == size:
            result[name] = value[:rows_left]

    for name in [name for name in result if "label" in name and not rows]:
        result[name] = torch.full_like(result[name], torch.nan if result[name].is_floating_point() else IGNORE_INDEX)
    if not rows and "masked_positions" in result:
        result["masked_positions"] = result["masked_positions"][:0]
    return result


@contextlib.contextmanager
def replaced_attributes(owner: object, **changes) -> Iterator[None]:
    """Context manager: temporarily replaces attributes or methods of an instance."""
    before = {name: vars(owner)[name] for name in changes if name in vars(owner)}
    vars(owner).update(changes)
    try:
        yield
    finally:
        for name in changes:
            del vars(owner)[name]
        vars(owner).update(before)
