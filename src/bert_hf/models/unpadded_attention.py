"""Attention over the real tokens of a batch alone: computes the layout of a batch without padding, and attends in it.

Shapes: B sequences · L padded length · T real tokens of the batch · M masked tokens · Q tokens whose output the heads
use (each [CLS] and the masked ones) · A heads · D head size.
"""

from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import groupby
from operator import itemgetter
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
_TOKEN_MULTIPLE = 32  # of all tokens of a batch, likewise
_QUERY_MULTIPLE = 16  # of all tokens whose output the heads use

_Group = tuple[int, int, int]  # numbers of sequences, tokens of each, queries of each
_Shapes = tuple[tuple[int, int], ...]  # numbers of sequences, rows of each


class UnpaddedBatch(NamedTuple):
    """Where the real tokens of a padded batch (B, L) are, and for which of them the last layer computes an output.

    The tokens of a sequence are contiguous. On a CPU, sequences of equal shape are neighbours, so that each group of
    them is a dense batch; elsewhere sequences keep their order, and a variable-length kernel gets their boundaries.
    """

    token_indices: Tensor  # (T,) indices of the real tokens into the flattened B·L
    query_indices: Tensor  # (Q,) indices into `token_indices`: the [CLS] and the masked tokens of each sequence
    cls_queries: Tensor  # (B,) indices into `query_indices`: the [CLS] of each sequence
    masked_queries: Tensor  # (M,) indices into `query_indices`: the masked tokens, in the order of the batch
    groups: tuple[_Group, ...] | None  # sequences of equal shape; None: not grouped
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
        shapes = zip(lengths.tolist(), queries.tolist(), strict=True)
        groups = tuple((len(list(same)), *shape) for shape, same in groupby(shapes))
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


def fill_up(batch: UnpaddedBatch) -> UnpaddedBatch:
    """Adds a sequence that no head reads, so that most batches on a CPU have as many tokens as an earlier one.

    oneDNN compiles the products of each new number of rows: filling takes 17 % off a fine-tuning on short texts.
    """
    tokens = len(batch.token_indices)
    more_tokens = _TOKEN_MULTIPLE - tokens % _TOKEN_MULTIPLE  # at least one
    more_queries = _QUERY_MULTIPLE - len(batch.query_indices) % _QUERY_MULTIPLE

    return batch._replace(
        token_indices=F.pad(batch.token_indices, (0, more_tokens)),
        query_indices=F.pad(batch.query_indices, (0, more_queries), value=tokens),
        groups=(*(batch.groups or ()), (1, more_tokens, more_queries)),
    )


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

    shapes = (
        tuple((count, queries if selected_queries else tokens) for count, tokens, queries in batch.groups),
        tuple((count, tokens) for count, tokens, _ in batch.groups),
    )
    longest = max(tokens for _, tokens in shapes[1])
    if dropout == 1 or (not dropout and (query.dtype == torch.float32 or longest > _SHORT_LENGTH)):
        return _pytorch_attention(query, key, value, shapes, dropout, scaling)
    return cast(Tensor, _GroupedAttention.apply(query, key, value, shapes, dropout, scaling))


# ---- on a CPU: groups of sequences of equal shape


def _pytorch_attention(
    query: Tensor, key: Tensor, value: Tensor, shapes: tuple[_Shapes, _Shapes], dropout: float, scaling: float
) -> Tensor:
    contexts = []
    for qkv in zip(_split(query, shapes[0]), _split(key, shapes[1]), _split(value, shapes[1]), strict=True):
        turned = (x.transpose(1, 2) for x in qkv)
        context = F.scaled_dot_product_attention(*turned, dropout_p=dropout, scale=scaling)
        contexts.append(context.transpose(1, 2).flatten(0, 1))
    return torch.cat(contexts)


def _split(x: Tensor, shapes: _Shapes) -> list[Tensor]:
    """(N, …) → (B, n, …) for each of the shapes (B, n)."""
    parts = x.split([count * length for count, length in shapes])
    return [part.unflatten(0, shape) for part, shape in zip(parts, shapes, strict=True)]


class _Rows(NamedTuple):
    """How the rows (T·A, D) of all heads become dense batches (B·A, n, D), one behind the other, and return.

    Example: sequences of 2 and 1 tokens, one head, filled up to 2 tokens: sources 0 1 2 2, filling 3, places 0 1 2.
    """

    sources: Tensor  # (N,) for each row of the batches the one that it takes; filling takes its sequence's last one
    filling: Tensor  # which of the N are filling
    places: Tensor  # (T·A,) for each row its place among the N


class _Layout(NamedTuple):
    """Sequences filled up to the same shape are one batch, unless their scores are more than a cache holds."""

    shapes: tuple[_Shapes, _Shapes]  # (B·A, n) of the queries and of the keys of each batch
    rows: tuple[_Rows, _Rows]  # of the queries and of the keys
    filling: list[list[tuple[slice, int]]]  # of each batch: for these of the B·A, the keys from this one on


@lru_cache(maxsize=4)  # the layers of a model have the same two
def _layout(shapes: tuple[_Shapes, _Shapes], heads: int, multiple: int) -> _Layout:
    each = [(rows, tokens) for (count, rows), (_, tokens) in zip(*shapes, strict=True) for _ in range(count)]
    filled = []
    filling = []
    for (queries, tokens), same in groupby(each, lambda shape: [-(-n // multiple) * multiple for n in shape]):
        lengths = [length for _, length in same for _ in range(heads)]
        size = heads * max(1, _CHUNK_SCORES // (heads * queries * tokens))
        for begin in range(0, len(lengths), size):
            batch = lengths[begin : begin + size]
            filled.append(((len(batch), queries), (len(batch), tokens)))
            runs = [list(run) for _, run in groupby(enumerate(batch), itemgetter(1))]
            filling.append([(slice(run[0][0], run[-1][0] + 1), run[0][1]) for run in runs if run[0][1] < tokens])
    query_shapes, key_shapes = zip(*filled, strict=True)
    of_queries, of_keys = (_rows(shape, heads, multiple) for shape in shapes)
    return _Layout((query_shapes, key_shapes), (of_queries, of_keys), filling)


@lru_cache(maxsize=4)
def _rows(shapes: _Shapes, heads: int, multiple: int) -> _Rows:
    """Of groups of sequences, each filled up to a multiple of `multiple`."""
    counts, each = torch.tensor(shapes).unbind(1)
    lengths = each.repeat_interleave(counts)  # (B,)
    filled = (lengths + multiple - 1) // multiple * multiple
    sizes = filled * heads

    # The sequence of each row, its head, and its place in the sequence
    numbers = torch.arange(len(sizes)).repeat_interleave(sizes)  # (N,)
    within = torch.arange(len(numbers)) - (sizes.cumsum(0) - sizes)[numbers]
    head = within // filled[numbers]
    place = within - head * filled[numbers]
    last = lengths[numbers] - 1
    real = place <= last

    begins = lengths.cumsum(0) - lengths
    sources = (begins[numbers] + torch.minimum(place, last)) * heads + head
    places = torch.empty(int(lengths.sum()) * heads, dtype=torch.int64)
    places[sources[real]] = real.nonzero().squeeze(1)
    return _Rows(sources, real.logical_not().nonzero().squeeze(1), places)


class _GroupedAttention(Function):
    """dropout(softmax(query · keyᵀ · scaling)) · value, for each group of sequences.

    PyTorch's fast CPU attention has no dropout; with dropout, it falls back to a form that keeps four (B, A, L, L)
    tensors. In 16 bit its backward pass took longer than any other operation of the mini model; there, sequences are
    filled up to multiples of 16, so that those of similar length are one batch: oneDNN spends more time on compiling
    for a new shape than on the product, and softmax is faster.
    """

    @staticmethod
    def forward(
        ctx, query: Tensor, key: Tensor, value: Tensor, shapes: tuple[_Shapes, _Shapes], p: float, scaling: float
    ) -> Tensor:
        layout = _layout(shapes, query.shape[1], _ROW_MULTIPLE if query.dtype.itemsize == 2 else 1)
        of_queries, of_keys = layout.rows
        rows = (_take_rows(query, of_queries), _take_rows(key, of_keys), _take_rows(value, of_keys))
        context = torch.empty_like(rows[0])
        saved: list[Tensor | None] = []

        batches = _batches(layout, (context, rows[0]), rows[1:])
        for (output, q, k, v), filling in zip(batches, layout.filling, strict=True):
            weights = torch.bmm(q, k.transpose(1, 2)).mul_(scaling)
            for sequences, first in filling:
                weights[sequences, :, first:] = -torch.inf
            torch.softmax(weights, -1, out=weights)
            mask = keep_mask(weights.shape, p, torch.int8) if p else None
            torch.bmm(weights if mask is None else weights * mask, v, out=output)
            if any(ctx.needs_input_grad):
                saved += [weights, mask]

        ctx.layout = layout
        ctx.p = p
        ctx.scaling = scaling
        ctx.save_for_backward(*rows, *saved)
        context = context.index_select(0, of_queries.places).view(query.shape)
        return context.mul_(keep_scale(p)) if p else context

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator makes ctx positional-only
        ctx, grad_output: Tensor
    ) -> tuple[Tensor | None, ...]:
        of_queries, of_keys = ctx.layout.rows
        queries, keys, values, *saved = ctx.saved_tensors
        gradients = [torch.empty_like(x) for x in (queries, keys, values)]

        # output = scale · (mask ∘ weights) · value: scaling its gradient once scales the three others
        if ctx.p:
            grad_output = grad_output * keep_scale(ctx.p)
        upstream = _take_rows(grad_output, of_queries).index_fill_(0, of_queries.filling, 0.0)

        batches = _batches(ctx.layout, (upstream, queries, gradients[0]), (keys, values, *gradients[1:]))
        for batch, weights, mask in zip(batches, saved[::2], saved[1::2], strict=True):
            grad_context, q, for_query, k, v, for_key, for_value = batch
            dropped = weights if mask is None else weights * mask
            torch.bmm(dropped.transpose(1, 2), grad_context, out=for_value)

            grad_weights = torch.bmm(grad_context, v.transpose(1, 2))
            if mask is not None:
                grad_weights.mul_(mask)

            grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_scores.mul_(ctx.scaling)
            torch.bmm(grad_scores, k, out=for_query)
            torch.bmm(grad_scores.transpose(1, 2), q, out=for_key)

        each = zip(gradients, (of_queries, of_keys, of_keys), strict=True)
        gradients = (x.index_select(0, rows.places).view(-1, *grad_output.shape[1:]) for x, rows in each)
        return *gradients, None, None, None


def _take_rows(x: Tensor, rows: _Rows) -> Tensor:
    """(T, A, D) → (N, D)"""
    return x.reshape(-1, x.shape[-1]).index_select(0, rows.sources)


def _batches(layout: _Layout, of_queries: tuple[Tensor, ...], of_keys: tuple[Tensor, ...]) -> Iterator[tuple]:
    """For each batch the parts (B·A, n, D) of these tensors (N, D)."""
    query_shapes, key_shapes = layout.shapes
    return zip(*(_split(x, query_shapes) for x in of_queries), *(_split(x, key_shapes) for x in of_keys), strict=True)


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
