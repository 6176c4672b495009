"""Counts parameters and FLOPs of a BERT, and measures how fast a device multiplies matrices."""

import torch
from torch.utils.benchmark import Timer
from transformers import BertConfig, BertForPreTraining


def parameter_count(config: BertConfig) -> int:
    """Return the number of parameters of `BertForPreTraining`; the decoder shares the word embeddings' weights."""
    with torch.device("meta"):  # takes no memory
        return BertForPreTraining(config).num_parameters()


def training_flops(config: BertConfig, tokens: float, squares: float, masked: float) -> float:
    """Return the floating-point operations of training on these tokens: two per multiply-add, three forward passes.

    (Backward takes two.) Padding does not count, and the vocabulary projection only for masked tokens. The last layer
    counts in full, though our model computes little of it, so that MFU is comparable with other projects'.
    `tokens` is the number of real tokens, `squares` Σ (real tokens of a row)², `masked` the number of masked tokens.
    """
    hidden, feed_forward = config.hidden_size, config.intermediate_size
    # Multiply-adds of a forward pass: query, key, value, output and feed-forward; scores and context; the head
    layer = (4 * hidden**2 + 2 * hidden * feed_forward) * tokens + 2 * hidden * squares
    head = (hidden**2 + hidden * config.vocab_size) * masked
    return 6.0 * (config.num_hidden_layers * layer + head)


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the FLOP/s of a product of two square matrices; of several rounds the fastest is the least disturbed."""
    side = 8192 if device.type == "cuda" else 1024  # on a GPU so large that launching it takes no part of the time
    # Random numbers, because some GPUs multiply constants faster; from a generator of their own, so that a run draws
    # the same numbers with and without this measurement.
    generator = torch.Generator(device).manual_seed(0)
    left, right = torch.empty((2, side, side), device=device, dtype=dtype).uniform_(-1, 1, generator=generator)
    timer = Timer("left @ right", globals={"left": left, "right": right}, num_threads=torch.get_num_threads())
    return 2.0 * side**3 / min(timer.blocked_autorange(min_run_time=0.1).times)
