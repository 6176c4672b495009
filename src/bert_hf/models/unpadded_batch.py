"""The layout of a batch without its padding: which tokens there are, and which of them the heads use.

Shapes: B sequences · L padded length · T real tokens of the batch · M masked tokens · Q tokens that the heads use
(each [CLS] and the masked ones).
"""

from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_TOKEN_MULTIPLE = 32  # in 16 bit a CPU fills up the tokens of a batch to a multiple of this
_QUERY_MULTIPLE = 16  # of all tokens whose output the heads use, likewise

Group = tuple[int, int, int]  # numbers of sequences, tokens of each, queries of each


class UnpaddedBatch(NamedTuple):
    """Where the real tokens of a padded batch (B, L) are, and for which of them the last layer computes an output.

    The tokens of a sequence are contiguous. On a CPU, sequences of equal shape are neighbours, so that each group of
    them is a dense batch; elsewhere sequences keep their order, and a variable-length kernel gets their boundaries.
    """

    token_indices: Tensor  # (T,) indices of the real tokens into the flattened B·L
    query_indices: Tensor  # (Q,) indices into `token_indices`: the [CLS] and the masked tokens of each sequence
    cls_queries: Tensor  # (B,) indices into `query_indices`: the [CLS] of each sequence
    masked_queries: Tensor  # (M,) indices into `query_indices`: the masked tokens, in the order of the batch
    groups: tuple[Group, ...] | None  # sequences of equal shape; None: not grouped
    cu_seqlens: Tensor  # (B + 1,) int32: where each sequence's tokens begin
    query_cu_seqlens: Tensor  # (B + 1,) int32: where each sequence's queries begin
    max_seqlen: int  # no sequence has more tokens


def pack_layout(attention_mask: Tensor, masked_positions: Tensor, token_positions: Tensor) -> Tensor:
    """Return an ungrouped `UnpaddedBatch`, but for its token indices, as one tensor (2M + 4B + 2,).

    The workers of a data loader send it with a batch, because a GPU would have to launch 26 kernels for it.
    """
    batch = unpad_batch(attention_mask, masked_positions, token_positions, grouped=False)
    assert batch is not None  # it has token positions, which are its `token_indices`
    queries = (batch.query_indices, batch.cls_queries, batch.masked_queries)
    return torch.cat([each.to(torch.int32) for each in (*queries, batch.cu_seqlens, batch.query_cu_seqlens)])


def unpack_layout(
    layout: Tensor, input_ids: Tensor, masked_positions: Tensor, token_positions: Tensor
) -> UnpaddedBatch:
    """Return the ungrouped `UnpaddedBatch` of a batch from its `layout`, the result of `pack_layout`."""
    count, length = input_ids.shape
    masked = len(masked_positions)
    sizes = [masked + count, count, masked, count + 1, count + 1]
    query_indices, cls_queries, masked_queries, cu_seqlens, query_cu_seqlens = layout.split(sizes)
    return UnpaddedBatch(
        token_positions, query_indices, cls_queries, masked_queries, None, cu_seqlens, query_cu_seqlens, length
    )


@torch.compiler.disable()
def unpad_batch(
    attention_mask: Tensor, masked_positions: Tensor, token_positions: Tensor | None, grouped: bool | None = None
) -> UnpaddedBatch | None:
    """Return where the real tokens of a batch are, grouped by the shape of their sequences by default on a CPU.

    None: grouped, if a [CLS] or masked token is padding; else, without the ascending `token_positions` (T,).

    Example: two sequences of 3 and 4 tokens, padded to 4; the tokens at 2 and 5 are masked.

        attention_mask 1 1 1 0   positions 0 1 2 .     masked_positions 2 5
                       1 1 1 1             4 5 6 7

    Grouped, the longer sequence comes first. Its queries are [CLS] at 4 and the masked token at 5; then 0 and 2 come:

        token_indices 4 5 6 7 0 1 2    query_indices 0 1 4 6    cls_queries 2 0    masked_queries 3 1
        groups (1, 4, 2) (1, 3, 2)     cu_seqlens 0 4 7         query_cu_seqlens 0 2 4
    """
    device, (count, length) = attention_mask.device, attention_mask.shape
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
    if grouped:  # most tokens first, then most queries
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
        cu_seqlens=_cu_seqlens(lengths),
        query_cu_seqlens=_cu_seqlens(queries),
        max_seqlen=length,
    )


def add_filler_sequence(batch: UnpaddedBatch) -> UnpaddedBatch:
    """Add a sequence that no head reads to a grouped batch: it rounds the numbers of tokens and queries up.

    oneDNN compiles for each new number of rows; most then equal an earlier one: 17 % less time on short texts.
    """
    tokens = len(batch.token_indices)
    more_tokens = _TOKEN_MULTIPLE - tokens % _TOKEN_MULTIPLE  # at least one
    more_queries = _QUERY_MULTIPLE - len(batch.query_indices) % _QUERY_MULTIPLE

    return batch._replace(
        token_indices=F.pad(batch.token_indices, (0, more_tokens)),  # the first token of the batch, repeated
        query_indices=F.pad(batch.query_indices, (0, more_queries), value=tokens),  # the first of these, repeated
        groups=(*(batch.groups or ()), (1, more_tokens, more_queries)),
    )


def _sort_queries(masked_positions: Tensor, order: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Sort each [CLS] and the masked tokens by sequence, in the given order of sequences, and by position.

    Return their positions in a padded batch of that order (Q,), and the ranks of each [CLS], then masked token (Q,).
    """
    cls_positions = torch.arange(len(order), device=order.device) * length
    positions = torch.cat([cls_positions, masked_positions])
    new_rows = order.argsort()  # argsort inverts a permutation
    places = new_rows[positions // length] * length + positions % length

    sorted_places, sorting = places.sort(stable=True)
    return sorted_places, sorting.argsort()


def _cu_seqlens(lengths: Tensor) -> Tensor:
    """Return where each sequence begins, and where the last one ends: lengths 4 3 → 0 4 7."""
    return F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
