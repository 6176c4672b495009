"""Runs backward on the loss that was computed, whatever the installed Trainer makes of it, and checks that it does.

`Trainer.training_step` divides the loss by the accumulation steps unless it is told that this was done already. How
it is told differs between versions (`loss_is_scaled_for_ga` exists from transformers 5.19 on), and a version that does
not know the name divides silently. A loss that is a share of the whole global batch must never be divided.
"""

import contextlib
from collections.abc import Callable, Iterator
from importlib.metadata import version

import torch
from torch import Tensor, nn
from transformers import Trainer

from bert_hf.errors import InputError

_ACCUMULATION = 4  # accumulation steps that the trial step claims to be one of


def exact_training_step(trainer: Trainer, stock_step: Callable[..., Tensor], *inputs) -> Tensor:
    """`stock_step(*inputs)`, with `accelerator.backward` given exactly what `compute_loss` returned.

    Returns:
        that loss, detached.
    """
    computed: list[Tensor] = []
    compute_loss, backward = trainer.compute_loss, trainer.accelerator.backward

    def remember(*args, **kwargs) -> Tensor:
        computed.append(compute_loss(*args, **kwargs))
        return computed[-1]

    def backward_on_computed(_: Tensor, **kwargs) -> None:
        backward(computed[-1], **kwargs)

    with _attributes(trainer, compute_loss=remember), _attributes(trainer.accelerator, backward=backward_on_computed):
        stock_step(*inputs)
    return computed[-1].detach()


def check_training_step(trainer: Trainer) -> None:
    """Runs `trainer.training_step` once on a made-up loss, as one of four accumulation steps; looks at its gradient.

    A real call of the installed Trainer and accelerate, and no comparison of version strings. The loss is 3w, so the
    gradient of w has to be 3, times the loss scale under fp16. DeepSpeed's engine differentiates its own graph only;
    there the tensor that it would be given is looked at, and whether it is told not to divide by accumulation steps.

    Raises:
        InputError: the gradient is that of another loss.
    """
    weight = torch.ones((), device=trainer.args.device, requires_grad=True)
    received: list[Tensor] = []

    def compute_loss(model, inputs, return_outputs=False, num_items_in_batch=None) -> Tensor:
        return 3.0 * weight

    def receive(loss: Tensor, scale_wrt_gas: bool = True, **kwargs) -> None:
        received.append(loss.detach() / (_ACCUMULATION if scale_wrt_gas else 1))

    instead = {"backward": receive} if trainer.is_deepspeed_enabled else {}
    inputs = {"input_ids": torch.zeros(1, 1, dtype=torch.long)}
    pretended = {"compute_loss": compute_loss, "current_gradient_accumulation_steps": _ACCUMULATION}
    with _attributes(trainer, **pretended), _attributes(trainer.accelerator, **instead):
        trainer.training_step(nn.Module(), inputs, torch.ones(2, device=weight.device))

    scaler = getattr(trainer.accelerator, "scaler", None)
    scale = 1.0 if scaler is None or instead else scaler.get_scale()
    found = sum(received) if instead else weight.grad
    share = 0.0 if found is None else float(found) / scale / 3.0
    if share != 1.0:
        raise InputError(
            f"training_step runs backward on {share:g} times the loss that was computed",
            where=f"transformers {version('transformers')}, accelerate {version('accelerate')}",
            remedy="install versions that bert_hf allows, and no other code that changes Trainer",
        )


@contextlib.contextmanager
def _attributes(owner: object, **changes) -> Iterator[None]:
    """Sets attributes of an instance, and brings it back to what it was."""
    before = {name: vars(owner)[name] for name in changes if name in vars(owner)}
    vars(owner).update(changes)
    try:
        yield
    finally:
        for name in changes:
            del vars(owner)[name]
        vars(owner).update(before)
