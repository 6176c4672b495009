"""Compares the fast path with the plain path on the first batch of a run, and takes the plain one if they differ."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bert_hf.console import logger
from bert_hf.errors import first_line
from bert_hf.models.functional import DROP_NOTHING
from bert_hf.models.micro_batches import split_micro_batch
from bert_hf.models.modeling_bert import BertForPreTraining, PreTrainingLosses

_TOKENS = 2048  # of the batch, padding included, are compared: that needs little memory
_LAYERS = 2  # of the network that computes them: it has the sizes of the run's, so it runs the same kernels
_LOSS_SCALE = 1024.0  # without it small gradients vanish in fp16; a power of two, so dividing by it is exact

# How much the paths may differ, as they sum the same products in another order (docs/speed.md): |l − l′| ≤ loss ·
# max(1, |l|), for each parameter ‖gₜ − gₜ′‖ ≤ tensor · ‖gₜ‖ + floor · ‖g‖. (Some gradients are only rounding.)
FP32 = {"loss": 1e-5, "tensor": 1e-3, "floor": 1e-7}
HALF = {"loss": 1e-3, "tensor": 5e-1, "floor": 5e-3}  # bf16, fp16, and fp32 rounded to TF32

LossFunction = Callable[[BertForPreTraining, dict], PreTrainingLosses]  # of (model, inputs)
LossAndGradient = tuple[float, dict[str, Tensor]]


@dataclass
class FastPathCheck:
    """Choose the path of a run with its first batch."""

    mode: str  # auto compares; on and off choose
    losses_of: LossFunction  # computed as the run does
    gather: Callable[[object], list]  # collects an object from each rank; all ranks take the same path
    half: bool  # matrix products have 16 bits
    is_due: bool = True

    def choose(self, model: nn.Module, inputs: dict) -> None:
        """Set the model's path, on all ranks together. Random generators stay as they were."""
        if "labels" not in inputs:
            return
        self.is_due = False
        if self.mode == "on" or not isinstance(model, BertForPreTraining) or not model.fast_path:
            return

        fault = find_fault(model, self.losses_of, inputs, self.half) if self.mode == "auto" else "--fast_path off"
        faults = [fault for fault in self.gather(fault) if fault is not None]
        if faults:
            model.fast_path = False  # it is not saved with the model
            logger.info(f"using the plain path (slower, same results): {faults[0]}")


def find_fault(model: BertForPreTraining, losses_of: LossFunction, inputs: dict, half: bool = False) -> str | None:
    """Compare loss and gradient of the two paths on a few rows; return how they differ, or None."""
    device = model.device
    # Not `get_float32_matmul_precision`: it raises where TF32 was chosen by `fp32_precision`, as transformers does
    tf32 = device.type == "cuda" and torch.backends.cuda.matmul.fp32_precision == "tf32"
    bounds = HALF if half or tf32 or model.dtype != torch.float32 else FP32
    piece = next(split_micro_batch(inputs, rows=max(1, _TOKENS // inputs["input_ids"].shape[1])))

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
        network = _small_network(model)
        plain = _loss_and_gradient(network, losses_of, piece)

        network.zero_grad()
        network.fast_path = True
        if model.config.attention_probs_dropout_prob:
            network.config.attention_probs_dropout_prob = DROP_NOTHING
        try:
            fast = _loss_and_gradient(network, losses_of, piece)
        except Exception as error:
            return f"the fast path fails with {type(error).__name__}: {first_line(error)}"
    return difference(plain, fast, bounds)


def _small_network(model: BertForPreTraining) -> BertForPreTraining:
    """Return a network of the model's sizes with few layers, on the plain path.

    Nothing is dropped, but the kernels of dropout run if the model has it.
    """
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = min(_LAYERS, config.num_hidden_layers)
    config.initializer_range = config.hidden_size**-0.5  # it attends as strongly as a trained one
    config.hidden_dropout_prob = DROP_NOTHING if config.hidden_dropout_prob else 0.0
    config.attention_probs_dropout_prob = 0.0

    with model.device:
        network = type(model)(config)
    network.to(model.dtype)  # pyright: ignore[reportArgumentType] - transformers' decorator hides self
    network.fast_path = False
    return network.train()


def _loss_and_gradient(model: BertForPreTraining, losses_of: LossFunction, inputs: dict) -> LossAndGradient:
    """Return the loss (sum of the means) and its gradient by parameter."""
    losses = losses_of(model, inputs)
    means = [each.float().mean() for each in (losses.mlm_losses, losses.nsp_losses) if each is not None and len(each)]
    if not means:  # a batch without a token that can be predicted
        return 0.0, {}
    loss = torch.stack(means).sum()
    (loss * _LOSS_SCALE).backward()
    gradients = {name: p.grad.float() / _LOSS_SCALE for name, p in model.named_parameters() if p.grad is not None}
    return loss.item(), gradients


def difference(plain: LossAndGradient, fast: LossAndGradient, bounds: dict[str, float]) -> str | None:
    """Return how two losses and gradients differ by more than the bounds; None if they do not."""
    loss, gradient = plain
    if not abs(fast[0] - loss) <= bounds["loss"] * max(1.0, abs(loss)):  # NaN differs, too
        return f"the loss of the fast path is {fast[0]:.7g}, the plain path's {loss:.7g}"

    norms = {name: tensor.norm().item() for name, tensor in gradient.items()}
    total = sum(norm**2 for norm in norms.values()) ** 0.5
    for name, norm in norms.items():
        error = (fast[1][name] - gradient[name]).norm().item()
        if not error <= bounds["tensor"] * norm + bounds["floor"] * total:
            return f"the fast path's gradient of {name} differs by {error:.1e}, its norm is {norm:.1e}"
    return None
