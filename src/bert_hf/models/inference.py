"""Runs a network over inputs of different lengths, in batches that hold little padding."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from bert_hf.console import progress


@torch.inference_mode()
def run_by_length(
    lengths: Sequence[int],
    compute: Callable[[list[int]], Iterable],
    *,
    tokens: int | None = None,
    rows: int | None = None,
) -> list[Any]:
    """Return what `compute` gives for each input of these lengths; it gets the numbers of a batch's inputs.

    The largest batch has `tokens` tokens (padding included), or `rows` inputs.
    """
    # The longest inputs first; one may be larger than `tokens`. Lengths 3, 9, 4, 8 with 18 tokens: [1, 3], [2, 0]
    order = np.argsort(-np.asarray(lengths), kind="stable").tolist()
    batches = []
    begin = 0
    while begin < len(order):
        count = rows or max(1, (tokens or 1) // max(1, lengths[order[begin]]))
        batches.append(order[begin : begin + count])
        begin += count

    results: list[Any] = [None] * len(lengths)
    for numbers in progress(batches, "computing", "batches"):
        for number, value in zip(numbers, compute(numbers), strict=True):
            results[number] = value
    return results
