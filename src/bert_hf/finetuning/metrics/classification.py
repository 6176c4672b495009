"""Metrics of classes, of several labels per row and of numbers, computed by scikit-learn and scipy.

The metrics that GLUE reports for each task: Wang et al. 2019, table 1.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from scipy.stats import NearConstantInputWarning, pearsonr, spearmanr
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    classification_report,
    confusion_matrix,
    f1_score,
    matthews_corrcoef,
)

from bert_hf.console import format_table

# Names of metrics by kind of labels; the first decides which weights are kept
CLASSIFICATION = ("f1", "accuracy", "matthews_correlation")
MULTI_LABEL = ("micro_f1", "macro_f1", "accuracy")
RANKING = "average_precision"  # of two classes, from scores
THRESHOLD_METRICS = ("false_positive_rate", "recall", "precision")  # of two classes and a threshold
FEW_CLASSES = 10  # up to which the confusion matrix is printed and drawn
CORRELATION = ("combined_score", "pearson", "spearmanr")  # of numbers; the first is the mean of the others
LOWER_IS_BETTER = ("loss", "mse", "mae", "mape", "mase", "error", "error_rate")  # endings; also of rmse and smape


def positive_scores(logits: np.ndarray) -> np.ndarray:
    """Return (N,) the probability of class 1 of two, in float64."""
    logits = logits.astype(np.float64)
    return expit(logits[:, 1] - logits[:, 0])


def predicted_classes(logits: np.ndarray, threshold: float | None = None) -> np.ndarray:
    """Return (N,) class ids: of the highest logit; with a threshold, class 1 where its probability reaches that."""
    if threshold is None:
        return np.argmax(logits, axis=-1)
    return (positive_scores(logits) >= threshold).astype(np.int64)


def classification_metrics(
    predictions: ArrayLike,
    references: ArrayLike,
    logits: np.ndarray | None = None,
    combined: bool = False,
    with_rates: bool = False,
) -> dict[str, float]:
    """Return accuracy, F1 and Matthews correlation; of two classes and with logits also the average precision.

    F1 is F1 of class 1 (two classes), or macro F1 over the classes that occur in the references or the predictions.

    Args:
        predictions, references: (N,) class ids.
        logits: (N, C); without them the largest class id tells whether there are more than two classes.
        combined: add `combined_score`, the mean of accuracy and F1.
        with_rates: add the rates of class 1 of two (see `positive_rates`).
    """
    predictions, references = np.asarray(predictions), np.asarray(references)
    class_count = 1 + int(max(predictions.max(), references.max())) if logits is None else logits.shape[-1]
    averaging: Any = {"average": "macro" if class_count > 2 else "binary", "zero_division": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # where all are of one class, the correlation is 0
        metrics = {
            "accuracy": float(accuracy_score(references, predictions)),
            "f1": float(f1_score(references, predictions, **averaging)),
            "matthews_correlation": float(matthews_corrcoef(references, predictions)),
        }

    if combined:
        metrics["combined_score"] = (metrics["accuracy"] + metrics["f1"]) / 2
    if class_count == 2 and logits is not None:
        scores = logits[:, 1] - logits[:, 0]
        metrics[RANKING] = float(average_precision_score(references, scores)) if np.any(references) else 0.0
    if with_rates:
        metrics |= positive_rates(predictions == 1, references == 1)
    return metrics


def positive_rates(predicted: np.ndarray, positive: np.ndarray) -> dict[str, float]:
    """Return `THRESHOLD_METRICS` of (N,) bools: class 1 is predicted; it is the label. 0 without rows to count."""

    def share(hits: np.ndarray, rows: np.ndarray) -> float:
        return float(hits[rows].sum() / max(1, rows.sum()))

    rates = share(predicted, ~positive), share(predicted, positive), share(positive, predicted)  # in their order
    return dict(zip(THRESHOLD_METRICS, rates, strict=True))


def predicted_labels(logits: np.ndarray, thresholds: Sequence[float] | None = None) -> np.ndarray:
    """Return (N, C) 1 where the probability of a label reaches its threshold, by default 0.5, else 0."""
    needed = 0.5 if thresholds is None else np.asarray(thresholds)
    return (expit(logits.astype(np.float64)) >= needed).astype(np.int64)


def multi_label_metrics(predictions: ArrayLike, references: ArrayLike, names: Sequence[str] = ()) -> dict[str, float]:
    """Return micro F1, macro F1, the share of rows with all labels right, and F1 of each label that has a name.

    Predictions and references are (N, C) of 0 and 1; `names` are the labels', for `f1_NAME`, or none.
    """
    predictions, references = np.asarray(predictions), np.asarray(references).astype(np.int64)
    options: Any = {"average": None, "zero_division": 0, "labels": _labels_to_score(references)}
    f1_of_label = f1_score(references, predictions, **options)
    return {
        "micro_f1": float(f1_score(references, predictions, **{**options, "average": "micro"})),
        "macro_f1": float(np.mean(f1_of_label)),
        "accuracy": float((predictions == references).all(1).mean()),
        **{f"f1_{name}": float(f1) for name, f1 in zip(names, np.atleast_1d(f1_of_label), strict=False)},
    }


def regression_metrics(predictions: ArrayLike, references: ArrayLike) -> dict[str, float]:
    """Return Pearson and Spearman correlation, their mean, and the root mean squared error; of (N,) or (N, 1)."""
    predictions = np.ravel(predictions).astype(np.float64)
    references = np.asarray(references, np.float64)
    pearson = _correlation(pearsonr, references, predictions)
    spearman = _correlation(spearmanr, references, predictions)
    rmse = float(np.sqrt(np.mean((predictions - references) ** 2)))
    return {"pearson": pearson, "spearmanr": spearman, "combined_score": (pearson + spearman) / 2, "rmse": rmse}


def _correlation(coefficient: Callable, references: np.ndarray, predictions: np.ndarray) -> float:
    """Return a correlation; 0 where one side is constant or there is only one row (scipy: NaN and a warning)."""
    if len(references) < 2 or np.ptp(references) == 0 or np.ptp(predictions) == 0:
        return 0.0
    with warnings.catch_warnings():  # predictions that differ in the last bits only
        warnings.simplefilter("ignore", NearConstantInputWarning)
        return float(coefficient(predictions, references).statistic)


def label_report(references: Any, predictions: Any, names: Sequence[str] | None = None) -> str:
    """Return a table with precision, recall and F1 of each label: (N,) names, or (N, C) of 0 and 1 with `names`."""
    options: Any = {"target_names": names, "zero_division": 0, "digits": 4, "labels": _labels_to_score(references)}
    return str(classification_report(references, predictions, **options))


def _labels_to_score(references: Any) -> list[int] | None:
    """Return scikit-learn's `labels`: [1] for (N, 1), which it takes for ids of classes 0 and 1; else None: all."""
    return [1] if np.ndim(references) == 2 and np.shape(references)[1] == 1 else None


def metric_title(name: str, labels: Sequence[str]) -> str:
    """Return the title of a metric in tables: `matthews correlation`; of F1 with two classes `F1 of 'spam'`."""
    return f"F1 of {labels[1]!r}" if name == "f1" and len(labels) == 2 else name.replace("_", " ")


def confusion_table(references: ArrayLike, predictions: ArrayLike, names: Sequence[str]) -> str:
    """Return the confusion matrix of class ids as text, a row per true class; "" for more than `FEW_CLASSES`."""
    if not 0 < len(names) <= FEW_CLASSES:
        return ""
    matrix = confusion_matrix(references, predictions, labels=range(len(names)))
    rows = [[name, *map(str, row)] for name, row in zip(names, matrix, strict=True)]
    return "\n".join(format_table([["true \\ predicted", *names], *rows]))
