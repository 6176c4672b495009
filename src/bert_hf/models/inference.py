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
    """Compute batches of inputs of similar length, longest first; return one result per input, in input order.

    `compute(indices)` returns the results of a batch. A batch has at most `tokens` tokens, padding included, or if
    `rows` is given, `rows` inputs. An input of more tokens is a batch of its own. Shows a progress bar.
    """
    # Lengths 3, 9, 4, 8 with 18 tokens: [1, 3], [2, 0]
    order = np.argsort(-np.asarray(lengths), kind="stable").tolist()
    batches = []
    begin = 0
    while begin < len(order):
        longest = max(1, lengths[order[begin]])
        count = rows or max(1, (tokens or 1) // longest)
        batches.append(order[begin : begin + count])
        begin += count

    results: list[Any] = [None] * len(lengths)
    for indices in progress(batches, "computing", "batches"):
        for index, result in zip(indices, compute(indices), strict=True):
            results[index] = result
    return results
