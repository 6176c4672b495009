"""Documents that equal an earlier one, or nearly do: found in one reading of the text, in bounded memory.

Equal (`exact`): the same characters in the same order, white space aside. Nearly equal (`near`, which includes
`exact`): their sets of sequences of five words, case folded, have a Jaccard similarity of 0.8 or more. MinHash
estimates it (Broder 1997; `datasketch`) from 256 values, of each of which a byte is kept (Li and König 2010): the
estimate's standard deviation is 0.025 at 0.8. A document of any length takes 8 bytes (`exact`) or 264 (`near`).
"""

import functools
import hashlib
import operator
import re

import joblib
import numpy as np

METHOD = 1  # changes with whatever changes what is found
SIMILAR = 0.8
SHINGLE = 5  # words; a document of fewer is one shingle
_VALUES = 256  # of a signature, a byte each
# Eight values are a band, read as one number; documents that share a band are compared. At 0.8 all but 0.3 % of pairs
# share one, at 0.85 all but 1 in 20,000. (datasketch's own index is of dictionaries: kilobytes a document.)
_LEAST = SIMILAR + (1 - SIMILAR) / 256  # share of equal bytes: unequal values agree in one of 256
_ROUNDS = 64  # what is then still in doubt stays
_LONGEST_WORD = 1 << 20  # characters: text without any white space is cut there, so that memory stays bounded
# Scripts that put no space between words (Thai … Tibetan, Burmese, Khmer; kana, Han): each character is a word.
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


class Duplicates(dict[int, frozenset[int]]):
    """{input: numbers of the documents to leave out}, as `encoding.leave_out` counts (from 0, empty ones too).

    documents: how many there are, without the empty ones. exact, near: how many of them go, and why.
    """

    def __init__(self, numbers: dict, documents: int, exact: int, near: int):
        super().__init__(numbers)
        self.documents, self.exact, self.near = documents, exact, near


def find_duplicates(inputs: list, kind: str, num_proc: int = 1) -> Duplicates:
    """The documents that equal ("exact"), or nearly equal ("near"), an earlier one that stays.

    Args:
        inputs: sources: anything whose `read()` yields `sources.Piece`s.
        num_proc: processes, each of which reads whole inputs. The result does not depend on it.
    """
    near, rows, ends = kind == "near", bytearray(), []
    parts = (_rows(source, near) for source in inputs)
    if num_proc > 1:
        run = joblib.Parallel(num_proc, return_as="generator", batch_size=1, pre_dispatch=num_proc)
        parts = run(joblib.delayed(_rows)(source, near) for source in inputs)
    for part in parts:
        rows = operator.iadd(rows, part) if rows else part  # of a single input no second copy
        ends.append(len(rows) // (8 + near * _VALUES))
    table = np.frombuffer(rows, np.uint64).reshape(ends[-1], -1 if rows else 1)
    order = np.argsort(table[:, 0], kind="stable")
    again, filled = order[1:][np.diff(table[order, 0]) == 0], table[:, 0] != 0
    exact = again[filled[again]]
    filled[again] = False
    alike = _alike(table[:, 1:], np.flatnonzero(filled)) if near else order[:0]
    gone = np.sort(np.concatenate([exact, alike]))
    own = zip([0, *ends], np.split(gone, np.searchsorted(gone, ends)), strict=True)
    numbers = {source: frozenset((some - begin).tolist()) for source, (begin, some) in enumerate(own) if len(some)}
    return Duplicates(numbers, int(filled.sum()) + len(exact), len(exact), len(alike))


def _rows(source, near: bool) -> bytearray:
    """A row of bytes a document: 8 that equal documents share (0: it is empty) and, if `near`, its signature."""
    signature = _Signature() if near else None
    rows, digest, empty = bytearray(), hashlib.blake2b(digest_size=8), True
    for text, ends in source.read():
        empty = empty and not text.strip()
        digest.update(text.encode("utf-8", "surrogatepass").translate(None, b" \t\n\r\v\f"))
        if near:
            signature.add(text, ends)
        if ends:
            rows += (bytes(8) if empty else digest.digest()) + (signature.close() if near else b"")
            digest, empty = hashlib.blake2b(digest_size=8), True
    return rows


@functools.lru_cache(maxsize=1 << 17)  # words come again (Zipf)
def _hash(word: str) -> int:
    digest = hashlib.blake2b(word.casefold().encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


class _Signature:
    """MinHash of a document whose text comes piece by piece."""

    def __init__(self):
        from datasketch import MinHash  # half a second to load, and most runs look for no duplicates

        # Scheme and seed are named, so that no default decides what is found. What the sketch is given is hashed.
        self._sketch = MinHash(_VALUES, seed=1, hashfunc=operator.index, scheme="affine32")
        self._last = np.zeros(0, np.uint64)  # words (hashes) with which the next shingle begins
        self._rest = ""  # of a word that the next piece may go on with

    def add(self, text: str, ends: bool) -> None:
        text = self._rest + (text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text))
        words = text.split()
        whole = ends or not words or text[-1].isspace() or len(words[-1]) >= _LONGEST_WORD
        self._rest = "" if whole else words.pop()
        hashes = np.concatenate([self._last, np.fromiter(map(_hash, words), np.uint64, len(words))])
        short = ends and 0 < len(hashes) < SHINGLE and self._sketch.is_empty()
        if short or len(hashes) >= SHINGLE:
            shingles = np.zeros(max(1, len(hashes) - SHINGLE + 1), np.uint64)
            for offset in range(min(SHINGLE, len(hashes))):  # a polynomial modulo 2^64
                shingles = shingles * np.uint64(0x9E3779B97F4A7C15) + hashes[offset : offset + len(shingles)]
            values = (shingles >> np.uint64(32)).tolist()
            for begin in range(0, len(values), 512):  # at once: what stays within a core's cache
                self._sketch.update_batch(values[begin : begin + 512])
        self._last = hashes[: 0 if ends else None][-(SHINGLE - 1) :]

    def close(self) -> bytes:
        values = self._sketch.hashvalues.astype(np.uint8)
        self._sketch.clear()  # for the next document
        return values.tobytes()


def _alike(bands: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Those of the documents `numbers` (ascending) that nearly equal an earlier one that stays.

    In rounds: a document that shares no band with an earlier one stays; those that share one with it go or forget it.
    """
    signatures, found = bands.view(np.uint8), [numbers[:0]]
    for _ in range(_ROUNDS):
        later, shares = np.zeros((2, len(numbers)), bool)
        for column in range(bands.shape[1]):
            first = _first(bands[numbers, column])
            mine = first != np.arange(len(first))
            later |= mine
            shares[first[mine]] = True
        numbers, later = numbers[later | shares], later[later | shares]
        gone = np.zeros(len(numbers), bool)
        for column in range(bands.shape[1]):
            first = _first(bands[numbers, column])
            compared = np.flatnonzero(later & ~gone & ~later[first])
            for some in np.array_split(compared, 1 + len(compared) // (1 << 14)):
                same = signatures[numbers[some]] == signatures[numbers[first[some]]]
                gone[some] = same.mean(axis=1) >= _LEAST
        found.append(numbers[gone])
        numbers = numbers[later & ~gone]
    return np.concatenate(found)


def _first(keys: np.ndarray) -> np.ndarray:
    """Of each key the place at which it first stands."""
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return first[place]
