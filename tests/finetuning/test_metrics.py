"""Metrics of classification and regression, each against a literal and against scikit-learn or scipy."""

import evaluate
import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, matthews_corrcoef, roc_curve

from bert_hf.finetuning.metrics import (
    CLASSIFICATION,
    CORRELATION,
    LocalMetric,
    classification_metrics,
    confusion,
    ranking_metrics,
    recall_at_false_positives,
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


ACCURACY_AND_F1 = ("combined_score", "accuracy", "f1")
CASES = [
    (("accuracy",), GUESS, TRUE, {"accuracy": ACCURACY}),
    (("matthews_correlation",), GUESS, TRUE, {"matthews_correlation": MATTHEWS}),
    (ACCURACY_AND_F1, GUESS, TRUE, {"accuracy": ACCURACY, "f1": F1, "combined_score": (ACCURACY + F1) / 2}),
    (CLASSIFICATION, GUESS, TRUE, {"accuracy": ACCURACY, "f1": F1, "matthews_correlation": MATTHEWS}),
    (
        CORRELATION, SCORES, GOLD,
        {"pearson": PEARSON, "spearmanr": SPEARMAN, "combined_score": (PEARSON + SPEARMAN) / 2},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("names", "guess", "true", "expected"), CASES)
def test_each_metric_equals_its_literal(names, guess, true, expected):
    metric = LocalMetric(names)
    assert isinstance(metric, evaluate.Metric)
    assert metric.compute(predictions=guess, references=true) == {
        name: close(value) for name, value in expected.items()
    }


def test_random_rows_equal_the_libraries():
    rng = np.random.default_rng(0)
    true, guess = rng.integers(0, 3, (2, 500))
    scores, gold = rng.normal(size=(2, 500))
    gold = np.round(gold + scores, 1)  # with ties

    metrics = LocalMetric(CLASSIFICATION, 3).compute(predictions=guess, references=true)
    assert metrics == {
        "accuracy": close(accuracy_score(true, guess)),
        "f1": close(f1_score(true, guess, average="macro")),
        "matthews_correlation": close(matthews_corrcoef(true, guess)),
    }
    metrics = regression_metrics(scores[:, None], gold)
    assert metrics["pearson"] == close(pearsonr(scores, gold).statistic)
    assert metrics["spearmanr"] == close(spearmanr(scores, gold).statistic)


@pytest.mark.parametrize("classes", [2, 3])
def test_equal_predictions_are_no_error(classes):
    metrics = LocalMetric(CLASSIFICATION, classes).compute(predictions=[0] * 10, references=TRUE)
    assert metrics.get("matthews_correlation", 0.0) == 0.0
    assert metrics.get("f1", 0.0) < 0.5


@pytest.mark.parametrize(
    ("scores", "gold"),
    [
        ([2.5] * 4, GOLD),
        (SCORES, [2.5] * 4),
        ([2.0], [3.0]),
    ],
)
def test_a_constant_has_no_correlation(scores, gold):
    """And no warning: warnings are errors in these tests."""
    assert regression_metrics(np.array(scores), np.array(gold)) == dict.fromkeys(CORRELATION, 0.0)


def test_predictions_that_differ_by_rounding_give_a_number():
    metrics = regression_metrics(2.5 + 1e-15 * np.array([0.0, 1.0, 0.0, 1.0]), np.array(GOLD))
    assert all(np.isfinite(value) for value in metrics.values())


def test_a_class_that_occurs_nowhere_does_not_count():
    """Rare classes may be in the training rows alone."""
    assert LocalMetric(CLASSIFICATION, 4).compute(predictions=[0, 1, 0], references=[0, 1, 0])["f1"] == 1.0
    never_right = LocalMetric(CLASSIFICATION, 4).compute(predictions=[0, 1, 3], references=[0, 1, 0])["f1"]
    assert never_right == close((2 / 3 + 1 + 0) / 3)


# ---- ranking


@pytest.mark.parametrize(
    ("per_cent", "expected"),
    [(0, 2 / 3), (24, 2 / 3), (25, 1.0), (100, 1.0)],
)
def test_recall_at_a_rate_of_false_positives(per_cent, expected):
    scores = np.array([0.2, 0.7, 0.8, 0.1, 0.9, 0.7, 0.6])
    references = np.array([0, 1, 1, 0, 1, 0, 0])
    assert recall_at_false_positives(scores, references, per_cent) == close(expected)


def test_one_false_positive_in_a_hundred_is_one_per_cent():
    """100 rows of class 0, the best scored one above one of the two positives; with 99 it is more than 1 %."""
    references = np.array([1, 0, 1] + [0] * 99)
    scores = -np.arange(102.0)
    assert recall_at_false_positives(scores, references, 1) == 1.0
    assert recall_at_false_positives(scores[:-1], references[:-1], 1) == 0.5


@pytest.mark.parametrize("seed", range(5))
def test_ranking_figures_equal_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    references = rng.integers(0, 2, 800)
    logits = rng.normal(size=(800, 2)).round(1)  # with ties
    logits[:, 1] += references
    scores = logits[:, 1] - logits[:, 0]

    false, true, _ = roc_curve(references, scores, drop_intermediate=False)
    metrics = ranking_metrics(logits, references)
    assert metrics["average_precision"] == close(average_precision_score(references, scores))
    assert metrics["recall_at_1_fpr"] == close(true[false <= 0.01].max())


def test_a_class_without_rows():
    scores = np.arange(4.0)
    assert ranking_metrics(scores, np.zeros(4, int)) == {"average_precision": 0.0, "recall_at_1_fpr": 0.0}
    assert ranking_metrics(scores, np.ones(4, int)) == {"average_precision": 1.0, "recall_at_1_fpr": 1.0}


# ---- all metrics of a task


def test_metrics_of_two_classes():
    logits = np.array([[0.0, 1.0 if guess else -1.0] for guess in GUESS])
    metrics = classification_metrics(logits, np.array(TRUE), ACCURACY_AND_F1)
    assert metrics == {
        "accuracy": close(ACCURACY),
        "f1": close(F1),
        "matthews_correlation": close(MATTHEWS),
        "combined_score": close((ACCURACY + F1) / 2),
        "average_precision": close(average_precision_score(TRUE, GUESS)),
        "recall_at_1_fpr": 0.0,
    }


def test_confusion_matrix():
    lines = [line.split() for line in confusion(TRUE, GUESS, ("ham", "spam")).splitlines()]
    assert lines == [["true", "\\", "predicted", "ham", "spam"], ["ham", "4", "1"], ["spam", "2", "3"]]
