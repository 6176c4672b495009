"""Draws a bounded sample of the text of some inputs, spread over all of them."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bert_hf.data.text.sources import Source
from bert_hf.errors import InputError

SAMPLE_BYTES = 100_000_000  # of text, on which a vocabulary is trained
_GOLDEN = (5**0.5 - 1) / 2
_SAMPLE_READ = 10  # a sample is drawn from text of so many times its size


def texts_of(inputs: Iterable[Source], read: Counter | None = None) -> Iterator[str]:
    """All text, document by document (a very long one in pieces); `read` counts both."""
    for source in inputs:
        for piece in source.read():
            if read is not None:
                read.update(pieces=1, documents=piece.ends)
            yield piece.text


def sample(texts: Iterable[str], limit: int) -> list[str]:
    """Texts of `limit` bytes at most (but one at least), spread evenly over the first ten times as much.

    A text's key is the fractional part of its number times the golden ratio: texts of small keys lie evenly among
    all. When too many are held, those of the largest keys are dropped.

        number   0     1     2     3     4     5
        key      0.00  0.62  0.24  0.85  0.47  0.09     the limit allows three: 0, 2, 5
    """
    held = []  # a heap: (-key, number, bytes, text)
    size = read = 0
    for number, text in enumerate(texts):
        length = len(text.encode("utf-8", "surrogatepass"))
        heapq.heappush(held, (-(number * _GOLDEN % 1), number, length, text))
        size += length
        read += length

        while size > limit and len(held) > 1:
            size -= heapq.heappop(held)[2]
        if read > _SAMPLE_READ * limit:
            break
    return [text for _, _, _, text in sorted(held, key=lambda one: one[1])]


def sample_inputs(inputs: Sequence[Source], limit: int, read: Counter | None = None) -> list[str]:
    """A bounded sample of the text (see `sample`), the inputs taken in a shuffled order (always the same one).

    Args:
        read: gets the numbers of "documents" and "pieces" that were read for it.

    Raises:
        InputError: there is no text in the sample.
    """
    order = np.random.default_rng(0).permutation(len(inputs))
    texts = sample(texts_of([inputs[i] for i in order], read), limit)
    if not any(text.strip() for text in texts):
        raise InputError("no text in it", where=inputs[0].name, remedy="give files that hold text")
    return texts
