"""Losses and gradients that are not finite: noticed before they reach the weights, and named."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bert_hf.errors import NOT_FINITE, RunInterrupted


class NonFiniteGuard:
    """Looks at the loss of each micro-batch and at the gradient's norm of each step.

    A loss that is not finite makes its gradient so as well; the norm, which all ranks share, then tells all of them,
    before the update. So a step costs no wait of its own.

    Args:
        allowed: updates that may be left out in the whole run before it ends.
        gather: what each rank has, in the order of ranks.
        name_rows: (step, first, count) → which rows of this rank's share of a step.
    """

    def __init__(
        self, rank: int, allowed: int, gather: Callable[[object], list], name_rows: Callable[[int, int, int], str]
    ):
        self.rank, self.allowed, self.gather, self.name_rows = rank, allowed, gather, name_rows
        self.left_out: list[int] = []  # steps whose update was left out
        self._losses: list[tuple[Tensor, int]] = []  # of the present step: loss and rows of each micro-batch
        self._before: list[tuple[Tensor, Tensor]] = []
        self._doubtful: tuple | None = None

    def begin(self, sums: list[Tensor]) -> None:
        """Before a micro-batch. Remembers `sums`, to which a step adds its losses, should it be left out."""
        if not self._losses:
            self._before = [(value, value.clone()) for value in sums]

    def loss(self, loss: Tensor, rows: int) -> Tensor:
        """The same loss; where it is not finite, neither is its gradient."""
        self._losses.append((loss.detach(), rows))
        return loss * torch.where(loss.detach().isfinite(), 1.0, math.nan)

    def a_loss_is_bad(self) -> bool:
        """True where a loss of this rank in the present step is not finite."""
        return any(not loss.isfinite().item() for loss, _ in self._losses)

    def step(self, bad: bool, step: int) -> bool:
        """After the norm: True where the update has to be left out, which is said.

        Raises:
            RunInterrupted: it is bad, and no more updates may be left out.
        """
        losses, self._losses = self._losses, []
        if not bad:
            return False
        if len(self.left_out) >= self.allowed:
            self.refuse(step, losses)
        self.left_out.append(step)
        report = self._report(step, losses)
        if self.rank == 0:
            print(f"{report}: its update is left out ({len(self.left_out)} of {self.allowed})", flush=True)
        for value, before in self._before:
            value.copy_(before)
        return True

    def refuse(self, step: int, losses: list[tuple[Tensor, int]] | None = None) -> None:
        """Ends the run because of a step. Called by every rank."""
        report = self._report(step, self._losses if losses is None else losses)
        remedy = "lower --learning_rate or look at that text; --skip_bad_steps N goes on without such steps"
        raise RunInterrupted(f"{report}; nothing of it is saved; {remedy}", NOT_FINITE)

    def _report(self, step: int, losses: list[tuple[Tensor, int]]) -> str:
        mine, row = [], 0
        for loss, rows in losses:
            if not math.isfinite(loss.item()):
                mine.append(f"rank {self.rank}: loss {loss.item()} of {self.name_rows(step, row, rows)}")
            row += rows
        found = [line for lines in self.gather(mine) for line in lines]
        whole = "gradient not finite" + (f", of {self.name_rows(step, 0, row)}" if row else "")
        return f"step {step}: {'; '.join(found[:4]) or whole}"

    # ---- where looking at once would keep an accelerator waiting
    def defer(self, norm: Tensor, step: int, optimizer: torch.optim.Optimizer) -> None:
        """Lets a fused optimizer leave a bad update out on the device; `settle` looks a step later.

        Untested on an accelerator; the CPU's fused optimizer takes the same way in the tests.
        """
        optimizer.grad_scale, optimizer.found_inf = None, (~norm.detach().isfinite()).float()
        host = torch.empty((), dtype=norm.dtype, pin_memory=norm.device.type == "cuda")
        host.copy_(norm.detach(), non_blocking=True)
        event = torch.Event(norm.device.type) if norm.device.type != "cpu" else None
        if event is not None:
            event.record()
        losses, self._losses = self._losses, []
        self._doubtful = host, event, step, losses

    def settle(self) -> None:
        """Looks at the norm of the step before, if that has not been done.

        Raises:
            RunInterrupted: it was not finite.
        """
        if self._doubtful is not None:
            (host, event, step, losses), self._doubtful = self._doubtful, None
            if event is not None:
                event.synchronize()
            if not math.isfinite(host.item()):
                self.refuse(step, losses)
