"""The optimizers of --optim and the schedules of --lr_scheduler_type: two tables, and the Adam of the 2018 code."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw
from torch.optim.lr_scheduler import LambdaLR
from transformers import SchedulerType, Trainer, TrainingArguments, get_scheduler

from bert_hf.config.hardware import engine
from bert_hf.config.precision import precision_name
from bert_hf.console import logger
from bert_hf.errors import InputError, check_known
from bert_hf.training.identity import settings
from bert_hf.training.optimization.muon import MuonWithAdamW, encoder_matrices


def global_batch_size(args: TrainingArguments) -> int:
    """Return the number of sequences of an optimizer step, over all ranks and accumulation steps."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Return two groups: decayed, and not decayed (LayerNorm and biases; 2018 code, optimization.py).

    Trainer tells which: not every model names its norms `LayerNorm`, as BERT does.
    """
    decays = set(Trainer.get_decay_parameter_names(None, model))  # pyright: ignore[reportArgumentType] - needs no trainer
    decayed, not_decayed = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = decayed if name in decays else not_decayed
            group.append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": not_decayed, "weight_decay": 0.0}]


@cache
def _late_step_count(device: torch.device) -> Tensor:
    """Return 2³⁰, a step at which fused AdamW corrects nothing (1 − 0.999^2³⁰ is 1); in fp32, 2³⁰ + 1 is the same."""
    return torch.full((), 2.0**30, dtype=torch.float32, device=device)


class BertAdam(torch.optim.Optimizer):
    """Adam of the 2018 code: decoupled weight decay and *no* bias correction.

        m ← β₁m + (1 − β₁)g        v ← β₂v + (1 − β₂)g²        w ← w − lr · (m / (√v + ε) + decay · w)

    Without the correction the first steps are larger: at step one (1 − β₁)/√(1 − β₂) ≈ 3.2 times lr per coordinate
    where corrected Adam makes 1. PyTorch has no Adam without the correction, but its fused AdamW corrects by 1 − βᵗ,
    which is 1 for a t that is large enough.

    Source: google-research/bert@eedf571, optimization.py, AdamWeightDecayOptimizer.
    """

    def __init__(self, params, lr: float = 1e-4, betas=(0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0.01):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "fused": True}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        for group in self.param_groups:
            self._step_group(group, [p for p in group["params"] if p.grad is not None])
        return loss

    def _step_group(self, group: dict, parameters: list[Tensor]) -> None:
        """Update the given parameters of a group, which have gradients."""
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}

        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            [p.grad for p in parameters if p.grad is not None],  # of all; the condition is for the type checker
            [self.state[p]["exp_avg"] for p in parameters],
            [self.state[p]["exp_avg_sq"] for p in parameters],
            [],
            [_late_step_count(p.device) for p in parameters],  # at which 1 − βᵗ is 1: no correction
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


@dataclass(frozen=True)
class OptimizerEntry:
    """A value of --optim. Add an optimizer by writing `make`: (model, arguments) → the optimizer."""

    make: Callable[[nn.Module, Any], torch.optim.Optimizer]
    options: tuple[str, ...] = ()  # that it reads besides learning rate and weight decay; part of a run's identity
    whole_matrices: bool = False  # it cannot work on the flattened parts of weights that DeepSpeed leaves on a rank


def _make_stock(model: nn.Module, args: Any) -> torch.optim.Optimizer:
    """Return the optimizer that Trainer would make, on our parameter groups."""
    optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(args)
    return optimizer_class(parameter_groups(model, args.weight_decay), **options)


def _bert_adam(model: nn.Module, args: Any) -> BertAdam:
    groups = parameter_groups(model, args.weight_decay)
    return BertAdam(groups, lr=args.learning_rate, betas=(args.adam_beta1, args.adam_beta2), eps=args.adam_epsilon)


def _muon(model: nn.Module, args: Any) -> MuonWithAdamW:
    """Return Muon for the encoder's matrices and AdamW, in two groups (`parameter_groups`), for all other weights."""
    by_muon = [model.get_parameter(name) for name in encoder_matrices(model)]
    matrices = {id(parameter) for parameter in by_muon}

    by_adamw = []
    for group in parameter_groups(model, args.weight_decay):
        parameters = [parameter for parameter in group["params"] if id(parameter) not in matrices]
        by_adamw.append({**group, "params": parameters, "lr": args.learning_rate})

    return MuonWithAdamW(
        [{"params": by_muon, "lr": args.muon_learning_rate, "weight_decay": args.weight_decay}],
        by_adamw,
        betas=(args.adam_beta1, args.adam_beta2),
        eps=args.adam_epsilon,
        dtype=torch.bfloat16 if args.bf16 else torch.float32,
    )


_ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")

# Resume is tested with each of them.
OPTIMIZERS: dict[str, OptimizerEntry] = {
    "adamw_torch_fused": OptimizerEntry(_make_stock, _ADAM),
    "adamw_torch": OptimizerEntry(_make_stock, _ADAM),
    "bert_adam": OptimizerEntry(_bert_adam, _ADAM),
    "muon": OptimizerEntry(_muon, (*_ADAM, "muon_learning_rate"), whole_matrices=True),
    "sgd": OptimizerEntry(_make_stock),
    "adafactor": OptimizerEntry(_make_stock),
}


def option_text(option: Any) -> str:
    """Return an option as on the command line; transformers makes enumerations of some."""
    return str(getattr(option, "value", option))


def make_optimizer(model: nn.Module, args: Any) -> torch.optim.Optimizer:
    """Return the optimizer that --optim names, on the parameters of a model."""
    return OPTIMIZERS[option_text(args.optim)].make(model, args)


def optimizer_identity(args: Any) -> dict[str, Any]:
    """Return the part of a run's identity that describes its optimizer."""
    shared = ("learning_rate", "weight_decay", "max_grad_norm")
    name = option_text(args.optim)
    return {"name": name, **settings(args, (*shared, *OPTIMIZERS[name].options))}


def check_optimizer(args: Any) -> None:
    """Raise an `InputError` if --optim is unknown, has options that stock `args` lack, or does not suit the engine."""
    name = option_text(args.optim)
    available = [each for each, entry in OPTIMIZERS.items() if all(hasattr(args, field) for field in entry.options)]
    check_known(name, available, f"unknown optimizer: {name}", "--optim")
    if OPTIMIZERS[name].whole_matrices and engine(args) == "deepspeed":
        what = f"{name} needs whole matrices; DeepSpeed divides them among the ranks"
        raise InputError(what, where="--optim", remedy="use DDP or FSDP2 (configs/accelerate) or another optimizer")


# (optimizer, warm-up steps, steps of the run, --lr_scheduler_kwargs) → the scheduler
Schedule = Callable[[Optimizer, int, int, dict], Any]


def bert_linear(optimizer: Optimizer, warmup_steps: int, total_steps: int, kwargs: dict) -> LambdaLR:
    """Return the schedule of the 2018 code: linear decay to zero from step 0 on, after the warm-up.

    With 1 % of the steps as warm-up the rate falls from 1.00 to 0.99 of its peak where warm-up ends; transformers'
    `linear` starts the decay there.
    """

    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        return max(0.0, 1.0 - step / max(1, total_steps))

    return LambdaLR(optimizer, factor, **kwargs)


def warmup_stable_decay(optimizer: Optimizer, warmup_steps: int, total_steps: int, kwargs: dict) -> Any:
    """Return transformers' schedule, whose `num_decay_steps` may be a share; `InputError` if the run is too short."""
    decay = kwargs.get("num_decay_steps", 0)
    if decay < 1:
        decay = round(decay * total_steps)
    if warmup_steps + decay > total_steps:
        needed = f"num_decay_steps {decay:,} and {warmup_steps:,} steps of warm-up"
        what = f"{needed} are more than the run's {total_steps:,}"
        remedy = 'use a smaller number or a share, as in {"num_decay_steps": 0.2}'
        raise InputError(what, where="--lr_scheduler_kwargs", remedy=remedy)
    if decay:  # else transformers reports that it is missing
        kwargs = {**kwargs, "num_decay_steps": decay}
    return get_scheduler("warmup_stable_decay", optimizer, warmup_steps, total_steps, kwargs)


_BY_METRIC = ("reduce_lr_on_plateau", "greedy")  # change the rate by metrics of evaluations; not offered

# By the name in --lr_scheduler_type. Add a schedule by writing its function.
SCHEDULES: dict[str, Schedule] = {
    **{each.value: partial(get_scheduler, each.value) for each in SchedulerType if each.value not in _BY_METRIC},
    "warmup_stable_decay": warmup_stable_decay,
    "bert_linear": bert_linear,
}


def make_schedule(args: Any, optimizer: Optimizer, total_steps: int) -> Any:
    """Return the schedule that --lr_scheduler_type names, for a run of `total_steps`; warn of too long a warm-up."""
    name = option_text(args.lr_scheduler_type)
    warmup = args.get_warmup_steps(total_steps)
    if name != "constant" and warmup >= total_steps:
        logger.warning(
            f"! {warmup:,} steps of warm-up in a run of {total_steps:,}: the learning rate never reaches its peak; "
            "use a share of the steps, as in --warmup_steps 0.01"
        )
    return SCHEDULES[name](optimizer, warmup, total_steps, dict(args.lr_scheduler_kwargs or {}))


def steps_identity(args: Any) -> dict[str, Any]:
    """Return the part of a run's identity that describes its steps: batch, optimizer, precision, schedule."""
    schedule = ("max_steps", "num_train_epochs", "warmup_steps", "lr_scheduler_type", "lr_scheduler_kwargs")
    return {
        "global_batch": global_batch_size(args),
        "optimizer": optimizer_identity(args),
        "precision": precision_name(args),
        "schedule": settings(args, schedule),
    }


def check_schedule(args: Any) -> None:
    """Raise an `InputError` for an unknown schedule or arguments that it does not take, found by making one."""
    name = option_text(args.lr_scheduler_type)
    check_known(name, SCHEDULES, f"unknown schedule: {name}", "--lr_scheduler_type")

    rate = args.learning_rate or 1.0  # fine-tuning chooses it later, and checks again
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)
    try:
        long_run = 1_000_000_000  # steps, so that no number of decay steps is too large
        SCHEDULES[name](optimizer, 0, long_run, dict(args.lr_scheduler_kwargs or {}))
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split()).rpartition("__init__() ")[2]  # without the class that Python names
        raise InputError(f"{name}: {reason}", where="--lr_scheduler_kwargs", remedy="fix them") from None
