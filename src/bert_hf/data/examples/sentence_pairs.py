"""Sentence pairs (A, B) for next-sentence prediction: chunks of documents, and the pairs of an epoch.

Source: Devlin et al. 2019, section 3.1 "Task #2" and appendix A.2, and the code of 2018 (google-research/bert@eedf571,
create_pretraining_data.py): gather the sentences of a document up to a target length, cut between two of them into A
and B, and in half of the cases replace B by a segment of another document. Label 0 (`IS_NEXT`) means that B follows A,
label 1 (`NOT_NEXT`) that B comes from another document. What differs on purpose: docs/data.md.

A segment is a range of the text's sentences: see `segment_search`.
"""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from bert_hf.data.examples.segment_search import DocumentBounds, find_segments, find_sentences

IS_NEXT, NOT_NEXT = 0, 1  # labels, with Google's and transformers' meaning


class EpochPlan(NamedTuple):
    """The N examples of a window in an epoch: the sentences [start, end) of A and of B, and labels, (N,) each."""

    a_start: np.ndarray
    a_end: np.ndarray
    b_start: np.ndarray
    b_end: np.ndarray
    label: np.ndarray

    def joined(self, other: "EpochPlan") -> "EpochPlan":
        """Return these pairs, followed by another plan's."""
        return EpochPlan(*map(np.concatenate, zip(self, other, strict=True)))


def gather_chunks(documents: DocumentBounds, target: np.ndarray, min_sentences: int) -> np.ndarray:
    """Cut every document into chunks of at least `target` tokens and `min_sentences` sentences.

    The last chunk of a document may be shorter. Last sentences fewer than `min_sentences` join the chunk before them.

    Example: two documents with sentences of 6, 7, 3, 8, 5 and of 20, 4 tokens; target 10, min_sentences 2. Each
    round of the loop cuts one chunk off every document that has sentences left:
        round 1: [6, 7] has 13 tokens · [20] reaches the target, but a chunk has two sentences: [20, 4]
        round 2: [3, 8] has 11 tokens, and the last sentence would be alone: [3, 8, 5]
    Result: document 0, 0, 1; start 0, 2, 5; end 2, 5, 7.

    Returns:
        (3, chunks): document, start and end of each chunk, in the order of the text.
    """
    document = np.arange(len(documents.starts))
    position = documents.starts.astype(np.int64)
    rounds = [np.zeros((3, 0), np.int64)]

    while len(document):
        last = documents.ends[document]
        end = np.searchsorted(documents.offsets, documents.offsets[position] + target[document])
        end = np.minimum(np.maximum(end, position + min_sentences), last)
        end = np.where(last - end < min_sentences, last, end)
        rounds.append(np.stack([document, position, end]))

        unfinished = end < last
        document = document[unfinished]
        position = end[unfinished]

    chunks = np.concatenate(rounds, axis=1)
    return chunks[:, np.argsort(chunks[1], kind="stable")]


def next_sentence_pairs(
    documents: DocumentBounds, chunks: np.ndarray, target: np.ndarray, max_tokens: int, rng: Generator
) -> EpochPlan:
    """Draw the pairs of one epoch from its chunks (`gather_chunks`): an `Objective.arrange`."""
    _, start, end = chunks
    several = end - start > 1  # sentences; a chunk of one is a whole document
    chunk_pairs = _pair_chunks(documents, chunks[:, several], rng)
    if several.all():
        return chunk_pairs

    single_pairs = _pair_single_sentences(documents, start[~several], target, max_tokens, rng)
    return chunk_pairs.joined(single_pairs)


def _pair_chunks(documents: DocumentBounds, chunks: np.ndarray, rng: Generator) -> EpochPlan:
    """Cut every chunk into A and B, and replace B in half of them.

    The replaced segments are exchanged among the NOT_NEXT pairs (`exchange_segments`). Where one document holds so
    much of the text that pairs find no partner,
        - their B is some segment of another document, of the same length;
        - a chunk whose replaced segment no pair took is used twice more: as it is, and with such a segment. So every
          sentence is used, and half of the labels are NOT_NEXT.
    """
    exchanged, unmatched, unused = _cut_and_exchange(documents, chunks, rng)
    repeated = _pair_twice(documents, chunks[:, unused], rng)
    pairs = exchanged.joined(repeated)
    document = np.concatenate([chunks[0], np.tile(chunks[0, unused], 2)])

    # NOT_NEXT pairs that still have their own B (unmatched ones, and the second half of `repeated`): any segment of
    # another document that is as long replaces it.
    needs_b = np.concatenate([unmatched, np.arange(len(pairs.label) - len(unused), len(pairs.label))])
    length = documents.tokens(pairs.b_start[needs_b], pairs.b_end[needs_b])
    b_start, b_end = find_segments(documents, length, rng, excluded=document[needs_b])
    pairs.b_start[needs_b] = b_start
    pairs.b_end[needs_b] = b_end
    return pairs


def _cut_and_exchange(
    documents: DocumentBounds, chunks: np.ndarray, rng: Generator
) -> tuple[EpochPlan, np.ndarray, np.ndarray]:
    """Cut every chunk into A and B. A coin makes half of the pairs NOT_NEXT, and these exchange their B.

    Returns:
        pairs: one for each chunk.
        unmatched: the NOT_NEXT pairs for which no segment was suitable. They keep their own B.
        unused: the chunks whose B is in no pair; as many as are unmatched, but not always the same.
    """
    document, start, end = chunks
    cut = _draw_cuts(documents, chunks, rng)
    label = np.where(rng.random(len(start)) < 0.5, NOT_NEXT, IS_NEXT)

    replaced = np.flatnonzero(label == NOT_NEXT)
    partner, without_partner = exchange_segments(document[replaced], documents.tokens(cut, end)[replaced], rng)
    partner = replaced[partner]
    unused = partner[without_partner]
    unmatched = replaced[without_partner]

    # The chunk whose B each pair gets. Unmatched pairs keep their own, which `_pair_chunks` replaces
    source = np.arange(len(start))
    source[replaced] = partner
    source[unmatched] = unmatched
    return EpochPlan(start, cut, cut[source], end[source], label), unmatched, unused


def _pair_twice(documents: DocumentBounds, chunks: np.ndarray, rng: Generator) -> EpochPlan:
    """Cut each chunk into A and B twice: first all as IS_NEXT, then all as NOT_NEXT, whose B the caller replaces."""
    twice = np.tile(chunks, 2)
    start, end = twice[1:]
    cut = _draw_cuts(documents, twice, rng)
    return EpochPlan(start, cut, cut, end, np.repeat([IS_NEXT, NOT_NEXT], chunks.shape[1]))


def _draw_cuts(documents: DocumentBounds, chunks: np.ndarray, rng: Generator) -> np.ndarray:
    """Draw (chunks,) the sentence at which B begins, uniformly from the boundaries inside each chunk.

    B is at most as long as the longest *other* document. A longer B could not be replaced by a segment of its length,
    so its length would reveal IS_NEXT. Only the longest document is concerned, its IS_NEXT and NOT_NEXT pairs alike.
    If it has more than half of the text, the limit is the median length of the others: its NOT_NEXT pairs share their
    segments, and a B that only the longest of them can replace would often mean NOT_NEXT.

    Example: documents with sentences of 6, 7, 3, 8, 5 and of 8, 4 tokens, each of them one chunk.
        the first chunk's B may have 12 tokens, the length of the second document: it is [5] rather than [8, 5]
        the second chunk's B may have 29 tokens, but A needs a sentence: it is [4]
    """
    document, start, end = chunks
    tokens = documents.token_counts
    longest = np.argmax(tokens)
    others = np.sort(np.delete(tokens, longest))
    median = others[(len(others) - 1) // 2]
    limit = np.full(len(tokens), tokens[longest])  # tokens of B, per document
    limit[longest] = median if tokens[longest] > others.sum() else others[-1]

    earliest = np.searchsorted(documents.offsets, documents.offsets[end] - limit[document])
    return rng.integers(np.clip(earliest, start + 1, end - 1), end)


def exchange_segments(document: np.ndarray, length: np.ndarray, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Exchange the replaced segments: each pair gets one of another document, about as long as its own, if possible.

    The pairs are sorted by the length of their segment, and neighbours exchange theirs. A pair that has a segment of
    its own document, or one that differs by more than an eighth (or four tokens), exchanges again with a pair further
    away: at first up to two places, then four, eight, … No exchange takes a suitable segment from a pair.

    Example: segments of 5, 30, 6, 29, 9 tokens, of the documents a, b, a, c, d.
        sorted by length      5a  6a  9d 29c 30b
        neighbours exchange   6a  5a 29c  9d 30b   none suits: same document twice, too long, too short, its own
        in the end            9d  6a  5a 30b 29c   6a is unmatched: only 9d would suit 5a or 6a, and 5a has it

    Return a permutation `partner` (n,), pair i gets the segment of pair partner[i]; and the unmatched pairs' numbers.
    """
    count = len(document)
    order = np.lexsort((rng.random(count), length))
    document = document[order]
    length = length[order]
    tolerance = np.maximum(4, length // 8)

    def suits(pair: np.ndarray, segment: np.ndarray) -> np.ndarray:
        """Return whether each pair may have a segment, named by the pair whose own it was."""
        near = np.abs(length[pair] - length[segment]) <= tolerance[pair]
        return near & (document[pair] != document[segment])

    # Neighbours exchange: 0 and 1, 2 and 3, …; of an odd number the last one keeps its own for now.
    partner_of = np.minimum(np.arange(count) ^ 1, count - 1)

    # Pairs that hold an unsuitable segment exchange it with pairs ever further away.
    unmatched = np.flatnonzero(~suits(np.arange(count), partner_of))
    for reach in np.repeat(2 ** np.arange(1, 21), 2):  # twice at each distance, the last a million pairs
        if len(unmatched) == 0:
            break
        steps = rng.integers(1, reach + 1, len(unmatched)) * rng.choice((-1, 1), len(unmatched))
        other = (unmatched + steps) % count
        harmless = suits(other, partner_of[unmatched]) | ~suits(other, partner_of[other])
        pair, other = _disjoint_exchanges(unmatched[harmless], other[harmless], count)

        partner_of[pair], partner_of[other] = partner_of[other], partner_of[pair]
        unmatched = unmatched[~suits(unmatched, partner_of[unmatched])]

    # Until here pairs were numbered by length.
    partner = np.empty_like(order)
    partner[order] = order[partner_of]
    return partner, np.sort(order[unmatched])


def _disjoint_exchanges(first: np.ndarray, second: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose of proposed exchanges first[i] ↔ second[i] some that can be made together: no number is in two of them.

    A number belongs to the last proposal that has it as `second`, else to the last that has it as `first`. A proposal
    is kept if both of its numbers belong to it.

    Example: of 0 ↔ 3, 1 ↔ 3 and 4 ↔ 1 the second one takes 3 and the third one 1 and 4: only 4 ↔ 1 is kept.
    """
    proposal = np.arange(len(first))
    owner = np.full(count, -1)
    owner[first] = proposal
    owner[second] = proposal

    owns_both = (owner[first] == proposal) & (owner[second] == proposal)
    return first[owns_both], second[owns_both]


def _pair_single_sentences(
    documents: DocumentBounds, single: np.ndarray, target: np.ndarray, max_tokens: int, rng: Generator
) -> EpochPlan:
    """Make two pairs for each one-sentence document: one IS_NEXT, one NOT_NEXT, whose lengths do not tell the label.

    Both begin alike: a sentence as long as x, the document's own (`single`), is drawn from the longer documents. It is
    B, and the sentences before it are A. The first pair stays so; in the second, drawn independently, x replaces B.

    Example: x has 7 tokens, the target is 20. Two sentences of 7 tokens are drawn from documents with sentences of
    9, 12, 6, [7], 8 and of 11, 3, [7] tokens.
        A is what precedes B, up to the target: [12, 6], because 12 + 6 + 7 ≥ 20, and [11, 3]
        the pairs: ([12, 6], [7]) IS_NEXT and ([11, 3], x) NOT_NEXT
    Where no sentence is as long as x, B is the segment of one or more sentences whose length comes nearest.
    Lengths above `max_tokens` count as equal, since truncation makes them so.
    """
    wanted = np.tile(np.minimum(documents.tokens(single, single + 1), max_tokens), 2)
    b_start, b_end = _draw_second_segments(documents, wanted, target, max_tokens, rng)
    a_start = _start_of_a(documents, b_start, target, wanted)
    a_end = b_start.copy()

    b_start[len(single) :] = single
    b_end[len(single) :] = single + 1
    return EpochPlan(a_start, a_end, b_start, b_end, np.repeat([IS_NEXT, NOT_NEXT], len(single)))


def _draw_second_segments(
    documents: DocumentBounds, wanted: np.ndarray, target: np.ndarray, max_tokens: int, rng: Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw for each wanted length a segment, B, of that length or the nearest, that has a sentence before it for A."""
    several = documents.ends - documents.starts > 1
    # All sentences but the first one of each document
    followers = DocumentBounds(documents.starts[several] + 1, documents.ends[several], documents.offsets)

    # Of several sentences that are as long as wanted, the one with the longest A: fewer padding tokens.
    candidates = find_sentences(followers, wanted, max_tokens, rng)
    length_a = documents.tokens(_start_of_a(documents, candidates, target, wanted), candidates)
    b_start = candidates[np.argmax(length_a, axis=0), np.arange(len(wanted))]
    b_end = b_start + 1

    # Where none is as long as wanted, a segment may come nearer.
    difference = np.abs(np.minimum(documents.tokens(b_start, b_end), max_tokens) - wanted)
    differs = np.flatnonzero(difference)
    start, end = find_segments(followers, wanted[differs], rng)
    nearer = np.abs(documents.tokens(start, end) - wanted[differs]) < difference[differs]
    b_start[differs[nearer]] = start[nearer]
    b_end[differs[nearer]] = end[nearer]
    return b_start, b_end


def _start_of_a(
    documents: DocumentBounds, b_start: np.ndarray, target: np.ndarray, length_b: np.ndarray
) -> np.ndarray:
    """Return the sentence from which on A and B reach their document's target, or the document's first one."""
    document = np.searchsorted(documents.ends, b_start, side="right")
    begin = documents.offsets[b_start] - (target[document] - length_b)
    start = np.searchsorted(documents.offsets, begin, side="right") - 1
    return np.clip(start, documents.starts[document], b_start - 1)


def truncated_lengths(
    length_a: int | np.ndarray, length_b: int | np.ndarray, max_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of A and B truncated to `max_tokens` together: token by token off the longer one (or B).

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


def truncate(a: np.ndarray, b: np.ndarray, max_tokens: int, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Cut A and B to `max_tokens` together, as the 2018 code.

    Each token that comes off (`truncated_lengths`) is the first or the last of its segment with probability one half.
    Only how many are taken from the front matters, so the draws are two binomials.

    Example: A has 30 tokens, B has 10, and 24 are allowed. 16 tokens come off A, say 7 from its front and 9 from its
    end: its tokens 7 to 20 are left, and all of B.
    """
    if len(a) + len(b) <= max_tokens:
        return a, b

    kept_a, kept_b = truncated_lengths(len(a), len(b), max_tokens)
    front_a = rng.binomial(len(a) - kept_a, 0.5)
    front_b = rng.binomial(len(b) - kept_b, 0.5)
    return a[front_a : front_a + kept_a], b[front_b : front_b + kept_b]
