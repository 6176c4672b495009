"""The learning rate schedules of --lr_scheduler_type: one table of transformers' own and ours."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import SchedulerType, get_scheduler

from bert_hf.console import logger
from bert_hf.errors import InputError, check_known
from bert_hf.training.identity import settings
from bert_hf.training.optimization.optimizers import option_text

# (optimizer, warm-up steps, steps of the run, --lr_scheduler_kwargs) → the scheduler
Schedule = Callable[[Optimizer, int, int, dict], Any]


def bert_linear(optimizer: Optimizer, warmup_steps: int, total_steps: int, kwargs: dict) -> LambdaLR:
    """Return the schedule of the 2018 code: linear decay to zero from step 0 on, after the warm-up.

    With 1 % of the steps as warm-up the rate falls from 1.00 to 0.99 of its peak where warm-up ends; transformers'
    `linear` starts the decay there.
    """

    def share(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        return max(0.0, 1.0 - step / max(1, total_steps))

    return LambdaLR(optimizer, share, **kwargs)


def warmup_stable_decay(optimizer: Optimizer, warmup_steps: int, total_steps: int, kwargs: dict) -> Any:
    """Return transformers' schedule; its `num_decay_steps` may also be a share of the steps of the run."""
    decay = kwargs.get("num_decay_steps", 0)
    decay = round(decay * total_steps) if decay < 1 else decay
    if warmup_steps + decay > total_steps:
        what = (
            f"num_decay_steps {decay:,} and {warmup_steps:,} steps of warm-up are more than the run's {total_steps:,}"
        )
        remedy = 'use a smaller number or a share, as in {"num_decay_steps": 0.2}'
        raise InputError(what, where="--lr_scheduler_kwargs", remedy=remedy)
    kwargs = {**kwargs, "num_decay_steps": decay} if decay else kwargs
    return get_scheduler("warmup_stable_decay", optimizer, warmup_steps, total_steps, kwargs)


_BY_METRIC = ("reduce_lr_on_plateau", "greedy")  # of evaluations; not offered

# By the name in --lr_scheduler_type. Add a schedule by writing its function.
SCHEDULES: dict[str, Schedule] = {
    **{each.value: partial(get_scheduler, each.value) for each in SchedulerType if each.value not in _BY_METRIC},
    "warmup_stable_decay": warmup_stable_decay,
    "bert_linear": bert_linear,
}


def make_schedule(args: Any, optimizer: Optimizer, total_steps: int) -> Any:
    """Return the schedule that --lr_scheduler_type names, for a run of `total_steps`."""
    name = option_text(args.lr_scheduler_type)
    warmup = args.get_warmup_steps(total_steps)
    if name != "constant" and warmup >= total_steps:
        logger.warning(
            f"! {warmup:,} steps of warm-up in a run of {total_steps:,}: the learning rate never reaches its peak; "
            "use a share of the steps, as in --warmup_steps 0.01"
        )
    return SCHEDULES[name](optimizer, warmup, total_steps, dict(args.lr_scheduler_kwargs or {}))


def schedule_identity(args: Any) -> dict[str, Any]:
    """Return the part of a run's identity that describes its length and its schedule."""
    names = ("max_steps", "num_train_epochs", "warmup_steps", "lr_scheduler_type", "lr_scheduler_kwargs")
    return settings(args, names)


def check_schedule(args: Any) -> None:
    """Make the schedule for a long run, to find an unknown name and arguments that it does not take."""
    name = option_text(args.lr_scheduler_type)
    check_known(name, SCHEDULES, f"unknown schedule: {name}", "--lr_scheduler_type")

    rate = args.learning_rate or 1.0  # fine-tuning chooses it later, and checks again
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)
    try:
        SCHEDULES[name](optimizer, 0, 1_000_000_000, dict(args.lr_scheduler_kwargs or {}))
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split()).rpartition("__init__() ")[2]
        raise InputError(f"{name}: {reason}", where="--lr_scheduler_kwargs", remedy="fix them") from None
