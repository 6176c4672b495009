"""Metrics of classification and regression, computed by scikit-learn and scipy.

The metrics that GLUE reports for each task: Wang et al. 2019, table 1.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import NearConstantInputWarning, pearsonr, spearmanr
from sklearn.metrics import accuracy_score, average_precision_score, confusion_matrix, f1_score, matthews_corrcoef

from bert_hf.console import format_table

# The names of a task's metrics; the first selects a model, and `combined_score` is the mean of the others
CLASSIFICATION = ("f1", "accuracy", "matthews_correlation")
RANKING = "average_precision"  # of two classes, from scores
THRESHOLD_METRICS = ("false_positive_rate", "recall", "precision")  # of two classes and a threshold
_FEW_CLASSES = 10  # up to which the confusion matrix is printed
CORRELATION = ("combined_score", "pearson", "spearmanr")  # STS-B, any regression


def positive_scores(logits: np.ndarray) -> np.ndarray:
    """(N,) the probability of class 1 of two, in float64."""
    logits = logits.astype(np.float64)
    return expit(logits[:, 1] - logits[:, 0])


def predicted_classes(logits: np.ndarray, threshold: float | None = None) -> np.ndarray:
    """(N,) class ids: of the highest logit; with a threshold, class 1 where its probability reaches that."""
    if threshold is None:
        return np.argmax(logits, axis=-1)
    return (positive_scores(logits) >= threshold).astype(np.int64)


def classification_metrics(
    logits: np.ndarray, references: np.ndarray, names: Sequence[str] = (), threshold: float | None = None
) -> dict[str, float]:
    """Accuracy, F1, Matthews correlation; of two classes also the average precision.

    F1 is that of class 1 (two classes), or macro F1 over the classes that occur in the references or the predictions.
    The name `combined_score` adds the mean of accuracy and F1, a threshold of the probability of class 1 its rates.
    """
    classes = logits.shape[-1]
    predictions = predicted_classes(logits, threshold)
    averaging: Any = {"average": "macro" if classes > 2 else "binary", "zero_division": 0}
    metrics = {
        "accuracy": float(accuracy_score(references, predictions)),
        "f1": float(f1_score(references, predictions, **averaging)),
        "matthews_correlation": float(matthews_corrcoef(references, predictions)),
    }

    if "combined_score" in names:
        metrics["combined_score"] = (metrics["accuracy"] + metrics["f1"]) / 2
    if classes == 2:
        scores = logits[:, 1] - logits[:, 0]
        metrics[RANKING] = float(average_precision_score(references, scores)) if np.any(references) else 0.0
    if threshold is not None:
        metrics |= positive_rates(predictions == 1, references == 1)
    return metrics


def positive_rates(predicted: np.ndarray, positive: np.ndarray) -> dict[str, float]:
    """False-positive rate, recall and precision; 0 where there are no rows to count."""
    pairs = [(predicted, ~positive), (predicted, positive), (positive, predicted)]
    shares = [float(hits[rows].sum() / max(1, rows.sum())) for hits, rows in pairs]
    return dict(zip(THRESHOLD_METRICS, shares, strict=True))


def regression_metrics(scores: np.ndarray, references: np.ndarray) -> dict[str, float]:
    """Pearson and Spearman correlation and their mean, of (N,) or (N, 1) scores and (N,) references."""
    predictions = np.ravel(scores).astype(np.float64)
    pearson = _correlation(pearsonr, references, predictions)
    spearman = _correlation(spearmanr, references, predictions)
    return {"pearson": pearson, "spearmanr": spearman, "combined_score": (pearson + spearman) / 2}


def _correlation(coefficient: Callable, references: np.ndarray, predictions: np.ndarray) -> float:
    """A correlation of scipy; 0 where one side is constant or there is one row only (scipy: NaN and a warning)."""
    if len(references) < 2 or np.ptp(references) == 0 or np.ptp(predictions) == 0:
        return 0.0
    with warnings.catch_warnings():  # predictions that differ in the last bits only
        warnings.simplefilter("ignore", NearConstantInputWarning)
        return float(coefficient(predictions, references).statistic)


def metric_title(name: str, labels: Sequence[str]) -> str:
    """`F1 of 'spam'` of two classes, `matthews correlation`."""
    return f"F1 of {labels[1]!r}" if name == "f1" and len(labels) == 2 else name.replace("_", " ")


def confusion(references, predictions, names: Sequence[str]) -> str:
    """The confusion matrix as text: one row per true class, one column per predicted class; "" of many classes."""
    if not 0 < len(names) <= _FEW_CLASSES:
        return ""
    matrix = confusion_matrix(references, predictions, labels=range(len(names)))
    rows = [[name, *map(str, row)] for name, row in zip(names, matrix, strict=True)]
    return "\n".join(format_table([["true \\ predicted", *names], *rows]))
