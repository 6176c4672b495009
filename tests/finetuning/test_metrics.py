"""Metrics of classification and regression, each against a literal and against scikit-learn or scipy."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from bert_hf.finetuning.metrics.classification import (
    CORRELATION,
    RANKING,
    classification_metrics,
    label_report,
    multi_label_metrics,
    predicted_classes,
    regression_metrics,
)

# 10 rows: 3 true positives, 1 false positive, 2 false negatives, 4 true negatives
TRUE = [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
GUESS = [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
ACCURACY = 7 / 10
F1 = 2 * 3 / (2 * 3 + 1 + 2)
MATTHEWS = (3 * 4 - 1 * 2) / (4 * 5 * 5 * 6) ** 0.5

SCORES = [1.0, 2.0, 3.0, 4.5]
GOLD = [1.0, 3.0, 2.0, 5.0]
# Deviations from the means 2.625 and 2.75: sums of products 6.625, of squares 6.6875 and 8.75
PEARSON = 6.625 / (6.6875 * 8.75) ** 0.5
SPEARMAN = 1 - 6 * (0 + 1 + 1 + 0) / (4 * 15)


def close(value: float):
    return pytest.approx(value, rel=0, abs=1e-12)


def logits_of(guesses, classes: int = 2) -> np.ndarray:
    """(N, classes) logits whose largest entry is that of the predicted class."""
    return np.eye(classes)[np.array(guesses)]


def metrics_of(logits: np.ndarray, references: np.ndarray, **options) -> dict[str, float]:
    return classification_metrics(predicted_classes(logits), references, logits, **options)


def test_each_metric_equals_its_literal():
    metrics = metrics_of(logits_of(GUESS), np.array(TRUE), combined=True)
    assert metrics == {
        "accuracy": close(ACCURACY),
        "f1": close(F1),
        "matthews_correlation": close(MATTHEWS),
        "combined_score": close((ACCURACY + F1) / 2),
        RANKING: close(average_precision_score(TRUE, GUESS)),
    }
    assert regression_metrics(np.array(SCORES), np.array(GOLD)) == {
        "pearson": close(PEARSON),
        "spearmanr": close(SPEARMAN),
        "combined_score": close((PEARSON + SPEARMAN) / 2),
        "rmse": close(((0 + 1 + 1 + 0.25) / 4) ** 0.5),
    }


@pytest.mark.parametrize(("scores", "gold"), [([2.5] * 4, GOLD), (SCORES, [2.5] * 4), ([2.0], [3.0])])
def test_a_constant_has_no_correlation(scores, gold):
    """And no warning: warnings are errors in these tests."""
    metrics = regression_metrics(np.array(scores), np.array(gold))
    assert {name: metrics[name] for name in CORRELATION} == dict.fromkeys(CORRELATION, 0.0)


def test_predictions_that_differ_by_rounding_give_a_number():
    metrics = regression_metrics(2.5 + 1e-15 * np.array([0.0, 1.0, 0.0, 1.0]), np.array(GOLD))
    assert all(np.isfinite(value) for value in metrics.values())


def test_a_single_label_is_not_two_classes():
    """scikit-learn takes one column of 0 and 1 for the classes 0 and 1."""
    predicted, gold = [[1], [0], [0], [0]], [[1], [1], [0], [0]]
    metrics = multi_label_metrics(predicted, gold, ["toxic"])
    assert metrics == pytest.approx({"micro_f1": 2 / 3, "macro_f1": 2 / 3, "f1_toxic": 2 / 3, "accuracy": 0.75})
    assert "toxic 1.0000 0.5000 0.6667 2" in " ".join(label_report(gold, predicted, ["toxic"]).split())


def test_a_class_that_occurs_nowhere_does_not_count():
    """Rare classes may be in the training rows alone."""
    references = np.array([0, 1, 0])
    assert metrics_of(logits_of([0, 1, 0], 4), references)["f1"] == 1.0
    never_right = metrics_of(logits_of([0, 1, 3], 4), references)["f1"]
    assert never_right == close((2 / 3 + 1 + 0) / 3)


def test_average_precision_of_a_class_without_rows():
    logits = logits_of([0, 1, 0, 1])
    assert metrics_of(logits, np.zeros(4, int))[RANKING] == 0.0
    assert metrics_of(logits, np.ones(4, int))[RANKING] == 1.0
    assert metrics_of(logits_of([0, 0], 2), np.zeros(2, int))["matthews_correlation"] == 0.0  # and no warning
