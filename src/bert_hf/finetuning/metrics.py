"""Computes the metrics of classification and regression tasks as `evaluate.Metric`s, without a download.

`evaluate.load(name)` fetches a script from the Hub and runs it; these have the same interface and need no network.
The metrics that GLUE reports for each task: Wang et al. 2019, table 1.
"""

import warnings
from collections.abc import Callable
from typing import ClassVar

import datasets
import evaluate
import numpy as np
from scipy.stats import NearConstantInputWarning, pearsonr, spearmanr
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    confusion_matrix,
    f1_score,
    matthews_corrcoef,
    roc_curve,
)

from bert_hf.console import format_table

RANKING_METRICS = ("average_precision", "recall_at_1_fpr")  # of binary tasks, from scores: see `ranking_metrics`
_PER_CENT = 1  # false positives at which `recall_at_1_fpr` is taken


# ---- metrics


class LocalMetric(evaluate.Metric):
    """An `evaluate.Metric` whose code is in this module.

    Attributes:
        metric_names: of what it computes; the first is the one by which a model is selected.
        value: type of predictions and references.
        num_labels: classes, on which F1 depends.
    """

    metric_names: ClassVar[tuple[str, ...]]
    value: ClassVar[str] = "int64"

    def __init__(self, num_labels: int = 2, **kwargs):
        self.num_labels = num_labels
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        columns = {"predictions": datasets.Value(self.value), "references": datasets.Value(self.value)}
        description = ", ".join(name.replace("_", " ") for name in self.metric_names)
        return evaluate.MetricInfo(
            description=description, citation="", inputs_description="", features=datasets.Features(columns)
        )

    def _compute(self, *, predictions=None, references=None, **kwargs) -> dict[str, float]:
        named = [(name, metric) for name, metric in _METRICS.items() if name in self.metric_names]
        metrics = {name: float(metric(predictions, references, self.num_labels)) for name, metric in named}
        if "combined_score" in self.metric_names:  # the mean of the two others, which the benchmark's average takes
            metrics["combined_score"] = sum(metrics.values()) / 2
        return metrics


class ClassificationMetric(LocalMetric):
    """Accuracy, F1 (of two classes: of the positive one, id 1; of more: macro) and Matthews correlation.

    >>> ClassificationMetric().compute(predictions=[1, 0, 1], references=[1, 0, 0])["accuracy"]
    0.6666666666666666
    """

    metric_names = ("f1", "accuracy", "matthews_correlation")


class AccuracyMetric(LocalMetric):
    """Accuracy: SST-2, QNLI, RTE, WNLI, SICK, and each of the two validation sets of MNLI."""

    metric_names = ("accuracy",)


class MatthewsMetric(LocalMetric):
    """Matthews correlation: CoLA. 0 where all predictions are equal."""

    metric_names = ("matthews_correlation",)


class AccuracyAndF1Metric(LocalMetric):
    """Accuracy, F1 of class 1, and their mean: MRPC, QQP."""

    metric_names = ("combined_score", "accuracy", "f1")


class CorrelationMetric(LocalMetric):
    """Pearson and Spearman correlation, and their mean: STS-B; any regression."""

    metric_names = ("combined_score", "pearson", "spearmanr")
    value = "float64"


def _correlation(coefficient: Callable, predictions, references) -> float:
    """A correlation of scipy; 0 where one side is constant or there is one row only (scipy: NaN and a warning)."""
    predictions, references = np.asarray(predictions), np.asarray(references)
    if len(predictions) < 2 or np.ptp(predictions) == 0 or np.ptp(references) == 0:
        return 0.0

    with warnings.catch_warnings():
        # Predictions that differ in the last bits only: the metric is that of rounding, and near 0
        warnings.simplefilter("ignore", NearConstantInputWarning)
        return float(coefficient(predictions, references).statistic)


# ---- metrics as functions


def f1(references, predictions, classes: int) -> float:
    """F1 of class 1 (two classes), or macro F1 over the classes that occur in the references or the predictions.

    0 for a class that is never predicted, or never right. A class that occurs in neither has no F1: rare classes may
    have no row among the test rows.
    """
    options: dict = {"average": "macro" if classes > 2 else "binary", "zero_division": 0}
    return float(f1_score(references, predictions, **options))


# The metrics of `LocalMetric`, from predictions, references and a number of classes; in the order of its result
_METRICS: dict[str, Callable[..., float]] = {
    "accuracy": lambda predictions, references, _: accuracy_score(references, predictions),
    "f1": lambda predictions, references, classes: f1(references, predictions, classes),
    "matthews_correlation": lambda predictions, references, _: matthews_corrcoef(references, predictions),
    "pearson": lambda predictions, references, _: _correlation(pearsonr, predictions, references),
    "spearmanr": lambda predictions, references, _: _correlation(spearmanr, predictions, references),
}


def ranking_metrics(scores: np.ndarray, references: np.ndarray) -> dict[str, float]:
    """Average precision and recall at 1 % false positives: how well scores rank the rows, whatever the threshold.

    Args:
        scores: (N,) higher for class 1; or (N, 2) logits, whose difference is the score.
        references: (N,) 0 or 1. Without rows of class 1 both metrics are 0.
    """
    scores, references = np.asarray(scores), np.asarray(references)
    if scores.ndim == 2:
        scores = scores[:, 1] - scores[:, 0]
    if not references.any():
        return dict.fromkeys(RANKING_METRICS, 0.0)

    precision = float(average_precision_score(references, scores))
    return {
        "average_precision": precision,
        "recall_at_1_fpr": recall_at_false_positives(scores, references, _PER_CENT),
    }


def recall_at_false_positives(scores: np.ndarray, references: np.ndarray, per_cent: int) -> float:
    """The highest recall over thresholds at which at most `per_cent` % of the rows of class 0 are called class 1.

    A row is called class 1 where its score is at least the threshold, so equal scores are called the same. With fewer
    than 100 rows of class 0, 1 % of them is less than one row: no false positive is allowed.

    Worked example: one of the four rows of class 0 is 25 %; at 24 % none is allowed, and the threshold is 0.8.

        scores      0.9  0.8  0.7  0.7  0.6  0.2  0.1
        references    1    1    1    0    0    0    0     →  2/3 at 24 %, 3/3 at 25 %

    Args:
        scores: (N,). references: (N,) 0 or 1, with a 1 among them.
    """
    if references.all():
        return 1.0
    false_positives, recalls, _ = roc_curve(references, scores, drop_intermediate=False)
    return float(recalls[false_positives <= per_cent / 100].max())


def confusion(references, predictions, names: tuple[str, ...]) -> str:
    """The confusion matrix as text: a row a true class, a column a predicted one."""
    matrix = confusion_matrix(references, predictions, labels=range(len(names)))
    rows = [[name, *map(str, row)] for name, row in zip(names, matrix, strict=True)]
    return "\n".join(format_table([["true \\ predicted", *names], *rows]))


# ---- all metrics of a task


def classification_metrics(
    logits: np.ndarray, references: np.ndarray, metric: LocalMetric | None = None
) -> dict[str, float]:
    """Metrics of classification: accuracy, F1, Matthews correlation; the task's own; of two classes the ranking's.

    Args:
        logits: (N, classes).
        references: (N,) class ids.
        metric: of the task's benchmark, where it has one.
    """
    classes = logits.shape[-1]
    guesses = np.argmax(logits, axis=-1)
    metrics: dict[str, float] = {}
    for each in (ClassificationMetric(classes), metric):
        if each is not None:
            metrics |= each.compute(predictions=guesses, references=references) or {}

    if classes == 2:
        metrics |= ranking_metrics(logits, references)
    return metrics


def regression_metrics(scores: np.ndarray, references: np.ndarray) -> dict[str, float]:
    """Metrics of regression: Pearson and Spearman correlation and their mean.

    Args:
        scores: (N,) or (N, 1) predictions. references: (N,).
    """
    return CorrelationMetric().compute(predictions=np.ravel(scores), references=references) or {}
