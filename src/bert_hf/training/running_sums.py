"""Sums over many micro-batches, kept on the device, as exact as float64 where the device has no float64.

A float32 sum of token counts stops being exact at 2²⁴, which a log line of large batches reaches. CUDA and CPU sum in
float64. Apple's MPS has no float64, nor have some of Intel's GPUs; there a sum is two float32: the sum, and what
rounding lost of it (Knuth's TwoSum), which together hold about as many digits.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor


@cache
def sum_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 where the device cannot add float64, which is tried."""
    try:
        torch.ones(2, dtype=torch.float64, device=device).sum().add(1.0)
    except (RuntimeError, TypeError):  # XPU without fp64, MPS
        return torch.float32
    return torch.float64


class RunningSums:
    """Sums of several numbers over micro-batches, without waiting for the device.

    Args:
        count: how many numbers are summed.
    """

    def __init__(self, count: int, device: torch.device):
        self.dtype = sum_dtype(device)
        # (2, count): the sums, and what rounding lost of them, which stays 0 in float64
        self._sums = torch.zeros(2, count, dtype=self.dtype, device=device)

    def add(self, values: list[Tensor | None]) -> None:
        """Adds the sum of each tensor; None adds nothing."""
        high, low = self._sums
        zero = high.new_zeros(())
        addend = torch.stack([zero if value is None else value.sum().to(self.dtype) for value in values])
        if self.dtype == torch.float64:
            high += addend
            return

        total = high + addend
        added = total - high
        low += (high - (total - added)) + (addend - added)
        high.copy_(total)

    def parts(self) -> list[Tensor]:
        """The tensors that hold the sums; a copy of them is enough to restore the sums."""
        return [self._sums]

    def values(self, reduce: Callable[[Tensor], Tensor] | None = None) -> list[float]:
        """The sums, on the host. `reduce` adds up a tensor over all ranks; every rank has to call it."""
        highs, lows = (self._sums if reduce is None else reduce(self._sums.clone())).tolist()
        return [high + low for high, low in zip(highs, lows, strict=True)]

    def set(self, values: list[float]) -> None:
        """Sets the sums to values on the host."""
        rounded = torch.tensor(values, dtype=self.dtype).tolist()
        lost = [value - high for value, high in zip(values, rounded, strict=True)]
        self._sums.copy_(torch.tensor([values, lost], dtype=self.dtype))

    def zero(self) -> None:
        self._sums.zero_()
