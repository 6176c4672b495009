"""Attention over the real tokens of a batch, without its padding: on a CPU in groups, on a GPU by a flash kernel.

Shapes: as in unpadded_batch.py · A heads · D head size.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
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

_Shapes = tuple[tuple[int, int], ...]  # of groups of equal sequences: (number of sequences, rows of each)


def unpadded_attention(
    query: Tensor, key: Tensor, value: Tensor, batch: UnpaddedBatch, *, selected_queries: bool, dropout: float
) -> Tensor:
    """Compute the attention of each sequence's tokens to one another; arguments and result are (T, A, D).

    With `selected_queries`, `query` and the result are (Q, A, D), for `batch.query_indices` only.
    """
    key, value = key.to(query.dtype), value.to(query.dtype)  # a replaced layer may compute in another precision

    if batch.groups is None:  # on an accelerator
        return _attend_varlen(query, key, value, batch, selected_queries, dropout)

    key_shapes = tuple((count, tokens) for count, tokens, _ in batch.groups)
    selected_shapes = tuple((count, queries) for count, _, queries in batch.groups)
    shapes = (selected_shapes if selected_queries else key_shapes, key_shapes)
    scaling = query.shape[-1] ** -0.5

    # PyTorch's kernel where it is faster, and where all is dropped: our scale 1 / (1 − p) would be infinite
    longest = max(tokens for _, tokens in key_shapes)
    if dropout == 1 or (not dropout and (query.dtype == torch.float32 or longest > _SHORT_LENGTH)):
        return _pytorch_attention(query, key, value, shapes, dropout, scaling)
    return cast(Tensor, _GroupedAttention.apply(query, key, value, shapes, dropout, scaling))


# ---- on a CPU: groups of sequences of equal shape


def _pytorch_attention(
    query: Tensor, key: Tensor, value: Tensor, shapes: tuple[_Shapes, _Shapes], dropout: float, scaling: float
) -> Tensor:
    """Compute the attention of each group of sequences by PyTorch's kernel, which stores no attention scores."""
    query_shapes, key_shapes = shapes
    contexts = []
    for qkv in zip(_split(query, query_shapes), _split(key, key_shapes), _split(value, key_shapes), strict=True):
        heads_first = (x.transpose(1, 2) for x in qkv)  # (B, A, n, D)
        context = F.scaled_dot_product_attention(*heads_first, dropout_p=dropout, scale=scaling)
        contexts.append(context.transpose(1, 2).flatten(0, 1))
    return torch.cat(contexts)


def _split(x: Tensor, shapes: _Shapes) -> list[Tensor]:
    """Split (N, …) into one (B, n, …) for each of the shapes (B, n)."""
    parts = x.split([count * length for count, length in shapes])
    return [part.unflatten(0, shape) for part, shape in zip(parts, shapes, strict=True)]


class _RowIndices(NamedTuple):
    """Indices to copy the rows (T·A, D) of all heads into the N rows of dense batches (B·A, n, D), and back.

    Example: sequences of 2 and 1 tokens, one head, filled up to 2: copied_from 0 1 2 2, filling 3, copied_to 0 1 2.
    """

    copied_from: Tensor  # (N,) index of the row to copy; rows that fill up a sequence copy its last one
    filling: Tensor  # indices of the rows among the N that fill up a sequence
    copied_to: Tensor  # (T·A,) index of each row among the N


class _DenseBatches(NamedTuple):
    """Batches of sequences that are filled up to the same shape, each as large as a cache can hold the scores of."""

    shapes: tuple[_Shapes, _Shapes]  # (B·A, n) of the queries and of the keys of each batch
    rows: tuple[_RowIndices, _RowIndices]  # of the queries and of the keys
    filled_keys: list[list[tuple[slice, int]]]  # of each batch: some of its B·A, and the first key that fills them up


@lru_cache(maxsize=4)  # the layers of a model have the same two
def _plan_dense_batches(shapes: tuple[_Shapes, _Shapes], heads: int, multiple: int) -> _DenseBatches:
    """Return the batches of sequences whose (queries, keys) have these shapes, filled up to multiples of `multiple`.

    Example: two sequences of 20 keys and one of 30, 5 queries each, multiple 16, 2 heads: all three become (16, 32),
    one batch of 6 · (16, 32); its first four lack the keys from 20 on, its last two those from 30 on.
    """
    sequences = []  # (queries, keys) of each
    for (count, queries), (_, keys) in zip(*shapes, strict=True):
        sequences += [(queries, keys)] * count
    batch_shapes = []
    filled_keys = []
    # Neighbours of the same shape, rounded up, share batches of at most `_CHUNK_SCORES` scores, or of one sequence
    for (queries, keys), same in groupby(sequences, lambda shape: [-(-n // multiple) * multiple for n in shape]):
        key_counts = [count for _, count in same for _ in range(heads)]  # of each sequence and head, before filling
        batch_size = heads * max(1, _CHUNK_SCORES // (heads * queries * keys))
        for begin in range(0, len(key_counts), batch_size):
            batch = key_counts[begin : begin + batch_size]
            batch_shapes.append(((len(batch), queries), (len(batch), keys)))

            # Neighbours with as many keys are filled from the same key on
            filled_keys.append([])
            start = 0
            for key_count, run in groupby(batch):
                end = start + len(list(run))
                if key_count < keys:
                    filled_keys[-1].append((slice(start, end), key_count))
                start = end
    query_shapes, key_shapes = zip(*batch_shapes, strict=True)
    of_queries, of_keys = (_row_indices(shape, heads, multiple) for shape in shapes)
    return _DenseBatches((query_shapes, key_shapes), (of_queries, of_keys), filled_keys)


@lru_cache(maxsize=4)
def _row_indices(shapes: _Shapes, heads: int, multiple: int) -> _RowIndices:
    """Return the indices for sequences of these shapes, each filled up to a multiple of `multiple` tokens."""
    counts, tokens = torch.tensor(shapes).unbind(1)
    lengths = tokens.repeat_interleave(counts)  # (B,)
    filled_lengths = (lengths + multiple - 1) // multiple * multiple
    sizes = filled_lengths * heads  # rows of each sequence, head after head

    # The sequence of each of the N rows, its head, and its position in the sequence
    sequence = torch.arange(len(sizes)).repeat_interleave(sizes)  # (N,)
    within = torch.arange(len(sequence)) - (sizes.cumsum(0) - sizes)[sequence]
    head = within // filled_lengths[sequence]
    position = within % filled_lengths[sequence]
    last = lengths[sequence] - 1
    real = position <= last

    begins = lengths.cumsum(0) - lengths
    copied_from = (begins[sequence] + torch.minimum(position, last)) * heads + head
    copied_to = torch.empty(int(lengths.sum()) * heads, dtype=torch.int64)
    copied_to[copied_from[real]] = real.nonzero().squeeze(1)
    return _RowIndices(copied_from, real.logical_not().nonzero().squeeze(1), copied_to)


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
        plan = _plan_dense_batches(shapes, query.shape[1], _ROW_MULTIPLE if query.dtype.itemsize == 2 else 1)
        of_queries, of_keys = plan.rows
        queries, keys, values = _take_rows(query, of_queries), _take_rows(key, of_keys), _take_rows(value, of_keys)
        context = torch.empty_like(queries)  # (N, D)
        saved: list[Tensor | None] = []

        batches = _batch_parts(plan, (context, queries), (keys, values))
        for (output, q, k, v), filled_keys in zip(batches, plan.filled_keys, strict=True):
            weights = torch.bmm(q, k.transpose(1, 2)).mul_(scaling)
            for sequences, first_filled in filled_keys:
                weights[sequences, :, first_filled:] = -torch.inf
            torch.softmax(weights, -1, out=weights)
            mask = keep_mask(weights.shape, p, torch.int8) if p else None
            torch.bmm(weights if mask is None else weights * mask, v, out=output)
            if any(ctx.needs_input_grad):
                saved += [weights, mask]

        ctx.plan = plan
        ctx.p = p
        ctx.scaling = scaling
        ctx.save_for_backward(queries, keys, values, *saved)
        context = context.index_select(0, of_queries.copied_to).view(query.shape)
        return context.mul_(keep_scale(p)) if p else context

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator makes ctx positional-only
        ctx, grad_output: Tensor
    ) -> tuple[Tensor | None, ...]:
        of_queries, of_keys = ctx.plan.rows
        queries, keys, values, *saved = ctx.saved_tensors
        gradients = [torch.empty_like(x) for x in (queries, keys, values)]

        # output = scale · (mask ∘ weights) · value: scaling its gradient once scales the three others
        if ctx.p:
            grad_output = grad_output * keep_scale(ctx.p)
        grad_rows = _take_rows(grad_output, of_queries)  # (N, D)
        grad_rows.index_fill_(0, of_queries.filling, 0.0)  # filling has no output

        batches = _batch_parts(ctx.plan, (grad_rows, queries, gradients[0]), (keys, values, *gradients[1:]))
        for batch, weights, mask in zip(batches, saved[::2], saved[1::2], strict=True):
            grad_context, q, grad_query, k, v, grad_key, grad_value = batch
            dropped = weights if mask is None else weights * mask
            torch.bmm(dropped.transpose(1, 2), grad_context, out=grad_value)

            grad_weights = torch.bmm(grad_context, v.transpose(1, 2))
            if mask is not None:
                grad_weights.mul_(mask)

            grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_scores.mul_(ctx.scaling)
            torch.bmm(grad_scores, k, out=grad_query)
            torch.bmm(grad_scores.transpose(1, 2), q, out=grad_key)

        with_indices = zip(gradients, (of_queries, of_keys, of_keys), strict=True)
        gradients = (x.index_select(0, rows.copied_to).view(-1, *grad_output.shape[1:]) for x, rows in with_indices)
        return *gradients, None, None, None


def _take_rows(x: Tensor, rows: _RowIndices) -> Tensor:
    """Copy the rows of (T, A, D) into the rows of the batches, (N, D)."""
    return x.reshape(-1, x.shape[-1]).index_select(0, rows.copied_from)


def _batch_parts(plan: _DenseBatches, of_queries: tuple[Tensor, ...], of_keys: tuple[Tensor, ...]) -> Iterator[tuple]:
    """Return, for each batch in turn, its part (B·A, n, D) of each of these tensors (N, D), in their order."""
    query_shapes, key_shapes = plan.shapes
    return zip(*(_split(x, query_shapes) for x in of_queries), *(_split(x, key_shapes) for x in of_keys), strict=True)


# ---- on an accelerator: all sequences at once


def _attend_varlen(
    query: Tensor, key: Tensor, value: Tensor, batch: UnpaddedBatch, selected_queries: bool, dropout: float
) -> Tensor:
    """Compute attention by the flash kernel for variable lengths, or with padding where that cannot run."""
    cu_queries = batch.query_cu_seqlens if selected_queries else batch.cu_seqlens
    longest = batch.max_seqlen
    scaling = query.shape[-1] ** -0.5
    # [CLS] is always a query, and once more where it is masked. (torch 2.11 cannot add a bool to a symbolic length.)
    most_queries = longest + int(selected_queries)

    if _supports_flash(query):
        # The operator below `torch.nn.attention.varlen.varlen_attn`, which has no dropout
        flash = torch.ops.aten._flash_attention_forward
        lengths = (cu_queries, batch.cu_seqlens, most_queries, longest)
        return flash(query, key, value, *lengths, dropout, is_causal=False, return_debug_mask=False, scale=scaling)[0]

    query_places = batch.token_indices  # where each query is in a padded batch (B · most_queries)
    if selected_queries:
        sequences = batch.token_indices.index_select(0, batch.query_indices) // longest  # (Q,)
        ranks = torch.arange(len(query), device=query.device) - cu_queries.index_select(0, sequences)  # in sequence
        query_places = sequences * most_queries + ranks
    real_keys = torch.arange(longest, device=query.device) < batch.cu_seqlens.diff().unsqueeze(1)  # (B, L)
    batch_size = len(real_keys)
    context = F.scaled_dot_product_attention(
        _pad(query, query_places, batch_size, most_queries),
        _pad(key, batch.token_indices, batch_size, longest),
        _pad(value, batch.token_indices, batch_size, longest),
        real_keys[:, None, None, :],
        dropout_p=dropout,
        scale=scaling,
    )
    return context.transpose(1, 2).flatten(0, 1).index_select(0, query_places)


def _supports_flash(query: Tensor) -> bool:
    """Return True if the flash kernel can run: 16 bit, certain head sizes, an Ampere GPU or a newer one."""
    if query.device.type != "cuda" or query.dtype not in (torch.float16, torch.bfloat16):
        return False
    size = query.shape[-1]
    return size % 8 == 0 and size <= 256 and _device_runs_flash(query.device)


@torch.compiler.assume_constant_result  # so that a graph does not end at the question to the driver
def _device_runs_flash(device: torch.device) -> bool:
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def _pad(x: Tensor, places: Tensor, batch_size: int, length: int) -> Tensor:
    """Pad (N, A, D) to (B, A, length, D), given the place of each of the N rows in the flattened B·length."""
    padded = x.new_zeros(batch_size * length, *x.shape[1:]).index_copy(0, places, x)
    return padded.unflatten(0, (batch_size, length)).transpose(1, 2)
