"""Computes accuracy, F1 and Matthews correlation as `evaluate.Metric`s over scikit-learn, without a download.

`evaluate.load(name)` fetches a script from the Hub and runs it; these have the same interface and need no network.
"""

from collections.abc import Callable

import datasets
import evaluate
import numpy as np
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, matthews_corrcoef


class ClassificationMetric(evaluate.Metric):
    """Accuracy, F1 (of two classes: of the positive one, id 1; of more: macro) and Matthews correlation.

    >>> ClassificationMetric().compute(predictions=[1, 0, 1], references=[1, 0, 0])["accuracy"]
    0.6666666666666666
    """

    def __init__(self, num_labels: int = 2, **kwargs):
        self.num_labels = num_labels
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        integers = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(
            description="accuracy, F1, Matthews correlation", citation="", inputs_description="", features=integers
        )

    def _compute(self, *, predictions=None, references=None, **kwargs) -> dict[str, float]:
        return {
            "accuracy": float(accuracy_score(references, predictions)),
            "f1": f1(references, predictions, self.num_labels),
            "matthews_correlation": float(matthews_corrcoef(references, predictions)),
        }


def f1(references, predictions, classes: int) -> float:
    """F1 of class 1 (two classes), or macro F1 over all classes; 0 for a class that is never predicted."""
    options: dict = {"zero_division": 0}
    if classes > 2:
        options |= {"average": "macro", "labels": range(classes)}
    return float(f1_score(references, predictions, **options))


def confusion(references, predictions, names: tuple[str, ...]) -> str:
    """The confusion matrix as text: a row a true class, a column a predicted one."""
    matrix = confusion_matrix(references, predictions, labels=range(len(names)))
    width = max(8, *(len(name) + 2 for name in names))
    lines = ["true \\ predicted".ljust(18) + "".join(name.rjust(width) for name in names)]
    for name, row in zip(names, matrix, strict=True):
        lines.append(name.ljust(18) + "".join(str(number).rjust(width) for number in row))
    return "\n".join(lines)


def compute_from_logits(metric: ClassificationMetric) -> Callable:
    """`compute_metrics` for the Trainer: logits (N, classes) and labels (N,) → the metric's figures."""

    def compute(prediction):
        guesses = np.argmax(prediction.predictions, axis=-1)
        return metric.compute(predictions=guesses, references=prediction.label_ids)

    return compute
