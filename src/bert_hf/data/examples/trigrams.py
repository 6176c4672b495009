"""Estimates a trigram language model of the training text, which predicts a token from the two tokens before it.

A masked language model that is not better than this has learned little beyond frequent phrases. The estimate is
interpolated absolute discounting (Ney, Essen and Kneser 1994):

    P(w | u, v) = max(c(u v w) − d, 0) / c(u v) + d · n(u v) / c(u v) · P(w | v)

with c(…) the count of a sequence, n(u v) the number of different tokens seen after u v, d = 0.75; P(w | v) likewise
over P(w), the unigram frequencies with one added to each count.
"""

import numpy as np

_DISCOUNT = 0.75


class TrigramModel:
    """Counts of all one-, two- and three-token sequences of a text.

        >>> model = TrigramModel(np.array([5, 6, 7, 5, 6, 7]), vocabulary_size=8)
        >>> model.losses(np.array([[5, 6]]), np.array([7])) < model.losses(np.array([[7, 7]]), np.array([7]))
        array([ True])

    Args:
        tokens: (T,) ids of the text, in order. Sequences that span two documents are counted like any other.
        vocabulary_size: V; three ids have to fit into 63 bits.
    """

    def __init__(self, tokens: np.ndarray, vocabulary_size: int):
        self._base = np.int64(vocabulary_size)
        tokens = tokens.astype(np.int64)
        counts = np.bincount(tokens, minlength=vocabulary_size) + 1
        self._unigram = counts / counts.sum()

        pairs = self._join(tokens[:-1], tokens[1:])
        self._pairs = _Counts(tokens[:-1], pairs)
        self._triples = _Counts(pairs[:-1], self._join(pairs[:-1], tokens[2:]))

    def _join(self, context: np.ndarray, token: np.ndarray) -> np.ndarray:
        """One number for each sequence: context · V + token."""
        return context * self._base + token

    def losses(self, context: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """−log P in nats, (N,), of `tokens` (N,) after their two left neighbours `context` (N, 2)."""
        first, second = context.astype(np.int64).T
        tokens = tokens.astype(np.int64)
        pair = self._join(first, second)

        lower = self._pairs.interpolate(second, self._join(second, tokens), self._unigram[tokens])
        probability = self._triples.interpolate(pair, self._join(pair, tokens), lower)
        return -np.log(probability)


class _Counts:
    """How often each context, and each context with its next token, occurs."""

    def __init__(self, contexts: np.ndarray, sequences: np.ndarray):
        self._sequences, first_seen, self._sequence_counts = np.unique(
            sequences, return_index=True, return_counts=True
        )
        self._contexts, self._context_counts = np.unique(contexts, return_counts=True)

        # Different continuations of a context: the different sequences that begin with it.
        self._different = np.bincount(
            np.searchsorted(self._contexts, contexts[first_seen]), minlength=len(self._contexts)
        )

    def interpolate(self, contexts: np.ndarray, sequences: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Discounted estimates (N,) plus the discounted mass times `lower` (N,); after an unseen context `lower`.

        Example: after the context v, seen 4 times, token x came 3 times and y once: 2 different tokens, d = 0.75. The
        discounted mass is 0.75 · 2 / 4 = 0.375; with P(x) = 0.2 the estimate of x is (3 − 0.75) / 4 + 0.375 · 0.2.
        """
        count = _look_up(self._sequences, self._sequence_counts, sequences)
        total = _look_up(self._contexts, self._context_counts, contexts)
        different = _look_up(self._contexts, self._different, contexts)

        seen = total > 0
        total = np.maximum(total, 1)
        estimate = np.maximum(count - _DISCOUNT, 0) / total + _DISCOUNT * different / total * lower
        return np.where(seen, estimate, lower)


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted key in ascending `keys`; 0 for an unknown key."""
    if len(keys) == 0:
        return np.zeros(len(wanted), dtype=np.int64)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
