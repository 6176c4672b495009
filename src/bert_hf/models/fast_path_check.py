"""Checks a model's fast path beside its plain one before a run relies on it; where they differ, takes the plain one.

The fast path (`kernels.py`: no padding, one buffer of logits, own dropout) runs other kernels on every kind of device
and with every version of torch, and not all of them could be tried by the authors. So the first batch that a run sees
goes through both paths; where loss or gradient differ, or the fast path raises, the run takes the plain path.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from bert_hf.errors import InputError
from bert_hf.models.functional import NEVER

logger = logging.getLogger(__name__)

_FLAT = ("masked_positions", "token_positions")  # indices into the flattened (B·L); the rest of a batch is (B, …)
_CPU_TOKENS = 2048  # places of a batch that are compared on a CPU, which kills a process that runs out of memory
_LAYERS = 2  # of the model that is compared in place of a sharded one
_LOSS_SCALE = 1024.0  # without it small gradients vanish in fp16; a power of two, so it is taken off exactly


class Bounds(NamedTuple):
    """How far the fast path may be from the plain one."""

    loss: float  # |l − l′| / max(1, |l|)
    whole: float  # ‖g − g′‖ / ‖g‖ over all parameters together
    tensor: float  # for each parameter t: ‖gₜ − gₜ′‖ ≤ tensor · ‖gₜ‖ + floor · ‖g‖
    floor: float  # some parameters (the keys' biases) have no gradient but rounding


# Both paths sum the same products in another order. The largest differences measured and where the bounds lie between
# them and the smallest fault: docs/speed.md, "The fast path checks itself".
FP32 = Bounds(loss=1e-5, whole=1e-4, tensor=1e-3, floor=1e-7)
HALF = Bounds(loss=1e-3, whole=1e-1, tensor=5e-1, floor=5e-3)  # bf16, fp16, and fp32 rounded to TF32


class Fault(NamedTuple):
    """Why the fast path cannot be taken; `fatal` where the device cannot be used any more."""

    reason: str
    fatal: bool = False


Losses = Callable[[nn.Module, dict], object]  # (model, inputs) → `PreTrainingLosses`


class FastPathCheck:
    """The path that a run takes: by its option, by what the run it resumes found out, or by a check.

    Args:
        asked: `auto` checks, `on` does not, `off` is the plain path.
        losses_of: the losses of a batch, computed as the run does.
        gather: what each rank has, in the order of ranks; all take the same path.
        half: the products are of 16 bit.
    """

    def __init__(self, asked: str, losses_of: Losses, gather: Callable[[object], list], half: bool):
        self.asked, self.losses_of, self.gather, self.half = asked, losses_of, gather, half
        self.checked: list[str] = []  # which batches were compared: "evaluation", "training"
        self.reason: str | None = None  # why the plain path is taken
        self._seen: set[str] = set()
        self._paused = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, no batch is checked: what is computed there is not the run's."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def begin(self) -> None:
        """Before a training, whose model may be a new one."""
        self._seen.clear()

    def is_due(self, kind: str) -> bool:
        """True where `check` has something to do: with the first batch of a kind."""
        return not self._paused and kind not in self._seen

    def check(self, kind: str, model: nn.Module, inputs: dict) -> None:
        """Settles the path. Compares both on the first batch to train on, and on an evaluation's if that comes before.

        Called by all ranks together. Leaves random numbers, gradients and modes as they were.

        Raises:
            InputError: the fast path left the device unusable.
        """
        self._seen.add(kind)
        if not hasattr(model, "set_fast_path"):  # a model that is not ours has one path
            return
        if self.asked != "auto" or self.reason is not None:
            model.set_fast_path(self.asked == "on")
            return
        if kind in self.checked or (kind == "evaluation" and self.checked) or not model.fast_path:
            return
        self.checked.append(kind)

        found = self.gather(self._fault_here(model, inputs))
        faults = {rank: Fault(*fault) for rank, fault in enumerate(found) if fault is not None}
        if not faults:
            return
        rank = max(faults, key=lambda rank: faults[rank].fatal)
        reason = f"{faults[rank].reason} (rank {rank}, {_device_name(model)}, torch {torch.__version__})"
        if faults[rank].fatal:
            raise InputError(f"the fast path broke the device: {reason}", where="--fast_path",
                             remedy="start again with --fast_path off")  # fmt: skip
        self._take_plain_path(model, reason)

    def _fault_here(self, model: nn.Module, inputs: dict) -> Fault | None:
        bounds = HALF if self.half or _rounds_products(model) else FP32
        compared = _stand_in(model) if _is_sharded(model) else model
        return find_fault(compared, self.losses_of, inputs, bounds)

    def _take_plain_path(self, model: nn.Module, reason: str) -> None:
        self.reason = reason
        model.set_fast_path(False)
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            logger.warning("this run takes the plain path, which is slower and otherwise the same: %s", reason)

    # ---- what a checkpoint holds of it
    def state(self, model: nn.Module) -> dict:
        return {"machine": _machine(model), "checked": self.checked, "reason": self.reason}

    def restore(self, state: dict | None, model: nn.Module) -> None:
        """Keeps to what the run found out before, unless device, torch or this package are others now."""
        if self.asked != "auto" or not state or state["machine"] != _machine(model):
            return
        self.checked = list(state["checked"])
        if state["reason"] is not None and getattr(model, "fast_path", False):
            self._take_plain_path(model, state["reason"])


# ---- the comparison


def find_fault(model: nn.Module, losses_of: Losses, inputs: dict, bounds: Bounds) -> Fault | None:
    """What is wrong with the fast path on a batch; None where nothing is, or where the plain path fails as well.

    Where memory does not suffice for the plain path, or for both gradients, half as many rows are compared.
    """
    if "input_ids" not in inputs:  # somebody else's collator: the fast path is not taken either
        return None
    rows, width = inputs["input_ids"].shape
    if inputs["input_ids"].device.type == "cpu":
        rows = min(rows, max(1, _CPU_TOKENS // width))
    while rows:
        part = first_rows(inputs, rows)
        try:
            return _compare(model, losses_of, part, bounds)
        except _OutOfMemory:
            rows //= 2
    return None


class _OutOfMemory(Exception):
    """One of the two paths ran out of memory, which says nothing about the other's numbers."""


def _compare(model: nn.Module, losses_of: Losses, inputs: dict, bounds: Bounds) -> Fault | None:
    try:
        expected = _loss_and_gradient(model, losses_of, inputs, fast=False)
    except Exception as error:  # the run itself will raise it, and explain it
        _raise_if_out_of_memory(error)
        return None
    try:
        found = _loss_and_gradient(model, losses_of, inputs, fast=True)
    except Exception as error:
        _raise_if_out_of_memory(error)
        line = (str(error).strip().splitlines() or [""])[0]
        return Fault(f"it failed with {type(error).__name__}: {line}", isinstance(error, torch.AcceleratorError))
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    reason = difference(names, expected, found, bounds)
    return None if reason is None else Fault(reason)


def _raise_if_out_of_memory(error: Exception) -> None:
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        raise _OutOfMemory from None


def _loss_and_gradient(model: nn.Module, losses_of: Losses, inputs: dict, fast: bool) -> tuple[float, list[Tensor]]:
    """Loss (sum of the means) and its gradient by parameter; what a parameter's `grad` holds is not touched."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with _as_in_training(model, fast):
        losses = losses_of(model, inputs)
        given = [each for each in (losses.mlm_losses, losses.nsp_losses) if each is not None and len(each)]
        loss = sum(each.float().mean() for each in given)
        found = torch.autograd.grad(loss * _LOSS_SCALE, parameters, allow_unused=True)
    gradient = [torch.zeros_like(p) if g is None else g / _LOSS_SCALE for p, g in zip(parameters, found, strict=True)]
    return loss.item(), gradient  # `item` waits for the device, so that its errors are raised here


@contextlib.contextmanager
def _as_in_training(model: nn.Module, fast: bool) -> Iterator[None]:
    """Inside, the model is computed as in training by one of its paths, but nothing is dropped.

    The fast path keeps the ways that dropout takes, which may be others than those without it: see `kernels.NEVER`.
    """
    modules, before = list(model.modules()), (model.training, model.fast_path)
    configs = {id(m.config): m.config for m in modules if hasattr(m, "config")}.values()
    settings = [(m, "p") for m in modules if isinstance(m, nn.Dropout)]
    settings += [(config, "attention_probs_dropout_prob") for config in configs]
    settings = [(owner, name, getattr(owner, name)) for owner, name in settings]
    checkpointed = [m for m in modules if getattr(m, "gradient_checkpointing", False)]
    cuda = [_device(model)] if _device(model).type == "cuda" else []
    with torch.random.fork_rng(devices=cuda), torch.enable_grad():
        try:
            model.train()
            model.set_fast_path(fast)
            for owner, name, value in settings:
                setattr(owner, name, NEVER if fast and value else 0.0)
            for module in checkpointed:
                module.gradient_checkpointing = False
            yield
        finally:
            for owner, name, value in settings:
                setattr(owner, name, value)
            for module in checkpointed:
                module.gradient_checkpointing = True
            model.train(before[0])
            model.set_fast_path(before[1])


def difference(
    names: list[str], expected: tuple[float, list[Tensor]], found: tuple[float, list[Tensor]], bounds: Bounds
) -> str | None:
    """How two losses and gradients differ by more than the bounds; None where they do not, or where `expected` is not
    finite, which is the run's own fault and is reported by the run."""
    (loss, gradient), (other_loss, other_gradient) = expected, found
    norms = torch.stack([g.float().norm() for g in gradient])
    errors = torch.stack([(g.float() - o.float()).norm() for g, o in zip(gradient, other_gradient, strict=True)])
    norms, errors = norms.cpu(), errors.cpu()
    total = norms.norm().item()
    if not math.isfinite(loss) or not math.isfinite(total):
        return None

    apart = abs(other_loss - loss) / max(1.0, abs(loss))
    if not apart <= bounds.loss:
        return f"its loss is {other_loss:.7g}, and the plain one {loss:.7g}"
    excess = torch.nan_to_num(errors / (bounds.tensor * norms + bounds.floor * total + 1e-30), nan=math.inf)
    worst = int(excess.argmax())
    if excess[worst] > 1:
        share = errors[worst].item() / max(norms[worst].item(), 1e-30)
        return f"its gradient of {names[worst]} differs by {share:.1e} of the plain one's norm"
    whole = errors.norm().item() / max(total, 1e-30)
    if whole > bounds.whole:
        return f"its gradient differs by {whole:.1e} of the plain one's norm"
    logger.info("fast path: loss within %.1e, gradient within %.1e", apart, whole)
    return None


def first_rows(inputs: dict, rows: int) -> dict:
    """The first rows of a batch, as its collator would have made it of them."""
    count, width = inputs["input_ids"].shape
    part = {}
    for name, value in inputs.items():
        if name in _FLAT:
            part[name] = value[value < rows * width]
        else:
            part[name] = value[:rows] if isinstance(value, Tensor) and value.dim() and len(value) == count else value
    return part


# ---- where it is computed


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _device_name(model: nn.Module) -> str:
    device = _device(model)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _machine(model: nn.Module) -> list[str]:
    """What the outcome of a check is known for."""
    return [_device(model).type, _device_name(model), torch.__version__, version("bert-hf")]


def _rounds_products(model: nn.Module) -> bool:
    """True where products are not those of fp32: weights of 16 bit, or TF32."""
    tf32 = _device(model).type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return tf32 or next(model.parameters()).dtype != torch.float32


def _is_sharded(model: nn.Module) -> bool:
    """True where a rank holds a part of the parameters, and no single call can compute their whole gradient."""
    return any(isinstance(p, DTensor) or hasattr(p, "ds_id") or hasattr(p, "_is_flat_param")
               for p in model.parameters())  # fmt: skip


def _stand_in(model: nn.Module) -> nn.Module:
    """A model of the same shape, whole, of fresh weights and two layers: the same kernels at the same sizes."""
    config = type(model.config).from_dict(model.config.to_dict())
    config.num_hidden_layers = min(_LAYERS, config.num_hidden_layers)
    config._attn_implementation = model.config._attn_implementation
    with torch.random.fork_rng(devices=[]):
        fresh = type(model)(config)
    return fresh.to(_device(model), next(model.parameters()).dtype)
