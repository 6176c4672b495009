"""Sentences → (A, B) pairs for next-sentence prediction (Devlin et al. 2019, section 3.1 "Task #2" and A.2).

The algorithm is that of the 2018 code (google-research/bert@eedf571, create_pretraining_data.py): gather sentences of
a document until a target length, cut between two of them, and in half of the cases put a stranger, a segment of
another document, in B's place. Three things differ, on purpose:

- A chunk has at least two sentences, so that the draw of 50 % stands; in 2018 a chunk of one always got a stranger.
- The tails that strangers displace are dealt out among the strangers, by length, so that every sentence of the corpus
  stands in an example of every epoch; in 2018 a stranger was drawn at random and the displaced text was read again.
- A document of one sentence cannot be cut. It serves as a stranger, once an epoch, and for each such extra example a
  chunk is used twice more, once with the stranger and once as it stands, which keeps the 50 %.
"""

from typing import NamedTuple

import numpy as np

NEXT, STRANGER = 0, 1  # label: B follows A · B is from another document (Google's and transformers' meaning)


class EpochPlan(NamedTuple):
    """The pairs of one epoch. Arrays of length N: ranges of sentence numbers, end exclusive, and labels."""

    a_start: np.ndarray
    a_end: np.ndarray
    b_start: np.ndarray
    b_end: np.ndarray
    label: np.ndarray

    def __len__(self) -> int:
        return len(self.label)


def plan_epoch(
    document_starts: np.ndarray,
    document_ends: np.ndarray,
    token_offsets: np.ndarray,
    max_tokens: int,
    short_seq_probability: float,
    nsp: bool,
    rng: np.random.Generator,
) -> EpochPlan:
    """Draws the pairs of one epoch.

    Args:
        document_starts, document_ends: (D,) the sentences [start, end) of each document.
        token_offsets: (S + 1,) number of tokens before each sentence.
        max_tokens: room for A and B together, special tokens taken off.
        short_seq_probability: share of the documents whose target length is uniform in [2, max_tokens].
        nsp: False gives single segments: A is the whole chunk, B is empty, the label is 0.
    """
    target = np.full(len(document_starts), max_tokens)
    short = rng.random(len(target)) < short_seq_probability
    target[short] = rng.integers(2, max_tokens + 1, short.sum())
    document, start, end = _chunks(document_starts, document_ends, token_offsets, target, least=2 if nsp else 1)
    if not nsp:
        return EpochPlan(start, end, end, end, np.zeros(len(start), np.int64))
    single = end - start == 1
    lone_document, lone_start = document[single], start[single]
    document, start, end = document[~single], start[~single], end[~single]

    # Each chunk once, then twice more for each one-sentence document: half with it, half as it stands.
    again = np.resize(rng.permutation(len(start)), 2 * len(lone_start)) if len(start) else np.zeros(0, np.int64)
    stranger = np.concatenate([rng.random(len(start)) < 0.5, np.arange(len(again)) < len(lone_start)])
    chunk = np.concatenate([np.arange(len(start)), again])
    a_start, b_end = start[chunk], end[chunk]
    split = rng.integers(a_start + 1, b_end)  # uniform over the cuts between two sentences
    room = token_offsets[b_end] - token_offsets[split]
    plan = EpochPlan(a_start, split, split.copy(), b_end.copy(), stranger.astype(np.int64))
    stuck = _deal(plan, document[chunk], room, token_offsets, len(start), lone_document, lone_start, rng)
    if len(stuck):  # their chunks are used twice more, too
        drawn = np.full(len(stuck), -1)
        as_it_stands = (a_start[stuck], split[stuck], split[stuck], b_end[stuck], np.zeros_like(stuck))
        strangers = (a_start[stuck], split[stuck], split[stuck], drawn, np.ones_like(stuck))
        plan = EpochPlan(*map(np.concatenate, zip(plan, as_it_stands, strangers, strict=True)))
        chunk, room = (np.concatenate([column, column[stuck], column[stuck]]) for column in (chunk, room))
    for example in np.flatnonzero(plan.b_end < 0):
        other = (document[chunk[example]] + rng.integers(1, len(document_starts))) % len(document_starts)
        first = rng.integers(document_starts[other], document_ends[other])
        end = np.searchsorted(token_offsets, token_offsets[first] + room[example])
        plan.b_start[example], plan.b_end[example] = first, min(max(end, first + 1), document_ends[other])
    return plan


def _chunks(starts, ends, token_offsets, target, least: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts all documents into chunks of at least `target` tokens and `least` sentences, side by side.

    The last chunk of a document may be shorter; a last sentence that would stand alone joins the chunk before it.
    """
    document, position = np.arange(len(starts)), starts.astype(np.int64)
    pieces = []
    while len(document):
        end = np.searchsorted(token_offsets, token_offsets[position] + target[document])
        end = np.minimum(np.maximum(end, position + least), ends[document])
        end = np.where(ends[document] - end < least, ends[document], end) if least > 1 else end
        pieces.append((document, position, end))
        going_on = end < ends[document]
        document, position = document[going_on], end[going_on]
    if not pieces:
        return (np.zeros(0, np.int64),) * 3
    document, start, end = (np.concatenate(column) for column in zip(*pieces, strict=True))
    order = np.argsort(start, kind="stable")
    return document[order], start[order], end[order]


def _deal(plan: EpochPlan, document, room, token_offsets, chunks: int, lone_document, lone_start, rng) -> np.ndarray:
    """Deals the tails displaced by strangers, and the one-sentence documents, out among the strangers.

    A stranger is as long as what it displaces (as nearly as the text allows), or the lengths of A and B would tell
    the label, and truncation would cut what is too long.
    Nobody is dealt a segment of his own document. Where that cannot be (one document holds most of the text),
    `b_end` = −1 asks for a stranger drawn at random, as in 2018.

    Returns:
        The examples whose displaced tails stand nowhere now.
    """
    slots = np.flatnonzero(plan.label == STRANGER)
    displaced = slots[slots < chunks]  # the repeated chunks displace nothing: they stand elsewhere already
    pool_document = np.concatenate([document[displaced], lone_document])
    pool_start = np.concatenate([plan.b_start[displaced], lone_start])
    pool_end = np.concatenate([plan.b_end[displaced], lone_start + 1])
    by_room = np.lexsort((rng.random(len(slots)), room[slots]))
    by_size = np.lexsort((rng.random(len(slots)), token_offsets[pool_end] - token_offsets[pool_start]))
    dealt = np.empty_like(slots)
    dealt[by_room] = by_size[_derange(document[slots[by_room]], pool_document[by_size], rng)]
    plan.b_start[slots], plan.b_end[slots] = pool_start[dealt], pool_end[dealt]
    stuck = np.flatnonzero(document[slots] == pool_document[dealt])
    plan.b_end[slots[stuck]] = -1
    return displaced[dealt[stuck]]  # a lone sentence is never stuck: its document has no chunk


def _derange(holder: np.ndarray, pool: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A permutation near the identity with pool[permutation[i]] != holder[i], as far as a few rounds of swaps get.

    In each round a clash may swap with one twice as far away as in the round before.
    """
    dealt = np.arange(len(holder))
    for reach in 2 ** np.arange(1, 25):
        clashes = np.flatnonzero(pool[dealt] == holder)
        if len(clashes) == 0:
            break
        steps = rng.integers(1, reach + 1, len(clashes)) * rng.choice((-1, 1), len(clashes))
        for i, j in zip(clashes.tolist(), ((clashes + steps) % len(holder)).tolist(), strict=True):
            if pool[dealt[j]] != holder[i] and pool[dealt[i]] != holder[j]:
                dealt[i], dealt[j] = dealt[j], dealt[i]
    return dealt


def truncate(a: np.ndarray, b: np.ndarray, max_tokens: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Cuts A and B to `max_tokens` together, as the 2018 code: token by token off the longer one (B on a tie), each
    from the front or the back with probability one half. Written as counts, so the draws are two binomials."""
    excess = len(a) + len(b) - max_tokens
    if excess <= 0:
        return a, b
    gap = min(abs(len(a) - len(b)), excess)
    from_a, from_b = (gap, 0) if len(a) > len(b) else (0, gap)
    rest = excess - gap
    from_a, from_b = from_a + rest // 2, from_b + rest - rest // 2
    front_a, front_b = rng.binomial(from_a, 0.5), rng.binomial(from_b, 0.5)
    return a[front_a : len(a) - (from_a - front_a)], b[front_b : len(b) - (from_b - front_b)]
