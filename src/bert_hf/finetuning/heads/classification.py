"""Classes of texts or of pairs of texts, several labels of each, or a number: one layer on [CLS].

Devlin et al. 2019, section 4.1. A text that is read in several windows gives several features; their logits are
averaged.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit, softmax
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from bert_hf.console import logger
from bert_hf.data.text.input_files import kind_of
from bert_hf.data.text.tables import Row
from bert_hf.errors import InputError
from bert_hf.finetuning.decisions.drift import drift_line
from bert_hf.finetuning.features.long_texts import EncodedTexts, average_windows, encode_texts
from bert_hf.finetuning.heads.head import (
    TRAINED_ON,
    Head,
    Kept,
    Labels,
    label_options,
    losses_and_counts,
    unnamed_labels,
)
from bert_hf.finetuning.heads.pictures import bars
from bert_hf.finetuning.losses import binary_cross_entropies, cross_entropies, squared_errors
from bert_hf.finetuning.metrics.classification import (
    CLASSIFICATION,
    CORRELATION,
    MULTI_LABEL,
    RANKING,
    confusion_table,
    label_report,
    predicted_classes,
    predicted_labels,
)
from bert_hf.finetuning.rows.labelled_texts import (
    CLASSES,
    MULTIPLE,
    REGRESSION,
    Columns,
    LabelledTexts,
    file_texts,
    find_columns,
    labelled_rows,
    leave_out_empty,
    names_of,
)


class ClassificationHead(Head):
    """One layer on the output of the pooler: scores of classes or of several labels, or a number (a regression).

    `threshold` is of the probability of class 1 of two classes; where a row may have several labels, a list of one for
    each.
    """

    name = "classification"
    auto_class = AutoModelForSequenceClassification
    text_columns = ("text",)
    architectures = ("ForSequenceClassification",)
    new_layers = ("classifier.", "bert.pooler.")  # a checkpoint with a masked-LM head alone has no pooler
    pipeline_tag = "text-classification"
    option_names = ("long_texts",)

    def __init__(self, tokenizer: Any, given: Mapping[str, Any] | None = None, config: Any = None):
        # `super().__init__` calls `restore`, which changes some of these
        self.problem_type: str | None = None  # as in transformers; None until the training rows decide
        self.columns_read: Columns | None = None  # of text and label; the first rows that are read decide
        self.class_weights: Tensor | None = None  # (C,) in the training loss; None: all are equal
        self.benchmark_metrics: tuple[str, ...] = ()  # reported by the task's benchmark; the first chooses weights
        self.typical: dict[str, tuple[float, float]] = {}  # measures of the training rows (`decisions/drift.py`)
        self.label_scale: tuple[float, float] | None = None  # mean and deviation, while labels are standardized
        self.whole_files = False  # a text file is one row, as in the folders of the training, not each of its lines
        self.columns_without_header: tuple[str, ...] = ()  # of the training file, if it has no header; for later ones
        self._first_columns: tuple[str, ...] = ()  # of the first training file; a later file may lack its header
        super().__init__(tokenizer, given, config)
        if self.is_new:
            several_labels = self.given.get("label_separator") or self.given.get("label_columns")
            self.problem_type = MULTIPLE if several_labels else self.given.get("problem_type")
        if names := tuple(self.given.get("class_names") or ()):
            if not self.is_new and len(names) != len(self.labels):
                what = f"{len(names)} names, the model has {len(self.labels)} classes"
                remedy = f"name them in the order {', '.join(self.labels)}"
                raise InputError(what, where="--class_names", remedy=remedy)
            self.labels = names

    @property
    def regression(self) -> bool:
        """Return whether labels are numbers."""
        return self.problem_type == REGRESSION

    @property
    def several_labels(self) -> bool:
        """Return whether a row may have several labels, or none."""
        return self.problem_type == MULTIPLE

    @property
    def predicts(self) -> str:
        if self.regression:
            return "numbers"
        return "several labels per row" if self.several_labels else "one class per row"

    def read_file(self, path: str, encoding: str | None = None) -> Iterator[Row]:
        """Yield the rows of a table, or the texts of a folder or of plain text files.

        If `path` (or an earlier one) is a folder, or the model was trained on one, each text file is a row; otherwise
        each line is. The columns of the first file of a training are noted: a later file may lack the header.
        """
        self.whole_files = self.whole_files or Path(path).is_dir()
        columns = self.columns_without_header
        if not columns and len(self._first_columns) == 2:  # a file may lack further columns
            columns = self._first_columns
        for row in file_texts(path, encoding, self.whole_files, self.given.get("separator"), columns):
            if self.is_new and not self._first_columns:
                self._first_columns = tuple(row.values)
                if row.line == 1 and kind_of(path) in (".csv", ".tsv", ".txt", ""):  # a header would be line 1
                    self.columns_without_header = self._first_columns
            yield row

    def read(self, rows: Sequence[Row], labels: Labels = "needed") -> LabelledTexts:
        """Return texts and labels; the first call decides the columns, and whether a row may have several labels.

        Rows without text are left out, but kept of rows to predict (labels "ignored"): `empty_rows` counts them.
        """
        columns = self.columns_read or self._named_columns(rows[0], labels)
        separator = self.option("label_separator")
        texts = labelled_rows(list(rows), columns, labels, separator, self.problem_type)
        self.columns_read = self.columns_read or texts.columns
        self.text_columns = tuple(filter(None, (self.columns_read.text, self.columns_read.pair)))
        if self.problem_type is None and texts.labels is not None:
            several = any(isinstance(label, tuple) for label in texts.labels)
            self.problem_type = MULTIPLE if several else CLASSES
        if self.labels:
            texts = texts.with_names(self.labels)  # labels such as 0 and 1 get the names of their classes

        if labels != "ignored":
            return leave_out_empty(texts)
        self.empty_rows += sum(not text for text in texts.texts)
        return texts

    def _named_columns(self, row: Row, labels: Labels) -> Columns:
        """Return the columns that options name, else the training's if the row has them; None: to be found by name."""
        text, pair, label = map(self.given.get, ("text_column", "text_pair_column", "label_column"))
        if text is None and self.trained.get("text_column") in row.values:
            text, pair = self.trained["text_column"], pair or self.trained.get("text_pair_column")
        if label is None and self.trained.get("label_column") in row.values:
            label = self.trained["label_column"]
        columns = Columns(text, pair, label, labels=tuple(self.option("label_columns", ())))

        if pair is None and "text_pair_column" in self.trained:
            columns = find_columns(row, columns, labels)  # now, to know whether there is a pair
            self._check_pairs(row, columns)
        return columns

    def _check_pairs(self, row: Row, columns: Columns) -> None:
        """Refuse pairs for a model that was trained on single texts, and single texts for one trained on pairs."""
        trained_on_pairs = self.trained["text_pair_column"] is not None
        if columns.pair is not None and not trained_on_pairs:
            problem = f"the model was trained on single texts, not on pairs ({columns.text} and {columns.pair})"
            raise row.header_error(problem, "pass --text_column")
        if columns.pair is None and trained_on_pairs:
            raise row.header_error("the model was trained on pairs of texts", "pass --text_pair_column")

    def check(self, parts: Mapping[str, LabelledTexts]) -> None:
        """Check the labels of all parts; a new head without class names takes them from the training rows."""
        if self.regression:
            for rows in parts.values():
                if rows.labels is not None:
                    rows.numbers()  # an error where a label is not a number
            return
        if not self.labels:
            training_labels = parts["train"].required_labels()
            self.labels = tuple(sorted({name for label in training_labels for name in names_of(label)}))

        # LABEL_0, … or 0, … of a checkpoint are no names: rows with other labels do not tell which class is which
        count = len(self.labels)
        unnamed = self.labels in (unnamed_labels(count), tuple(map(str, range(count))))
        for rows in parts.values():
            names = {name for label in rows.labels or () for name in names_of(label)}
            if unnamed and names and names.isdisjoint(self.labels):
                what = f"the model's classes have no names: {', '.join(self.labels)}"
                raise InputError(what, where=rows.file(), remedy="name them in this order: --class_names")
            rows.check_labels(self.labels)

    def describe_rows(self, rows: LabelledTexts) -> str:
        return rows.describe(self.problem_type)

    def targets(self, rows: LabelledTexts) -> np.ndarray:
        """Return (N,) class ids or numbers, or (N, C) 0 and 1 where a row may have several labels."""
        return rows.targets(self.labels)

    def encode(self, rows: LabelledTexts) -> EncodedTexts:
        labels = None if rows.labels is None else self.targets(rows).tolist()
        return encode_texts(rows, labels, self.tokenizer, self.length, self.option("long_texts", "head"))

    def config_options(self) -> dict:
        if self.regression:
            return {**label_options(unnamed_labels(1)), "problem_type": REGRESSION}  # one output
        return {**super().config_options(), "problem_type": self.problem_type}

    def attach(self, network: Any) -> None:
        """Take the scale of the labels from the configuration: an unfinished network predicts standardized numbers."""
        self.resume(getattr(getattr(network, "config", None), TRAINED_ON, None) or {})

    def resume(self, trained_on: Mapping[str, Any]) -> None:
        scale = trained_on.get("label_scale")
        self.label_scale = scale and tuple(scale)  # a list in JSON

    def begin_training(self, network: Any, features: Any, new_head: bool) -> None:
        """Standardize the labels of a regression, as large ones are far from a new layer's outputs; log the scale."""
        if self.regression and network is None:
            logger.info("! labels are not standardized under DeepSpeed and FSDP: large numbers are learned slowly")
        elif self.regression:
            numbers = np.array(features["labels"], np.float64)
            mean, deviation = float(numbers.mean()), float(numbers.std()) or 1.0
            self._set_label_scale(network, (mean, deviation), keeps_weights=new_head)
            if self.label_scale is not None:  # not with a last layer of another kind
                logger.info(f"training on standardized labels: mean {mean:.4g}, deviation {deviation:.4g}")

    def end_training(self, network: Any) -> None:
        if self.regression:
            self._set_label_scale(network, None)

    def _set_label_scale(self, network: Any, scale: tuple[float, float] | None, keeps_weights: bool = False) -> None:
        """Set `label_scale`, and rescale the last layer so that the numbers that it predicts stay the same.

        A last layer with random weights predicts nothing yet, and keeps them (`keeps_weights`). A network that ends
        otherwise, as a user's own may, is not changed, nor is `label_scale`.
        """
        last_layer = getattr(network, "classifier", None)
        if not isinstance(last_layer, nn.Linear):
            return
        old_mean, old_deviation = self.label_scale or (0.0, 1.0)
        self.label_scale = scale
        if keeps_weights:
            return
        mean, deviation = scale or (0.0, 1.0)
        weight, bias = last_layer.weight.detach().double(), last_layer.bias.detach().double()
        last_layer.weight.data.copy_(weight * old_deviation / deviation)
        last_layer.bias.data.copy_((bias * old_deviation + old_mean - mean) / deviation)

    def losses(self, inputs: dict[str, Tensor], outputs: Any, label_smoothing: float = 0.0) -> Tensor:
        logits, labels = outputs["logits"], inputs["labels"]
        if self.regression:
            mean, deviation = self.label_scale or (0.0, 1.0)
            return squared_errors(logits, (labels - mean) / deviation)
        if self.several_labels:
            return binary_cross_entropies(logits, labels)
        return cross_entropies(logits, labels, label_smoothing)

    def label_weights(self, labels: Tensor) -> Tensor:
        if self.class_weights is None:
            return super().label_weights(labels)
        return self.class_weights.to(labels.device)[labels.clamp(min=0)]  # any for IGNORE_INDEX, which adds no loss

    def keep(self, inputs: dict[str, Tensor], outputs: Any) -> Tensor:
        return outputs["logits"].float()

    def decode(self, rows: LabelledTexts, encoded: EncodedTexts, kept: Kept) -> np.ndarray:
        """Return (N, C) logits in float64, or (N, 1) numbers in the units of the labels.

        Log, once for a finished model, where the rows differ from its training rows.
        """
        assert isinstance(kept, np.ndarray)
        if self.typical and not self.is_new and (line := drift_line(encoded.features, self.tokenizer, self.typical)):
            logger.info(line)
            self.typical = {}  # no second line
        outputs = average_windows(kept, encoded.row_of_feature)  # a long text may have several features
        if self.label_scale is None:
            return outputs
        mean, deviation = self.label_scale
        return outputs * deviation + mean

    def added_columns(self, rows: LabelledTexts, predictions: np.ndarray) -> list[dict[str, Any]]:
        """Return `score` of a regression, `labels` and `scores` of several labels, else `label` and `score`."""
        if self.regression:
            return [{"score": float(number)} for number in predictions[:, 0]]
        added = []
        if self.several_labels:
            probabilities = expit(predictions.astype(np.float32))
            for has_label, scores in zip(self.predicted_targets(predictions), probabilities, strict=True):
                labels = [self.labels[class_id] for class_id in np.flatnonzero(has_label)]
                added.append({"labels": labels, "scores": dict(zip(self.labels, map(float, scores), strict=True))})
            return added
        for class_id, scores in zip(self.predicted_targets(predictions), softmax(predictions, axis=-1), strict=True):
            added.append({"label": self.labels[class_id], "score": float(scores[class_id])})
        return added

    def metric_names(self) -> tuple[str, ...]:
        if self.regression:
            return (*CORRELATION, "rmse", "loss")
        names = () if self.several_labels else (*self.benchmark_metrics, *CLASSIFICATION, RANKING)
        if self.several_labels or self.problem_type is None:  # None: the rows, not yet read, may have several
            names += MULTI_LABEL
        return tuple(dict.fromkeys((*names, "loss")))

    @property
    def own_metric(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - the rows decide
        if self.regression:
            return "Regression"
        return "MultiLabel" if self.several_labels else "Classification"

    def predicted_targets(self, predictions: np.ndarray) -> np.ndarray:
        """Return predictions in the form of `targets`: by `threshold`, else the highest logit (labels: 0.5)."""
        if self.regression:
            return predictions[:, 0]
        if self.several_labels:
            return predicted_labels(predictions, self.threshold)
        return predicted_classes(predictions, self.threshold)

    def metric_inputs(self, rows: LabelledTexts, predictions: np.ndarray) -> dict[str, Any]:
        return {"predictions": self.predicted_targets(predictions), "references": self.targets(rows)}

    def metric_options(self, rows: LabelledTexts, predictions: np.ndarray) -> dict[str, Any]:
        if self.regression:
            return {}
        if self.several_labels:
            return {"names": self.labels}
        combined = "combined_score" in self.benchmark_metrics
        return {"logits": predictions, "combined": combined, "with_rates": self.threshold is not None}

    def metric_config(self) -> str | None:
        return "multilabel" if self.several_labels else None

    def mean_loss(self, rows: LabelledTexts, predictions: np.ndarray, losses: np.ndarray) -> float:
        """Return the mean loss over rows: a mean over their windows would weight long texts more."""
        if self.regression:  # in the units of the labels
            return float(np.mean((predictions[:, 0] - self.targets(rows)) ** 2))
        if len(predictions) == len(losses):  # each row is one feature
            return super().mean_loss(rows, predictions, losses)
        labels, logits = torch.from_numpy(self.targets(rows)), torch.from_numpy(predictions)
        losses = losses_and_counts(self, {"labels": labels}, {"logits": logits}).double().numpy()
        return super().mean_loss(rows, predictions, losses)

    def table(self, rows: LabelledTexts, predictions: np.ndarray) -> str:
        if self.regression:
            return ""
        report = label_report if self.several_labels else confusion_table
        return report(self.targets(rows), self.predicted_targets(predictions), self.labels)

    def texts_of_row(self, rows: LabelledTexts, number: int) -> list[str]:
        return [texts[number] for texts in (rows.texts, rows.pairs) if texts is not None]

    def picture(self, texts: Mapping[str, str], rows: LabelledTexts, predictions: np.ndarray) -> str:
        """Return a bar for each label, and the thresholds; of a regression the number."""
        [added] = self.added_columns(rows, predictions)
        if self.regression:
            return super().picture(texts, rows, predictions)
        if self.several_labels:
            thresholds = dict(zip(self.labels, self.threshold or [0.5] * len(self.labels), strict=True))
            return bars(added["scores"], added["labels"], thresholds)
        scores = dict(zip(self.labels, softmax(predictions[0]).tolist(), strict=True))
        return bars(scores, [added["label"]], {self.labels[1]: self.threshold} if self.threshold else None)

    def record(self) -> dict[str, Any]:
        """Return for config.json the threshold, how to read later rows, and measures of the training rows."""
        columns = self.columns_read or Columns()
        options = super().record()[TRAINED_ON]
        options |= {"text_column": columns.text, "text_pair_column": columns.pair, "label_column": columns.label}
        if self.several_labels:
            options |= {"label_separator": self.option("label_separator"), "label_columns": list(columns.labels)}
        attributes = ("whole_files", "columns_without_header", "typical", "label_scale")
        options |= {name: value for name in attributes if (value := getattr(self, name))}
        return {TRAINED_ON: options, "decision_threshold": self.threshold}

    def restore(self, config: Any) -> None:
        """Set what `record` and the stock class wrote into the configuration of a finished model."""
        self.problem_type = config.problem_type or (REGRESSION if config.num_labels == 1 else CLASSES)
        if self.regression:
            self.labels = ()
        self.threshold = getattr(config, "decision_threshold", None)
        trained = getattr(config, TRAINED_ON, None) or {}  # `self.trained` is empty in the evaluation of a task
        if self.columns_read is None:  # rows that were read have columns of their own
            columns = (trained.get("text_column") or "text", trained.get("text_pair_column"))
            self.text_columns = tuple(filter(None, columns))
        self.whole_files = bool(trained.get("whole_files"))
        self.columns_without_header = tuple(trained.get("columns_without_header") or ())
        self.typical = {name: tuple(pair) for name, pair in (trained.get("typical") or {}).items()}
