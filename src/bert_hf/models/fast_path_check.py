"""Compares a model's fast path with its plain path before a run uses it, and selects the plain one if they differ.

The fast path (`functional.py`, `unpadded_attention.py`: no padding, one buffer of logits, faster dropout) runs other
kernels on each kind of device and with each version of torch, and the authors could not try all of them. So the first
batch of a run is computed on both paths; if loss or gradient differ, or the fast path raises, the run takes the plain
path.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from bert_hf.errors import InputError, first_line
from bert_hf.models.functional import DROP_NOTHING
from bert_hf.models.micro_batches import split_micro_batch
from bert_hf.models.modeling_bert import BertForPreTraining, BertSelfAttention, PreTrainingLosses

logger = logging.getLogger(__name__)

_CPU_TOKENS = 2048  # tokens, padding included, to compare on a CPU, where a process out of memory is killed
_LAYERS = 2  # of the model that is compared instead of a sharded one
_LOSS_SCALE = 1024.0  # without it small gradients vanish in fp16; a power of two, so dividing by it is exact


class Bounds(NamedTuple):
    """How much the fast path may differ from the plain one."""

    loss: float  # |l − l′| / max(1, |l|)
    whole: float  # ‖g − g′‖ / ‖g‖ over all parameters together
    tensor: float  # for each parameter t: ‖gₜ − gₜ′‖ ≤ tensor · ‖gₜ‖ + floor · ‖g‖
    floor: float  # some parameters (the keys' biases) have no gradient but rounding


# Both paths sum the same products in another order. The bounds are between the largest differences measured and the
# smallest fault: docs/speed.md, "The fast path is checked at the start of a run".
FP32 = Bounds(loss=1e-5, whole=1e-4, tensor=1e-3, floor=1e-7)
HALF = Bounds(loss=1e-3, whole=1e-1, tensor=5e-1, floor=5e-3)  # bf16, fp16, and fp32 rounded to TF32


class Fault(NamedTuple):
    """Why the fast path cannot be taken; `fatal` if the device cannot be used any more."""

    reason: str
    fatal: bool = False


LossFunction = Callable[[BertForPreTraining, dict], PreTrainingLosses]  # of (model, inputs)
_LossAndGradient = tuple[float, list[Tensor]]


class FastPathCheck:
    """Selects the path of a run: by its option, by the result stored in the checkpoint it resumes, or by a comparison.

    Args:
        mode: `auto` compares, `on` does not, `off` is the plain path.
        losses_of: the losses of a batch, computed as the run does.
        gather: collects an object from each rank, in the order of ranks; all ranks take the same path.
        half: matrix products have 16 bit.
    """

    def __init__(self, mode: str, losses_of: LossFunction, gather: Callable[[object], list], half: bool):
        self.mode = mode
        self.losses_of = losses_of
        self.gather = gather
        self.half = half
        self.checked: list[str] = []  # which batches were compared: "evaluation", "training"
        self.reason: str | None = None  # why the plain path is taken
        self._seen: set[str] = set()
        self.paused = False  # then no batch is checked: what is computed is not part of the run

    def begin(self) -> None:
        """Starts a training, whose model may be a new one."""
        self._seen.clear()

    def is_due(self, kind: str) -> bool:
        """True if `check` has to be called: with the first batch of a kind."""
        return not self.paused and kind not in self._seen

    def check(self, kind: str, model: nn.Module, inputs: dict) -> None:
        """Selects the path. Compares both on the first training batch, and on an evaluation batch if that is earlier.

        Called by all ranks together. Random generators, gradients and modes stay as they were.

        Raises:
            InputError: the fast path left the device unusable.
        """
        self._seen.add(kind)

        # Is there anything to compare?
        if not hasattr(model, "set_fast_path"):  # another class of model has one path
            return
        model = cast(BertForPreTraining, model)
        if self.mode != "auto" or self.reason is not None:
            model.set_fast_path(self.mode == "on")
            return
        if kind in self.checked or (kind == "evaluation" and self.checked) or not model.fast_path:
            return
        self.checked.append(kind)

        # Compare on every rank
        found = self.gather(self._fault_of_rank(model, inputs))
        faults = {rank: fault for rank, fault in enumerate(found) if fault is not None}
        if not faults:
            return

        # A fault of one rank decides for all
        rank = max(faults, key=lambda rank: faults[rank].fatal)
        reason = f"{faults[rank].reason} (rank {rank}, {_device_name(model)}, torch {torch.__version__})"
        if faults[rank].fatal:
            raise InputError(
                f"the fast path broke the device: {reason}",
                where="--fast_path",
                remedy="start again with --fast_path off",
            )
        self._take_plain_path(model, reason)

    def _fault_of_rank(self, model: BertForPreTraining, inputs: dict) -> Fault | None:
        bounds = HALF if self.half or _rounds_products(model) else FP32
        compared = _small_copy(model) if _is_sharded(model) else model
        return find_fault(compared, self.losses_of, inputs, bounds)

    def _take_plain_path(self, model: BertForPreTraining, reason: str) -> None:
        self.reason = reason
        model.set_fast_path(False)
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            logger.warning("this run takes the plain path, which is slower and otherwise the same: %s", reason)

    def state(self, model: nn.Module) -> dict:
        """Content of a checkpoint: the result, and the machine for which it is known."""
        return {"machine": _machine(model), "checked": self.checked, "reason": self.reason}

    def restore(self, state: dict | None, model: nn.Module) -> None:
        """Takes over the stored result, unless the device, torch or this package have changed."""
        if self.mode != "auto" or not state or state["machine"] != _machine(model):
            return

        self.checked = list(state["checked"])
        if state["reason"] is not None and getattr(model, "fast_path", False):
            self._take_plain_path(cast(BertForPreTraining, model), state["reason"])


# ---- the comparison


def find_fault(model: BertForPreTraining, losses_of: LossFunction, inputs: dict, bounds: Bounds) -> Fault | None:
    """Compares the two paths on a batch. None if they agree, or if the plain path fails as well.

    If memory does not suffice for the plain path, or for both gradients, half as many rows are compared.
    """
    if "input_ids" not in inputs:  # another collator's batch, for which the fast path is not used either
        return None

    rows, width = inputs["input_ids"].shape
    if inputs["input_ids"].device.type == "cpu":
        rows = min(rows, max(1, _CPU_TOKENS // width))

    while rows:
        try:
            return _compare(model, losses_of, next(split_micro_batch(inputs, rows)), bounds)
        except _OutOfMemory:
            rows //= 2
    return None


class _OutOfMemory(Exception):
    """One of the two paths ran out of memory, so their results cannot be compared."""


def _compare(model: BertForPreTraining, losses_of: LossFunction, inputs: dict, bounds: Bounds) -> Fault | None:
    try:
        expected = _loss_and_gradient(model, losses_of, inputs, fast=False)
    except Exception as error:  # the run will raise it too, and explain it
        _raise_if_out_of_memory(error)
        return None

    try:
        found = _loss_and_gradient(model, losses_of, inputs, fast=True)
    except Exception as error:
        _raise_if_out_of_memory(error)
        return Fault(
            f"it failed with {type(error).__name__}: {first_line(error)}", isinstance(error, torch.AcceleratorError)
        )

    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    reason = difference(names, expected, found, bounds)
    return None if reason is None else Fault(reason)


def _raise_if_out_of_memory(error: Exception) -> None:
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        raise _OutOfMemory from None


def _loss_and_gradient(
    model: BertForPreTraining, losses_of: LossFunction, inputs: dict, fast: bool
) -> _LossAndGradient:
    """Loss (sum of the means) and its gradient by parameter; the parameters' own `grad` is not touched."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    with _training_without_dropout(model, fast):
        losses = losses_of(model, inputs)
        given = [each for each in (losses.mlm_losses, losses.nsp_losses) if each is not None and len(each)]
        loss = torch.stack([each.float().mean() for each in given]).sum()
        found = torch.autograd.grad(loss * _LOSS_SCALE, parameters, allow_unused=True)

    gradient = [torch.zeros_like(p) if g is None else g / _LOSS_SCALE for p, g in zip(parameters, found, strict=True)]
    return loss.item(), gradient  # `item` waits for the device, so that its errors are raised here


@contextlib.contextmanager
def _training_without_dropout(model: BertForPreTraining, fast: bool) -> Iterator[None]:
    """Computes the model as in training, on one of its paths, but nothing is dropped.

    The fast path keeps the kernels of dropout, which may differ from those without it: see `DROP_NOTHING`.
    """

    def dropout_to_use(p: float) -> float:
        return DROP_NOTHING if fast and p else 0.0

    # Settings to change
    modules = list(model.modules())
    dropouts = [m for m in modules if isinstance(m, nn.Dropout)]
    changes: list[tuple[Any, str, float]] = [(m, "p", dropout_to_use(m.p)) for m in dropouts]
    for config in (m.config for m in modules if isinstance(m, BertSelfAttention)):
        probability = dropout_to_use(config.attention_probs_dropout_prob)
        changes.append((config, "attention_probs_dropout_prob", probability))
    changes += [(m, "gradient_checkpointing", False) for m in modules if getattr(m, "gradient_checkpointing", False)]

    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    training, fast_path = model.training, model.fast_path
    device = _device(model)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
        try:
            model.train()
            model.set_fast_path(fast)
            for owner, name, value in changes:
                setattr(owner, name, value)
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)
            model.train(training)
            model.set_fast_path(fast_path)


def difference(names: list[str], expected: _LossAndGradient, found: _LossAndGradient, bounds: Bounds) -> str | None:
    """Says how two losses and gradients differ by more than the bounds; None if they do not.

    None as well if `expected` is not finite: then the run has a fault on both paths, and reports it.
    """
    loss, gradient = expected
    other_loss, other_gradient = found
    norms = torch.stack([g.float().norm() for g in gradient])
    errors = torch.stack([(g.float() - o.float()).norm() for g, o in zip(gradient, other_gradient, strict=True)])
    norms, errors = norms.cpu(), errors.cpu()
    total = norms.norm().item()
    if not math.isfinite(loss) or not math.isfinite(total):
        return None

    # Loss
    loss_error = abs(other_loss - loss) / max(1.0, abs(loss))
    if not loss_error <= bounds.loss:
        return f"its loss is {other_loss:.7g}, and the plain one {loss:.7g}"

    # Gradient of each parameter
    excess = torch.nan_to_num(errors / (bounds.tensor * norms + bounds.floor * total + 1e-30), nan=math.inf)
    worst = int(excess.argmax())
    if excess[worst] > 1:
        share = errors[worst].item() / max(norms[worst].item(), 1e-30)
        return f"its gradient of {names[worst]} differs by {share:.1e} of the plain one's norm"

    # Whole gradient
    whole = errors.norm().item() / max(total, 1e-30)
    if whole > bounds.whole:
        return f"its gradient differs by {whole:.1e} of the plain one's norm"
    logger.debug("fast path: loss within %.1e, gradient within %.1e", loss_error, whole)
    return None


# ---- device and sharding


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _device_name(model: nn.Module) -> str:
    device = _device(model)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _machine(model: nn.Module) -> list[str]:
    """The device and versions for which the result of a check is known."""
    return [_device(model).type, _device_name(model), torch.__version__, version("bert-hf")]


def _rounds_products(model: nn.Module) -> bool:
    """True if matrix products are not fp32: 16-bit weights, or TF32."""
    if next(model.parameters()).dtype != torch.float32:
        return True
    # Not `get_float32_matmul_precision`: it raises where TF32 was chosen by `fp32_precision`, as transformers does
    return _device(model).type == "cuda" and torch.backends.cuda.matmul.fp32_precision == "tf32"


def _is_sharded(model: nn.Module) -> bool:
    """True if a rank holds only a part of the parameters, and so cannot compute their whole gradient."""
    return any(
        isinstance(parameter, DTensor) or hasattr(parameter, "ds_id") or hasattr(parameter, "_is_flat_param")
        for parameter in model.parameters()
    )


def _small_copy(model: BertForPreTraining) -> BertForPreTraining:
    """An unsharded model of the same sizes, newly initialized, with two layers: it runs the same kernels."""
    config = type(model.config).from_dict(model.config.to_dict())
    config.num_hidden_layers = min(_LAYERS, config.num_hidden_layers)
    config._attn_implementation = model.config._attn_implementation

    with torch.random.fork_rng(devices=[]):
        fresh = type(model)(config)
    nn.Module.to(fresh, _device(model), next(model.parameters()).dtype)
    return fresh
