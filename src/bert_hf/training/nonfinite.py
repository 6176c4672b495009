"""Detects losses and gradients that are not finite before they reach the weights, and reports where they come from."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from bert_hf.errors import NOT_FINITE, RunInterrupted
from bert_hf.training.distributed import Ranks


class NonFiniteGuard:
    """Check the loss of each micro-batch and the gradient norm of each step.

    A loss that is not finite makes its gradient not finite, and so the norm, which is the same on all ranks.
    The norm is read before the update. A GPU would run out of work meanwhile, so there the norm is copied to the host
    and read after the next step's backward pass, or by `settle` before anything is logged, evaluated or saved.
    """

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        self._losses: list[Tensor] = []  # of each micro-batch of the step
        self._check_pending: Callable[[], None] | None = None  # checks the norm of an earlier step, on a GPU

    def record_loss(self, loss: Tensor) -> Tensor:
        """Record a loss; return it, times NaN where it is not finite, so that its gradient is not finite either."""
        self._losses.append(loss.detach())
        return loss * torch.where(loss.detach().isfinite(), 1.0, math.nan)

    def has_bad_loss(self) -> bool:
        """Return True on all ranks if a loss of the current step is not finite on any. Called by all of them."""
        return self._ranks.any(any(not loss.isfinite().item() for loss in self._losses))

    def forget(self) -> None:
        """Drop the losses and the norm that an earlier training left; called when training begins."""
        self._losses = []
        self._check_pending = None

    def check_norm(self, norm: Any, step: int, scaler: torch.amp.GradScaler | None) -> None:
        """End the run if the norm of this step's gradient is not finite; on a GPU `settle` checks it later.

        None: no norm is known. Under fp16 the scaler of the loss skips updates that overflow, which is no error.
        """
        self.settle()

        may_overflow = scaler is not None and scaler.is_enabled()
        if isinstance(norm, Tensor) and norm.device.type == "cuda" and not may_overflow:
            losses = self._losses  # which `abort` names
            host_norm = norm.detach().to("cpu", non_blocking=True)
            event = torch.cuda.Event()
            event.record()

            def check_copied_norm() -> None:
                event.synchronize()
                if not math.isfinite(host_norm):
                    self._losses = losses
                    self.abort(step)

            self._check_pending = check_copied_norm
        elif norm is not None and not math.isfinite(norm) and (not may_overflow or self.has_bad_loss()):
            self.abort(step)
        self._losses = []

    def settle(self) -> None:
        """Check the norm of an earlier step that was not read yet, if any. Called by every rank."""
        check, self._check_pending = self._check_pending, None
        if check is not None:
            check()

    def abort(self, step: int) -> NoReturn:
        """End the run with a message that names the losses of a step that are not finite. Called by every rank."""
        losses = [loss.item() for loss in self._losses]
        my_bad_losses = [f"rank {self._ranks.rank}: loss {loss}" for loss in losses if not math.isfinite(loss)]
        bad_losses = itertools.chain.from_iterable(self._ranks.gather(my_bad_losses))
        problem = "; ".join(itertools.islice(bad_losses, 4)) or "gradient not finite"  # four: one readable line
        remedy = "lower --learning_rate or inspect the examples"
        raise RunInterrupted(f"step {step}: {problem}; this step is not saved; {remedy}", NOT_FINITE)
