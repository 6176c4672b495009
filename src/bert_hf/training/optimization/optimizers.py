"""Selects the optimizer of --optim and its parameter groups, also those of the 2018 code."""

from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from transformers import Trainer, TrainingArguments
from transformers.training_args import OptimizerNames

from bert_hf.config.parser import is_number
from bert_hf.config.training_arguments import MUON
from bert_hf.errors import InputError, did_you_mean
from bert_hf.training.optimization.muon import MuonWithAdamW, encoder_matrices

BERT_ADAM = "bert_adam"  # the name of the optimizer that `--adam_bias_correction false` selects
_CORRECTED = 2.0**30  # steps after which no bias correction is left: 0.999^2³⁰ is 0


# Values of --optim that are selected through our parameter groups, and whose runs resume exactly (each is tested);
# and the keys of --optim_args that each takes.
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "adamw_torch_fused": (),
    "adamw_torch": (),
    "sgd": ("momentum", "dampening", "nesterov"),
    "adagrad": ("lr_decay", "eps"),
    "rmsprop": ("momentum", "alpha", "eps", "centered"),
    "adafactor": (),
    MUON: (),
}
_ADAMS = ("adamw_torch_fused", "adamw_torch", MUON)  # take --adam_beta1, --adam_beta2, --adam_epsilon
_SWITCHES = ("nesterov", "centered")  # of --optim_args: true or false; every other key is a number


def global_batch_size(args: TrainingArguments) -> int:
    """Sequences in an optimizer step, over ranks and accumulation steps."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size


def format_batch_size(args: TrainingArguments) -> str:
    """`32 × 2 × 4 = 256`: sequences of a device, accumulation steps, ranks."""
    factors = (args.per_device_train_batch_size, args.gradient_accumulation_steps, args.world_size)
    return f"{' × '.join(map(str, factors))} = {global_batch_size(args)}"


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two groups: decayed, and not decayed (LayerNorm and biases; 2018 code, optimization.py)."""
    decayed, not_decayed = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = not_decayed if name.endswith("bias") or "LayerNorm" in name else decayed
            group.append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": not_decayed, "weight_decay": 0.0}]


@cache
def _late_step(device: torch.device) -> Tensor:
    """The step number for fused AdamW; it stays the same, because in float32 2³⁰ + 1 is 2³⁰."""
    return torch.full((), _CORRECTED, dtype=torch.float32, device=device)


class BertAdam(torch.optim.Optimizer):
    """Adam of the 2018 code: decoupled weight decay and *no* bias correction.

        m ← β₁m + (1 − β₁)g        v ← β₂v + (1 − β₂)g²        w ← w − lr · (m / (√v + ε) + decay · w)

    Without the correction the first steps are larger: at step one (1 − β₁)/√(1 − β₂) ≈ 3.2 times lr per coordinate
    where corrected Adam makes 1. Warm-up hides it. PyTorch has no Adam without the correction, but its fused AdamW
    corrects by 1 − βᵗ, which is 1 for a t that is large enough. So it is one pass over the memory as well, and where
    `found_inf` is set (a tensor on the device, 1 where the gradient is not finite) it skips the update.

    Source: google-research/bert@eedf571, optimization.py, AdamWeightDecayOptimizer.
    """

    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    def __init__(self, params, lr: float = 1e-4, betas=(0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0.01):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "fused": True}
        super().__init__(params, defaults)

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # checkpoints of earlier versions lack the key
            group.setdefault("fused", True)

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
                self.state[parameter] = {
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }

        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            [self.state[p]["exp_avg"] for p in parameters],
            [self.state[p]["exp_avg_sq"] for p in parameters],
            [],
            [_late_step(p.device) for p in parameters],
            fused=True,
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def make_optimizer(
    model: nn.Module,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    bias_correction: bool = True,
) -> torch.optim.Optimizer:
    """The paper's Adam (A.2) on the model's parameters: AdamW, or `BertAdam` without correction; both fused."""
    groups = parameter_groups(model, weight_decay)
    if bias_correction:
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)
    return BertAdam(groups, lr=lr, betas=betas, eps=eps)


def make_muon(
    model: nn.Module,
    *,
    lr: float,
    muon_lr: float,
    weight_decay: float,
    **options: Any,
) -> MuonWithAdamW:
    """Muon at `muon_lr` for the encoder's matrices, AdamW at `lr` for embeddings, biases, LayerNorm and heads.

    Args:
        options: of `MuonWithAdamW`.
    """
    by_muon = [model.get_parameter(name) for name in encoder_matrices(model)]
    matrices = {id(parameter) for parameter in by_muon}

    by_adamw = []
    for group in parameter_groups(model, weight_decay):
        parameters = [parameter for parameter in group["params"] if id(parameter) not in matrices]
        by_adamw.append({**group, "params": parameters, "lr": lr})

    muon_group = {"params": by_muon, "lr": muon_lr, "weight_decay": weight_decay}
    return MuonWithAdamW([muon_group], by_adamw, **options)


def optimizer_name(args: TrainingArguments) -> str:
    """The name in --optim, or `bert_adam` where the bias correction is switched off."""
    return option_text(args.optim) if getattr(args, "adam_bias_correction", True) else BERT_ADAM


def option_text(option) -> str:
    """An option that may be an enumeration of transformers, as the text of the command line."""
    return str(getattr(option, "value", option))


def select_optimizer(model: nn.Module, args: Any) -> torch.optim.Optimizer:
    """The optimizer that --optim and --adam_bias_correction name, on our two parameter groups.

    Another name needs an entry in `OPTIMIZERS` and, unless transformers can make it, a branch here.
    """
    name = optimizer_name(args)

    if name in ("adamw_torch_fused", BERT_ADAM, MUON):
        shared = {
            "lr": args.learning_rate,
            "betas": (args.adam_beta1, args.adam_beta2),
            "eps": args.adam_epsilon,
            "weight_decay": args.weight_decay,
        }
        if name == MUON:
            dtype = torch.bfloat16 if args.bf16 else torch.float32
            return make_muon(model, muon_lr=args.muon_learning_rate, dtype=dtype, **shared)
        return make_optimizer(model, bias_correction=name != BERT_ADAM, **shared)

    kind, options = Trainer.get_optimizer_cls_and_kwargs(args)
    return kind(parameter_groups(model, args.weight_decay), **options)


def check_optimizer(args, defaults: Mapping[str, Any]) -> None:
    """Refuses an optimizer that is not one of `OPTIMIZERS`, and options that the chosen one does not take.

    Args:
        args: holds the values of the options, as `TrainingArguments` or before one is built.
        defaults: the default of each option.

    Raises:
        InputError: names the option.
    """
    name = option_text(args.optim)
    if name not in OPTIMIZERS:
        known = name in [each.value for each in OptimizerNames]
        what = f"{name} is not supported: exact resume is not tested with it" if known else f"no optimizer {name!r}"
        similar = "" if known else did_you_mean(name, OPTIMIZERS).strip()
        raise InputError(what, where="--optim", remedy=similar or f"one of: {', '.join(OPTIMIZERS)}")

    if not getattr(args, "adam_bias_correction", True) and args.optim != defaults["optim"]:
        raise InputError(
            f"{name} is not used, because --adam_bias_correction false selects the 2018 code's Adam",
            where="--optim",
            remedy="leave one of the two out",
        )

    if name not in _ADAMS:
        for option in ("adam_beta1", "adam_beta2", "adam_epsilon", "adam_bias_correction"):
            if getattr(args, option, None) != defaults.get(option):
                raise InputError(f"{name} has no such setting", where=f"--{option}", remedy="leave the option out")

    _check_optim_args(name, args.optim_args)
    if name not in _ADAMS:
        _check_optimizer_values(name, args)


def _check_optim_args(name: str, given: str | None) -> None:
    """--optim_args is `key=value,key=value`; transformers ignores keys that an optimizer does not take."""
    known = OPTIMIZERS[name]
    for entry in (given or "").replace(" ", "").split(","):
        if not entry:
            continue

        key, _, value = entry.partition("=")
        if key not in known:
            remedy = f"{name} takes {', '.join(known)}" if known else f"leave the option out: {name} takes none"
            raise InputError(f"{name} has no argument {key!r}", where="--optim_args", remedy=remedy)

        if not (value.lower() in ("true", "false") if key in _SWITCHES else is_number(value)):
            expected = "true or false" if key in _SWITCHES else "a number"
            raise InputError(f"{entry!r} is not {key}={expected}", where="--optim_args", remedy="correct the value")


def _check_optimizer_values(name: str, args) -> None:
    """Makes the optimizer for one parameter: it checks ranges and combinations itself."""
    given = SimpleNamespace(**{**vars(args), "optim": OptimizerNames(name), "learning_rate": 1.0})
    kind, options = Trainer.get_optimizer_cls_and_kwargs(given)  # pyright: ignore[reportArgumentType]
    try:
        kind([nn.Parameter(torch.zeros(1))], **options)
    except ValueError as error:
        what = f"{name} cannot be made: {error}"
        raise InputError(what, where="--optim_args", remedy="correct the value") from None
