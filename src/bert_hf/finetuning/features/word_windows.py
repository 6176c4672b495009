"""Tokenizes words and cuts sentences into windows of the model's length: each word is labelled and predicted once.

A sentence that fits is one window. A longer one is cut between words into windows that overlap, and each of its words
belongs to the window in which it has most context on its shorter side (as in the 2018 SQuAD code). The rest of the
window is filled with further words of the sentence or, with document context, of its neighbours (Devlin et al. 2019,
section 5.3: "the maximal document context provided by the data"): these have no label there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from bert_hf.data.text.encoding import offsets_of
from bert_hf.data.text.tokenization import InputTemplate

_BATCH = 1000  # sentences that are tokenized in one call


@dataclass
class WordPieces:
    """The word pieces of sentences, without special tokens, one sentence after the other.

    Attributes:
        ids: (pieces,) token ids.
        starts: (words + 1,) the first piece of each word; the last entry is the number of pieces. A word that the
            tokenizer turns into nothing (a control character, say) has no pieces.
        sentences: (sentences + 1,) the first word of each sentence; the last entry is the number of words.
    """

    ids: np.ndarray
    starts: np.ndarray
    sentences: np.ndarray

    @property
    def is_empty_word(self) -> np.ndarray:
        """Return (words,) whether each word has no pieces."""
        return self.starts[1:] == self.starts[:-1]


def tokenize_words(
    words: Sequence[Sequence[str]], tokenizer: PreTrainedTokenizerBase, longest: int = 1 << 30
) -> WordPieces:
    """Tokenize sentences given as lists of words; of a word only the first `longest` pieces are kept."""
    ids: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    for begin in range(0, len(words), _BATCH):
        batch = [list(sentence) for sentence in words[begin : begin + _BATCH]]
        encoded: Any = tokenizer(batch, is_split_into_words=True, add_special_tokens=False, verbose=False)
        for row, sentence in enumerate(batch):
            word_of_piece = np.array(encoded.word_ids(row), dtype=np.int64)
            ids.append(np.array(encoded["input_ids"][row], dtype=np.int32))
            lengths.append(np.bincount(word_of_piece, minlength=len(sentence)))

    pieces = np.concatenate([np.zeros(0, np.int32), *ids])
    counts = np.concatenate([np.zeros(0, np.int64), *lengths])
    starts = offsets_of(counts)

    number_in_word = np.arange(len(pieces)) - np.repeat(starts[:-1], counts)  # 0 for a word's first piece
    pieces = pieces[number_in_word < longest]
    sentences = offsets_of([len(sentence) for sentence in words])
    return WordPieces(pieces, offsets_of(np.minimum(counts, longest)), sentences)


@dataclass
class WordWindows:
    """Inputs of the network before they have tokens: each is a range of the words of all sentences, see `WordPieces`.

    Attributes:
        start, end: (windows,) the words of a window are `start` ≤ word < `end`.
        window_of_word: (words,) the window in which a word is labelled and predicted; -1 for a word without pieces.
    """

    start: np.ndarray
    end: np.ndarray
    window_of_word: np.ndarray

    def inputs(self, pieces: WordPieces, template: InputTemplate) -> list[list[int]]:
        """Return the token ids of each window, special tokens included."""
        spans = zip(pieces.starts[self.start], pieces.starts[self.end], strict=True)
        return [template.join(pieces.ids[begin:end].tolist()).input_ids for begin, end in spans]

    def position_of_word(self, pieces: WordPieces, template: InputTemplate) -> np.ndarray:
        """Return (words,) the position of each word's first piece in its window; -1: no pieces."""
        [after_cls] = template.join([]).starts
        has_pieces = self.window_of_word >= 0
        first_word = self.start[self.window_of_word[has_pieces]]  # of the word's window
        positions = np.full(len(has_pieces), -1, np.int64)
        positions[has_pieces] = pieces.starts[:-1][has_pieces] - pieces.starts[first_word] + after_cls
        return positions


def make_windows(pieces: WordPieces, longest: int, documents: Sequence[int] | None = None) -> WordWindows:
    """Return windows of at most `longest` pieces (special tokens not counted); no word has more pieces than that.

    With `documents`, the number of each sentence's document, windows are filled with words of the same document.

    Example, with `longest` = 4, words of one piece each, and sentences of 2 and 6 words: windows [0, 2), [2, 6) and
    [4, 8); the words 2, 3 and 4 belong to the second and 5, 6 and 7 to the third. With both sentences in one document
    the first window is [0, 4), where the words 2 and 3 are context.
    """
    sentences = pieces.sentences
    windows: list[tuple[int, int]] = []
    window_of_word = np.full(len(pieces.starts) - 1, -1, np.int64)
    ranges = np.stack([sentences[:-1], sentences[1:], *_document_bounds(sentences, documents)], axis=1)

    for begin, end, low, high in ranges.tolist():  # words of a sentence, and of its document
        if pieces.starts[begin] == pieces.starts[end]:
            continue  # no word has pieces
        spans = _cut_sentence(pieces.starts, begin, end, longest)
        spans = [_fill_span(pieces.starts, span, low, high, longest) for span in spans]
        window_of_word[begin:end] = len(windows) + _span_of_most_context(pieces.starts, begin, end, spans)
        windows += spans

    window_of_word[pieces.is_empty_word] = -1
    start, end = np.array(windows, np.int64).reshape(-1, 2).T
    return WordWindows(start, end, window_of_word)


def _document_bounds(sentences: np.ndarray, documents: Sequence[int] | None) -> tuple[np.ndarray, np.ndarray]:
    """Return (first word, end) of each sentence's document; where there are no `documents`, of each sentence."""
    if documents is None:
        return sentences[:-1], sentences[1:]
    numbers = np.cumsum(np.diff(documents, prepend=documents[:1]) != 0)  # ascending, as `searchsorted` needs them
    begins = np.searchsorted(numbers, numbers, "left")
    ends = np.searchsorted(numbers, numbers, "right")
    return sentences[begins], sentences[ends]


def _cut_sentence(starts: np.ndarray, begin: int, end: int, longest: int) -> list[tuple[int, int]]:
    """Cut words `begin` to `end` into spans of ≤ `longest` pieces, up to half shared. `starts`: see `WordPieces`."""
    spans: list[tuple[int, int]] = []
    start = begin
    while True:
        stop = min(end, int(np.searchsorted(starts, starts[start] + longest, "right")) - 1)
        spans.append((start, stop))
        if stop == end:
            return spans

        # The next span starts as far back as the overlap allows, and so that the word at `stop` fits into it. It
        # starts later than this one, into which that word did not fit.
        shared = min(longest // 2, longest - int(starts[stop + 1] - starts[stop]))
        start = int(np.searchsorted(starts, starts[stop] - shared, "left"))


def _fill_span(starts: np.ndarray, span: tuple[int, int], low: int, high: int, longest: int) -> tuple[int, int]:
    """Return a span, extended to up to `longest` pieces by words from `low` to `high`. `starts`: see `WordPieces`."""
    begin, end = span
    free = longest - int(starts[end] - starts[begin])
    before = int(starts[begin] - starts[low])
    after = int(starts[high] - starts[end])

    # Words after it, as many as leave half of the free pieces to those before it; then as many before it as fit; then
    # again after it, because a long word may not have fitted before it
    kept_for_before = min(before, max(free // 2, free - after))
    end = min(high, int(np.searchsorted(starts, starts[end] + free - kept_for_before, "right")) - 1)
    begin = max(low, int(np.searchsorted(starts, starts[end] - longest, "left")))
    end = min(high, int(np.searchsorted(starts, starts[begin] + longest, "right")) - 1)
    return begin, end


def _span_of_most_context(starts: np.ndarray, begin: int, end: int, spans: list[tuple[int, int]]) -> np.ndarray:
    """Return (end - begin,) the index of the first span in which each word has most pieces on its shorter side."""
    words = np.arange(begin, end)
    span_begin, span_end = np.array(spans).T[:, :, None]  # (spans, 1) each
    left = starts[words] - starts[span_begin]  # (spans, words), below 0 outside
    right = starts[span_end] - starts[words + 1]
    return np.minimum(left, right).argmax(axis=0)


def split_words(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the words of a text as the tokenizer splits it, and begin and end of each in characters.

    "In Ghent." → ["In", "Ghent", "."], [(0, 2), (3, 8), (8, 9)]
    """
    encoded: Any = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    spans: dict[int, tuple[int, int]] = {}
    for word, (begin, end) in zip(encoded.word_ids(0), encoded["offset_mapping"], strict=True):
        word_begin, _ = spans.get(word, (begin, end))
        spans[word] = word_begin, end
    return [text[begin:end] for begin, end in spans.values()], list(spans.values())
