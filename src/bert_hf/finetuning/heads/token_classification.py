"""Labels of words, such as names: one layer on the first piece of each word.

Devlin et al. 2019, section 5.3: "we use the representation of the first sub-token as the input to the token-level
classifier over the NER label set", without a CRF.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import datasets
import numpy as np
from torch import Tensor
from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

from bert_hf.data.text.tables import Row
from bert_hf.data.text.tokenization import InputTemplate
from bert_hf.finetuning.features.word_windows import WordPieces, WordWindows, make_windows, split_words, tokenize_words
from bert_hf.finetuning.heads.head import Head, Kept, Labels
from bert_hf.finetuning.heads.pictures import marked_text
from bert_hf.finetuning.losses import IGNORE_INDEX
from bert_hf.finetuning.metrics.classification import label_report
from bert_hf.finetuning.metrics.entities import OUTSIDE, entities, have_entities, split_tag, tagging_table
from bert_hf.finetuning.rows.tagged_sentences import (
    TaggedSentences,
    check_labels,
    label_names,
    read_tagged_file,
    tagged_sentences,
    unify_schemes,
)


class EncodedSentences(NamedTuple):
    """Sentences as inputs of the network, and where the prediction of each of their words is found."""

    features: datasets.Dataset
    feature_of_word: np.ndarray  # (words,) the index of the feature that predicts it; -1: the word has no pieces
    position_of_word: np.ndarray  # (words,) the position in that feature


class TokenClassificationHead(Head):
    """A label for each word of a sentence; predictions are lists of labels."""

    name = "token_classification"
    auto_class: Any = AutoModelForTokenClassification
    text_columns = ("text",)
    architectures = ("ForTokenClassification",)
    new_layers = ("classifier.",)
    pipeline_tag = "token-classification"
    own_metric = "TokenClassification"
    option_names = ("document_context",)

    @property
    def has_entities(self) -> bool:
        """Return whether the labels are of entities, not parts of speech."""
        return have_entities(self.labels)

    def read_file(self, path: str, encoding: str | None = None) -> Iterator[Row]:
        separator, word_column, label_column = map(self.given.get, ("separator", "text_column", "label_column"))
        yield from read_tagged_file(path, self.labels, encoding, separator, word_column, label_column)

    def read(self, rows: Sequence[Row], labels: Labels = "needed") -> TaggedSentences:
        word_column, label_column = map(self.given.get, ("text_column", "label_column"))
        split = functools.partial(split_words, tokenizer=self.tokenizer)
        labelled = labels != "ignored"  # test rows need labels, too
        return tagged_sentences(rows, labelled, split, word_column, label_column)

    def check(self, parts: Mapping[str, TaggedSentences]) -> None:
        """Turn IOB1 tags of all parts into IOB2, in place, then check the labels as `Head.check` does."""
        unify_schemes(parts)
        self.labels = self.labels or label_names(parts["train"].labels())
        for rows in parts.values():
            check_labels(rows, self.labels)

    def describe_rows(self, rows: TaggedSentences) -> str:
        return f"{len(rows):,} sentences; labels {', '.join(label_names(rows.tags or []))}"

    def encode(self, rows: TaggedSentences) -> EncodedSentences:
        """Return a feature for each window of the sentences, and the feature and position of each word."""
        pieces, windows = self.pieces_and_windows(rows)
        template = InputTemplate(self.tokenizer)
        feature_of_word = windows.window_of_word
        position_of_word = windows.position_of_word(pieces, template)
        piece_counts = pieces.starts[windows.end] - pieces.starts[windows.start]
        lengths = piece_counts + self.tokenizer.num_special_tokens_to_add()
        columns: dict[str, Any] = {"input_ids": windows.inputs(pieces, template), "length": lengths}
        if rows.tags is not None:
            columns["labels"] = labels = [np.full(length, IGNORE_INDEX) for length in lengths]
            words = zip(feature_of_word, position_of_word, self.class_ids(rows), strict=True)
            for feature, position, class_id in words:
                if feature >= 0:
                    labels[feature][position] = class_id  # only the first piece of a word has one
        return EncodedSentences(datasets.Dataset.from_dict(columns), feature_of_word, position_of_word)

    def pieces_and_windows(self, rows: TaggedSentences) -> tuple[WordPieces, WordWindows]:
        """Return the word pieces of sentences, and the windows over them (with `document_context` over documents)."""
        longest = self.length - self.tokenizer.num_special_tokens_to_add()
        pieces = tokenize_words(rows.words, self.tokenizer, longest)
        return pieces, make_windows(pieces, longest, rows.documents if self.option("document_context") else None)

    def class_ids(self, rows: TaggedSentences) -> np.ndarray:
        """Return (words,) the class id of each word, one sentence after the other."""
        id_of_label = {label: number for number, label in enumerate(self.labels)}
        return np.array([id_of_label[tag] for tag in chain(*rows.labels())], np.int64)

    def collate(self, features: list[dict]) -> dict[str, Tensor]:
        return DataCollatorForTokenClassification(self.tokenizer)(features)

    def keep(self, inputs: dict[str, Tensor], outputs: Any) -> Tensor:
        return outputs["logits"].argmax(-1)  # (B, L) class ids

    def decode(self, rows: TaggedSentences, encoded: EncodedSentences, kept: Kept) -> list[list[str]]:
        """Return a label for each word of each sentence; "O" for a word without pieces."""
        has_pieces = encoded.feature_of_word >= 0
        labels = np.full(len(has_pieces), OUTSIDE, dtype=object)
        if has_pieces.any():  # else there are no features
            assert isinstance(kept, np.ndarray)
            class_ids = kept[encoded.feature_of_word[has_pieces], encoded.position_of_word[has_pieces]]
            labels[has_pieces] = np.array(self.labels, dtype=object)[class_ids]
        words = iter(labels.tolist())
        return [[next(words) for _ in sentence] for sentence in rows.words]

    def added_columns(self, rows: TaggedSentences, predictions: list[list[str]]) -> list[dict[str, Any]]:
        """Return `labels`, one per word; of a text also its words (`tokens`) and the characters of its `entities`."""
        added: list[dict[str, Any]] = []
        for words, labels, spans in zip(rows.words, predictions, rows.spans, strict=True):
            columns: dict[str, Any] = {"labels": labels}
            if spans is not None:  # (begin, end) of each word of a text; rows of words have none
                columns["tokens"] = words
            if spans is not None and self.has_entities:
                columns["entities"] = [
                    {"label": kind, "start": spans[first][0], "end": spans[last][1]}
                    for kind, first, last in entities(labels)
                ]
            added.append(columns)
        return added

    def texts_of_row(self, rows: TaggedSentences, number: int) -> list[str]:
        return [" ".join(rows.words[number])]

    def picture(self, texts: Mapping[str, str], rows: TaggedSentences, predictions: list[list[str]]) -> str:
        """Return the text with its entities marked, or each word where labels are not of entities."""
        [labels] = predictions  # of one text
        spans: Any = rows.spans[0]
        if not self.has_entities:
            words = [(*span, label) for span, label in zip(spans, labels, strict=True)]
            return marked_text(texts["text"], words, self.labels)
        kinds = {split_tag(label)[1] for label in self.labels if label != OUTSIDE}
        parts = [(spans[first][0], spans[last][1], kind) for kind, first, last in entities(labels)]
        return marked_text(texts["text"], parts, kinds)

    def metric_names(self) -> tuple[str, ...]:
        return ("f1", "precision", "recall", "accuracy", "loss") if self.has_entities else ("accuracy", "loss")

    def metric_inputs(self, rows: TaggedSentences, predictions: list[list[str]]) -> dict[str, Any]:
        return {"predictions": predictions, "references": rows.labels()}

    def metric_options(self, rows: TaggedSentences, predictions: list[list[str]]) -> dict[str, Any]:
        return {"of_entities": self.has_entities}

    def table(self, rows: TaggedSentences, predictions: list[list[str]]) -> str:
        if self.has_entities:
            return tagging_table(rows.labels(), predictions)
        return label_report([*chain(*rows.labels())], [*chain(*predictions)])
