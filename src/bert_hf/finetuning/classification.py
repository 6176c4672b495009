"""Classification of texts and of pairs of texts, and regression: one new layer on [CLS] (Devlin et al. 2019, 4.1)."""

import hashlib
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from torch import Tensor
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.finetuning.baselines import baseline_predictions
from bert_hf.finetuning.datasets import LabelledTexts, tokenized
from bert_hf.finetuning.losses import cross_entropies
from bert_hf.finetuning.metrics import ClassificationMetric, confusion
from bert_hf.finetuning.splits import load_splits
from bert_hf.finetuning.task import Arrays, DownstreamTask
from bert_hf.finetuning.tasks import TASKS, order_labels


class ClassificationTask(DownstreamTask):
    """Labelled texts."""

    auto_class = AutoModelForSequenceClassification
    new_layers = ("classifier.", "bert.pooler.")  # a checkpoint with a masked-LM head alone has no pooler
    pipeline_tag = "text-classification"
    asked: ClassificationArguments

    # ---- rows

    @classmethod
    def read(cls, asked: Any) -> dict[str, LabelledTexts]:
        return load_splits(asked)[0]

    @classmethod
    def source(cls, asked: Any) -> str:
        return TASKS[asked.task].hub_id if asked.task in TASKS else super().source(asked)

    @classmethod
    def class_names(cls, asked: Any, parts: dict) -> tuple[str, ...]:
        return order_labels(set(parts["train"].labels), asked.task)

    def describe(self) -> str:
        return f"labels {', '.join(self.labels)}"

    def encoded(self, part: str) -> datasets.Dataset:
        return tokenized(self.parts[part], self.labels, self.tokenizer, self.asked.max_seq_length)

    def collator(self) -> DataCollatorWithPadding:
        return DataCollatorWithPadding(self.tokenizer)

    # ---- network and loss

    def config_options(self) -> dict:
        names = self.labels
        return {
            "num_labels": len(names),
            "id2label": dict(enumerate(names)),
            "label2id": {name: number for number, name in enumerate(names)},
        }

    def losses(self, outputs, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        return cross_entropies(outputs["logits"], labels, label_smoothing)

    # ---- predictions

    @classmethod
    def figures(cls, asked: Any) -> tuple[str, ...]:
        return ("f1", "accuracy", "matthews_correlation", "loss")

    def evaluate(self, part: str, predictions: Arrays, labels: np.ndarray | None) -> dict[str, float]:
        guesses = np.argmax(predictions, axis=-1)
        return ClassificationMetric(len(self.labels)).compute(predictions=guesses, references=labels) or {}

    def write_predictions(self, folder: Path, part: str, predictions: Arrays) -> None:
        names = [self.labels[number] for number in np.argmax(predictions, axis=-1)]
        lines = ["index\tprediction", *(f"{row}\t{name}" for row, name in enumerate(names))]
        (folder / f"{part}_predictions.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    # ---- identity, card, report

    def fingerprint(self) -> dict:
        rows = json.dumps([[rows.texts, rows.labels] for rows in self.parts.values()]).encode()
        return {"data": hashlib.sha256(rows).hexdigest()[:16], "labels": list(self.labels)}

    def usage(self, model: str) -> str:
        return f"""from transformers import pipeline

pipeline("text-classification", model="{model}")("You have won a prize.")"""

    def settings(self) -> dict:
        return {"labels": ", ".join(self.labels)}

    def baselines(self) -> dict[str, float]:
        parts = self.parts
        guesses = baseline_predictions(parts["train"], parts["validation"], parts["test"])
        figures = ClassificationMetric(len(self.labels)).compute(
            predictions=[self.labels.index(name) for name in guesses],
            references=[self.labels.index(name) for name in parts["test"].labels],
        )
        return {f"baseline_{name}": value for name, value in (figures or {}).items()}

    def report(self, figures: dict, baselines: dict, predictions: Arrays | None) -> str:
        names = {"accuracy": "accuracy", "f1": "F1", "matthews_correlation": "Matthews correlation"}
        lines = ["test".ljust(22) + "this model".rjust(12) + "TF-IDF + SVM".rjust(14)]
        for name, text in names.items():
            lines.append(text.ljust(22) + f"{figures['test_' + name]:12.4f}{baselines['baseline_' + name]:14.4f}")
        if predictions is not None:
            references = [self.labels.index(name) for name in self.parts["test"].labels]
            lines.append(confusion(references, np.argmax(predictions, axis=-1), self.labels))
        return "\n".join(lines)
