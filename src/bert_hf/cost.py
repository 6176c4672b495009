"""What a run costs: its floating-point operations, and the rate at which a device does them."""

import time

import torch
from transformers import BertConfig


def training_flops(config: BertConfig, tokens: float, squares: float, masked: float) -> float:
    """Floating-point operations of forward and backward that a step cannot do without.

    Three times the forward pass's multiply-adds, counted twice: each layer's matrices for every real (non-padding)
    token, attention scores and their use for every pair of tokens of a row, the head for the masked tokens alone.

    Args:
        tokens: real tokens. squares: Σ (real tokens of a row)². masked: predicted tokens.
    """
    hidden, wide = config.hidden_size, config.intermediate_size
    layer = (4 * hidden**2 + 2 * hidden * wide) * tokens + 2 * hidden * squares
    head = (hidden**2 + hidden * config.vocab_size) * masked
    return 6.0 * (config.num_hidden_layers * layer + head)


def matrix_product_rate(device: torch.device, dtype: torch.dtype, seconds: float = 0.2) -> float:
    """FLOP/s of a plain matrix product here and now: what MFU is a share of."""
    side = 8192 if device.type == "cuda" else 1024
    left = right = torch.full((side, side), 0.5, device=device, dtype=dtype)  # no draw: the run's dropout comes next
    products, begin = 0, time.perf_counter()
    while products < 3 or time.perf_counter() - begin < seconds:
        if products == 1:  # the first one warms up
            begin = time.perf_counter()
        _ = left @ right
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        products += 1
    return 2 * side**3 * (products - 1) / (time.perf_counter() - begin)
