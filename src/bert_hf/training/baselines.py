"""Metrics of models without a network on the held-out examples, to compare a pre-trained model with.

A masked language model that is not better than a trigram model, which predicts a token from the two tokens before it,
has learned little beyond frequent phrases. Its estimate is interpolated absolute discounting (Ney, Essen and Kneser
1994):

    P(w | u, v) = max(c(u v w) − d, 0) / c(u v) + d · n(u v) / c(u v) · P(w | v)

with c(…) the count of a sequence, n(u v) the number of different tokens seen after u v, d = 0.75; P(w | v) likewise
over P(w), the unigram frequencies with one added to each count.
"""

import numpy as np

from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.models.functional import IGNORE_INDEX

_DISCOUNT = 0.75
_MIN_TRIGRAM_TOKENS = 500_000  # tokens: trigrams of less text predict little
_MAX_TRIGRAM_TOKENS = 32_000_000  # tokens: their counts take a gigabyte


def pretraining_baselines(
    examples: PreTrainingExamples, collator: DataCollatorForPreTraining, corpus: Corpus, planned_tokens: int
) -> dict:
    """MLM loss of token frequencies and of a trigram model, and accuracy of the majority class of the pairs.

    Frequencies are smoothed by adding one to each count. The trigram model is measured where there is enough text; it
    sees the two left neighbours of a masked token as they were before masking.

    Args:
        examples: the held-out ones.
        corpus: the training text.
        planned_tokens: how much of it the run sees; the trigram model is made of as much.
    """
    features = [examples[index] for index in range(len(examples))]
    words, contexts = _masked_tokens(features, collator)

    counts = corpus.unigram_counts(len(collator.tokenizer)) + 1
    result = {"unigram_mlm_loss": float(-np.log((counts / counts.sum())[words]).mean())}

    tokens = _first_tokens(corpus, planned_tokens)
    if len(tokens) >= _MIN_TRIGRAM_TOKENS:
        losses = TrigramModel(tokens, len(counts)).losses(contexts, words)
        result["trigram_mlm_loss"] = float(losses.mean())

    if name := examples.objective.metric:
        share = float(np.mean([feature["next_sentence_label"] for feature in features]))
        result[f"majority_{name}_accuracy"] = max(share, 1 - share)
        result[f"{name}_pairs"] = len(features)
    return result


def _masked_tokens(features: list[dict], collator: DataCollatorForPreTraining) -> tuple[np.ndarray, np.ndarray]:
    """(M,) the masked tokens of all examples and (M, 2) their left neighbours, nearest last, all as before masking.

    input_ids  [CLS] the [MASK] sat     labels  -100 -100 cat -100
    words      cat                      contexts  [CLS] the
    """
    words, contexts = [], []
    for feature in features:
        example = collator.example(feature)
        is_masked = example["labels"] != IGNORE_INDEX
        original = np.where(is_masked, example["labels"], example["input_ids"])

        masked = np.flatnonzero(is_masked)
        words.append(original[masked])
        contexts.append(original[np.maximum(masked[:, None] - (2, 1), 0)])
    return np.concatenate(words), np.concatenate(contexts)


def _first_tokens(corpus: Corpus, planned: int) -> np.ndarray:
    """(T,) tokens of the first documents of a corpus: as many as a run sees, at most 32 million."""
    window = corpus.window(corpus.head())
    wanted = min(planned, _MAX_TRIGRAM_TOKENS)
    parts = []
    for start, end in zip(window.document_starts.tolist(), window.document_ends.tolist(), strict=True):
        if wanted <= 0:
            break
        parts.append(window.ids(start, end))
        wanted -= len(parts[-1])
    return np.concatenate(parts)


# ---- the trigram model


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
