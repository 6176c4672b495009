"""Metrics of classification and regression as `evaluate.Metric`s that need no download, and the ranking metrics.

`evaluate.load(name)` fetches a script from the Hub and runs it; these have the same interface and need no network.
The metrics that GLUE reports for each task: Wang et al. 2019, table 1.
"""

import warnings
from collections.abc import Callable, Sequence

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

RANKING_METRICS = ("average_precision", "recall_at_1_fpr")  # of binary tasks, from scores
_PERCENT = 1  # false positives at which `recall_at_1_fpr` is taken


# ---- metrics of predictions


def _f1(references, predictions, classes: int) -> float:
    """F1 of class 1 (two classes), or macro F1 over the classes that occur in the references or the predictions."""
    options: dict = {"average": "macro" if classes > 2 else "binary", "zero_division": 0}
    return f1_score(references, predictions, **options)


def _correlation(coefficient: Callable, references, predictions) -> float:
    """A correlation of scipy; 0 where one side is constant or there is one row only (scipy: NaN and a warning)."""
    references, predictions = np.asarray(references), np.asarray(predictions)
    if len(references) < 2 or np.ptp(references) == 0 or np.ptp(predictions) == 0:
        return 0.0
    with warnings.catch_warnings():  # predictions that differ in the last bits only
        warnings.simplefilter("ignore", NearConstantInputWarning)
        return coefficient(predictions, references).statistic


# From references, predictions and the number of classes; in the order of a metric's result
_METRICS: dict[str, Callable[..., float]] = {
    "accuracy": lambda references, predictions, _: accuracy_score(references, predictions),
    "f1": _f1,
    "matthews_correlation": lambda references, predictions, _: matthews_corrcoef(references, predictions),
    "pearson": lambda references, predictions, _: _correlation(pearsonr, references, predictions),
    "spearmanr": lambda references, predictions, _: _correlation(spearmanr, references, predictions),
}


# The names of a task's metrics; the first selects a model, and `combined_score` is the mean of the others
CLASSIFICATION = ("f1", "accuracy", "matthews_correlation")
CORRELATION = ("combined_score", "pearson", "spearmanr")  # STS-B, any regression


class LocalMetric(evaluate.Metric):
    """An `evaluate.Metric` of the functions above.

    F1 is that of the positive class, id 1, of two classes, and macro F1 of more.

    >>> LocalMetric(("accuracy",)).compute(predictions=[1, 0, 1], references=[1, 0, 0])
    {'accuracy': 0.6666666666666666}

    Args:
        metric_names: of the functions, and `combined_score`.
    """

    def __init__(self, metric_names: Sequence[str], num_labels: int = 2, **kwargs):
        self.metric_names = metric_names
        self.num_labels = num_labels
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        value = datasets.Value("float64" if "pearson" in self.metric_names else "int64")
        return evaluate.MetricInfo(
            description=", ".join(name.replace("_", " ") for name in self.metric_names),
            citation="",
            inputs_description="",
            features=datasets.Features({"predictions": value, "references": value}),
        )

    def _compute(self, *, predictions=None, references=None, **kwargs) -> dict[str, float]:
        requested = [(name, metric) for name, metric in _METRICS.items() if name in self.metric_names]
        metrics = {name: float(metric(references, predictions, self.num_labels)) for name, metric in requested}
        if "combined_score" in self.metric_names:
            metrics["combined_score"] = sum(metrics.values()) / len(metrics)
        return metrics


# ---- metrics of scores


def ranking_metrics(scores: np.ndarray, references: np.ndarray) -> dict[str, float]:
    """Average precision and recall at 1 % false positives: how well scores rank the rows, whatever the threshold.

    Args:
        scores: (N, 2) logits, whose difference is the score; or (N,), higher for class 1.
        references: (N,) 0 or 1. Without rows of class 1 both metrics are 0.
    """
    scores, references = np.asarray(scores), np.asarray(references)
    if scores.ndim == 2:
        scores = scores[:, 1] - scores[:, 0]
    if not references.any():
        return dict.fromkeys(RANKING_METRICS, 0.0)
    return {
        "average_precision": float(average_precision_score(references, scores)),
        "recall_at_1_fpr": recall_at_false_positives(scores, references, _PERCENT),
    }


def recall_at_false_positives(scores: np.ndarray, references: np.ndarray, percent: int) -> float:
    """The highest recall over thresholds at which at most `percent` % of the rows of class 0 are called class 1.

    A row is called class 1 where its score is at least the threshold. With fewer than 100 rows of class 0, 1 % of
    them is less than one row: no false positive is allowed.

    Worked example: one of the four rows of class 0 is 25 %; at 24 % none is allowed, and the threshold is 0.8.

        scores      0.9  0.8  0.7  0.7  0.6  0.2  0.1
        references    1    1    1    0    0    0    0     →  2/3 at 24 %, 3/3 at 25 %

    Args:
        scores: (N,).
        references: (N,) 0 or 1, with a 1 among them.
    """
    if references.all():
        return 1.0
    false_positives, recalls, _ = roc_curve(references, scores, drop_intermediate=False)
    return float(recalls[false_positives <= percent / 100].max())


# ---- all metrics of a task


def classification_metrics(logits: np.ndarray, references: np.ndarray, names: Sequence[str] = ()) -> dict[str, float]:
    """Accuracy, F1, Matthews correlation; the task's own metrics; of two classes those of the ranking.

    Args:
        logits: (N, classes).
        references: (N,) class ids.
        names: further metrics of the task's benchmark.
    """
    classes = logits.shape[-1]
    predictions = np.argmax(logits, axis=-1)
    metrics: dict[str, float] = {}
    for own in filter(None, (CLASSIFICATION, names)):
        metrics |= LocalMetric(own, classes).compute(predictions=predictions, references=references) or {}
    return metrics | (ranking_metrics(logits, references) if classes == 2 else {})


def regression_metrics(scores: np.ndarray, references: np.ndarray) -> dict[str, float]:
    """Pearson and Spearman correlation and their mean.

    Args:
        scores: (N,) or (N, 1) predictions.
        references: (N,).
    """
    return LocalMetric(CORRELATION).compute(predictions=np.ravel(scores), references=references) or {}


def confusion(references, predictions, names: tuple[str, ...]) -> str:
    """The confusion matrix as text: one row per true class, one column per predicted class."""
    matrix = confusion_matrix(references, predictions, labels=range(len(names)))
    rows = [[name, *map(str, row)] for name, row in zip(names, matrix, strict=True)]
    return "\n".join(format_table([["true \\ predicted", *names], *rows]))
