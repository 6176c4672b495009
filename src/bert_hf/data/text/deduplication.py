"""Finds documents that equal an earlier one, white space aside; computes MinHash signatures for near-duplicates."""

import functools
import hashlib
import operator
import re
from collections.abc import Iterable, Sequence

import numpy as np

from bert_hf.console import progress
from bert_hf.data.corpus.worker_pool import map_ahead
from bert_hf.data.text.sources import Source

# Scripts that put no space between words (Thai … Tibetan, Burmese, Khmer; kana, Han): each character is a word.
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def find_duplicates(inputs: Sequence[Source], num_proc: int = 1) -> tuple[dict[int, frozenset[int]], int]:
    """Find the documents that equal an earlier one; a document of any length takes 8 bytes of memory.

    Return the numbers of these documents (from 0 in each input) by the index of their input, without inputs that have
    none; and how many documents are not blank.
    """
    computed = map_ahead(document_digests, ((source,) for source in inputs), num_proc)
    per_input = list(progress(computed, "comparing documents", "inputs", len(inputs)))
    digests = np.concatenate([np.zeros(0, np.uint64), *per_input])  # the empty array: there may be no input

    # All but the first of equal digests, blank documents (0) aside
    filled = digests != 0
    is_duplicate = filled & (first_of_equal(digests) != np.arange(len(digests)))

    duplicates = {}
    ends = np.cumsum([len(part) for part in per_input])
    for index, part in enumerate(np.split(is_duplicate, ends)):
        if part.any():
            duplicates[index] = frozenset(np.flatnonzero(part).tolist())
    return duplicates, int(filled.sum())


def document_digests(source: Source) -> np.ndarray:
    """Return (documents,) uint64: equal for documents that differ in ASCII white space only, 0 for blank ones."""
    digests = bytearray()
    digest = hashlib.blake2b(digest_size=8)
    blank = True  # the current document, so far
    for text, document_ends in source.read():
        blank = blank and not text.strip()
        digest.update(text.encode("utf-8", "surrogatepass").translate(None, b" \t\n\r\v\f"))
        if document_ends:
            digests += bytes(8) if blank else digest.digest()
            digest = hashlib.blake2b(digest_size=8)
            blank = True
    return np.frombuffer(digests, np.uint64)


def minhash_signatures(texts: Iterable[str], *, shingle: int, values: int) -> np.ndarray:
    """Return MinHash signatures (Broder 1997), (texts, values) uint32, the same in every process.

    The share of equal values in two rows estimates the Jaccard similarity of the two texts. A text is the set of its
    sequences of `shingle` words, case folded; a text of fewer words is one sequence. White space separates words, and
    in scripts without spaces each character is a word. Texts without words have equal signatures.
    """
    from datasketch import MinHash  # half a second to load, and most runs look for no duplicates

    # Scheme and seed are fixed, so that no default of the library decides the result
    sketch = MinHash(values, seed=1, hashfunc=operator.index, scheme="affine32")  # it gets hashes, of 32 bits
    rows = []
    for text in texts:
        words = separate_words(text).split()
        if words:
            word_hashes = np.fromiter(map(hash_word, words), np.uint64, len(words))
            upper_halves = (shingle_hashes(word_hashes, shingle) >> np.uint64(32)).tolist()
            for begin in range(0, len(upper_halves), 512):  # a batch that fits into a core's cache
                sketch.update_batch(upper_halves[begin : begin + 512])
        rows.append(sketch.hashvalues.copy())
        sketch.clear()
    return np.array(rows, np.uint32).reshape(-1, values)


def separate_words(text: str) -> str:
    """Return the text with a space around each character of the scripts that put none between words."""
    return text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text)


@functools.lru_cache(maxsize=1 << 17)  # few words are most of a text (Zipf)
def hash_word(word: str) -> int:
    """Return 64 bits for a word, the same for either case, in every process."""
    digest = hashlib.blake2b(word.casefold().encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def shingle_hashes(word_hashes: np.ndarray, length: int) -> np.ndarray:
    """Return a hash for each sequence of `length` words (one of all words, if fewer): a polynomial modulo 2^64.

    With length 5, the hashes a … f of six words, and the multiplier m:

        [a m⁴ + b m³ + c m² + d m + e,   b m⁴ + c m³ + d m² + e m + f]
    """
    shingles = np.zeros(max(1, len(word_hashes) - length + 1), np.uint64)
    for offset in range(min(length, len(word_hashes))):
        shingles = shingles * np.uint64(0x9E3779B97F4A7C15) + word_hashes[offset : offset + len(shingles)]
    return shingles


def first_of_equal(keys: np.ndarray) -> np.ndarray:
    """Return for each key the index of its first occurrence: [0, 1, 0, 3] of [7, 5, 7, 9]."""
    _, first, number_of_key = np.unique(keys, return_index=True, return_inverse=True)
    return first[number_of_key]
