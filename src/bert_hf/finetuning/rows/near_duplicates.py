"""Groups rows that are near-duplicates of each other, so that a split can keep each group in one part.

Two texts are near-duplicates if the tokenizer's normalization makes their words equal (Unicode form, accents, case,
invisible characters; digits and punctuation do not count either), or if about half of their three-word sequences are
the same: Jaccard similarity of 0.5, estimated by MinHash (Broder 1997). Candidates are the neighbours in the bands of
locality-sensitive hashing (Indyk and Motwani 1998).
"""

import re
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from tokenizers import normalizers

from bert_hf.data.text.deduplication import first_of_equal, minhash_signatures, separate_words

SHINGLE = 3  # words
# Two texts of similarity s agree in a band with s³: at 0.5 all but 1 in 40,000 pairs share one of 80 bands, at 0.1 one
# pair in 13 does.
_BANDS = 80
_VALUES = 3  # of a band
_SIMILAR = 0.47  # share of equal values; its standard deviation is 0.03, so most pairs of 0.5 are above it
_NEIGHBOURS = 8  # with which a text is compared in each band: it bounds the work where many texts share a phrase
_COMPARED = 1 << 14  # pairs at once
_WORD = re.compile(r"[^\W\d_]+")
# BERT's normalization without case and accents; NFKD also turns full-width letters into ordinary ones
_NORMALIZER = normalizers.Sequence([normalizers.NFKD(), normalizers.BertNormalizer(lowercase=True)])


def near_duplicate_groups(texts: Sequence[str], units: Sequence | None = None) -> np.ndarray:
    """Return (N,) group numbers: near-duplicates, and those linked by near-duplicates, have the same one.

    Args:
        units: (N,) what else should stay together, such as the name of a row's document. Units are kept whole unless
            the near-duplicates link most of them, as where every document begins with the same sentence.
    """
    words = list(map(words_of, texts))

    # Each text is linked to the first one of the same words; one without any words equals itself alone
    first_row: dict[str, int] = {}  # by the words as one string
    keys = [" ".join(row_words) or text for row_words, text in zip(words, texts, strict=True)]
    first_of_row = np.array([first_row.setdefault(key, row) for row, key in enumerate(keys)], np.int64)

    # These first ones are compared with each other
    compared = np.array([row for row in first_row.values() if len(words[row]) >= SHINGLE], np.int64)
    signatures = minhash_signatures((keys[row] for row in compared), shingle=SHINGLE, values=_BANDS * _VALUES)
    components = _similar_components(signatures.astype(np.uint16))
    representative = np.arange(len(texts))
    representative[compared] = compared[first_of_equal(components)]
    groups = np.unique(representative[first_of_row], return_inverse=True)[1]
    return groups if units is None else _with_units(groups, units)


def words_of(text: str) -> list[str]:
    """Return the words by which texts are compared: runs of letters, after normalization."""
    return _WORD.findall(separate_words(_NORMALIZER.normalize_str(text)))


def _similar_components(signatures: np.ndarray) -> np.ndarray:
    """Return (texts,) numbers, equal for texts that a chain of similar texts links; `signatures`: (texts, values)."""
    components = np.arange(len(signatures))
    for band in range(_BANDS):
        # The key of a text: the three values of the band, then one of the next, of 16 bits each, the first the highest
        columns = np.arange(band * _VALUES, (band + 1) * _VALUES + 1) % signatures.shape[1]
        keys = np.ascontiguousarray(signatures[:, columns[::-1]], "<u2").view("<u8")[:, 0]
        order = np.argsort(keys, kind="stable")
        buckets = keys[order] >> np.uint64(16)  # only the band: texts that agree in it are neighbours

        for distance in range(1, min(_NEIGHBOURS + 1, len(order))):
            positions = np.flatnonzero(buckets[distance:] == buckets[:-distance])
            pairs = np.stack([order[positions], order[positions + distance]])
            pairs = pairs[:, components[pairs[0]] != components[pairs[1]]]  # the others are linked already
            components = _link_groups(components, pairs[:, _are_similar(signatures, pairs)])
    return components


def _are_similar(signatures: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return (pairs,) whether the texts of each pair are similar; `pairs` (2, pairs): their rows in `signatures`."""
    blocks = np.array_split(pairs, 1 + pairs.shape[1] // _COMPARED, axis=1)
    return np.concatenate([(signatures[one] == signatures[other]).mean(axis=1) >= _SIMILAR for one, other in blocks])


def _link_groups(groups: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the group numbers after the rows of each pair were linked: [0, 1, 2] → [0, 1, 1] for the pair (1, 2)."""
    if not pairs.shape[1]:
        return groups
    links = (np.ones(pairs.shape[1], bool), tuple(groups[pairs]))
    size = len(groups)
    return connected_components(coo_array(links, (size, size)), directed=False)[1][groups]


def _with_units(groups: np.ndarray, units: Sequence) -> np.ndarray:
    """Merge groups of near-duplicates that share a unit (a document), unless that puts most rows into one group."""
    numbers = np.unique(np.asarray(units), return_inverse=True)[1]

    # Each row is linked to the first row of its group and of its unit
    linked = rows = np.arange(len(groups))
    for labels in (groups, numbers):
        linked = _link_groups(linked, np.stack([rows, first_of_equal(labels)]))
    linked = np.unique(linked, return_inverse=True)[1]
    largest = max(len(groups) // 2, np.bincount(numbers).max(initial=0))
    return linked if np.bincount(linked).max(initial=0) <= largest else groups
