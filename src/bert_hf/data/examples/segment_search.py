"""Finds sentences and segments of a given length in a text of many documents.

Sentences are numbered through the whole text; a segment is a range [start, end) of such numbers. `offsets[s]` is the
number of tokens before sentence s, so a segment has offsets[end] − offsets[start] tokens.
"""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

_SEGMENT_CANDIDATES = 16  # random segments among which the one of the nearest length is taken
_SENTENCE_CANDIDATES = 4  # sentences of the right length among which the one with most text before it is taken
_SENTENCES_SEARCHED = 2**20  # at least; bounds the memory of the search in a window of many million sentences


class DocumentBounds(NamedTuple):
    """Documents, or parts of them, as ranges of sentences. D documents, S sentences."""

    starts: np.ndarray  # (D,) first sentence of each document, ascending
    ends: np.ndarray  # (D,) end of its sentences, exclusive
    offsets: np.ndarray  # (S + 1,) tokens before each sentence

    def tokens(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the number of tokens of the segments [start, end)."""
        return self.offsets[end] - self.offsets[start]

    @property
    def token_counts(self) -> np.ndarray:
        """Return (D,) the number of tokens of each document."""
        return self.tokens(self.starts, self.ends)

    def nearest_boundary(self, position: np.ndarray) -> np.ndarray:
        """Return the sentence that begins nearest to each position (tokens before it), or S, the end of the text."""
        after = np.clip(np.searchsorted(self.offsets, position), 1, len(self.offsets) - 1)
        before_is_nearer = position - self.offsets[after - 1] < self.offsets[after] - position
        return after - before_is_nearer


def find_sentences(documents: DocumentBounds, wanted: np.ndarray, max_tokens: int, rng: Generator) -> np.ndarray:
    """Draw for each wanted length some sentences of that length, or of the nearest one available.

    Example: sentences 1 … 5 have 4, 7, 30, 7, 8 tokens. Sorted by length they are 1 (4), 2 (7), 4 (7), 5 (8), 3 (30).
        7 wanted: sentences 2 and 4 have this length, and each draw gives one of them
        20 wanted: the nearest length is 30, which only sentence 3 has

    Sentences longer than `max_tokens` count as having this length. `wanted` is (n,), the result (draws, n).
    """
    # All sentences of the documents, or a sample; `number` counts only sentences that are in one of the documents.
    ends = np.cumsum(documents.ends - documents.starts)
    total = ends[-1]
    searched = max(_SENTENCES_SEARCHED, 4 * len(wanted))
    number = np.arange(total) if total <= searched else np.sort(rng.integers(0, total, searched))
    document = np.searchsorted(ends, number, side="right")
    sentence = documents.ends[document] - (ends[document] - number)

    length = np.minimum(documents.tokens(sentence, sentence + 1), max_tokens)
    order = np.argsort(length, kind="stable")
    length = length[order]

    # The nearest length, and the indices [begin, end) into `order` of the sentences that have it.
    index = np.searchsorted(length, wanted)
    above = length[np.minimum(index, len(length) - 1)]
    below = length[np.maximum(index - 1, 0)]
    nearest = np.where(np.abs(below - wanted) < np.abs(above - wanted), below, above)
    begin = np.searchsorted(length, nearest)
    end = np.searchsorted(length, nearest, side="right")

    drawn = rng.random((_SENTENCE_CANDIDATES, len(wanted)))
    return sentence[order[begin + (drawn * (end - begin)).astype(np.int64)]]


def find_segments(
    documents: DocumentBounds, wanted: np.ndarray, rng: Generator, excluded: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Draw for each wanted length a segment of about that length, within a document: the nearest of some draws.

    Example: a document with sentences of 5, 9, 4, 8 tokens; 12 are wanted. A draw of the first sentence:
        the second: [9] has 9, [9, 4] has 13, which is nearer
        the fourth: [8] ends with the document, so it is extended to the front: [4, 8], exactly 12

    Return start and end of the segments, (n,) each. `excluded` (n,) are the documents that they must not be from, if
    there are at least two documents.
    """
    start, document = _draw_sentences(documents, wanted, rng, excluded)  # (draws, n)
    first = documents.starts[document]
    last = documents.ends[document]

    # As many sentences as come nearest to the length; where they reach the document's end, extended to the front.
    end = np.clip(documents.nearest_boundary(documents.offsets[start] + wanted), start + 1, last)
    extended = np.clip(documents.nearest_boundary(documents.offsets[end] - wanted), first, start)
    start = np.where(end == last, extended, start)

    nearest = np.argmin(np.abs(documents.tokens(start, end) - wanted), axis=0)
    columns = np.arange(len(wanted))
    return start[nearest, columns], end[nearest, columns]


def _draw_sentences(
    documents: DocumentBounds, wanted: np.ndarray, rng: Generator, excluded: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Draw sentences, uniformly from the documents that are long enough; if none is, from the longest one.

    Sentences are numbered from the longest document on, so that documents that are long enough come first. Numbers
    from the excluded document on are moved up by its number of sentences.

    Example: documents a, b, c of 2, 3, 4 sentences with 30, 50, 40 tokens: b has the numbers 0–2, c 3–6, a 7–8.
        35 wanted: b and c are long enough, and one of the numbers 0–6 is drawn
        35 wanted, b excluded: one of 0–3 is drawn, and 3 is added: a sentence of c

    Return (sentence, document), (_SEGMENT_CANDIDATES, n) each.
    """
    tokens = documents.token_counts
    sentences = documents.ends - documents.starts
    descending = np.argsort(-tokens, kind="stable")
    until = np.cumsum(sentences[descending])  # sentences of the longest document, of the two longest, …
    usable = np.maximum(np.searchsorted(-tokens[descending], -wanted, side="right"), 1)  # documents to draw from

    skipped = skipped_from = np.zeros(len(wanted), np.int64)  # sentences of the excluded document; its first number
    if excluded is not None:
        rank = np.argsort(descending)[excluded]  # 0: the longest document
        usable = np.maximum(usable, np.where(rank == 0, 2, 1))
        skipped = np.where(rank < usable, sentences[excluded], 0)
        skipped_from = until[rank] - sentences[excluded]

    drawn = rng.random((_SEGMENT_CANDIDATES, len(wanted))) * (until[usable - 1] - skipped)
    number = drawn.astype(np.int64)
    number += np.where(number >= skipped_from, skipped, 0)

    # From numbers back to the documents and to sentences of the text
    rank = np.searchsorted(until, number, side="right")
    document = descending[rank]
    return documents.ends[document] - (until[rank] - number), document
