"""Classification of texts and of pairs of texts, and regression: one new layer on [CLS] (Devlin et al. 2019, 4.1)."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, PreTrainedTokenizerBase

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.data.corpus.checksums import text_checksum
from bert_hf.finetuning.baselines import Baselines, cut_texts, one_class_warning
from bert_hf.finetuning.known_tasks import TASKS, write_numbered, write_submission
from bert_hf.finetuning.labelled_parts import class_names, is_regression, read_all_parts, source_of
from bert_hf.finetuning.labelled_texts import LabelledTexts
from bert_hf.finetuning.long_texts import EncodedTexts, average_windows, encode_texts
from bert_hf.finetuning.losses import cross_entropies, squared_errors
from bert_hf.finetuning.metrics import (
    RANKING_METRICS,
    ClassificationMetric,
    CorrelationMetric,
    LocalMetric,
    classification_metrics,
    confusion,
    regression_metrics,
)
from bert_hf.finetuning.task import TRAINED_ON, Arrays, DownstreamTask

_FEW_CLASSES = 10  # up to which the confusion matrix is printed


class ClassificationTask(DownstreamTask):
    """Labelled texts or pairs of texts; labels are classes or, of a regression, numbers.

    A text that is read in several windows is several features; its logits are the mean of theirs.
    """

    auto_class = AutoModelForSequenceClassification
    new_layers = ("classifier.", "bert.pooler.")  # a checkpoint with a masked-LM head alone has no pooler
    pipeline_tag = "text-classification"
    task_args: ClassificationArguments

    def __init__(self, task_args: ClassificationArguments, tokenizer: PreTrainedTokenizerBase):
        super().__init__(task_args, tokenizer)
        self.regression = is_regression(task_args)
        self._inputs: dict[str, EncodedTexts] = {}

    # ---- rows

    @classmethod
    def read(cls, task_args: Any) -> dict[str, LabelledTexts]:
        return read_all_parts(task_args)

    @classmethod
    def class_names(cls, task_args: Any, parts: dict[str, LabelledTexts]) -> tuple[str, ...]:
        return class_names(parts, task_args)

    @classmethod
    def source(cls, task_args: Any) -> str:
        return source_of(task_args)

    @classmethod
    def describe_rows(cls, rows: LabelledTexts, task_args: Any) -> str:
        return rows.line("regression" if is_regression(task_args) else None)

    def describe(self) -> str:
        given = dict.fromkeys(["train", *self.task_args.files()])
        lines = [f"{part}: {self.describe_rows(self.parts[part], self.task_args)}" for part in given]
        return "\n".join([*lines, *filter(None, [self.inputs("train").note])])

    def targets(self, part: str) -> np.ndarray | None:
        """(N,) class ids or numbers of a part's rows; None where it has no labels."""
        rows: LabelledTexts = self.parts[part]
        return None if rows.labels is None else rows.targets(self.labels)

    def inputs(self, part: str) -> EncodedTexts:
        """The encoded rows of a part."""
        if part not in self._inputs:
            targets = self.targets(part)
            labels = None if targets is None else targets.tolist()
            self._inputs[part] = encode_texts(
                self.parts[part], labels, self.tokenizer, self.task_args.max_seq_length, self.task_args.long_texts
            )
        return self._inputs[part]

    def encoded(self, part: str) -> datasets.Dataset:
        return self.inputs(part).features

    def collator(self) -> DataCollatorWithPadding:
        return DataCollatorWithPadding(self.tokenizer)

    # ---- network and loss

    def config_options(self) -> dict:
        if self.regression:
            return {"num_labels": 1, "problem_type": "regression"}
        return {**super().config_options(), "problem_type": "single_label_classification"}

    def chosen_options(self) -> dict:
        columns = self.parts["train"].columns
        names = {} if columns is None else {"text_column": columns.text, "text_pair_column": columns.pair}
        return {TRAINED_ON: {**names, "long_texts": self.task_args.long_texts}}

    def losses(self, inputs: dict[str, Tensor], outputs, label_smoothing: float = 0.0) -> Tensor:
        if self.regression:
            return squared_errors(outputs["logits"], inputs["labels"])
        return cross_entropies(outputs["logits"], inputs["labels"], label_smoothing)

    # ---- predictions

    @classmethod
    def metric_names(cls, task_args: Any) -> tuple[str, ...]:
        metric = TASKS[task_args.task].metric if task_args.task in TASKS else None
        if is_regression(task_args):
            return (*CorrelationMetric.metric_names, "loss")
        own = metric.metric_names if metric else ()
        return tuple(dict.fromkeys((*own, *ClassificationMetric.metric_names, *RANKING_METRICS, "loss")))

    def evaluate(self, part: str, predictions: Arrays, labels: np.ndarray | None) -> dict[str, float]:
        logits, targets = self.logits(part, predictions), self.targets(part)
        assert targets is not None
        loss = self._loss_of_rows(logits, targets) if len(logits) < len(predictions) else {}
        if self.regression:
            return {**regression_metrics(logits, targets), **loss}
        return {**classification_metrics(logits, targets, self._own_metric()), **loss}

    def _own_metric(self) -> LocalMetric | None:
        """The metric of the task's benchmark, where it is another than that of any classification."""
        metric = TASKS[self.task_args.task].metric if self.task_args.task else ClassificationMetric
        return None if metric is ClassificationMetric else metric()

    def _loss_of_rows(self, logits: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """The mean loss of rows that are read in windows; a mean over windows would weight long texts more."""
        rows, labels = torch.from_numpy(logits), torch.from_numpy(targets)
        losses = squared_errors(rows, labels) if self.regression else cross_entropies(rows, labels)
        return {"loss": float(losses.double().mean())}

    def logits(self, part: str, predictions: Arrays) -> np.ndarray:
        """(N, classes) of the rows."""
        assert isinstance(predictions, np.ndarray)
        return average_windows(predictions, self.inputs(part).row_of_feature)

    def write_predictions(self, folder: Path, part: str, predictions: Arrays) -> None:
        logits = self.logits(part, predictions)
        values = logits[:, 0] if self.regression else np.argmax(logits, axis=-1)
        if self.task_args.task and part in TASKS[self.task_args.task].submissions:
            write_submission(folder, self.task_args.task, part, values)
            return

        shown = [f"{value:.6g}" if self.regression else self.labels[value] for value in values]
        write_numbered(folder / f"{part}_predictions.tsv", shown, self.parts[part].places)

    # ---- identity, card, report

    def fingerprint(self) -> dict:
        rows = json.dumps([[rows.joined(), rows.labels] for rows in self.parts.values()])
        long_texts = None if self.task_args.long_texts == "head" else self.task_args.long_texts
        return {"data": text_checksum(rows)[:16], "labels": list(self.labels), "long_texts": long_texts}

    def usage(self, model: str) -> str:
        text = '"An example sentence."'
        if self.parts["train"].pairs is not None:
            text = '{"text": "An example sentence.", "text_pair": "Another one."}'
        return f"""from transformers import pipeline

classify = pipeline("text-classification", model="{model}")
classify({text}, truncation=True)  # to {self.task_args.max_seq_length} tokens, as in training"""

    def settings(self) -> dict:
        kind = {"target": "a number"} if self.regression else {"labels": ", ".join(self.labels)}
        return {**kind, "long texts": self.task_args.long_texts}

    def limits(self) -> list[str]:
        read = {
            "head_tail": "the beginning and the end of",
            "windows": "all of, in several windows whose logits are averaged,",
        }.get(self.task_args.long_texts)
        if read is None:
            return []
        longest = f"a text of more than {self.task_args.max_seq_length} tokens"
        return [f"Training and metrics read {read} {longest}. The pipeline reads its beginning alone."]

    def _judged(self) -> str:
        """The part whose metrics are reported: test, or validation where test has no labels."""
        return "test" if "test" in self.parts and self.parts["test"].labels is not None else "validation"

    def baselines(self) -> dict[str, float]:
        how = (self.tokenizer, self.task_args.max_seq_length, self.task_args.long_texts)
        train, judged = (cut_texts(self.parts[part], *how) for part in ("train", self._judged()))
        return Baselines(train, self.labels).metrics(judged, self._own_metric())

    def report(self, metrics: dict, baselines: dict, predictions: Arrays | None) -> str:
        judged = "test" if "test_loss" in metrics else "validation"  # test rows may have no labels
        prefix = judged.replace("validation", "eval")
        kinds = ("mean" if self.regression else "majority", "words", "characters")

        # One row per metric: the model's and the baselines'
        lines = [judged.ljust(24) + "this model".rjust(12) + "".join(kind.rjust(12) for kind in kinds if baselines)]
        for name in self.metric_names(self.task_args):
            if f"{prefix}_{name}" not in metrics:
                continue
            values = [metrics[f"{prefix}_{name}"], *(baselines.get(f"baseline_{kind}_{name}") for kind in kinds)]
            cells = ("" if value is None else f"{value:.4f}" for value in values)
            shown = f"F1 of {self.labels[1]!r}" if name == "f1" and len(self.labels) == 2 else name.replace("_", " ")
            lines.append(shown.ljust(24) + "".join(cell.rjust(12) for cell in cells).rstrip())

        if baselines and self.task_args.long_texts != "windows":
            longest = self.task_args.max_seq_length
            lines.append(f"The baselines read at most {longest} tokens of a text, as the model does.")
        if predictions is not None and not self.regression:
            guesses = np.argmax(self.logits(judged, predictions), axis=-1)
            lines.append(one_class_warning(guesses, self.labels))
            if len(self.labels) <= _FEW_CLASSES:
                lines.append(confusion(self.targets(judged), guesses, self.labels))
        return "\n".join(filter(None, lines))
