"""Attention over the real tokens of a batch alone: computes the layout of a batch without padding, and attends in it.

Shapes: B sequences · L padded length · T real tokens of the batch · M masked tokens · Q tokens whose output the heads
use (each [CLS] and the masked ones) · A heads · D head size.
"""

import math
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

from bert_hf.models.functional import keep_mask, keep_scale, torch_dropout_p

_CHUNK_SCORES = 1 << 20  # attention scores computed at a time on a CPU: 4 MiB of fp32, about the cache of a core
_SHORT_LENGTH = 256  # up to this length a CPU stores attention scores even where dropout does not need them
_ROW_MULTIPLE = 16  # in 16 bit a CPU fills up queries and keys to a multiple of this

_Groups = tuple[tuple[int, int, int], ...]


class UnpaddedBatch(NamedTuple):
    """Where the real tokens of a padded batch (B, L) are, and for which of them the last layer computes an output.

    The tokens of a sequence are contiguous. On a CPU, sequences of equal shape are neighbours, so that each group of
    them is a dense batch; elsewhere sequences keep their order, and a variable-length kernel gets their boundaries.
    """

    token_indices: Tensor  # (T,) indices of the real tokens into the flattened B·L
    query_indices: Tensor  # (Q,) indices into `token_indices`: the [CLS] and the masked tokens of each sequence
    cls_queries: Tensor  # (B,) indices into `query_indices`: the [CLS] of each sequence
    masked_queries: Tensor  # (M,) indices into `query_indices`: the masked tokens, in the order of the batch
    groups: _Groups | None  # (sequences, tokens of each, queries of each); None: not grouped
    cu_seqlens: Tensor  # (B + 1,) int32: where each sequence's tokens begin
    query_cu_seqlens: Tensor  # (B + 1,) int32: where each sequence's queries begin
    max_seqlen: int  # no sequence has more tokens


@torch.compiler.disable()
def unpad_batch(
    attention_mask: Tensor,
    masked_positions: Tensor,
    token_positions: Tensor | None = None,
    grouped: bool | None = None,
) -> UnpaddedBatch | None:
    """Computes the layout of a batch without its padding; None if it has none, e.g. if padding is on the left.

    Example: two sequences of 3 and 4 tokens, padded to 4, of which the tokens at 2 and 5 are masked.

        attention_mask 1 1 1 0   positions 0 1 2 .     masked_positions 2 5
                       1 1 1 1             4 5 6 7

    Grouped, the longer sequence comes first. Its queries are [CLS] at 4 and the masked token at 5; then 0 and 2 come:

        token_indices 4 5 6 7 0 1 2    query_indices 0 1 4 6    cls_queries 2 0    masked_queries 3 1
        groups (1, 4, 2) (1, 3, 2)     cu_seqlens 0 4 7         query_cu_seqlens 0 2 4

    Args:
        attention_mask: (B, L), 0 at padding.
        masked_positions: (M,) indices into the flattened B·L, each once.
        token_positions: (T,) indices of the real tokens, ascending; needed if not grouped, because a search waits.
        grouped: sequences of equal shape become neighbours; by default on a CPU.
    """
    device = attention_mask.device
    count, length = attention_mask.shape
    masked_positions = masked_positions.long()
    real = attention_mask != 0
    grouped = device.type == "cpu" if grouped is None else grouped
    if grouped and not (real[:, 0].all() and real.flatten()[masked_positions].all()):
        return None

    # Tokens and queries of each sequence
    lengths = real.sum(1)
    queries = torch.ones(count, dtype=torch.int64, device=device)
    queries.index_add_(0, masked_positions // length, torch.ones_like(masked_positions))

    # Order of the sequences, and the positions of the tokens in a padded batch of that order
    order = torch.arange(count, device=device)
    groups = None
    if grouped:
        order = torch.argsort(lengths * (2 * length) + queries, descending=True, stable=True)
        lengths = lengths[order]
        queries = queries[order]
        groups = _equal_neighbours(lengths, queries)
        token_positions = real[order].flatten().nonzero().squeeze(1)
    if token_positions is None:
        return None

    query_positions, ranks = _sort_queries(masked_positions, order, length)
    return UnpaddedBatch(
        token_indices=order[token_positions // length] * length + token_positions % length,
        query_indices=torch.searchsorted(token_positions, query_positions),
        cls_queries=ranks[:count],
        masked_queries=ranks[count:],
        groups=groups,
        cu_seqlens=_cumulative(lengths),
        query_cu_seqlens=_cumulative(queries),
        max_seqlen=length,
    )


def _equal_neighbours(lengths: Tensor, queries: Tensor) -> _Groups:
    shapes = zip(lengths.tolist(), queries.tolist(), strict=True)
    return tuple((len(list(same)), *shape) for shape, same in groupby(shapes))


def _sort_queries(masked_positions: Tensor, order: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Sorts each [CLS] and the masked tokens by sequence, in the given order of sequences, and by position.

    Returns:
        Their positions in a padded batch of that order, ascending; and the ranks of each [CLS], then of each masked
        token, among these positions.
    """
    cls_positions = torch.arange(len(order), device=order.device) * length
    positions = torch.cat([cls_positions, masked_positions])
    places = order.argsort()[positions // length] * length + positions % length  # sorting inverts a permutation

    sorted_places, sorting = places.sort(stable=True)
    return sorted_places, sorting.argsort()


def _cumulative(lengths: Tensor) -> Tensor:
    return F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def unpadded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    batch: UnpaddedBatch,
    *,
    selected_queries: bool,
    dropout: float,
    scaling: float,
) -> Tensor:
    """Attention of the tokens of each sequence to the tokens of that sequence.

    Args:
        query: (T, A, D), or (Q, A, D) with `selected_queries`.
        key, value: (T, A, D).
        selected_queries: the queries are those of `batch.query_indices`, not all tokens.

    Returns:
        The context, in the shape of `query`.
    """
    key, value = key.to(query.dtype), value.to(query.dtype)  # a replaced layer may compute in another precision

    if batch.groups is None:
        return _attend_varlen(query, key, value, batch, selected_queries, dropout, scaling)

    # Sequences of equal shape together
    query_shapes = [(count, selected if selected_queries else tokens) for count, tokens, selected in batch.groups]
    key_shapes = [(count, tokens) for count, tokens, _ in batch.groups]
    contexts = [
        _dense_attention(q, k, v, dropout, scaling)
        for q, k, v in zip(
            _split(query, query_shapes), _split(key, key_shapes), _split(value, key_shapes), strict=True
        )
    ]
    return contexts[0] if len(contexts) == 1 else torch.cat(contexts)


# ---- on a CPU: a group of sequences of equal shape


def _split(x: Tensor, shapes: list[tuple[int, int]]) -> list[Tensor]:
    parts = x.split([math.prod(shape) for shape in shapes])
    return [part.unflatten(0, shape) for part, shape in zip(parts, shapes, strict=True)]


def _dense_attention(query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float) -> Tensor:
    """Attention in a group of sequences of equal shape: query (B, q, A, D), key and value (B, k, A, D) → (B·q, A, D).

    In 16 bit the backward pass of PyTorch's own kernel took longer than any other operation of the mini model, so
    short sequences use matrix products. (That this is faster is expected and not measured: `docs/speed.md`.)
    """
    count, queries, heads, size = query.shape
    length = key.shape[1]

    if dropout == 1 or (not dropout and (query.dtype == torch.float32 or length > _SHORT_LENGTH)):
        turned = (x.transpose(1, 2) for x in (query, key, value))
        context = F.scaled_dot_product_attention(*turned, dropout_p=dropout, scale=scaling)
        return context.transpose(1, 2).reshape(count * queries, heads, size)

    flat = [x.transpose(1, 2).reshape(count * heads, x.shape[1], size) for x in (query, key, value)]  # (B·A, n, D)
    context = _ChunkedAttention.apply(*flat, dropout, scaling)
    return context.view(count, heads, queries, size).transpose(1, 2).reshape(count * queries, heads, size)


class _ChunkedAttention(Function):
    """dropout(softmax(query · keyᵀ · scaling)) · value, for a dense batch (B·A, n, D).

    Only as many scores are computed at a time as a cache holds. PyTorch's fast CPU attention has no dropout; with
    dropout, it falls back to a form that keeps four (B, A, L, L) tensors. In 16 bit,
    queries and keys are filled up to multiples of 16: oneDNN spends more time on compiling for a new shape than on the
    product, and softmax is faster.
    """

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, p: float, scaling: float) -> Tensor:
        ctx.rows = query.shape[1], key.shape[1]
        queries, length = ctx.rows
        query, key, value = (_fill_up(x) for x in (query, key, value))
        context = torch.empty_like(query)
        saved: list[Tensor | None] = []

        for chunk in _chunks(query, key):
            weights = torch.bmm(query[chunk], key[chunk].transpose(1, 2)).mul_(scaling)
            weights[:, :, length:] = -torch.inf
            torch.softmax(weights, -1, out=weights)
            mask = keep_mask(weights.shape, p, torch.int8) if p else None
            torch.bmm(weights if mask is None else weights * mask, value[chunk], out=context[chunk])
            if any(ctx.needs_input_grad):
                saved += [weights, mask]

        ctx.p = p
        ctx.scaling = scaling
        ctx.save_for_backward(query, key, value, *saved)
        context = context[:, :queries]
        return context.mul_(keep_scale(p)) if p else context

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator makes ctx positional-only
        ctx, grad_output: Tensor
    ) -> tuple[Tensor | None, ...]:
        query, key, value, *saved = ctx.saved_tensors
        grad_query, grad_key, grad_value = (torch.empty_like(x) for x in (query, key, value))

        # output = scale · (mask ∘ weights) · value: scaling its gradient once scales the three others
        if ctx.p:
            grad_output = grad_output * keep_scale(ctx.p)
        grad_output = _fill_up(grad_output)

        for index, chunk in enumerate(_chunks(query, key)):
            weights, mask = saved[2 * index : 2 * index + 2]  # as `forward` saved them, a pair a chunk
            dropped = weights if mask is None else weights * mask
            torch.bmm(dropped.transpose(1, 2), grad_output[chunk], out=grad_value[chunk])

            grad_weights = torch.bmm(grad_output[chunk], value[chunk].transpose(1, 2))
            if mask is not None:
                grad_weights.mul_(mask)

            grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_scores.mul_(ctx.scaling)
            torch.bmm(grad_scores, key[chunk], out=grad_query[chunk])
            torch.bmm(grad_scores.transpose(1, 2), query[chunk], out=grad_key[chunk])

        queries, length = ctx.rows
        return grad_query[:, :queries], grad_key[:, :length], grad_value[:, :length], None, None


def _fill_up(x: Tensor) -> Tensor:
    """(B·A, n, D), in 16 bit with rows of zeros until n is a multiple of `_ROW_MULTIPLE`."""
    missing = -x.shape[1] % _ROW_MULTIPLE if x.dtype.itemsize == 2 else 0
    return F.pad(x, (0, 0, 0, missing)) if missing else x


def _chunks(query: Tensor, key: Tensor) -> Iterator[slice]:
    size = max(1, _CHUNK_SCORES // (query.shape[1] * key.shape[1]))
    return (slice(begin, begin + size) for begin in range(0, len(query), size))


# ---- on an accelerator: all sequences at once


def _attend_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    batch: UnpaddedBatch,
    selected_queries: bool,
    dropout: float,
    scaling: float,
) -> Tensor:
    """PyTorch's variable-length kernel; where it cannot be used (fp32, dropout), padded attention."""
    cu_queries = batch.query_cu_seqlens if selected_queries else batch.cu_seqlens
    max_queries = batch.max_seqlen + selected_queries  # [CLS] is always a query, and once more where it is masked

    if _supports_varlen(query, dropout):
        # It scales by 1/√D, as BERT does; in torch 2.10 nothing else can be asked for.
        context = varlen_attn(query, key, value, cu_queries, batch.cu_seqlens, max_queries, batch.max_seqlen)
        return cast(Tensor, context)  # a tuple only with `return_aux`

    padded_query, indices = _pad(query, cu_queries, max_queries)
    padded_key, _ = _pad(key, batch.cu_seqlens, batch.max_seqlen)
    padded_value, _ = _pad(value, batch.cu_seqlens, batch.max_seqlen)
    real = torch.arange(batch.max_seqlen, device=query.device) < batch.cu_seqlens.diff().unsqueeze(1)  # (B, L)
    context = F.scaled_dot_product_attention(
        padded_query,
        padded_key,
        padded_value,
        real[:, None, None, :],
        dropout_p=torch_dropout_p(dropout),
        scale=scaling,
    )
    return context.transpose(1, 2).flatten(0, 1)[indices]


def _supports_varlen(query: Tensor, dropout: float) -> bool:
    """`varlen_attn` needs 16 bit, no dropout, certain head sizes, and an Ampere GPU or a newer one."""
    if query.device.type != "cuda" or dropout or query.dtype not in (torch.float16, torch.bfloat16):
        return False
    size = query.shape[-1]
    return size % 8 == 0 and size <= 256 and _has_flash_attention(query.device)


@cache
def _has_flash_attention(device: torch.device) -> bool:
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def _pad(x: Tensor, cu_seqlens: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(T, A, D) → (B, A, width, D), and the indices (T,) of its tokens in the flattened B·width."""
    numbers = torch.arange(len(x), device=x.device, dtype=torch.int32)
    count = len(cu_seqlens) - 1
    sequences = torch.searchsorted(cu_seqlens, numbers, right=True) - 1
    indices = sequences * width + numbers - cu_seqlens[sequences]
    padded = x.new_zeros(count * width, *x.shape[1:]).index_copy(0, indices, x)
    return padded.unflatten(0, (count, width)).transpose(1, 2), indices
