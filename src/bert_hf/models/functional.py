"""Faster forms of dropout with a residual, of the masked-token loss, and of several projections of one input.

Each function computes the same as its plain PyTorch form; `tests/models/test_functional.py` compares the two. Under
`torch.compile`, which fuses them itself, the plain forms are used.

Shapes: H hidden size · V vocabulary · M masked tokens of the batch · T real tokens of the batch, without padding.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

IGNORE_INDEX = -100  # label of a token that is not predicted: PyTorch's and transformers' convention

_CACHED_LOGITS = 1 << 18  # logits that a CPU turns into probabilities at a time: 1 MiB of fp32
_ROW_MULTIPLE = 10  # in bf16 a CPU fills up the rows of logits to a multiple of this


# ---- dropout


def _drop_threshold(p: float) -> int:
    """Return the number below which a random int16 lies with probability p, within 2⁻¹⁷: it has 2¹⁶ values."""
    return round(p * 65536) - 32768


def keep_mask(shape: torch.Size, p: float, dtype: torch.dtype) -> Tensor:
    """Return a random mask, 0 with probability p (drop) and else 1 (keep), drawn from PyTorch's CPU generator.

    Four values share one 64-bit draw. This takes a fifth of the time of `Tensor.bernoulli_`, which spends a 32-bit
    draw and a floating-point comparison on each value, in one thread.
    """
    size = shape.numel()
    draws64 = torch.empty((size + 3) // 4, dtype=torch.int64).random_(-(2**63), None)  # any int64
    draws = draws64.view(torch.int16)[:size].view(shape)
    return torch.ge(draws, _drop_threshold(p), out=torch.empty(shape, dtype=dtype))  # without a copy in bool


def keep_scale(p: float) -> float:
    """Return 1 / share of values that `keep_mask` keeps, exactly."""
    return 65536 / (32768 - _drop_threshold(p))


class _DropoutAdd(Function):
    """Compute x · mask / (1 − p), plus the residual if there is one: in one operation if both have the same dtype."""

    @staticmethod
    def forward(ctx, x: Tensor, residual: Tensor | None, p: float) -> Tensor:
        mask = keep_mask(x.shape, p, x.dtype)
        ctx.save_for_backward(mask)
        ctx.p = p
        ctx.has_residual = residual is not None
        if residual is not None and residual.dtype != x.dtype:  # `addcmul` would convert both factors to fp32
            return torch.add(residual, x * mask, alpha=keep_scale(p))
        addend = x.new_zeros(()) if residual is None else residual
        return torch.addcmul(addend, x, mask, value=keep_scale(p))

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (gradient,) = gradients
        (mask,) = ctx.saved_tensors
        grad_x = torch.addcmul(mask.new_zeros(()), gradient.to(mask.dtype), mask, value=keep_scale(ctx.p))
        grad_residual = gradient if ctx.has_residual else None
        return grad_x, grad_residual, None


class DropoutAdd(nn.Dropout):
    """`nn.Dropout`, then the sum with a residual if there is one; faster on a CPU for (T, H), the real tokens."""

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        # (T, H) is a batch without padding; a padded one is computed as stock does. With p = 1 the scale is 1 / 0
        is_fast = input.dim() == 2 and input.device.type == "cpu" and not torch.compiler.is_compiling()
        if is_fast and self.training and 0 < self.p < 1:
            return _DropoutAdd.apply(input, residual, self.p)
        dropped = super().forward(input)
        return dropped if residual is None else dropped + residual


# ---- loss of the masked tokens


class _ProjectedCrossEntropy(Function):
    """Compute the cross entropy of `hidden · weightᵀ + bias`, with one (M, V) buffer: logits, then their gradient.

    That gradient is softmax − one-hot, times the gradient of the row's loss. The difference is computed in fp32 and
    rounded afterwards; the factor multiplies the small (M, H) side of each product instead of the (M, V) one.
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return (M,) losses, and (M,) whether the label is the likeliest token.

        The logits are overwritten by their gradient, which `backward` needs.
        """
        # Logits, in the precision of autocast
        dtype = _product_dtype(weight)
        cast_hidden = hidden.to(dtype)
        cast_weight = weight.to(dtype)
        logits = _linear_without_gradient(cast_hidden, cast_weight, bias.to(dtype))  # (M, V)

        # Is the label the likeliest token? In 16 bit several logits may be the highest, and the first of them is the
        # prediction: look for it where the label's is among them; on a GPU in all rows: it would wait for `nonzero`.
        has_label = labels != IGNORE_INDEX
        targets = labels.masked_fill(~has_label, 0).unsqueeze(1)  # (M, 1)
        target_logits = logits.gather(1, targets).squeeze(1).float()
        highest = logits.amax(1)
        correct = (target_logits >= highest) & has_label
        if dtype != torch.float32:
            candidates = correct.nonzero().squeeze(1) if logits.device.type == "cpu" else slice(None)
            correct[candidates] = logits[candidates].max(1).indices == labels[candidates]

        # Losses: log Σ exp(logit) = highest − log(probability of the highest), without another pass of exponentials
        top_probabilities = _subtract_targets_from_softmax_(logits, targets)
        losses = (highest.float() - top_probabilities.log() - target_logits) * has_label

        ctx.save_for_backward(cast_hidden, cast_weight, logits, has_label)  # now the gradient of the logits
        ctx.dtypes = hidden.dtype, weight.dtype, bias.dtype
        ctx.mark_non_differentiable(correct)
        return losses, correct

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator makes ctx positional-only
        ctx, gradient: Tensor, _
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, difference, has_label = ctx.saved_tensors  # softmax − one-hot

        # Scale rows relative to the largest scale: most equal it, and 1 is not rounded in 16 bit. (All may be 0.)
        row_scales = gradient * has_label
        tiny = row_scales.new_full((1,), torch.finfo(torch.float32).tiny)
        largest = torch.cat([row_scales.abs(), tiny]).amax()
        relative_scales = (row_scales / largest).to(difference.dtype).unsqueeze(1)  # (M, 1)

        grad_hidden = (difference @ weight) * relative_scales
        grad_weight = difference.t() @ (hidden * relative_scales)
        grad_bias = (relative_scales.t() @ difference).squeeze(0)
        gradients = (grad_hidden, grad_weight, grad_bias)
        return *(x.to(dtype).mul_(largest) for x, dtype in zip(gradients, ctx.dtypes, strict=True)), None


def _subtract_targets_from_softmax_(logits: Tensor, targets: Tensor) -> Tensor:
    """Replace logits (M, V) by softmax − one-hot of the targets (M, 1); return each row's largest probability (M,).

    Softmax and difference are fp32, and rounded afterwards. A CPU computes a few rows at a time, which stay in the
    cache of a core: a third of the time with 8,192 tokens in the vocabulary, and half with 30,522.
    """
    rows = max(1, _CACHED_LOGITS // logits.shape[1]) if logits.device.type == "cpu" else max(1, len(logits))
    minus_one = targets.new_full((rows, 1), -1.0, dtype=torch.float32)
    top_probabilities = []

    for chunk, chunk_targets in zip(logits.split(rows), targets.split(rows), strict=True):
        probabilities = chunk.float()  # a copy, or in fp32 the chunk itself
        torch.softmax(probabilities, -1, out=probabilities)
        top_probabilities.append(probabilities.amax(1))
        difference = probabilities.scatter_add_(1, chunk_targets, minus_one[: len(chunk)])
        if difference.dtype != chunk.dtype:
            chunk.copy_(difference)
    return torch.cat(top_probabilities)


def _product_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of products with a weight: autocast's if it is on. (A `Function` must cast by itself.)"""
    device_type = weight.device.type
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return weight.dtype


def multiplies_in_bf16(weight: Tensor) -> bool:
    """Return True if products with this weight are computed in bf16 on a CPU, which oneDNN does."""
    return weight.device.type == "cpu" and _product_dtype(weight) == torch.bfloat16


def projected_cross_entropy(hidden: Tensor, decoder: nn.Linear, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the cross entropy of `decoder(hidden)` with one (M, V) buffer; PyTorch's operations need several.

    Under autocast the products have its precision; softmax and loss are fp32, as PyTorch's. On a CPU in bf16,
    rows of zeros are added, as oneDNN divides them into equal blocks: 1,058 = 2 · 23² took 1.4 times as long as 1,060.

    The input is (M, H). Return losses (M,) in nats, fp32, 0 where the label is `IGNORE_INDEX`, and whether each
    prediction is right (M,).
    """
    if torch.compiler.is_compiling() or not are_plain_linear(decoder):
        return losses_and_correct(decoder(hidden), labels)

    rows = len(labels)
    added_rows = -rows % _ROW_MULTIPLE if multiplies_in_bf16(decoder.weight) else 0
    filled_hidden = F.pad(hidden, (0, 0, 0, added_rows))
    filled_labels = F.pad(labels, (0, added_rows), value=IGNORE_INDEX)

    losses, correct = _ProjectedCrossEntropy.apply(filled_hidden, decoder.weight, decoder.bias, filled_labels)
    return losses[:rows], correct[:rows]


def losses_and_correct(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return `token_losses` (N,), and (N,) whether the class with the highest logit is the label."""
    return token_losses(logits, labels), logits.argmax(-1) == labels


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy (N,), nats in fp32, of logits (N, classes) and labels (N,); 0 at ignored labels."""
    return F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="none")


# ---- projections


def are_plain_linear(*layers: nn.Module) -> bool:
    """Return True if the layers' weights suffice: plain `nn.Linear`, with no adapter, hook or engine at the call."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return all(
        type(layer) is nn.Linear
        and layer.bias is not None
        and "forward" not in vars(layer)  # accelerate's offloading replaces it on the instance
        and not any(getattr(layer, name) for name in hooks)
        and not hasattr(layer.weight, "ds_id")  # ZeRO 3 gathers a weight when its layer is called
        for layer in layers
    )


class _LinearOnCPU(Function):
    """Compute `F.linear` of (T, H) in bf16; PyTorch's copies the bias to each row, and is slow to sum its gradient."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.dtypes = hidden.dtype, weight.dtype, bias.dtype
        hidden, weight, bias = (x.to(torch.bfloat16) for x in (hidden, weight, bias))
        ctx.save_for_backward(hidden, weight)
        return _linear_without_gradient(hidden, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator makes ctx positional-only
        ctx, gradient: Tensor
    ) -> tuple[Tensor, ...]:
        hidden, weight = ctx.saved_tensors
        # From many rows oneDNN computes a wide matrix faster than its tall transpose: 6 % for 7,000 tokens of mini
        rows, outputs = gradient.shape
        is_tall = rows > 4 * outputs and outputs > hidden.shape[1]
        grad_weight = (hidden.t() @ gradient).t().contiguous() if is_tall else gradient.t() @ hidden
        grad_bias = (gradient.new_ones(1, rows) @ gradient).squeeze(0)  # faster than `sum(0)`
        gradients = (gradient @ weight, grad_weight, grad_bias)
        return tuple(x.to(dtype) for x, dtype in zip(gradients, ctx.dtypes, strict=True))


def _linear_without_gradient(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `F.linear` within a `Function`: oneDNN's form, for bf16 on a CPU, adds the bias but has no gradient."""
    on_cpu = hidden.device.type == "cpu" and torch.backends.mkldnn.is_available()
    if on_cpu and hidden.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.ops.mkldnn._linear_pointwise(hidden, weight, bias, "none", [], "")
    return F.linear(hidden, weight, bias)


def _linear_with_gradient(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `F.linear`, by `_LinearOnCPU` where that is faster; under `torch.compile` it is not."""
    if hidden.dim() == 2 and not torch.compiler.is_compiling() and multiplies_in_bf16(weight):
        return cast(Tensor, _LinearOnCPU.apply(hidden, weight, bias))
    return F.linear(hidden, weight, bias)


def fast_linear(hidden: Tensor, layer: nn.Linear) -> Tensor:
    """Compute `layer(hidden)`, faster in bf16 on a CPU."""
    return _linear_with_gradient(hidden, layer.weight, layer.bias) if are_plain_linear(layer) else layer(hidden)


def project(hidden: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Return the results of several linear layers for the same input (…, H), by one product where that is faster.

    On a CPU without autocast it is not (2 % of the mini model's step). Under autocast the input is cast only once.
    """
    is_slower = hidden.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    if is_slower or not are_plain_linear(*layers):
        return tuple(layer(hidden) for layer in layers)

    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat([layer.bias for layer in layers])
    return _linear_with_gradient(hidden, weight, bias).split([layer.out_features for layer in layers], dim=-1)
