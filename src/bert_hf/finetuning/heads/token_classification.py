"""Labels of words, such as names: one layer on the first piece of each word.

Devlin et al. 2019, section 5.3: "we use the representation of the first sub-token as the input to the token-level
classifier over the NER label set", without a CRF.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import datasets
import numpy as np
from torch import Tensor
from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

from bert_hf.data.text.tables import Row
from bert_hf.data.text.tokenization import InputTemplate
from bert_hf.finetuning.features.word_windows import Windows, WordPieces, make_windows, split_words, tokenize_words
from bert_hf.finetuning.heads.head import Head, Kept, Labels
from bert_hf.finetuning.heads.pictures import marked
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
    pieces: WordPieces
    feature: np.ndarray  # (words,) the number of the feature; -1: the word has no pieces
    position: np.ndarray  # (words,) the position in the feature


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
    def labels_entities(self) -> bool:
        """Return whether labels are of entities, not parts of speech."""
        return have_entities(self.labels)

    # ---- rows

    def read_file(self, path: str, encoding: str | None = None) -> Iterator[Row]:
        options = map(self.given.get, ("separator", "text_column", "label_column"))
        yield from read_tagged_file(path, self.labels, encoding, *options)

    def read(self, rows: Sequence[Row], labels: Labels = "needed") -> TaggedSentences:
        columns = map(self.given.get, ("text_column", "label_column"))
        return tagged_sentences(rows, labels != "ignored", lambda text: split_words(text, self.tokenizer), *columns)

    def check(self, parts: Mapping[str, TaggedSentences]) -> None:
        unify_schemes(parts)
        self.labels = self.labels or label_names(parts["train"].labels())
        for rows in parts.values():
            check_labels(rows, self.labels)

    def describe_rows(self, rows: TaggedSentences) -> str:
        return f"{len(rows):,} sentences; labels {', '.join(label_names(rows.tags or []))}"

    # ---- features

    def encode(self, rows: TaggedSentences) -> EncodedSentences:
        """Return a feature for each window of the sentences, and the feature and position of each word."""
        pieces, windows = self.windows(rows)
        template = InputTemplate(self.tokenizer)
        feature = windows.window_of_word
        position = windows.position_of_word(pieces, template)
        lengths = pieces.starts[windows.end] - pieces.starts[windows.start] + template.special_tokens(pair=False)
        columns: dict[str, Any] = {"input_ids": windows.inputs(pieces, template), "length": lengths}
        if rows.tags is not None:
            columns["labels"] = self._labels(rows, feature, position, lengths)
        return EncodedSentences(datasets.Dataset.from_dict(columns), pieces, feature, position)

    def windows(self, rows: TaggedSentences) -> tuple[WordPieces, Windows]:
        """Return the word pieces of sentences and the windows over them."""
        longest = self.length - InputTemplate(self.tokenizer).special_tokens(pair=False)
        pieces = tokenize_words(rows.words, self.tokenizer, longest)
        return pieces, make_windows(pieces, longest, rows.documents if self.option("document_context") else None)

    def _labels(self, rows: TaggedSentences, feature: np.ndarray, position: np.ndarray, lengths: np.ndarray) -> list:
        """Return the labels of each window: only the first piece of a word has one.

        All windows are in one array: window w has labels[offsets[w] : offsets[w] + lengths[w]].
        """
        offsets = np.cumsum(lengths) - lengths
        labels = np.full(lengths.sum(), IGNORE_INDEX, np.int64)
        inside = feature >= 0
        labels[offsets[feature[inside]] + position[inside]] = self.label_numbers(rows)[inside]
        return np.split(labels, offsets[1:]) if len(offsets) else []

    def label_numbers(self, rows: TaggedSentences) -> np.ndarray:
        """Return (words,) the class id of each word."""
        number = {name: index for index, name in enumerate(self.labels)}
        return np.array([number[tag] for tags in rows.labels() for tag in tags], np.int64)

    def collator(self) -> Any:
        return DataCollatorForTokenClassification(self.tokenizer)

    # ---- predictions

    def keep(self, inputs: dict[str, Tensor], outputs: Any) -> Tensor:
        return outputs["logits"].argmax(-1)

    def decode(self, rows: TaggedSentences, encoded: EncodedSentences, kept: Kept) -> list[list[str]]:
        """Return a label for each word of each sentence; "O" for a word without pieces."""
        assert isinstance(kept, np.ndarray)
        inside = encoded.feature >= 0
        numbers = kept[encoded.feature[inside], encoded.position[inside]]
        labels = np.full(len(inside), OUTSIDE, dtype=object)
        labels[inside] = np.array(self.labels, dtype=object)[numbers]
        words = iter(labels.tolist())
        return [[next(words) for _ in sentence] for sentence in rows.words]

    def added_columns(self, rows: TaggedSentences, predictions: list[list[str]]) -> list[dict[str, Any]]:
        """Return `labels`, one per word; of a text also its words (`tokens`) and the characters of its `entities`."""
        added: list[dict[str, Any]] = []
        for words, labels, spans in zip(rows.words, predictions, rows.spans, strict=True):
            added.append({"labels": labels, **({"tokens": words} if spans else {})})
            if spans and self.labels_entities:
                own = [
                    {"label": kind, "start": spans[first][0], "end": spans[last][1]}
                    for kind, first, last in entities(labels)
                ]
                added[-1] |= {"entities": own}
        return added

    def texts_of_row(self, rows: TaggedSentences, number: int) -> list[str]:
        return [" ".join(rows.words[number])]

    def picture(self, texts: Mapping[str, str], rows: TaggedSentences, predictions: list[list[str]]) -> str:
        """Return the text with its entities marked, or each word where labels are not of entities."""
        [labels], [spans] = predictions, rows.spans
        if not self.labels_entities:
            return marked(
                texts["text"], [(*span, label) for span, label in zip(spans, labels, strict=True)], self.labels
            )
        kinds = {split_tag(label)[1] for label in self.labels if label != OUTSIDE}
        parts = [(spans[first][0], spans[last][1], kind) for kind, first, last in entities(labels)]
        return marked(texts["text"], parts, kinds)

    # ---- metrics

    def metric_names(self) -> tuple[str, ...]:
        return ("f1", "precision", "recall", "accuracy", "loss") if self.labels_entities else ("accuracy", "loss")

    def metric_inputs(self, rows: TaggedSentences, predictions: list[list[str]]) -> dict[str, Any]:
        return {"predictions": predictions, "references": rows.labels()}

    def metric_options(self, rows: TaggedSentences, predictions: list[list[str]]) -> dict[str, Any]:
        return {"of_entities": self.labels_entities}

    def table(self, rows: TaggedSentences, predictions: list[list[str]]) -> str:
        if self.labels_entities:
            return tagging_table(rows.labels(), predictions)
        return label_report([*chain(*rows.labels())], [*chain(*predictions)])
