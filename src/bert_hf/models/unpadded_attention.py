"""Attention over the real tokens of a batch alone, without its padding."""

from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

from bert_hf.models.functional import _drawn, _scale, kept

_SCORES = 1 << 20  # attention scores that are worked on at a time on a CPU: 4 MiB of fp32, about a core's cache


_SHORT = 256  # tokens up to which a CPU keeps a row's scores where it need not


class UnpaddedBatch(NamedTuple):
    """Where the real tokens of a padded batch (B, L) are, and which of them are read at the end.

    Tokens stand row after row. On a CPU rows of equal shape are neighbours, so that a group of them is a plain dense
    batch; elsewhere they keep their order, and a kernel for rows of different length is told where each begins.
    """

    tokens: Tensor  # (T,) places in the flattened B·L
    reads: Tensor  # (Q,) which of `tokens` are read: each row's first, and the masked ones
    first: Tensor  # (B,) which of `reads` is each row's first token
    masked: Tensor  # (M,) which of `reads` are the masked ones, in their order
    groups: tuple[tuple[int, int, int], ...] | None  # (rows, tokens of each, reads of each); None: not grouped
    token_offsets: Tensor  # (B + 1,) int32: where each row's tokens begin
    read_offsets: Tensor  # (B + 1,) int32: where each row's reads begin
    longest: int  # no row has more tokens


@torch.compiler.disable
def unpad_batch(
    attention_mask: Tensor,
    masked_positions: Tensor,
    token_positions: Tensor | None = None,
    grouped: bool | None = None,
) -> UnpaddedBatch | None:
    """How a batch is run without its padding; None where it cannot be, as where a row does not begin with a token.

    Args:
        attention_mask: (B, L), 0 at padding. masked_positions: (M,) indices into the flattened B·L, each
            once.
        token_positions: (T,) the real tokens' indices, ascending. Ungrouped they have to be given: to look for them
            would make the host wait for the device.
        grouped: rows of equal shape become neighbours; by default on a CPU.
    """
    masked_positions = masked_positions.long()
    count, length = attention_mask.shape
    real, device = attention_mask != 0, attention_mask.device
    grouped = device.type == "cpu" if grouped is None else grouped
    if grouped and not (real[:, 0].all() and real.flatten()[masked_positions].all()):
        return None
    if not grouped and token_positions is None:
        return None
    row_of = masked_positions // length
    lengths, reads = real.sum(1), torch.ones(count, dtype=torch.int64, device=device)
    reads.index_add_(0, row_of, torch.ones_like(row_of))
    order, groups = torch.arange(count, device=device), None
    keys = tokens = token_positions  # a key is a token's place where the rows stand in `order`
    if grouped:
        order = torch.argsort(lengths * (2 * length) + reads, descending=True, stable=True)
        lengths, reads = lengths[order], reads[order]
        shapes = zip(lengths.tolist(), reads.tolist(), strict=True)
        groups = tuple((len(list(same)), *shape) for shape, same in groupby(shapes))
        keys = real[order].flatten().nonzero().squeeze(1)
        tokens = order[keys // length] * length + keys % length
    read = torch.cat([torch.arange(count, device=device) * length, masked_positions])
    read_keys, sorting = (_inverse(order)[read // length] * length + read % length).sort(stable=True)
    place = _inverse(sorting)
    return UnpaddedBatch(
        tokens=tokens,
        reads=torch.searchsorted(keys, read_keys),
        first=place[:count],
        masked=place[count:],
        groups=groups,
        token_offsets=_offsets(lengths),
        read_offsets=_offsets(reads),
        longest=length,
    )


def _inverse(permutation: Tensor) -> Tensor:
    return torch.empty_like(permutation).scatter_(
        0, permutation, torch.arange(len(permutation), device=permutation.device)
    )


def _offsets(lengths: Tensor) -> Tensor:
    return F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


class _ScoredAttention(Function):
    """softmax(query · keyᵀ), with dropout (p), times value, for a dense batch, a cache's worth of scores at a time.

    PyTorch's fast CPU attention has no dropout, and with it falls back to a form that keeps four (B, A, L, L) tensors.
    """

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, p: float, scaling: float) -> Tensor:
        out, saved = query.new_empty(query.shape), []
        for part in _parts(query, key):
            weights = torch.bmm(query[part], key[part].transpose(1, 2)).mul_(scaling)
            torch.softmax(weights, -1, out=weights)
            mask = kept(weights.shape, p, torch.int8) if p else None
            torch.bmm(weights * mask if p else weights, value[part], out=out[part])
            saved += [weights, mask] if any(ctx.needs_input_grad) else []
        ctx.p, ctx.scaling = p, scaling
        ctx.save_for_backward(query, key, value, *saved)
        return out.mul_(_scale(p)) if p else out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple:
        query, key, value, *saved = ctx.saved_tensors
        gradient = gradient * _scale(ctx.p) if ctx.p else gradient
        for_query, for_key, for_value = (torch.empty_like(x) for x in (query, key, value))
        for number, part in enumerate(_parts(query, key)):
            weights, mask = saved[2 * number : 2 * number + 2]
            dropped = weights if mask is None else weights * mask
            torch.bmm(dropped.transpose(1, 2), gradient[part], out=for_value[part])
            above = torch.bmm(gradient[part], value[part].transpose(1, 2))
            above = above if mask is None else above.mul_(mask)
            scores = torch._softmax_backward_data(above, weights, -1, weights.dtype).mul_(ctx.scaling)
            torch.bmm(scores, key[part], out=for_query[part])
            torch.bmm(scores.transpose(1, 2), query[part], out=for_key[part])
        return for_query, for_key, for_value, None, None


def _parts(query: Tensor, key: Tensor) -> Iterator[slice]:
    size = max(1, _SCORES // (query.shape[1] * key.shape[1]))
    return (slice(begin, begin + size) for begin in range(0, len(query), size))


def _dense_attention(query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float) -> Tensor:
    """A batch of equal rows: query (B, q, A, D), key and value (B, k, A, D) → (B·q, A, D).

    In 16 bit the backward pass of PyTorch's own kernel took longer than any other operation of the mini model, so
    short rows are given whole to the matrix units. (That it pays is expected and not measured: `docs/speed.md`.)
    """
    (count, reads, heads, size), length = query.shape, key.shape[1]
    if dropout == 1 or (not dropout and (query.dtype == torch.float32 or length > _SHORT)):
        turned = (x.transpose(1, 2) for x in (query, key, value))
        context = F.scaled_dot_product_attention(*turned, dropout_p=dropout, scale=scaling)
        return context.transpose(1, 2).reshape(count * reads, heads, size)
    flat = [
        x.transpose(1, 2).reshape(count * heads, n, size) for x, n in ((query, reads), (key, length), (value, length))
    ]
    context = _ScoredAttention.apply(*flat, dropout, scaling)
    return context.view(count, heads, reads, size).transpose(1, 2).reshape(count * reads, heads, size)


def unpadded_attention(
    query: Tensor, key: Tensor, value: Tensor, rows: UnpaddedBatch, *, reads_only: bool, dropout: float, scaling: float
) -> Tensor:
    """Attention of each row's tokens to that row's tokens: query (T or Q, A, D), key and value (T, A, D) → as query.

    Args:
        reads_only: the queries are `rows.reads`, and not all tokens.
    """
    attend = _attend_on_device if rows.groups is None else _attend_groups
    key, value = key.to(query.dtype), value.to(query.dtype)  # a layer that was replaced may have its own
    return attend(query, key, value, rows, reads_only, dropout, scaling)


def _attend_groups(
    query: Tensor, key: Tensor, value: Tensor, rows: UnpaddedBatch, reads_only: bool, dropout: float, scaling: float
) -> Tensor:
    """On a CPU: rows of equal shape together."""
    queries = [(count, reads if reads_only else length) for count, length, reads in rows.groups]
    keys = [(count, length) for count, length, _ in rows.groups]
    parts = []
    for q, k, v, shape, width in zip(
        query.split([count * n for count, n in queries]),
        key.split([count * n for count, n in keys]),
        value.split([count * n for count, n in keys]),
        queries,
        keys,
        strict=True,
    ):
        dense = (q.unflatten(0, shape), k.unflatten(0, width), v.unflatten(0, width))
        parts.append(_dense_attention(*dense, dropout, scaling))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_on_device(
    query: Tensor, key: Tensor, value: Tensor, rows: UnpaddedBatch, reads_only: bool, dropout: float, scaling: float
) -> Tensor:
    """PyTorch's kernel for rows of different length; where it cannot be used (fp32, dropout), padded attention."""
    offsets = rows.read_offsets if reads_only else rows.token_offsets
    most = rows.longest + reads_only  # [CLS] is read, and may be masked as well
    if _takes_any_length(query, dropout):
        ends = (offsets, rows.token_offsets, most, rows.longest)
        return varlen_attn(query, key, value, *ends)  # scaled by 1/√D, as BERT is; torch 2.10 takes no other
    padded_query, at = _pad(query, offsets, most)
    (padded_key, _), (padded_value, _) = (_pad(x, rows.token_offsets, rows.longest) for x in (key, value))
    there = torch.arange(rows.longest, device=query.device) < rows.token_offsets.diff().unsqueeze(1)  # (B, L)
    context = F.scaled_dot_product_attention(
        padded_query, padded_key, padded_value, there[:, None, None, :], dropout_p=_drawn(dropout), scale=scaling
    )
    return context.transpose(1, 2).flatten(0, 1)[at]


def _takes_any_length(query: Tensor, dropout: float) -> bool:
    """What `varlen_attn` asks for: 16 bit, no dropout, heads of a size it has, an Ampere GPU or a newer one."""
    if query.device.type != "cuda" or dropout or query.dtype not in (torch.float16, torch.bfloat16):
        return False
    size = query.shape[-1]
    return size % 8 == 0 and size <= 256 and _has_flash_attention(query.device)


@cache
def _has_flash_attention(device: torch.device) -> bool:
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def _pad(x: Tensor, offsets: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(T, A, D) → (B, A, width, D), and the (T,) places in B·width that its tokens took."""
    number, count = torch.arange(len(x), device=x.device, dtype=torch.int32), len(offsets) - 1
    row = torch.searchsorted(offsets, number, right=True) - 1
    at = row * width + number - offsets[row]
    padded = x.new_zeros(count * width, *x.shape[1:]).index_copy(0, at, x)
    return padded.unflatten(0, (count, width)).transpose(1, 2), at
