"""Faster forms of dropout with a residual, of the masked-token loss, and of several projections of one input.

Each function computes the same as its plain PyTorch form; `tests/models/test_functional.py` compares the two. Under
`torch.compile`, which fuses them itself, the plain forms are used.

Shapes: H hidden size · V vocabulary · M masked tokens of the batch.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

IGNORE_INDEX = -100  # label of a token that is not predicted: PyTorch's and transformers' convention

_CACHED_SCORES = 1 << 18  # logits that a CPU turns into probabilities at a time: 1 MiB of fp32
_ROW_MULTIPLE = 10  # in bf16 a CPU fills up the rows of logits to a multiple of this


# ---- dropout


def _drop_below(p: float) -> int:
    """Return the int16 below which a random int16 means "drop": one of 2¹⁶ steps, so p is met within 2⁻¹⁷."""
    return round(p * 65536) - 32768


def keep_mask(shape: torch.Size, p: float, dtype: torch.dtype) -> Tensor:
    """Draw 1 where a value is kept, 0 where it is dropped with probability p, from PyTorch's CPU generator.

    Four values share one 64-bit draw. This takes a fifth of the time of `Tensor.bernoulli_`, which spends a 32-bit
    draw and a floating-point comparison on each value, in one thread.
    """
    size = shape.numel()
    draws64 = torch.empty((size + 3) // 4, dtype=torch.int64).random_(-(2**63), None)  # any int64
    draws = draws64.view(torch.int16)[:size].view(shape)
    return torch.ge(draws, _drop_below(p), out=torch.empty(shape, dtype=dtype))


def keep_scale(p: float) -> float:
    """Return 1 / share of values that `keep_mask` keeps, exactly."""
    return 65536 / (32768 - _drop_below(p))


class _DropoutAdd(Function):
    """Compute x · mask / (1 − p) + residual, in one pass over the data forward and one backward."""

    @staticmethod
    def forward(ctx, x: Tensor, residual: Tensor | None, p: float) -> Tensor:
        mask = keep_mask(x.shape, p, x.dtype)
        ctx.save_for_backward(mask)
        ctx.p = p
        ctx.has_residual = residual is not None
        if residual is not None and residual.dtype != x.dtype:  # `addcmul` first converts both factors to fp32
            return torch.add(residual, x * mask, alpha=keep_scale(p))
        addend = x.new_zeros(()) if residual is None else residual
        return torch.addcmul(addend, x, mask, value=keep_scale(p))

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (gradient,) = gradients
        (mask,) = ctx.saved_tensors
        for_x = torch.addcmul(mask.new_zeros(()), gradient.to(mask.dtype), mask, value=keep_scale(ctx.p))
        return for_x, gradient if ctx.has_residual else None, None


class DropoutAdd(nn.Dropout):
    """`nn.Dropout`, then the sum with a residual if there is one; faster on a CPU for (T, H), the real tokens."""

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        if not self.training or not self.p:
            dropped = input
        # (T, H) is a batch without padding; a padded one is computed as stock does. With p = 1 the scale is 1 / 0
        elif input.dim() == 2 and input.device.type == "cpu" and self.p < 1 and not torch.compiler.is_compiling():
            return _DropoutAdd.apply(input, residual, self.p)
        else:
            dropped = F.dropout(input, self.p)

        return dropped if residual is None else dropped + residual


# ---- loss of the masked tokens


class _ProjectedCrossEntropy(Function):
    """Compute the cross entropy of `hidden · weightᵀ + bias`; keep one (M, V) buffer, already the logits' gradient.

    That gradient is softmax − one-hot, times one number for each row. The difference is taken in fp32 and rounded
    afterwards; the number multiplies the small (M, H) side of each product instead of the (M, V) one.
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

        # Is the label the likeliest token? In 16 bit many logits tie, and only the first of them is the prediction:
        # search it in rows where the label's is the highest, or in all on a device, which waits for `nonzero`.
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
        hidden, weight, difference, has_label = ctx.saved_tensors

        # Scale rows relative to the largest scale: most equal it, and 1 is not rounded in 16 bit. (All may be 0.)
        row_scales = gradient * has_label
        tiny = row_scales.new_full((1,), torch.finfo(torch.float32).tiny)
        largest = torch.cat([row_scales.abs(), tiny]).amax()
        relative_scales = (row_scales / largest).to(difference.dtype).unsqueeze(1)  # (M, 1)

        for_hidden = (difference @ weight) * relative_scales
        for_weight = difference.t() @ (hidden * relative_scales)
        for_bias = (relative_scales.t() @ difference).squeeze(0)
        gradients = (for_hidden, for_weight, for_bias)
        return *(x.to(dtype).mul_(largest) for x, dtype in zip(gradients, ctx.dtypes, strict=True)), None


def _subtract_targets_from_softmax_(logits: Tensor, targets: Tensor) -> Tensor:
    """Replace logits (M, V) by softmax − one-hot of the targets (M, 1); return each row's largest probability (M,).

    Softmax and difference are fp32, and rounded afterwards. On a CPU they are made of a few rows at a time, which stay
    in the cache of a core: a third of the time with 8,192 tokens in the vocabulary, and half with 30,522.
    """
    rows = max(1, _CACHED_SCORES // logits.shape[1]) if logits.device.type == "cpu" else max(1, len(logits))
    minus_one = targets.new_full((rows, 1), -1.0, dtype=torch.float32)
    top_probabilities = []

    for part, part_targets in zip(logits.split(rows), targets.split(rows), strict=True):
        scores = part.float()  # in fp32 the same tensor
        torch.softmax(scores, -1, out=scores)
        top_probabilities.append(scores.amax(1))
        scores.scatter_add_(1, part_targets, minus_one[: len(part)])
        if scores.dtype != part.dtype:
            part.copy_(scores)
    return torch.cat(top_probabilities)


def _product_dtype(weight: Tensor) -> torch.dtype:
    """Return the precision of a product: autocast's where it is on, which does not reach into a `Function`."""
    kind = weight.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return weight.dtype


def multiplies_in_bf16(weight: Tensor) -> bool:
    """Return True if products with these weights are bf16 on a CPU, where oneDNN computes them."""
    return weight.device.type == "cpu" and _product_dtype(weight) == torch.bfloat16


def projected_cross_entropy(hidden: Tensor, decoder: nn.Linear, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the cross entropy of `decoder(hidden)` with one (M, V) buffer, for which PyTorch needs several.

    Under autocast the products have its precision; softmax and loss are fp32, as PyTorch's. On a CPU in bf16,
    rows of zeros are added, as oneDNN divides them into equal blocks: 1,058 = 2 · 23² took 1.4 times as long as 1,060.

    The input is (M, H). Return losses (M,) in nats, fp32, 0 where the label is `IGNORE_INDEX`, and whether each
    prediction is right (M,).
    """
    if torch.compiler.is_compiling() or not are_plain_linear(decoder):
        return losses_and_correct(decoder(hidden), labels)

    rows = len(labels)
    added_rows = -rows % _ROW_MULTIPLE if multiplies_in_bf16(decoder.weight) else 0
    filled = F.pad(hidden, (0, 0, 0, added_rows))
    filled_labels = F.pad(labels, (0, added_rows), value=IGNORE_INDEX)

    losses, correct = _ProjectedCrossEntropy.apply(filled, decoder.weight, decoder.bias, filled_labels)
    return losses[:rows], correct[:rows]


def losses_and_correct(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return `token_losses`, and whether the most likely prediction is the label (N,)."""
    return token_losses(logits, labels), logits.argmax(-1) == labels


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy (N,), nats in fp32, of logits (N, classes) and labels (N,); 0 at ignored labels."""
    return F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="none")


# ---- projections


def are_plain_linear(*layers: nn.Module) -> bool:
    """Return True if weights may be used without calling their layers: no adapter, hook or engine is attached."""
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
    """Compute `F.linear` of rows (n, H) in bf16. PyTorch copies the bias to all rows and sums its gradient slowly."""

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
        ones = gradient.new_ones(1, len(gradient))
        # From many rows oneDNN computes a wide matrix faster than its tall transpose: 6 % for 7,000 tokens of mini
        tall = len(gradient) > 4 * gradient.shape[1] > 4 * hidden.shape[1]
        for_weight = (hidden.t() @ gradient).t().contiguous() if tall else gradient.t() @ hidden
        for_bias = (ones @ gradient).squeeze(0)  # faster than `sum(0)`
        gradients = (gradient @ weight, for_weight, for_bias)
        return tuple(x.to(dtype) for x, dtype in zip(gradients, ctx.dtypes, strict=True))


def _linear_without_gradient(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `F.linear`; oneDNN (bf16 on a CPU) adds the bias within the product."""
    on_cpu = hidden.device.type == "cpu" and torch.backends.mkldnn.is_available()
    if on_cpu and hidden.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.ops.mkldnn._linear_pointwise(hidden, weight, bias, "none", [], "")
    return F.linear(hidden, weight, bias)


def _linear(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `F.linear`, by `_LinearOnCPU` where that is faster; under `torch.compile` it is not."""
    if hidden.dim() == 2 and not torch.compiler.is_compiling() and multiplies_in_bf16(weight):
        return cast(Tensor, _LinearOnCPU.apply(hidden, weight, bias))
    return F.linear(hidden, weight, bias)


def fast_linear(hidden: Tensor, layer: nn.Linear) -> Tensor:
    """Compute `layer(hidden)`, faster in bf16 on a CPU."""
    return _linear(hidden, layer.weight, layer.bias) if are_plain_linear(layer) else layer(hidden)


def project(hidden: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Compute several linear layers of the same input (…, H), by one product where that is faster.

    In fp32 on a CPU it is not (2 % of the mini model's step). Under autocast it also casts the input once, not thrice.
    """
    slower = hidden.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    if slower or not are_plain_linear(*layers):
        return tuple(layer(hidden) for layer in layers)

    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat([layer.bias for layer in layers])
    return _linear(hidden, weight, bias).split([layer.out_features for layer in layers], dim=-1)
