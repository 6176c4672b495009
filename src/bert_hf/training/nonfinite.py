"""Detects losses and gradients that are not finite before they reach the weights, and reports where they come from."""

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from bert_hf.errors import NOT_FINITE, RunInterrupted
from bert_hf.training.distributed import Ranks

_Losses = list[tuple[Tensor, int]]  # the loss of each micro-batch, and of how many rows it is


class NonFiniteGuard:
    """Checks the loss of each micro-batch and the gradient norm of each step.

    A loss that is not finite makes its gradient not finite as well. The norm, which is the same on all ranks, then
    tells all of them, before the update. So checking the losses costs no synchronization.

    Args:
        allowed: updates that may be left out in the whole run before it ends.
        describe_rows: (step, first, count) → names rows of this rank's share of a step.
    """

    def __init__(self, ranks: Ranks, allowed: int, describe_rows: Callable[[int, int, int], str]):
        self.ranks = ranks
        self.allowed = allowed
        self.describe_rows = describe_rows
        self.left_out: list[int] = []  # steps whose update was left out
        self._losses: _Losses = []  # of the current step
        self._before: list[tuple[Tensor, Tensor]] = []  # sums, and their values before the current step

    def begin(self, sums: list[Tensor]) -> None:
        """Before a micro-batch: remembers the sums to which the step adds, in case its update is left out."""
        if not self._losses:
            self._before = [(value, value.clone()) for value in sums]

    def record_loss(self, loss: Tensor, rows: int) -> Tensor:
        """Records a loss. Returns it, with a gradient that is not finite where the loss is not."""
        self._losses.append((loss.detach(), rows))
        return loss * torch.where(loss.detach().isfinite(), 1.0, math.nan)

    def has_bad_loss(self) -> bool:
        """True where a loss of this rank in the current step is not finite."""
        return any(not loss.isfinite().item() for loss, _ in self._losses)

    def forget(self) -> None:
        """Drops the losses recorded so far: they are not those of a step."""
        self._losses = []

    def check_norm(self, norm: Any, step: int, *, scaler: torch.amp.GradScaler | None, updated: bool) -> bool:
        """Called after backward of a step, with the norm of its gradient (the same on all ranks; None is good).

        Args:
            scaler: of the loss, under fp16.
            updated: the weights are already updated, by DeepSpeed.

        Returns:
            True where the update has to be left out, which is reported.

        Raises:
            RunInterrupted: the step is bad, and no more updates may be left out.
        """
        if scaler is not None and scaler.is_enabled():  # it leaves out updates that overflow, which is no error
            bad = self.ranks.any(self.has_bad_loss())
        else:
            bad = norm is not None and not math.isfinite(norm)

        losses, self._losses = self._losses, []
        if not bad:
            return False
        if updated or len(self.left_out) >= self.allowed:
            self._refuse(step, losses)

        self.left_out.append(step)
        report = self._report(step, losses)
        if self.ranks.rank == 0:
            print(f"{report}: its update is left out ({len(self.left_out)} of {self.allowed})", flush=True)
        for value, before in self._before:
            value.copy_(before)
        return True

    def refuse(self, step: int) -> NoReturn:
        """Ends the run because of a step. Called by every rank."""
        self._refuse(step, self._losses)

    def _refuse(self, step: int, losses: _Losses) -> NoReturn:
        raise RunInterrupted(
            f"{self._report(step, losses)}; nothing of it is saved; lower --learning_rate or look at that text",
            NOT_FINITE,
        )

    def _report(self, step: int, losses: _Losses) -> str:
        """Names the bad losses of all ranks and their rows; without any, the rows of the step."""
        mine = []
        first_row = 0
        for loss, rows in losses:
            if not math.isfinite(loss.item()):
                where = self.describe_rows(step, first_row, rows)
                mine.append(f"rank {self.ranks.rank}: loss {loss.item()} of {where}")
            first_row += rows

        found = [line for lines in self.ranks.gather(mine) for line in lines]
        if found:
            return f"step {step}: {'; '.join(found[:4])}"
        of_rows = f", of {self.describe_rows(step, 0, first_row)}" if first_row else ""
        return f"step {step}: gradient not finite{of_rows}"
