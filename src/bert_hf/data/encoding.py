"""Text → sentences → token ids, in bulk: the inner loop of preparing a corpus.

Imports nothing heavy: worker processes start in a fraction of a second.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencex
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

LONGEST_SENTENCE = 1000  # characters; beyond it text without full stops is cut at white space
GROUP = 1 << 18  # characters that are encoded at once
_REMEMBERED = 1 << 19  # words whose ids are kept, at most, and four times as many ids: about 150 MB a process
_PUNCTUATION = re.compile(r"[^!-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]")  # ASCII punctuation: always a word of its own


def split_sentences(text: str, language: str | None = "en") -> list[str]:
    """The sentences of a text.

    A line break always ends a sentence; within a line `sentencex` decides, told the language (an unknown code falls
    back along its own chain of related languages and at last to English rules). What is still longer than
    `LONGEST_SENTENCE` characters (text without full stops) is cut at the last white space before that length, or at
    that length where there is none. Without a language a line is a sentence, whatever its length: the format of the
    2018 code.
    """
    if language is None:
        return [line.strip() for line in text.split("\n") if line.strip()]
    sentences = []
    for line in text.splitlines():
        if line.strip():
            for sentence in sentencex.segment(language, line) if len(line) > 1 else [line]:
                sentences.extend(_cut_long(sentence.strip()))
    return sentences


def _cut_long(sentence: str) -> Iterator[str]:
    begin, end = 0, len(sentence)
    while end - begin > LONGEST_SENTENCE:
        at = sentence.rfind(" ", begin + 1, begin + LONGEST_SENTENCE)
        at = at if at > 0 else begin + LONGEST_SENTENCE
        if part := sentence[begin:at].strip():
            yield part
        begin = at
    if part := sentence[begin:].strip():
        yield part


class Encoder:
    """Sentences → ids, equal to the Rust tokenizer's and several times faster, by remembering words.

    BERT's normaliser and pre-tokeniser look at one character at a time, and a space or an ASCII punctuation mark ends
    a word whatever stands around it; so the ids of a sentence are the ids of its words one after the other. Words come
    again (Zipf): their ids are looked up, and only words not met before go through the Rust tokenizer. Where a
    tokenizer does not work like that, or the text holds one of its added tokens, all goes through it.

    Args:
        tokenizer: from the `tokenizers` library.
    """

    def __init__(self, tokenizer: Tokenizer):
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self._added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        self.by_word = _is_by_word(tokenizer)
        self._forget()

    def _forget(self) -> None:
        self._parts: dict[str, tuple[int, ...]] = {}  # between two marks of ASCII punctuation → ids
        self._places: dict[str, int] = {"": 0}  # between two spaces → its place in the tables
        # The ids of the word at place p are ids[starts[p] : starts[p + 1]].
        self._starts, self._ids = np.zeros(1 << 10, np.int64), np.zeros(1 << 10, np.int32)

    def __call__(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """(ids of all sentences, one after the other, int32; tokens of each sentence, int64)."""
        if not sentences:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        text = " ".join(sentences)
        if not self.by_word or any(token in text for token in self._added):
            encodings = self.tokenizer.encode_batch_fast(sentences, add_special_tokens=False)
            ids = [encoding.ids for encoding in encodings]
            lengths = np.fromiter(map(len, ids), np.int64, len(ids))
            return np.fromiter((i for sentence in ids for i in sentence), np.int32, lengths.sum()), lengths
        words = text.split(" ")
        places = list(map(self._places.get, words))
        if None in places:
            self._learn([word for word, place in zip(words, places, strict=True) if place is None])
            places = list(map(self._places.__getitem__, words))
        place = np.array(places)
        starts = self._starts[place]
        lengths = self._starts[place + 1] - starts
        ends = np.cumsum(lengths)
        ids = self._ids[np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1])]
        words_until = np.cumsum([sentence.count(" ") + 1 for sentence in sentences])
        if len(self._places) > _REMEMBERED or self._starts[len(self._places)] > 4 * _REMEMBERED:
            self._forget()
        return ids, np.diff(ends[words_until - 1], prepend=0)

    def _learn(self, words: list[str]) -> None:
        """Adds the ids of words (between two spaces), by way of their parts between punctuation marks."""
        words = list(dict.fromkeys(words))
        parts = [_PUNCTUATION.findall(word) for word in words]
        new = list(dict.fromkeys(part for word in parts for part in word if part not in self._parts))
        for part, encoding in zip(new, self.tokenizer.encode_batch_fast(new, add_special_tokens=False), strict=True):
            self._parts[part] = tuple(encoding.ids)
        ids = [[i for part in own for i in self._parts[part]] for own in parts]
        first, begin = len(self._places), int(self._starts[len(self._places)])
        ends = begin + np.cumsum([len(own) for own in ids])
        self._starts = _room(self._starts, first + len(words) + 1)
        self._ids = _room(self._ids, int(ends[-1]))
        self._starts[first + 1 : first + 1 + len(words)] = ends
        self._ids[begin : ends[-1]] = [i for own in ids for i in own]
        self._places.update(zip(words, range(first, first + len(words)), strict=True))


def _room(array: np.ndarray, size: int) -> np.ndarray:
    """The array, or a longer copy where it has no room for `size` values."""
    if size <= len(array):
        return array
    return np.concatenate([array, np.zeros(2 * size - len(array), array.dtype)])


def _is_by_word(tokenizer: Tokenizer) -> bool:
    """Is it BERT's: ids of a sentence = ids of its words, one after the other?"""
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer)
    plain = [type(part).__name__ for part in parts] == ["BertNormalizer", "BertPreTokenizer"]
    plain = plain and isinstance(tokenizer.model, WordPiece)
    return plain and not any(
        token.normalized or token.lstrip or token.rstrip or token.single_word or " " in token.content
        for token in tokenizer.get_added_tokens_decoder().values()
    )


@functools.lru_cache(maxsize=2)
def load_encoder(path: str | Path, version: str = "") -> Encoder:
    """The encoder of a `tokenizer.json`, kept; another `version` (any string) reads the file again."""
    return Encoder(Tokenizer.from_file(str(path)))


class Encoded(NamedTuple):
    """Some pieces of text, one after the other, as ids. P pieces, S sentences, T tokens."""

    ids: np.ndarray  # (T,) uint16 or int32
    sentence_lengths: np.ndarray  # (S,) int32: tokens, never 0
    sentences: np.ndarray  # (P,) int64: sentences of each piece
    ends: np.ndarray  # (P,) bool: a document ends with the piece
    unknown: int  # how many of the ids are [UNK]


def group_pieces(pieces: Iterable) -> Iterator[tuple]:
    """`sources.Piece`s in groups of about `GROUP` characters; one ends where a document of several pieces ends."""
    group: list = []
    size, continued = 0, False
    for piece in pieces:
        group.append(piece)
        size += len(piece.text) + 32  # a crowd of empty documents fills a group, too
        if size >= GROUP or (piece.ends and continued):
            yield tuple(group)
            group, size = [], 0
        continued = not piece.ends
    if group:
        yield tuple(group)


def encode_group(group: tuple, tokenizer: tuple[str, str] | Encoder, language: str | None) -> Encoded:
    """Encodes a group of pieces. Sentences without a token are left out.

    Args:
        tokenizer: an encoder, or what `load_encoder` takes (which travels between processes).
    """
    encoder = tokenizer if isinstance(tokenizer, Encoder) else load_encoder(*tokenizer)
    split = [split_sentences(piece.text, language) for piece in group]
    ids, lengths = encoder([sentence for sentences in split for sentence in sentences])
    piece = np.repeat(np.arange(len(group)), [len(sentences) for sentences in split])[lengths > 0]
    unknown = encoder.tokenizer.token_to_id("[UNK]")
    small = encoder.tokenizer.get_vocab_size() < 2**16
    return Encoded(
        ids=ids.astype(np.uint16 if small else np.int32),
        sentence_lengths=lengths[lengths > 0].astype(np.int32),
        sentences=np.bincount(piece, minlength=len(group)),
        ends=np.array([piece.ends for piece in group]),
        unknown=0 if unknown is None else int((ids == unknown).sum()),
    )


def encode_source(source, writer, tokenizer: tuple[str, str], language: str | None, without: frozenset = frozenset()):
    """Reads a source, encodes it and writes its shards: one process's work on one input.

    Args:
        source: has `read()`, which yields `sources.Piece`s. writer: an `input_shards.InputShards`, not yet opened.
        without: numbers of documents that are left out.

    Returns:
        The records of the shards.
    """
    groups = group_pieces(leave_out(source.read(), without))
    with writer:
        for group in itertools.islice(groups, writer.groups_done, None):
            writer.add(encode_group(group, tokenizer, language))
    return writer.entries


def leave_out(pieces: Iterable, numbers: frozenset) -> Iterator:
    """The pieces of all documents but those of these numbers (from 0, empty documents counted)."""
    document = 0
    for piece in pieces:
        if document not in numbers:
            yield piece
        document += piece.ends
