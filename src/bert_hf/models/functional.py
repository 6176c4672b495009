"""The arithmetic that decides the speed: dropout, attention without padding, the loss of the masked tokens.

Each function computes what its plain PyTorch form does, and says what it saves; `tests/test_kernels.py` compares them.
Nothing here is compiled, so nothing needs a compiler; under `torch.compile` the plain forms are used, which it fuses.

Shapes: B rows · L length · T real tokens of all rows · Q tokens that are read in the last layer · A heads · D head
size · H hidden size · V vocabulary · M masked tokens.
"""

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

IGNORED = -100  # label of a token that is not predicted: PyTorch's and transformers' convention
NEVER = 2.0**-30  # a dropout that drops nothing, and yet is computed as any other: to compare results with and without


# ---- dropout


def _threshold(p: float) -> int:
    """Of 2¹⁶ equally likely int16, those below it are dropped: p is met within 2⁻¹⁷."""
    return round(p * 65536) - 32768


def kept(shape: torch.Size, p: float, dtype: torch.dtype) -> Tensor:
    """1 where a value is kept, 0 where it is dropped with probability p, drawn from PyTorch's CPU generator.

    Four values share one 64-bit draw, and so cost a fifth of `Tensor.bernoulli_`, which spends a 32-bit draw and a
    floating-point comparison, on one thread, for each.
    """
    size = shape.numel()
    words = torch.empty((size + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    draws = words.view(torch.int16)[:size].view(shape)
    return torch.ge(draws, _threshold(p), out=torch.empty(shape, dtype=dtype))


def _scale(p: float) -> float:
    """1 / share that is kept: the exact one of `kept`."""
    return 65536 / (32768 - _threshold(p))


def _drawn(p: float) -> float:
    """The probability that PyTorch's own dropout is given: it may drop a value even at `NEVER`, and not at 0."""
    return 0.0 if p <= NEVER else p


class _Dropout(Function):
    """x · kept / (1 − p) (+ around), with one pass each way over what is kept."""

    @staticmethod
    def forward(ctx, x: Tensor, around: Tensor | None, p: float) -> Tensor:
        ctx.p, ctx.added = p, around is not None
        mask = kept(x.shape, p, x.dtype)
        ctx.save_for_backward(mask)
        return torch.addcmul(x.new_zeros(()) if around is None else around, x, mask, value=_scale(p))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (mask,) = ctx.saved_tensors
        inner = torch.addcmul(mask.new_zeros(()), gradient.to(mask.dtype), mask, value=_scale(ctx.p))
        return inner, gradient if ctx.added else None, None


class Dropout(nn.Dropout):
    """`nn.Dropout`, and where wanted the sum with what went around it; cheap on a CPU, unless `fast_path` is False."""

    fast_path = True

    def forward(self, x: Tensor, around: Tensor | None = None) -> Tensor:
        if not self.training or not self.p:
            return x if around is None else x + around
        if not self.fast_path or x.device.type != "cpu" or torch.compiler.is_compiling() or self.p == 1:
            dropped = F.dropout(x, _drawn(self.p))
            return dropped if around is None else dropped + around
        return _Dropout.apply(x, around, self.p)


# ---- attention without padding


# ---- the loss of the masked tokens


class _ProjectedCrossEntropy(Function):
    """Cross entropy of hidden · weightᵀ + bias, which keeps one (M, V) buffer and makes no second pass backward.

    The gradient of the logits is softmax − one-hot, times a number for each row. The difference is taken in fp32 and
    rounded afterwards; the number multiplies the small (M, H) side of each product in place of the (M, V) one.
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        dtype = _product_dtype(weight)
        cast_hidden, cast_weight = hidden.to(dtype), weight.to(dtype)
        logits = F.linear(cast_hidden, cast_weight, bias.to(dtype))
        counts = labels != IGNORED
        targets = labels.masked_fill(~counts, 0).unsqueeze(1)
        highest = logits.amax(1).float()
        right = logits.gather(1, targets).squeeze(1).float()
        # In 16 bit many logits tie, and only the first of the highest is the answer; that takes a slower pass.
        likeliest = right >= highest if dtype == torch.float32 else logits.argmax(1) == labels
        scores = logits.float()  # in fp32 the very same, and overwritten
        share = torch.softmax(scores, -1, out=scores)
        # log Σ exp(logit) = highest − log(the highest's share): no pass of exponentials but softmax's own
        losses = (highest - share.amax(1).log() - right) * counts
        share = share.scatter_add_(1, targets, share.new_full(targets.shape, -1.0)).to(dtype)
        ctx.save_for_backward(cast_hidden, cast_weight, share, counts)
        ctx.dtypes = hidden.dtype, weight.dtype, bias.dtype
        correct = likeliest & counts
        ctx.mark_non_differentiable(correct)
        return losses, correct

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor, _) -> tuple[Tensor, Tensor, Tensor, None]:
        hidden, weight, share, counts = ctx.saved_tensors
        scale = gradient * counts
        # As multiples of the largest, which mostly all of them are: rounded to 16 bit, 1 is 1.
        largest = torch.cat([scale.abs(), scale.new_full((1,), torch.finfo(torch.float32).tiny)]).amax()
        unit = (scale / largest).to(share.dtype).unsqueeze(1)  # (M, 1)
        found = (share @ weight) * unit, share.t() @ (hidden * unit), (unit.t() @ share).squeeze(0)
        return *(x.to(dtype) * largest for x, dtype in zip(found, ctx.dtypes, strict=True)), None


def _product_dtype(weight: Tensor) -> torch.dtype:
    """Of a product with these weights: autocast's where that is on, which does not reach into a `Function`."""
    kind = weight.device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else weight.dtype


def projected_cross_entropy(hidden: Tensor, decoder: nn.Linear, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (M,) in nats, fp32, 0 where the label is ignored, of a linear layer on hidden (M, H); which are right.

    Under autocast the products are of its precision, and softmax and loss fp32, as in the plain form.
    """
    if not plain(decoder) or torch.compiler.is_compiling():
        return plain_cross_entropy(hidden, decoder, labels)
    return _ProjectedCrossEntropy.apply(hidden, decoder.weight, decoder.bias, labels)


def plain_cross_entropy(hidden: Tensor, decoder: nn.Linear, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The same by PyTorch's own operations."""
    logits = decoder(hidden)
    return token_losses(logits, labels), logits.argmax(-1) == labels


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy (N,) in nats, in fp32, of logits (N, classes) and labels (N,); 0 where the label is ignored."""
    return F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="none")


# ---- projections


def plain(*layers: nn.Module) -> bool:
    """True where a layer's weight may be used without calling it: no adapter, hook or engine stands in between."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return all(
        type(layer) is nn.Linear
        and layer.bias is not None
        and "forward" not in vars(layer)  # accelerate's offloading puts one of its own there
        and not any(getattr(layer, name) for name in hooks)
        and not hasattr(layer.weight, "ds_id")  # ZeRO 3 gathers a weight when its layer is called
        for layer in layers
    )


def project(hidden: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """What each of some linear layers makes of the same (…, H): by one product where that is the same and faster.

    It is not in fp32 on a CPU: laying the weights together and taking their gradients apart costs 2 % of mini's step.
    Under autocast it also casts the input once in place of three times.
    """
    slower = hidden.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    if slower or not plain(*layers):
        return tuple(layer(hidden) for layer in layers)
    return _project_at_once(hidden, *layers)


def _project_at_once(hidden: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat([layer.bias for layer in layers])
    return F.linear(hidden, weight, bias).split([layer.out_features for layer in layers], dim=-1)
