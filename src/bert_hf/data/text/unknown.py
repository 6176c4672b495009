"""Counts the characters of a text that a tokenizer loses as [UNK], by their cause."""

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from bert_hf.data.text.encoding import split_sentences
from bert_hf.data.text.tokenization import backend


class Unknown(enum.Enum):
    """The cause by which a word becomes [UNK]; its value is the text of the report."""

    LONG = "words of more than 100 characters, which WordPiece does not split: a space between words is missing"
    CASE = "words with capitals, which the vocabulary has in lower case only"
    OTHERS = "words with a character that the vocabulary lacks"


def unknown_characters(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Counter[Unknown]:
    """Return how many characters of the texts become [UNK], by cause."""
    rust = backend(tokenizer)
    longest_word = getattr(rust.model, "max_input_chars_per_word", 100)
    unknown_id: Any = tokenizer.unk_token_id
    lost: Counter[Unknown] = Counter()
    for word in _unknown_words(texts, rust, unknown_id):
        lower = word.lower()
        if len(word) > longest_word:
            cause = Unknown.LONG
        elif word != lower and unknown_id not in rust.encode(lower, add_special_tokens=False).ids:
            cause = Unknown.CASE
        else:
            cause = Unknown.OTHERS
        lost[cause] += len(word)
    return lost


def _unknown_words(texts: Sequence[str], rust: Tokenizer, unknown_id: int | None) -> Iterator[str]:
    """Yield each word, or other part of a text, that becomes one [UNK]."""
    for text in texts:
        lines = split_sentences(text, None)
        for line, encoding in zip(lines, rust.encode_batch(lines, add_special_tokens=False), strict=True):
            for token_id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if token_id == unknown_id:
                    yield line[begin:end]
