"""Schedules of the learning rate: those of transformers, also with a share that decays, and that of the 2018 code."""

import math
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from bert_hf.errors import InputError
from bert_hf.training.optimization.optimizers import option_text

BY_EVALUATION = ("reduce_lr_on_plateau", "greedy")  # schedules that read the metric of an evaluation
STABLE = "warmup_stable_decay"  # warm-up, then the peak rate, then `num_decay_steps` down to zero


def with_decay_steps(args, total_steps: int) -> dict | None:
    """--lr_scheduler_kwargs for a run of so many steps: `num_decay_steps` below 1 is a share of them.

    A configuration can name a share, whatever the length of the run; --warmup_steps below 1 is one, too.

    Raises:
        InputError: the run has fewer steps than its warm-up and its decay: its rate would never be at its peak.
    """
    kwargs = args.lr_scheduler_kwargs
    if option_text(args.lr_scheduler_type) != STABLE or "num_decay_steps" not in (kwargs or {}):
        return kwargs

    warmup, decay = args.get_warmup_steps(total_steps), kwargs["num_decay_steps"]
    if decay < 1:
        decay = round(decay * total_steps)
    if warmup + decay > total_steps:
        what = f"num_decay_steps {decay:,} and {warmup:,} steps of warm-up are more than the run's {total_steps:,}"
        raise InputError(
            what,
            where="--lr_scheduler_kwargs",
            remedy='give a smaller number or share, as in {"num_decay_steps": 0.2}',
        )
    return {**kwargs, "num_decay_steps": decay}


def check_schedule(args, kwargs: dict | None) -> None:
    """Refuses a schedule that cannot be created, or that --decay_from_step_zero would replace.

    Args:
        kwargs: --lr_scheduler_kwargs, parsed.

    Raises:
        InputError: names the option.
    """
    name = option_text(args.lr_scheduler_type)
    if getattr(args, "decay_from_step_zero", False) and (name != "linear" or kwargs):
        raise InputError(
            "--decay_from_step_zero true is another schedule",
            where="--lr_scheduler_kwargs" if name == "linear" else "--lr_scheduler_type",
            remedy="leave one of the two out",
        )

    decay = (kwargs or {}).get("num_decay_steps")
    if name == STABLE and decay is not None:
        if not isinstance(decay, int | float) or not 0 < decay < math.inf:  # also no NaN
            what, remedy = f"num_decay_steps is {decay!r}", "give a number of steps, or a share of them as in 0.2"
            raise InputError(what, where="--lr_scheduler_kwargs", remedy=remedy)
        kwargs = {**(kwargs or {}), "num_decay_steps": 3}  # of the ten below

    rate = getattr(args, "learning_rate", None)  # None: fine-tuning chooses it later, and checks again
    try:  # a run of ten steps; the model does not matter
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0 if rate is None else rate)
        schedule: Any = get_scheduler(
            name, optimizer, num_warmup_steps=2, num_training_steps=10, scheduler_specific_kwargs=kwargs
        )
        for _ in range(10):
            optimizer.step()
            schedule.step(*([1.0] if name in BY_EVALUATION else []))
    except (TypeError, ValueError, ArithmeticError) as error:
        reason = " ".join(str(error).split()).rpartition("__init__() ")[2]
        raise InputError(
            f"the schedule {name} cannot be made: {reason}",
            where="--lr_scheduler_kwargs",
            remedy='give what it needs as {"name": value}, or another --lr_scheduler_type',
        ) from None


def warmup_warning(args) -> str | None:
    """Says that the warm-up of a run of `args.max_steps` never ends; None if it does."""
    warmup, steps = args.get_warmup_steps(args.max_steps), args.max_steps
    if warmup < steps or option_text(args.lr_scheduler_type) in ("constant", *BY_EVALUATION):
        return None
    return (
        f"{warmup:,} steps of warm-up in a run of {steps:,}: the rate never exceeds "
        f"{args.learning_rate * steps / warmup:.2g}; give --warmup_steps as a share of the steps, such as 0.01"
    )


def linear_from_step_zero(optimizer: torch.optim.Optimizer, warmup_steps: int, total_steps: int) -> LambdaLR:
    """The schedule of the 2018 code: linear decay to zero from step 0 on, replaced by the warm-up while that lasts.

    With 10,000 of 1,000,000 steps of warm-up the rate falls from 1.00 to 0.99 of its peak where warm-up ends;
    transformers' `linear` starts the decay there.
    """

    def share(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        return max(0.0, 1.0 - step / max(1, total_steps))

    return LambdaLR(optimizer, share)
