"""Token classification, such as named entity recognition: one new layer on the first piece of each word.

Devlin et al. 2019, section 5.3: "we use the representation of the first sub-token as the input to the token-level
classifier over the NER label set", without a CRF.
"""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
from torch import Tensor
from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

from bert_hf.config.finetuning_arguments import TokenClassificationArguments
from bert_hf.data.corpus.checksums import json_checksum
from bert_hf.finetuning.losses import IGNORE_INDEX
from bert_hf.finetuning.rows.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.rows.tagged_sentences import (
    TaggedSentences,
    check_labels,
    label_names,
    read_tagged,
    read_tagged_hub,
    unify_schemes,
    write_tagged,
)
from bert_hf.finetuning.metrics.entities import OUTSIDE, entity_table, tagging_metrics
from bert_hf.finetuning.features.word_windows import SPECIAL_TOKENS, Windows, WordPieces, make_windows, tokenize_words
from bert_hf.finetuning.tasks.task import TRAINED_ON, Arrays, DownstreamTask

PREDICTIONS = "predictions.conll"


class TokenClassificationTask(DownstreamTask):
    """Sentences of labelled words."""

    auto_class: Any = AutoModelForTokenClassification
    new_layers = ("classifier.",)
    pipeline_tag = "token-classification"
    splits_test = False
    task_args: TokenClassificationArguments
    parts: dict[str, TaggedSentences]

    def __init__(self, task_args: TokenClassificationArguments, tokenizer):
        super().__init__(task_args, tokenizer)
        self.windows = {part: self._pieces_and_windows(rows) for part, rows in self.parts.items()}

    # ---- rows

    @classmethod
    def read(cls, task_args: Any) -> dict[str, TaggedSentences]:
        if task_args.train_file:
            parts = {part: read_tagged(files) for part, files in task_args.files().items()}
        else:
            parts = read_tagged_hub(cls.source(task_args), task_args.dataset_config_name)
        unify_schemes(parts)

        names = cls.class_names(task_args, parts)
        for rows in parts.values():
            check_labels(rows, names)
        return parts

    @classmethod
    def groups(cls, rows: TaggedSentences) -> np.ndarray:
        marked = len(set(rows.documents)) > len(set(rows.files))  # else each file is one document
        texts = [" ".join(words) for words in rows.words]
        return near_duplicate_groups(texts, rows.documents if marked else None)

    @classmethod
    def describe_rows(cls, rows: TaggedSentences, task_args: Any) -> str:
        return f"{len(rows):,} sentences; labels {', '.join(label_names(rows.tags))}"

    @classmethod
    def class_names(cls, task_args: Any, parts: dict) -> tuple[str, ...]:
        return label_names(parts["train"].tags)

    def _pieces_and_windows(self, rows: TaggedSentences) -> tuple[WordPieces, Windows]:
        longest = self.task_args.max_seq_length - SPECIAL_TOKENS
        pieces = tokenize_words(rows.words, self.tokenizer, longest)
        documents = rows.documents if self.task_args.document_context else None
        return pieces, make_windows(pieces, longest, documents)

    # ---- features

    def encoded(self, part: str) -> datasets.Dataset:
        pieces, windows = self.windows[part]
        feature, position = self.places(part)
        numbers = self._label_numbers(part)

        # Labels of all windows in one array: window w has labels[offsets[w] : offsets[w] + lengths[w]]. Only the first
        # piece of a word has one.
        lengths = pieces.starts[windows.end] - pieces.starts[windows.start] + SPECIAL_TOKENS
        offsets = np.cumsum(lengths) - lengths
        labels = np.full(lengths.sum(), IGNORE_INDEX, np.int64)
        inside = feature >= 0
        labels[offsets[feature[inside]] + position[inside]] = numbers[inside]

        columns = {
            "input_ids": windows.inputs(pieces, self.tokenizer),
            "labels": np.split(labels, offsets[1:]) if len(offsets) else [],
            "length": lengths,
        }
        return datasets.Dataset.from_dict(columns)

    def collator(self) -> Any:
        return DataCollatorForTokenClassification(self.tokenizer)

    def places(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        """(words,) feature of `encoded` that has the prediction for each word, and position in it; -1: nowhere."""
        pieces, windows = self.windows[part]
        return windows.window_of_word, windows.position_of_word(pieces.starts)

    def _label_numbers(self, part: str) -> np.ndarray:
        """(words,) class id of each word."""
        number = {name: index for index, name in enumerate(self.labels)}
        return np.array([number[tag] for tags in self.parts[part].tags for tag in tags], np.int64)

    # ---- network

    def chosen_options(self) -> dict:
        return {TRAINED_ON: {"document_context": self.task_args.document_context}}

    # ---- predictions

    @classmethod
    def metric_names(cls, task_args: Any) -> tuple[str, ...]:
        return ("f1", "precision", "recall", "accuracy", "loss")

    def reduce(self, inputs: dict[str, Tensor], outputs) -> Tensor:
        return outputs["logits"].argmax(-1)

    def predicted_tags(self, part: str, predictions: Arrays | None) -> list[list[str]]:
        """A tag for each word of each sentence, from (features, positions) class ids."""
        assert isinstance(predictions, np.ndarray)
        feature, position = self.places(part)
        inside = feature >= 0
        numbers = predictions[feature[inside], position[inside]]

        tags = np.full(len(inside), OUTSIDE, dtype=object)
        tags[inside] = np.array(self.labels, dtype=object)[numbers]
        words = iter(tags.tolist())
        return [[next(words) for _ in sentence] for sentence in self.parts[part].words]

    def evaluate(self, part: str, predictions: Arrays, labels: np.ndarray | None) -> dict[str, float]:
        return tagging_metrics(self.parts[part].tags, self.predicted_tags(part, predictions))

    def write_predictions(self, folder: Path, part: str, predictions: Arrays) -> None:
        rows = self.parts[part]
        write_tagged(folder / PREDICTIONS, rows.words, rows.tags, self.predicted_tags(part, predictions))

    # ---- identity, card, report

    def fingerprint(self) -> dict:
        data = [[rows.words, rows.tags, rows.documents] for rows in self.parts.values()]
        return {
            "data": json_checksum(data)[:16],
            "labels": list(self.labels),
            "document_context": self.task_args.document_context,
        }

    def usage(self, model: str) -> str:
        longest = self.task_args.max_seq_length
        return f"""from transformers import pipeline

tagger = pipeline("token-classification", model="{model}", aggregation_strategy="first", stride={longest // 4})
tagger("Anna Smith lives in London.")"""

    def settings(self) -> dict:
        return {
            "labels": ", ".join(self.labels),
            "document context": "yes" if self.task_args.document_context else "no",
        }

    def limits(self) -> list[str]:
        limit = "Training and metrics read each sentence with its neighbours in the document; the code above does not."
        return [limit] if self.task_args.document_context else []

    def report(self, metrics: dict, baselines: dict, predictions: Arrays | None) -> str:
        """The table of entities."""
        part = "test" if "test_loss" in metrics else "validation"
        return f"{part}\n{entity_table(self.parts[part].tags, self.predicted_tags(part, predictions))}"
