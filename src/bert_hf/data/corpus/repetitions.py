"""Finds repeated sentences and documents in a window of a corpus, by hashes of their token ids."""

import numpy as np
from transformers import PreTrainedTokenizerBase

from bert_hf.data.corpus.finding import Finding
from bert_hf.data.corpus.store import Window


def window_hashes(window: Window) -> tuple[np.ndarray, np.ndarray]:
    """(one for each sentence of the window, one for each of its documents): equal ones have equal hashes, uint64."""
    table = np.random.default_rng(0).integers(1, 2**64, 1 << 16, dtype=np.uint64)
    sentences = np.zeros(len(window.token_offsets) - 1, np.uint64)
    for first, last, ids in window.chunks():
        begins = window.token_offsets[first:last] - window.token_offsets[first]
        values = table[ids.astype(np.int64) & 0xFFFF] + ids.astype(np.uint64)
        sentences[first:last] = _ordered_sums(values, begins)

    kept = kept_sentences(window)
    return sentences, _ordered_sums(sentences[kept], np.cumsum(window.sentences) - window.sentences)


def _ordered_sums(values: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """For each range from one begin to the next a sum that depends on the order (modulo 2^64).

    Of values a b c d e with begins 0 and 3, m(x) the mixed bits of x:

        place   0 1 2  0 1
        sums    m(a) + 3 m(b) + 5 m(c),   m(d) + 3 m(e)
    """
    if len(begins) == 0:
        return np.zeros(0, np.uint64)
    place = np.arange(len(values)) - np.repeat(begins, np.diff(begins, append=len(values)))
    mixed = (values ^ (values >> np.uint64(29))) * (2 * place.astype(np.uint64) + np.uint64(1))
    return np.add.reduceat(mixed, begins)


def kept_sentences(window: Window) -> np.ndarray:
    """Numbers of all sentences of the window's documents: [0, 1, 4, 5, 6] of the documents [0, 2) and [4, 7)."""
    lengths = window.sentences
    before = np.cumsum(lengths) - lengths
    return np.repeat(window.document_starts - before, lengths) + np.arange(lengths.sum())


def repeated_documents(documents: np.ndarray) -> Finding:
    """How many documents equal an earlier one, by their hashes."""
    again = len(documents) - len(np.unique(documents))
    share = again / max(1, len(documents))
    text = f"{again:,} documents ({share:.1%}) equal an earlier one"
    return Finding(text, "prepare with --deduplicate exact (or near)" if again else "")


def repeated_sentences(window: Window, sentences: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Finding:
    """How many tokens are in sentences that occurred before, by the hashes of all sentences of the window."""
    kept = kept_sentences(window)
    lengths = np.diff(window.token_offsets)[kept]
    _, first, which, times = np.unique(sentences[kept], return_index=True, return_inverse=True, return_counts=True)
    repeated = np.arange(len(kept)) != first[which]
    share = lengths[repeated].sum() / max(1, lengths.sum())
    text = f"{share:.1%} of the tokens are in sentences (lines) that occurred before"
    if not share:
        return Finding(text)

    most = np.argmax(times * (lengths[first] > 2))
    if times[most] > 1:
        sentence = int(kept[first[most]])
        example = str(tokenizer.decode(window.ids(sentence, sentence + 1)))
        text += f"; most often, {times[most]:,} times: {example[:60]!r}"
    return Finding(text, "remove boiler-plate lines before preparing" if share > 0.1 else "")
