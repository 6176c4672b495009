"""The optimizers of --optim: one table, and the Adam of the 2018 code."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from transformers import Trainer, TrainingArguments

from bert_hf.config.hardware import engine
from bert_hf.errors import InputError, check_known
from bert_hf.training.identity import settings
from bert_hf.training.optimization.muon import MuonWithAdamW, encoder_matrices

_CORRECTED = 2.0**30  # steps after which no bias correction is left: 0.999^2³⁰ is 0


# ---- batch


def global_batch_size(args: TrainingArguments) -> int:
    """Return the sequences of an optimizer step, over ranks and accumulation steps."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size


def format_batch_size(args: TrainingArguments) -> str:
    """Return `32 × 2 × 4 = 256`: sequences of a device, accumulation steps, ranks."""
    factors = (args.per_device_train_batch_size, args.gradient_accumulation_steps, args.world_size)
    return f"{' × '.join(map(str, factors))} = {global_batch_size(args)}"


# ---- parameters


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


# ---- the Adam of the 2018 code


@cache
def _late_step(device: torch.device) -> Tensor:
    """Return the step number for fused AdamW; it stays the same, because in float32 2³⁰ + 1 is 2³⁰."""
    return torch.full((), _CORRECTED, dtype=torch.float32, device=device)


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
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}

        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            [self.state[p]["exp_avg"] for p in parameters],
            [self.state[p]["exp_avg_sq"] for p in parameters],
            [],
            [_late_step(p.device) for p in parameters],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


# ---- the table


@dataclass(frozen=True)
class Entry:
    """One value of --optim.

    Args:
        make: (model, arguments) → the optimizer. Add an optimizer by writing this function.
        options: arguments that it reads besides the learning rate and the weight decay; part of a run's identity.
        whole_matrices: it cannot work on the flattened parts of weights that DeepSpeed leaves on a rank.
    """

    make: Callable[[nn.Module, Any], torch.optim.Optimizer]
    options: tuple[str, ...] = ()
    whole_matrices: bool = False


def _from_transformers(model: nn.Module, args: Any) -> torch.optim.Optimizer:
    kind, options = Trainer.get_optimizer_cls_and_kwargs(args)
    return kind(parameter_groups(model, args.weight_decay), **options)


def _bert_adam(model: nn.Module, args: Any) -> BertAdam:
    groups = parameter_groups(model, args.weight_decay)
    return BertAdam(groups, lr=args.learning_rate, betas=(args.adam_beta1, args.adam_beta2), eps=args.adam_epsilon)


def _muon(model: nn.Module, args: Any) -> MuonWithAdamW:
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
OPTIMIZERS: dict[str, Entry] = {
    "adamw_torch_fused": Entry(_from_transformers, _ADAM),
    "adamw_torch": Entry(_from_transformers, _ADAM),
    "bert_adam": Entry(_bert_adam, _ADAM),
    "muon": Entry(_muon, (*_ADAM, "muon_learning_rate"), whole_matrices=True),
    "sgd": Entry(_from_transformers),
    "adafactor": Entry(_from_transformers),
}


def option_text(option: Any) -> str:
    """Return an option, which may be an enumeration of transformers, as the text of the command line."""
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
    """Check --optim."""
    name = option_text(args.optim)
    available = [each for each, entry in OPTIMIZERS.items() if all(hasattr(args, field) for field in entry.options)]
    check_known(name, available, f"unknown optimizer: {name}", "--optim")
    if OPTIMIZERS[name].whole_matrices and engine(args) == "deepspeed":
        what = f"{name} needs whole matrices; DeepSpeed divides them among the ranks"
        raise InputError(what, where="--optim", remedy="use DDP or FSDP2 (configs/accelerate) or another optimizer")
