"""Counts the characters of a text that a tokenizer loses as [UNK], by their cause."""

import enum
from collections import Counter
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from bert_hf.data.text.encoding import split_sentences
from bert_hf.data.text.tokenization import backend

_BATCH = 1000  # sentences encoded at a time


class Unknown(enum.Enum):
    """Why a word becomes [UNK]."""

    LONG = "words of more than 100 characters, which WordPiece does not split: a space between words is missing"
    CASE = "words with capitals, which the vocabulary has in lower case only"
    OTHERS = "words with a character that the vocabulary lacks"


def unknown_characters(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Counter[Unknown]:
    """Return how many characters of the texts become [UNK], by cause."""
    rust = backend(tokenizer)
    longest_word = getattr(rust.model, "max_input_chars_per_word", 100)
    lost: Counter[Unknown] = Counter()

    def is_known(word: str) -> bool:
        return tokenizer.unk_token_id not in rust.encode(word, add_special_tokens=False).ids

    sentences = [sentence for text in texts for sentence in split_sentences(text, None)]
    for first in range(0, len(sentences), _BATCH):
        batch = sentences[first : first + _BATCH]
        for sentence, encoding in zip(batch, rust.encode_batch(batch, add_special_tokens=False), strict=True):
            for token_id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if token_id != tokenizer.unk_token_id:
                    continue

                word = sentence[begin:end]
                if len(word) > longest_word:
                    cause = Unknown.LONG
                elif word != word.lower() and is_known(word.lower()):
                    cause = Unknown.CASE
                else:
                    cause = Unknown.OTHERS
                lost[cause] += len(word)
    return lost
