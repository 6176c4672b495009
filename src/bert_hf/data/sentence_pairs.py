"""Draws the sentence pairs (A, B) of one epoch for next-sentence prediction.

Source: Devlin et al. 2019, section 3.1 "Task #2" and appendix A.2, and the code of 2018 (google-research/bert@eedf571,
create_pretraining_data.py): gather the sentences of a document up to a target length, cut between two of them into A
and B, and in half of the cases replace B by a segment of another document. Label 0 (`NEXT`) means that B follows A,
label 1 (`NOT_NEXT`) that B comes from another document.

Four things differ from 2018, on purpose:

- A chunk has at least two sentences, so that a fair coin decides its label. In 2018 a chunk of one sentence
  always got a random B.
- A segment that was replaced becomes the B of another NOT_NEXT pair of the same epoch, so that every sentence is used
  in every epoch. In 2018 B was drawn at random, and the replaced text was read again.
- The lengths of A and B do not tell the label: the segment that replaces B has B's length, as nearly as the text
  allows.
- A document of one sentence cannot be cut into A and B. Its sentence x is the B of one NOT_NEXT pair (A, x) an epoch,
  and for each such pair there is one more NEXT pair, whose B is as long as x.

Sentences are numbered through the whole text; a segment is a range [start, end) of such numbers. `token_offsets[s]` is
the number of tokens before sentence s, so a segment has token_offsets[end] − token_offsets[start] tokens.
"""

from typing import NamedTuple

import numpy as np

NEXT, NOT_NEXT = 0, 1  # labels, with Google's and transformers' meaning

_SEGMENTS_TRIED = 16  # segments among which the one with the nearest length is taken
_SENTENCES_TRIED = 4  # sentences of the right length among which the one with most text before it is taken
_SENTENCES_SEARCHED = 2**20  # at least; bounds the memory of the search in a window of many million sentences


class EpochPlan(NamedTuple):
    """The pairs of one epoch. Arrays of length N: ranges of sentence numbers, end exclusive, and labels."""

    a_start: np.ndarray
    a_end: np.ndarray
    b_start: np.ndarray
    b_end: np.ndarray
    label: np.ndarray

    def __len__(self) -> int:
        return len(self.label)


class _Text(NamedTuple):
    """Documents as ranges of sentences. D documents, S sentences."""

    starts: np.ndarray  # (D,) first sentence of each document
    ends: np.ndarray  # (D,) end of its sentences, exclusive
    offsets: np.ndarray  # (S + 1,) tokens before each sentence

    def tokens(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Number of tokens of the segments [start, end)."""
        return self.offsets[end] - self.offsets[start]

    def nearest_boundary(self, tokens: np.ndarray) -> np.ndarray:
        """The sentence whose beginning is nearest to a position, given as a number of tokens from the first one on."""
        after = np.clip(np.searchsorted(self.offsets, tokens), 1, len(self.offsets) - 1)
        before_is_nearer = tokens - self.offsets[after - 1] < self.offsets[after] - tokens
        return after - before_is_nearer


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

    The chunks of two or more sentences come first, one pair each. Pairs that use a chunk's text once more follow: two
    for each segment that could not be exchanged, and two for each one-sentence document.

    Args:
        document_starts, document_ends: (D,) the sentences [start, end) of each document.
        token_offsets: (S + 1,) number of tokens before each sentence.
        max_tokens: number of tokens that A and B may have together, special tokens taken off.
        short_seq_probability: share of the documents whose target length is uniform in [2, max_tokens].
        nsp: False gives single segments: A is the whole chunk, B is empty, the label is 0.

    Raises:
        ValueError: pairs are asked for of fewer than two documents, or of one-sentence documents alone.
    """
    text = _Text(document_starts, document_ends, token_offsets)

    # One target length for all chunks of a document.
    target = np.full(len(document_starts), max_tokens)
    short = rng.random(len(target)) < short_seq_probability
    target[short] = rng.integers(2, max_tokens + 1, short.sum())

    document, start, end = _gather_chunks(text, target, least=2 if nsp else 1)
    if not nsp:
        return EpochPlan(start, end, end, end, np.zeros(len(start), np.int64))

    several = end - start > 1
    if len(document_starts) < 2 or not several.any():
        raise ValueError("next-sentence pairs need two documents, one of them with two sentences")

    chunk_pairs = _pair_chunks(text, document[several], start[several], end[several], rng)
    if several.all():
        return chunk_pairs
    lone_pairs = _pair_lone_sentences(text, start[~several], target, max_tokens, rng)
    return EpochPlan(*map(np.concatenate, zip(chunk_pairs, lone_pairs, strict=True)))


def _gather_chunks(text: _Text, target: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts every document into chunks of at least `target` tokens and `least` sentences.

    The last chunk of a document may be shorter. A last sentence that would be alone joins the chunk before it.

    Example: two documents with sentences of 6, 7, 3, 8, 5 and of 20, 4 tokens; target 10, least 2. Each round of the
    loop cuts one chunk off every document that has sentences left:
        round 1: [6, 7] has 13 tokens · [20] reaches the target alone, but a chunk has two sentences: [20, 4]
        round 2: [3, 8] has 11 tokens, and the last sentence would be alone: [3, 8, 5]
    Result: document 0, 0, 1; start 0, 2, 5; end 2, 5, 7.

    Returns:
        document, start, end: (chunks,) each, in the order of the text.
    """
    document = np.arange(len(text.starts))
    position = text.starts.astype(np.int64)
    rounds = [(document[:0], position[:0], position[:0])]

    while len(document):
        last = text.ends[document]
        end = np.searchsorted(text.offsets, text.offsets[position] + target[document])
        end = np.minimum(np.maximum(end, position + least), last)
        end = np.where(last - end < least, last, end) if least > 1 else end
        rounds.append((document, position, end))

        unfinished = end < last
        document, position = document[unfinished], end[unfinished]

    document, start, end = (np.concatenate(column) for column in zip(*rounds, strict=True))
    order = np.argsort(start, kind="stable")
    return document[order], start[order], end[order]


# ---- chunks of two or more sentences


def _pair_chunks(text: _Text, document: np.ndarray, start: np.ndarray, end: np.ndarray, rng) -> EpochPlan:
    """Cuts every chunk into A and B, and replaces B in half of them.

    The replaced segments are exchanged among the NOT_NEXT pairs (`_exchange`). Where one document holds so much of the
    text that pairs are left without a partner,
        - their B is some segment of another document, of the same length;
        - a chunk whose replaced segment nobody took is also used as it is, with label NEXT, and once more with some
          segment of another document, NOT_NEXT: every sentence is in use, and the labels stay half and half.

    Args:
        document, start, end: (chunks,) the document of each chunk and its sentences.
    """
    split = _draw_cuts(text, document, start, end, rng)
    label = np.where(rng.random(len(start)) < 0.5, NOT_NEXT, NEXT)
    b_start, b_end = split.copy(), end.copy()

    replaced = np.flatnonzero(label == NOT_NEXT)
    partner, alone = _exchange(document[replaced], text.tokens(split, end)[replaced], rng)
    b_start[replaced] = split[replaced[partner]]
    b_end[replaced] = end[replaced[partner]]

    alone, unused = replaced[alone], replaced[partner[alone]]
    again = np.tile(unused, 2)
    split_again = _draw_cuts(text, document[again], start[again], end[again], rng)
    label_again = np.repeat([NEXT, NOT_NEXT], len(unused))

    plan = EpochPlan(
        a_start=np.concatenate([start, start[again]]),
        a_end=np.concatenate([split, split_again]),
        b_start=np.concatenate([b_start, split_again]),
        b_end=np.concatenate([b_end, end[again]]),
        label=np.concatenate([label, label_again]),
    )
    drawn = np.concatenate([alone, len(start) + np.flatnonzero(label_again == NOT_NEXT)])
    chunk = np.concatenate([alone, unused])
    length = text.tokens(plan.a_end[drawn], end[chunk])
    plan.b_start[drawn], plan.b_end[drawn] = _find_segments(
        text, length, text.starts, text.ends, rng, excluded=document[chunk]
    )
    return plan


def _draw_cuts(text: _Text, document: np.ndarray, start: np.ndarray, end: np.ndarray, rng) -> np.ndarray:
    """(chunks,) the sentence at which B begins, uniform over the boundaries inside each chunk.

    B is never longer than the longest *other* document: no segment could replace it at its own length, and a long B
    would mean NEXT. This concerns the longest document alone, and its NEXT and NOT_NEXT pairs alike.
    """
    sizes = text.tokens(text.starts, text.ends)
    second, largest = np.partition(sizes, -2)[-2:]
    longest_other = np.full(len(sizes), largest)
    longest_other[np.argmax(sizes)] = second

    earliest = np.searchsorted(text.offsets, text.offsets[end] - longest_other[document])
    return rng.integers(np.clip(earliest, start + 1, end - 1), end)


def _exchange(document: np.ndarray, length: np.ndarray, rng) -> tuple[np.ndarray, np.ndarray]:
    """Exchanges the replaced segments: each pair gets a segment of another document, as long as its own.

    The pairs are sorted by the length of their segment, and neighbours exchange theirs. A pair that has a segment of
    its own document, or one that differs by more than an eighth (or four tokens), exchanges again with a pair further
    away: at first up to two places, then four, eight, … No exchange takes a suitable segment from a pair.

    Example: segments of 5, 30, 6, 29, 9 tokens, of the documents a, b, a, c, d.
        sorted by length      5a  6a  9d 29c 30b
        neighbours exchange   6a  5a 29c  9d 30b   none suits: same document, the same, too long, too short, its own
        in the end            9d  6a  5a 30b 29c   6a is without a partner: 9d alone would suit 5a and 6a

    Args:
        document, length: (n,) of each replaced segment.

    Returns:
        partner: (n,) a permutation: pair i gets the segment of pair partner[i].
        alone: the pairs for which that segment is unsuitable.
    """
    count = len(document)
    order = np.lexsort((rng.random(count), length))
    document, length = document[order], length[order]
    tolerance = np.maximum(4, length // 8)

    def suits(pair: np.ndarray, segment: np.ndarray) -> np.ndarray:
        near = np.abs(length[pair] - length[segment]) <= tolerance[pair]
        return near & (document[pair] != document[segment])

    given = np.arange(count) ^ 1
    given[given == count] = count - 1  # an odd number: the last one keeps its own for now
    unsuited = np.flatnonzero(~suits(np.arange(count), given))

    for reach in np.repeat(2 ** np.arange(1, 21), 2):
        if len(unsuited) == 0:
            break
        steps = rng.integers(1, reach + 1, len(unsuited)) * rng.choice((-1, 1), len(unsuited))
        other = (unsuited + steps) % count
        harmless = suits(other, given[unsuited]) | ~suits(other, given[other])
        pair, other = unsuited[harmless], other[harmless]

        # A pair takes part in one exchange a round: where several claim it, the last claim holds.
        number = np.arange(len(pair))
        claim = np.full(count, -1)
        claim[pair] = number
        claim[other] = number
        agreed = (claim[pair] == number) & (claim[other] == number)
        pair, other = pair[agreed], other[agreed]

        given[pair], given[other] = given[other], given[pair]
        unsuited = unsuited[~suits(unsuited, given[unsuited])]

    partner = np.empty_like(order)
    partner[order] = order[given]
    return partner, np.sort(order[unsuited])


# ---- documents of one sentence


def _pair_lone_sentences(text: _Text, lone: np.ndarray, target: np.ndarray, max_tokens: int, rng) -> EpochPlan:
    """Two pairs for each one-sentence document, of one distribution of lengths: one NEXT, one NOT_NEXT.

    Both begin alike: a sentence as long as the lone sentence x is drawn from the longer documents. It is B, and the
    sentences before it are A. The first of the two pairs stays so, and in the second, drawn anew, x replaces B.

    Example: x has 7 tokens, the target is 20. Two sentences of 7 tokens are drawn from documents with sentences of
    9, 12, 6, [7], 8 and of 11, 3, [7] tokens.
        A is what stands before, up to the target: [12, 6], because 12 + 6 + 7 ≥ 20, and [11, 3]
        the pairs: ([12, 6], [7]) NEXT and ([11, 3], x) NOT_NEXT
    Where no sentence is as long as x, B is the segment of one or more sentences whose length comes nearest.

    Args:
        lone: (n,) the sentences of the one-sentence documents.
        target: (D,) tokens that A and B of a document should have together.
        max_tokens: lengths above it are equal, since truncation makes them so.
    """
    wanted = np.tile(np.minimum(text.tokens(lone, lone + 1), max_tokens), 2)
    longer = np.flatnonzero(text.ends - text.starts > 1)
    first, last = text.starts[longer] + 1, text.ends[longer]  # the sentences that have one before them

    def start_of_a(b_start: np.ndarray) -> np.ndarray:
        document = longer[np.searchsorted(last, b_start, side="right")]
        room = target[document] - wanted
        start = np.searchsorted(text.offsets, text.offsets[b_start] - room, side="right") - 1
        return np.clip(start, text.starts[document], b_start - 1)

    # Of several sentences that are as long as x, the one with the longest A: fewer padding tokens.
    tried = _find_sentences(text, wanted, first, last, max_tokens, rng)
    longest = np.argmax(text.tokens(start_of_a(tried), tried), axis=0)
    b_start = np.take_along_axis(tried, longest[None], axis=0)[0]
    b_end = b_start + 1

    # Where none is as long as x, a segment may come nearer.
    off = np.abs(np.minimum(text.tokens(b_start, b_end), max_tokens) - wanted)
    differs = np.flatnonzero(off)
    segment_start, segment_end = _find_segments(text, wanted[differs], first, last, rng)
    nearer = np.abs(text.tokens(segment_start, segment_end) - wanted[differs]) < off[differs]
    b_start[differs[nearer]] = segment_start[nearer]
    b_end[differs[nearer]] = segment_end[nearer]

    a_start, a_end = start_of_a(b_start), b_start.copy()
    b_start[len(lone) :], b_end[len(lone) :] = lone, lone + 1
    return EpochPlan(a_start, a_end, b_start, b_end, np.repeat([NEXT, NOT_NEXT], len(lone)))


# ---- segments of a given length


def _find_sentences(
    text: _Text, wanted: np.ndarray, first: np.ndarray, last: np.ndarray, max_tokens: int, rng
) -> np.ndarray:
    """For each wanted length some sentences of that length, or of the nearest that there is.

    Example: sentences 1 … 5 have 4, 7, 30, 7, 8 tokens. Sorted by length they are 1 (4), 2 (7), 4 (7), 5 (8), 3 (30).
        7 wanted: the stretch of this length is [2, 4], and each draw gives one of these two sentences
        20 wanted: the nearest length is 30, whose stretch is [3]

    Args:
        wanted: (n,) tokens.
        first, last: (k,) the ranges of sentences to look in, ascending.
        max_tokens: longer sentences count as being so long.

    Returns:
        (_SENTENCES_TRIED, n) sentences.
    """
    ends = np.cumsum(last - first)
    total, size = ends[-1], max(_SENTENCES_SEARCHED, 4 * len(wanted))
    number = np.arange(total) if total <= size else np.sort(rng.integers(0, total, size))
    block = np.searchsorted(ends, number, side="right")
    sentence = last[block] - (ends[block] - number)

    length = np.minimum(text.tokens(sentence, sentence + 1), max_tokens)
    order = np.argsort(length, kind="stable")
    length, sentence = length[order], sentence[order]

    above = np.minimum(np.searchsorted(length, wanted), len(length) - 1)
    below = np.maximum(above - 1, 0)
    nearest = np.where(np.abs(length[below] - wanted) < np.abs(length[above] - wanted), length[below], length[above])

    begin, end = np.searchsorted(length, nearest), np.searchsorted(length, nearest, side="right")
    drawn = rng.random((_SENTENCES_TRIED, len(wanted)))
    return sentence[begin + (drawn * (end - begin)).astype(np.int64)]


def _find_segments(
    text: _Text, wanted: np.ndarray, first: np.ndarray, last: np.ndarray, rng, excluded: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """For each wanted length a segment of about that length, out of one of the blocks: the nearest of some draws.

    Only blocks that are long enough are drawn from, if there are any, else the longest one.

    Example: a block with sentences of 5, 9, 4, 8 tokens; 12 are wanted. A draw of the first sentence:
        the second: [9] has 9, [9, 4] has 13, which is nearer
        the fourth: [8] ends with the block, so it is prolonged to the front: [4, 8], exactly 12

    Args:
        wanted: (n,) tokens.
        first, last: (k,) the blocks, ranges of sentences.
        excluded: (n,) the block that must not be used for each; then there are two blocks at least.

    Returns:
        start, end: (n,) sentences of each segment.
    """
    size, count = text.tokens(first, last), last - first
    descending = np.argsort(-size, kind="stable")
    until = np.cumsum(count[descending])  # sentences of the longest block, of the two longest, …

    # Sentences are numbered from the longest block on: those of long enough blocks are a prefix.
    enough = np.searchsorted(-size[descending], -wanted, side="right")
    if excluded is None:
        drawn = rng.random((_SEGMENTS_TRIED, len(wanted))) * until[np.maximum(enough, 1) - 1]
        number = drawn.astype(np.int64)
    else:
        place = np.empty_like(descending)
        place[descending] = np.arange(len(descending))
        place = place[excluded]
        enough = np.maximum(enough, np.where(place == 0, 2, 1))
        left_out = np.where(place < enough, count[excluded], 0)
        drawn = rng.random((_SEGMENTS_TRIED, len(wanted))) * (until[enough - 1] - left_out)
        number = drawn.astype(np.int64)
        number += np.where(number >= until[place] - count[excluded], left_out, 0)

    rank = np.searchsorted(until, number, side="right")
    block = descending[rank]
    start = last[block] - (until[rank] - number)

    end = np.clip(text.nearest_boundary(text.offsets[start] + wanted), start + 1, last[block])
    before = np.clip(text.nearest_boundary(text.offsets[end] - wanted), first[block], start)
    start = np.where(end == last[block], before, start)

    nearest = np.argmin(np.abs(text.tokens(start, end) - wanted), axis=0)
    each = np.arange(len(wanted))
    return start[nearest, each], end[nearest, each]


# ---- truncation


def truncated_lengths(length_a: np.ndarray, length_b: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of A and B after truncation to `max_tokens` together: token by token off the longer one (B on a tie).

    Example: A has 30 tokens, B has 10.
        24 allowed: 16 are too many, and all come off A: 14 and 10
        20 allowed: 20 are too many, and A loses them: 10 and 10
        17 allowed: three more, by turns and B first: 9 and 8
    """
    excess = np.maximum(length_a + length_b - max_tokens, 0)
    until_equal = np.minimum(np.abs(length_a - length_b), excess)
    by_turns = excess - until_equal
    from_a = np.where(length_a > length_b, until_equal, 0) + by_turns // 2
    return length_a - from_a, length_b - (excess - from_a)


def truncate(a: np.ndarray, b: np.ndarray, max_tokens: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Cuts A and B to `max_tokens` together, as the 2018 code.

    Each token that comes off (`truncated_lengths`) is the first or the last of its segment with probability one half.
    Only how many are taken from the front matters, so the draws are two binomials.
    """
    if len(a) + len(b) <= max_tokens:
        return a, b
    kept_a, kept_b = truncated_lengths(len(a), len(b), max_tokens)
    front_a = rng.binomial(len(a) - kept_a, 0.5)
    front_b = rng.binomial(len(b) - kept_b, 0.5)
    return a[front_a : front_a + kept_a], b[front_b : front_b + kept_b]
