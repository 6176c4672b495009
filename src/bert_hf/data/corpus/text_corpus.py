"""Tokenizes texts (a list or a `datasets.Dataset`) into a corpus in memory, and opens corpora of all kinds.

The text is processed as in `prepare.py` and takes 2 bytes per token; a larger one has to be prepared on disk first.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from bert_hf.config.files import join_surrogates
from bert_hf.data.corpus.store import Corpus, Window
from bert_hf.data.text.encoding import batch_text_pieces, encode_group, sentences_per_document
from bert_hf.data.text.readers import cut_pieces
from bert_hf.data.text.sources import dataset_rows
from bert_hf.data.text.tables import Row, row_texts
from bert_hf.data.text.tokenization import backend
from bert_hf.errors import InputError


class TextCorpus(Window):
    """Tokenized documents in memory: a corpus that is its only window, with `tokens`, `windows` and `window`.

    Each text is a document; documents without a token are left out.
    """

    def __init__(self, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, language: str | None = "en"):
        encoder = backend(tokenizer)
        pieces = (piece for text in texts for piece in cut_pieces(join_surrogates(text)))
        groups = [encode_group(group, encoder, language) for group in batch_text_pieces(pieces)]
        if not any(len(group.ids) for group in groups):
            raise InputError("contains no text", where="dataset", remedy="give documents that contain text")

        ids, lengths, sentences, ends, _ = map(np.hstack, zip(*groups, strict=True))
        per_document = sentences_per_document(sentences, ends)
        super().__init__([ids], lengths, per_document, kept=per_document > 0)

    @property
    def tokens(self) -> int:
        """Return the number of tokens in these documents."""
        return int(self.token_offsets[-1])

    def windows(self, rng: np.random.Generator | None = None) -> list[tuple[int, ...]]:
        """Return the only window, as the number of one shard that stands for all documents."""
        return [(0,)]

    def window(self, shards: tuple[int, ...]) -> "TextCorpus":
        """Return the corpus itself, whatever the numbers: its only window holds all documents."""
        return self


def open_corpus(
    source: Any, tokenizer: PreTrainedTokenizerBase | None, text_column: str | None, language: str | None
) -> Corpus | TextCorpus:
    """Return an open corpus as it is; open a folder made by `prepare.py`; tokenize texts, or rows with a text column.

    The tokenizer encodes texts; a prepared corpus must have been made with the same one (None: not compared).
    """
    if isinstance(source, str | Path):
        source = Corpus(source)
    if isinstance(source, Corpus) and tokenizer is not None:
        source.check_tokenizer(tokenizer)
    if hasattr(source, "windows") and hasattr(source, "window"):  # an open corpus, perhaps of a class of one's own
        return source

    if isinstance(source, Mapping):
        remedy = f"pass one of its splits: {', '.join(map(str, source))}"
        raise InputError("expected one data set, got several", where="dataset", remedy=remedy)
    if tokenizer is None:
        raise InputError("texts need a tokenizer", where="dataset", remedy="pass tokenizer=…, the collator's")
    return TextCorpus(texts_of(source, text_column), tokenizer, language)


def texts_of(rows: Any, text_column: str | None = None) -> Iterator[str]:
    """Yield the text of each row: the row itself, or its column `text_column` ("text", or the only one of strings)."""
    if text_column is not None and text_column in (getattr(rows, "column_names", None) or ()):
        rows = rows.select_columns([text_column])  # so that no other column is decoded

    if hasattr(rows, "iterrows"):  # of pandas
        rows = [row.values for row in dataset_rows(rows)]
    rows = iter(rows)
    first = next(rows, "")  # without rows: one empty text
    rows = itertools.chain([first], rows)
    if not isinstance(first, Mapping):  # texts without columns
        rows = ({"text": text} for text in rows)
        text_column = "text"
    yield from row_texts((Row(dict(row), "dataset", number) for number, row in enumerate(rows, start=1)), text_column)
