"""How the 2018 code makes examples (google-research/bert@eedf571, create_pretraining_data.py), reimplemented.

Our own pairs and masks are compared with it (`fidelity_2018.py`, `tests/data/test_fidelity.py`); it trains nothing.
It draws from `rng` in the order of the original, so that equal seeds give equal instances (checked against that file).
A document is a list of sentences, a sentence a sequence of token ids, none of them empty.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from random import Random
from typing import NamedTuple

Document = Sequence[Sequence[int]]

SPECIALS = 3  # [CLS] A [SEP] B [SEP]


class Pair(NamedTuple):
    """Two segments before truncation."""

    a: list[int]
    b: list[int]
    is_random_next: bool
    chunk_sentences: int  # of the chunk that was gathered, whether B took its rest or not
    target: int  # tokens that were aimed at


class Instance(NamedTuple):
    """One example as the 2018 code writes it, before padding."""

    tokens: list[int]
    segment_ids: list[int]
    is_random_next: bool
    masked_positions: list[int]
    masked_labels: list[int]


def create_instances(
    documents: Sequence[Document],
    *,
    vocab_size: int,
    cls_id: int,
    sep_id: int,
    mask_id: int,
    max_seq_length: int = 128,
    short_seq_prob: float = 0.1,
    masked_lm_prob: float = 0.15,
    max_predictions_per_seq: int = 20,
    dupe_factor: int = 10,
    rng: Random,
) -> list[Instance]:
    """All instances of all documents, read `dupe_factor` times, shuffled. Defaults are those of the 2018 flags."""
    documents = list(documents)
    rng.shuffle(documents)
    instances = []
    for home in [*range(len(documents))] * dupe_factor:
        for pair in pairs_of_document(documents, home, max_seq_length, short_seq_prob, rng):
            a, b = truncate(pair.a, pair.b, max_seq_length - SPECIALS, rng)
            tokens = [cls_id, *a, sep_id, *b, sep_id]
            segment_ids = [0] * (len(a) + 2) + [1] * (len(b) + 1)
            count = predictions(len(tokens), masked_lm_prob, max_predictions_per_seq)
            masked, positions = mask(tokens, count, {cls_id, sep_id}, mask_id, vocab_size, rng)
            labels = [tokens[position] for position in positions]
            instances.append(Instance(masked, segment_ids, pair.is_random_next, positions, labels))
    rng.shuffle(instances)
    return instances


def pairs_of_document(
    documents: Sequence[Document], home: int, max_seq_length: int, short_seq_prob: float, rng: Random
) -> Iterator[Pair]:
    """The pairs of document number `home`, one target length for all of them.

    Where a random next displaces the rest of a chunk, the next chunk begins with that rest.
    """
    target = max_seq_length - SPECIALS
    if rng.random() < short_seq_prob:
        target = rng.randint(2, target)
    document, first = documents[home], 0
    while first < len(document):
        end = _reach(document, first, target)
        sentences = end - first
        cut = first + (1 if sentences == 1 else rng.randint(1, sentences - 1))
        a = _flat(document[first:cut])
        if sentences == 1 or rng.random() < 0.5:
            yield Pair(a, _random_next(documents, home, target - len(a), rng), True, sentences, target)
            first = cut
        else:
            yield Pair(a, _flat(document[cut:end]), False, sentences, target)
            first = end


def _random_next(documents: Sequence[Document], home: int, budget: int, rng: Random) -> list[int]:
    """Sentences of another document from a random one on; of the same document if ten tries find no other."""
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != home:
            break
    first = rng.randint(0, len(documents[other]) - 1)
    return _flat(documents[other][first : _reach(documents[other], first, budget)])


def _reach(document: Document, first: int, tokens: int) -> int:
    """End of the sentences from `first` on that hold so many tokens: one sentence at least, or all that are left."""
    held = 0
    for number in range(first, len(document)):
        held += len(document[number])
        if held >= tokens:
            return number + 1
    return len(document)


def _flat(sentences: Document) -> list[int]:
    return list(chain.from_iterable(sentences))


def truncate(a: list[int], b: list[int], max_tokens: int, rng: Random) -> tuple[list[int], list[int]]:
    """Token by token off the longer segment (B on a tie), front or back by a coin."""
    spans = [[0, len(a)], [0, len(b)]]
    for _ in range(len(a) + len(b) - max_tokens):
        (a_start, a_end), (b_start, b_end) = spans
        longer = spans[0 if a_end - a_start > b_end - b_start else 1]
        if rng.random() < 0.5:
            longer[0] += 1
        else:
            longer[1] -= 1
    return a[slice(*spans[0])], b[slice(*spans[1])]


def predictions(length: int, masked_lm_prob: float, max_predictions_per_seq: int) -> int:
    """How many tokens of a sequence are predicted; `length` counts [CLS] and both [SEP]."""
    return min(max_predictions_per_seq, max(1, round(length * masked_lm_prob)))


def mask(
    tokens: list[int], count: int, frame: set[int], mask_id: int, vocab_size: int, rng: Random
) -> tuple[list[int], list[int]]:
    """(tokens after masking, positions to predict, ascending): any token but [CLS] and [SEP], the `frame`.

    80 % become [MASK], 10 % stay, 10 % become any token of the vocabulary, special ones included.
    """
    candidates = [position for position, token in enumerate(tokens) if token not in frame]
    rng.shuffle(candidates)
    chosen, masked = candidates[:count], list(tokens)
    for position in chosen:
        if rng.random() < 0.8:
            masked[position] = mask_id
        elif rng.random() >= 0.5:
            masked[position] = rng.randint(0, vocab_size - 1)
    return masked, sorted(chosen)
