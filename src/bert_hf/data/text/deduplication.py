"""Finds documents that equal an earlier one, or nearly do, in one pass over the text and in bounded memory.

Equal (`exact`): the same characters in the same order, white space aside. Nearly equal (`near`, which includes
`exact`): their sets of sequences of five words, case folded, have a Jaccard similarity of 0.8 or more. MinHash
estimates it (Broder 1997; `datasketch`) from 256 values and keeps a byte of each (Li and König 2010): the
estimate's standard deviation is 0.025 at 0.8. A document of any length takes 8 bytes (`exact`) or 264 (`near`).
"""

import functools
import hashlib
import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_hf.console import progress
from bert_hf.data.corpus.worker_pool import map_ahead
from bert_hf.data.text.sources import Source

SIMILAR = 0.8
SHINGLE = 5  # words; a document of fewer is one shingle
_VALUES = 256  # of a signature, a byte each
# Eight values are a band, read as one number; documents that share a band are compared. At 0.8 all but 0.3 % of pairs
# share one, at 0.85 all but 1 in 20,000. (datasketch's own index is of dictionaries: kilobytes a document.)
_MIN_AGREEMENT = SIMILAR + (1 - SIMILAR) / 256  # share of equal bytes: unequal values agree in one of 256
_ROUNDS = 64  # documents that are undecided after these are kept
# Scripts that put no space between words (Thai … Tibetan, Burmese, Khmer; kana, Han): each character is a word.
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


class Duplicates(dict[int, frozenset[int]]):
    """{input: numbers of the documents to leave out}, as `encoding.leave_out` counts (from 0, empty ones too).

    documents: how many there are, without the empty ones. exact, near: how many are left out, and why.
    """

    def __init__(self, numbers: dict, documents: int, exact: int, near: int):
        super().__init__(numbers)
        self.documents, self.exact, self.near = documents, exact, near


def find_duplicates(inputs: Sequence[Source], kind: str, num_proc: int = 1) -> Duplicates:
    """Find the documents that equal ("exact"), or nearly equal ("near"), an earlier one that is kept.

    Args:
        num_proc: processes; each reads whole inputs. The result does not depend on it.
    """
    near = kind == "near"
    row_bytes = 8 + (_VALUES if near else 0)  # of a document: its digest, its bands
    rows = bytearray()
    ends = []  # documents up to the end of each input
    parts = map_ahead(document_rows, ((source, near) for source in inputs), num_proc)
    for part in progress(parts, "comparing documents", "inputs", len(inputs)):
        if rows:
            rows += part
        else:
            rows = part  # no second copy of a single input
        ends.append(len(rows) // row_bytes)
    table = np.frombuffer(rows, np.uint64).reshape(-1, row_bytes // 8)

    # Exact: all but the first of equal digests, those of empty documents (0) aside
    digests = table[:, 0]
    filled = digests != 0
    again = first_of_equal(digests) != np.arange(len(digests))
    exact = np.flatnonzero(again & filled)

    # Near: compared with the documents that are not exact duplicates
    alike = _alike(table[:, 1:], np.flatnonzero(filled & ~again)) if near else exact[:0]

    # Numbered from 0 in each input
    left_out = np.sort(np.concatenate([exact, alike]))
    begins = [0, *ends[:-1]]
    parts = np.split(left_out, np.searchsorted(left_out, ends[:-1]))
    numbers = {}
    for source, (begin, part) in enumerate(zip(begins, parts, strict=True)):
        if len(part):
            numbers[source] = frozenset((part - begin).tolist())
    return Duplicates(numbers, int(filled.sum()), len(exact), len(alike))


def document_rows(source: Source, near: bool) -> bytearray:
    """Return a row of bytes per document: 8 that equal documents share (0: it is empty) and, if `near`, its signature.

    The signature of a document in several pieces (of a million characters) leaves out the sequences of words across
    their borders.
    """
    sketch = new_sketch(_VALUES) if near else None
    rows = bytearray()
    digest = hashlib.blake2b(digest_size=8)
    empty = True

    for text, ends in source.read():
        empty = empty and not text.strip()
        digest.update(text.encode("utf-8", "surrogatepass").translate(None, b" \t\n\r\v\f"))
        if sketch is not None:
            _add(sketch, text, SHINGLE)
        if ends:
            rows += bytes(8) if empty else digest.digest()
            if sketch is not None:
                rows += sketch.hashvalues.astype(np.uint8).tobytes()
                sketch.clear()
            digest = hashlib.blake2b(digest_size=8)
            empty = True
    return rows


# ---- signatures


def minhash_signatures(texts: Iterable[str], *, shingle: int = SHINGLE, values: int = _VALUES) -> np.ndarray:
    """Return MinHash signatures, (texts, values) uint32, the same in every process.

    The share of equal values in two rows estimates the Jaccard similarity of the two texts. A text is the set of its
    sequences of `shingle` words, case folded; a text of fewer words is one sequence. White space separates words, and
    in scripts without spaces each character is a word. Texts without words have equal signatures.
    """
    sketch = new_sketch(values)
    rows = []
    for text in texts:
        _add(sketch, text, shingle)
        rows.append(sketch.hashvalues.copy())
        sketch.clear()
    return np.array(rows, np.uint32).reshape(-1, values)


def _add(sketch: Any, text: str, shingle: int) -> None:
    """Add the sequences of words of a text to a sketch."""
    words = separate_words(text).split()
    if words:
        hashes = np.fromiter(map(hash_word, words), np.uint64, len(words))
        values = (shingle_hashes(hashes, shingle) >> np.uint64(32)).tolist()
        for begin in range(0, len(values), 512):  # a batch that fits into a core's cache
            sketch.update_batch(values[begin : begin + 512])


def new_sketch(values: int) -> Any:
    """Return an empty `datasketch.MinHash`, which takes 32-bit hashes."""
    from datasketch import MinHash  # half a second to load, and most runs look for no duplicates

    # Scheme and seed are fixed, so that no default of the library decides the result
    return MinHash(values, seed=1, hashfunc=operator.index, scheme="affine32")


def separate_words(text: str) -> str:
    """Return the text with a space around each character of the scripts that put none between words."""
    return text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text)


@functools.lru_cache(maxsize=1 << 17)  # few words are most of a text (Zipf)
def hash_word(word: str) -> int:
    """Return 64 bits for a word, the same for either case, in every process."""
    digest = hashlib.blake2b(word.casefold().encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def shingle_hashes(hashes: np.ndarray, length: int) -> np.ndarray:
    """Return a number for each sequence of `length` words: a polynomial of their hashes modulo 2^64.

    Of five the words a … f and the multiplier m:

        [a m⁴ + b m³ + c m² + d m + e,   b m⁴ + c m³ + d m² + e m + f]
    """
    shingles = np.zeros(max(1, len(hashes) - length + 1), np.uint64)
    for offset in range(min(length, len(hashes))):
        shingles = shingles * np.uint64(0x9E3779B97F4A7C15) + hashes[offset : offset + len(shingles)]
    return shingles


def _alike(bands: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return which of the documents `numbers` (ascending) nearly equal an earlier one that is kept.

    In rounds: a document that shares no band with an earlier undecided one is kept; those that share a band with a
    kept one are compared with it, and left out where they are alike. Four documents, `~` alike, `-` sharing a band:

        0 ~ 1 ~ 2 - 3     undecided
        round 1           0 is kept, 1 is left out (like 0); 2 and 3 share a band with an earlier one
        round 2           2 is kept, 3 is compared with 2 and stays undecided
        round 3           3 is kept: no earlier one is undecided
    """
    signatures = bands.view(np.uint8)
    left_out = [numbers[:0]]
    for _ in range(_ROUNDS):
        # Which share a band with an earlier one, and which are the earlier ones
        later, shares = np.zeros((2, len(numbers)), bool)
        for column in range(bands.shape[1]):
            first = first_of_equal(bands[numbers, column])
            mine = first != np.arange(len(first))
            later |= mine
            shares[first[mine]] = True
        numbers, later = numbers[later | shares], later[later | shares]

        # Comparisons with the first document of a band, where that is kept
        gone = np.zeros(len(numbers), bool)
        for column in range(bands.shape[1]):
            first = first_of_equal(bands[numbers, column])
            compared = np.flatnonzero(later & ~gone & ~later[first])
            for some in np.array_split(compared, 1 + len(compared) // (1 << 14)):
                same = signatures[numbers[some]] == signatures[numbers[first[some]]]
                gone[some] = same.mean(axis=1) >= _MIN_AGREEMENT
        left_out.append(numbers[gone])
        numbers = numbers[later & ~gone]
    return np.concatenate(left_out)


def first_of_equal(keys: np.ndarray) -> np.ndarray:
    """Return for each key the index of its first occurrence: [0, 1, 0, 3] of [7, 5, 7, 9]."""
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return first[place]
