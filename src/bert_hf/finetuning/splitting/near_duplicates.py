"""Groups texts that are near-duplicates of each other, so that a split can keep each group in one part.

Candidates come from MinHash (Broder 1997) with locality-sensitive hashing (Indyk and Motwani 1998): texts whose
signatures agree in a band of three values. Each candidate is verified by the exact similarity.
"""

import re
import time
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from bert_hf.console import logger
from bert_hf.data.text.deduplication import first_of_equal, hash_word, new_sketch, separate_words, shingle_hashes

SIMILAR = 0.5  # Jaccard similarity of the three-word sequences
SHINGLE = 3  # words
_WORD = re.compile(r"[^\W\d_]+")
# Two texts of similarity s agree in a band with s³: at 0.5 all but 1 in 40,000 pairs share one of 80 bands, at 0.1 one
# pair in 13 does, at 0.01 one in 12,000.
_BANDS = 80
_VALUES = 3  # of a band
# A text is compared with this many before it in its band. It bounds the work where many texts share a frequent
# sequence of words and little else, and suffices elsewhere: a band is sorted by one more value of the signatures.
_NEIGHBOURS = 32
_BLOCK = 1 << 14  # sequences at once: so many fit into a core's cache
_COMPARED = 1 << 22  # elements of two sets that are compared at once
_LOG_EVERY = 10.0  # seconds


def near_duplicate_groups(texts: Sequence[str]) -> np.ndarray:
    """(N,) group numbers: near-duplicates have the same one. Groups are numbered by their first text.

    Near-duplicates: equal but for case, digits and signs; or half of their three-word sequences in common (Jaccard ≥
    0.5); or linked by such texts. Time grows with the text, memory too: some 25 bytes a word and 500 a text.
    """
    progress = _Progress(len(texts))
    words = []
    for row, text in enumerate(texts):
        found = _WORD.findall(separate_words(text.lower()))
        words.append(np.fromiter(map(hash_word, found), np.uint64, len(found)))
        progress.report("read", row / len(texts))

    # Each text is linked to the first one of the same words; one without any is equal to itself alone
    first: dict[bytes | str, int] = {}
    groups = np.array([first.setdefault(own.tobytes() or texts[row], row) for row, own in enumerate(words)], np.int64)

    # These first ones are compared with each other, and then each text follows the one it is linked to
    compared = np.array([row for row in first.values() if len(words[row]) >= SHINGLE], np.int64)
    if len(compared):
        sets, hashes = _shingle_sets([words[row] for row in compared])
        del words
        signatures = _signatures(sets, hashes, progress)
        linked = _linked_sets(sets, signatures, progress)
        of_first = np.arange(len(texts))
        of_first[compared] = compared[first_of_equal(linked)]
        groups = of_first[groups]

    return np.unique(groups, return_inverse=True)[1]


class _Progress:
    """Logs a line every ten seconds."""

    def __init__(self, texts: int):
        self.texts = texts
        self._next = time.monotonic() + _LOG_EVERY

    def report(self, step: str, share: float) -> None:
        if (now := time.monotonic()) >= self._next:
            logger.info(f"near-duplicates among {self.texts:,} texts: {step} {share:.0%}")
            self._next = now + _LOG_EVERY


# ---- sets of three-word sequences


def _shingle_sets(words: list[np.ndarray]) -> tuple[csr_array, np.ndarray]:
    """(texts, different sequences), 1 where a text contains a sequence; and 32 bits of each sequence.

    Args:
        words: hashes of the words of each text, three or more.
    """
    owners = np.repeat(np.arange(len(words)), [len(own) for own in words])
    sequences = shingle_hashes(np.concatenate(words), SHINGLE)

    # Without those that begin in one text and end in the next
    within = owners[: 1 - SHINGLE] == owners[SHINGLE - 1 :]
    owners = owners[: 1 - SHINGLE][within]
    different, columns = np.unique(sequences[within], return_inverse=True)

    ones = np.ones(len(columns), np.int32)
    sets = csr_array(coo_array((ones, (owners, columns)), (len(words), len(different))))
    sets.data[:] = 1  # however often a text contains it
    return sets, (different >> np.uint64(32)).astype(np.uint32)


def _signatures(sets: csr_array, hashes: np.ndarray, progress: _Progress) -> np.ndarray:
    """(values, texts): the smallest hash of each set under each permutation; of its 32 bits the lower 16."""
    multipliers, offsets = new_sketch(_BANDS * _VALUES).permutations
    texts = len(sets.indptr) - 1
    signatures = np.zeros((len(multipliers), texts), np.uint16)

    for begin, end in _blocks(np.diff(sets.indptr), _BLOCK):
        block = hashes[sets.indices[sets.indptr[begin] : sets.indptr[end]]]
        starts = sets.indptr[begin:end] - sets.indptr[begin]
        for own, multiplier, offset in zip(signatures, multipliers, offsets, strict=True):
            own[begin:end] = np.minimum.reduceat(block * multiplier + offset, starts)
        progress.report("signatures", end / texts)
    return signatures


def _blocks(sizes: np.ndarray, largest: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of consecutive items of about `largest` together: (0, 2), (2, 3) of sizes 3, 2, 9 and largest 5."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        before = ends[begin] - sizes[begin]
        end = max(begin + 1, int(np.searchsorted(ends, before + largest, side="right")))
        yield begin, end
        begin = end


# ---- links


def _linked_sets(sets: csr_array, signatures: np.ndarray, progress: _Progress) -> np.ndarray:
    """(texts,): a number that similar texts share, and those linked by such texts."""
    linked = np.arange(len(sets.indptr) - 1)
    for band in range(_BANDS):
        # Sorted by the three values of the band and one of the next: 16 bits each
        keys = np.zeros(len(linked), np.uint64)
        for value in range(_VALUES + 1):
            keys = (keys << np.uint64(16)) | signatures[(band * _VALUES + value) % len(signatures)]
        order = np.argsort(keys, kind="stable")
        buckets = keys[order] >> np.uint64(16)

        # Each is compared with those before it in its bucket, the nearest first, unless both are linked already
        for distance in range(1, min(_NEIGHBOURS + 1, len(order))):
            places = np.flatnonzero(buckets[distance:] == buckets[:-distance])
            if not len(places):
                break
            one, other = order[places], order[places + distance]
            apart = linked[one] != linked[other]
            similar = _are_similar(sets, one[apart], other[apart])
            linked = _link(linked, one[apart][similar], other[apart][similar])
        progress.report("compared", (band + 1) / _BANDS)
    return linked


def _are_similar(sets: csr_array, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(pairs,): whether the sets of two texts have a Jaccard similarity of `SIMILAR` or more."""
    sizes = np.diff(sets.indptr)
    both = sizes[one] + sizes[other]
    shared = np.zeros(len(one), np.int64)
    for begin, end in _blocks(both, _COMPARED):
        shared[begin:end] = (sets[one[begin:end]] * sets[other[begin:end]]).sum(axis=1)
    return shared >= SIMILAR * (both - shared)


def _link(linked: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The numbers after the texts of each pair were linked."""
    if not len(one):
        return linked
    pairs = (np.ones(len(one), bool), (linked[one], linked[other]))
    return connected_components(coo_array(pairs, (len(linked), len(linked))), directed=False)[1][linked]
