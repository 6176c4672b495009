"""Attention over the real tokens of a batch, without its padding: on a CPU in groups, on a GPU by a flash kernel.

Shapes: B sequences · L padded length · T real tokens of the batch · M masked tokens · Q tokens that the heads use
(each [CLS] and the masked ones) · A heads · D head size.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bert_hf.models.functional import keep_mask, keep_scale
from bert_hf.models.unpadded_batch import UnpaddedBatch

_CHUNK_SCORES = 1 << 20  # attention scores computed at a time on a CPU: 4 MiB of fp32, about the cache of a core
_SHORT_LENGTH = 256  # up to this length a CPU stores attention scores even where dropout does not need them
_ROW_MULTIPLE = 16  # in 16 bit a CPU fills up queries and keys to a multiple of this

_Shapes = tuple[tuple[int, int], ...]  # numbers of sequences, rows of each


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
    """Compute the attention of the tokens of each sequence to the tokens of that sequence, all (T, A, D).

    With `selected_queries`, query and result are (Q, A, D), for `batch.query_indices` only.
    """
    key, value = key.to(query.dtype), value.to(query.dtype)  # a replaced layer may compute in another precision

    if batch.groups is None:
        return _attend_varlen(query, key, value, batch, selected_queries, dropout, scaling)

    shapes = (
        tuple((count, queries if selected_queries else tokens) for count, tokens, queries in batch.groups),
        tuple((count, tokens) for count, tokens, _ in batch.groups),
    )
    # PyTorch's kernel where it is faster, and where all is dropped: our scale 1 / (1 − p) would be infinite
    longest = max(tokens for _, tokens in shapes[1])
    if dropout == 1 or (not dropout and (query.dtype == torch.float32 or longest > _SHORT_LENGTH)):
        return _pytorch_attention(query, key, value, shapes, dropout, scaling)
    return cast(Tensor, _GroupedAttention.apply(query, key, value, shapes, dropout, scaling))


# ---- on a CPU: groups of sequences of equal shape


def _pytorch_attention(
    query: Tensor, key: Tensor, value: Tensor, shapes: tuple[_Shapes, _Shapes], dropout: float, scaling: float
) -> Tensor:
    """Compute each group of sequences by PyTorch's kernel, which stores no attention scores."""
    contexts = []
    for qkv in zip(_split(query, shapes[0]), _split(key, shapes[1]), _split(value, shapes[1]), strict=True):
        heads_first = (x.transpose(1, 2) for x in qkv)  # (B, A, n, D)
        context = F.scaled_dot_product_attention(*heads_first, dropout_p=dropout, scale=scaling)
        contexts.append(context.transpose(1, 2).flatten(0, 1))
    return torch.cat(contexts)


def _split(x: Tensor, shapes: _Shapes) -> list[Tensor]:
    """Split (N, …) into (B, n, …) for each of the shapes (B, n)."""
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
    """Return the batches of sequences whose (queries, keys) have these shapes, filled up to multiples of `multiple`.

    Example: two sequences of 20 keys and one of 30, 5 queries each, multiple 16, 2 heads: all three become (16, 32),
    one batch of 6 · (16, 32); its first four lack the keys from 20 on, its last two those from 30 on.
    """
    sequences = [(rows, tokens) for (count, rows), (_, tokens) in zip(*shapes, strict=True) for _ in range(count)]
    batch_shapes = []
    filling = []
    for (queries, tokens), same in groupby(sequences, lambda shape: [-(-n // multiple) * multiple for n in shape]):
        lengths = [length for _, length in same for _ in range(heads)]
        size = heads * max(1, _CHUNK_SCORES // (heads * queries * tokens))
        for begin in range(0, len(lengths), size):
            batch = lengths[begin : begin + size]
            batch_shapes.append(((len(batch), queries), (len(batch), tokens)))
            runs = [list(run) for _, run in groupby(enumerate(batch), itemgetter(1))]
            filling.append([(slice(run[0][0], run[-1][0] + 1), run[0][1]) for run in runs if run[0][1] < tokens])
    query_shapes, key_shapes = zip(*batch_shapes, strict=True)
    of_queries, of_keys = (_rows(shape, heads, multiple) for shape in shapes)
    return _Layout((query_shapes, key_shapes), (of_queries, of_keys), filling)


@lru_cache(maxsize=4)
def _rows(shapes: _Shapes, heads: int, multiple: int) -> _Rows:
    """Return how the rows of sequences go into batches, each filled up to a multiple of `multiple`, and back."""
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
    """Compute dropout(softmax(query · keyᵀ · scaling)) · value, for each group of sequences.

    PyTorch's fast CPU attention has no dropout; with dropout, it falls back to a form that keeps four (B, A, L, L)
    tensors. In 16 bit its backward pass took longer than any other operation of the mini model; there, sequences are
    filled up to multiples of 16, so that similar lengths share a batch: oneDNN spends more time on compiling
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
    """Take the rows (N, D) of (T, A, D)."""
    return x.reshape(-1, x.shape[-1]).index_select(0, rows.sources)


def _batches(layout: _Layout, of_queries: tuple[Tensor, ...], of_keys: tuple[Tensor, ...]) -> Iterator[tuple]:
    """Yield for each batch the parts (B·A, n, D) of these tensors (N, D)."""
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
    """Use the flash kernel for sequences of any length; where it cannot run (fp32, old GPUs), padded attention."""
    cu_queries = batch.query_cu_seqlens if selected_queries else batch.cu_seqlens
    longest = batch.max_seqlen
    # [CLS] is always a query, and once more where it is masked. (torch 2.11 cannot add a bool to a symbolic length.)
    most_queries = longest + int(selected_queries)

    if _supports_flash(query):
        # The operator below `torch.nn.attention.varlen.varlen_attn`, which has no dropout
        flash = torch.ops.aten._flash_attention_forward
        lengths = (cu_queries, batch.cu_seqlens, most_queries, longest)
        return flash(query, key, value, *lengths, dropout, is_causal=False, return_debug_mask=False, scale=scaling)[0]

    places = batch.token_indices
    if selected_queries:
        rows = batch.token_indices.index_select(0, batch.query_indices) // longest  # (Q,)
        within = torch.arange(len(query), device=query.device) - cu_queries.index_select(0, rows)
        places = rows * most_queries + within
    real = torch.arange(longest, device=query.device) < batch.cu_seqlens.diff().unsqueeze(1)  # (B, L)
    context = F.scaled_dot_product_attention(
        _pad(query, places, len(real), most_queries),
        _pad(key, batch.token_indices, len(real), longest),
        _pad(value, batch.token_indices, len(real), longest),
        real[:, None, None, :],
        dropout_p=dropout,
        scale=scaling,
    )
    return context.transpose(1, 2).flatten(0, 1).index_select(0, places)


def _supports_flash(query: Tensor) -> bool:
    """Return True for 16 bit, certain head sizes, and an Ampere GPU or a newer one."""
    if query.device.type != "cuda" or query.dtype not in (torch.float16, torch.bfloat16):
        return False
    size = query.shape[-1]
    return size % 8 == 0 and size <= 256 and _has_flash_attention(query.device)


@torch.compiler.assume_constant_result
def _has_flash_attention(device: torch.device) -> bool:
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def _pad(x: Tensor, places: Tensor, count: int, width: int) -> Tensor:
    """Pad (N, A, D) to (B, A, width, D), given the place of each of the N rows in the flattened B·width."""
    padded = x.new_zeros(count * width, *x.shape[1:]).index_copy(0, places, x)
    return padded.unflatten(0, (count, width)).transpose(1, 2)
