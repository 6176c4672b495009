"""Decisions by validation rows: a temperature, which becomes part of the weights (Guo et al. 2017), and thresholds.

Stock transformers then gives calibrated probabilities. Of two classes the positive one is the second, with id 1.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax
from scipy.stats import binomtest
from sklearn.metrics import roc_curve

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.errors import InputError
from bert_hf.finetuning.metrics.classification import positive_scores, predicted_classes

_FOLDS = 10
_FEW_ROWS = 50  # below this a temperature would be decided by a handful of rows
_TEMPERATURES = 0.5, 10.0  # the limits: without errors on the validation rows, the best would be 0
OPTIONS = ("max_false_positive_rate", "best_f1_threshold")


def fit_temperature(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the temperature of the lowest log loss; 1.0 for few rows, or if rows left out of the fit do not gain."""
    if len(targets) < _FEW_ROWS:
        return 1.0

    fold_of_row = np.random.default_rng(0).permutation(len(targets)) % _FOLDS
    gain = 0.0  # by how much the summed loss of the rows that are left out of each fit decreases
    for fold in range(_FOLDS):
        fitted, left_out = fold_of_row != fold, fold_of_row == fold
        temperature = _best_temperature(logits[fitted], targets[fitted])
        losses = _log_losses(logits[left_out], targets[left_out])
        gain += (losses - _log_losses(logits[left_out] / temperature, targets[left_out])).sum()
    return _best_temperature(logits, targets) if gain > 0 else 1.0


def _best_temperature(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the temperature of the lowest log loss, searched by its logarithm."""

    def mean_loss(exponent: float) -> float:
        return _log_losses(logits / np.exp(exponent), targets).mean()

    result: Any = minimize_scalar(mean_loss, bounds=np.log(_TEMPERATURES), method="bounded")
    return float(np.exp(result.x))


def _log_losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return (N,) negative log probability of each target."""
    return -log_softmax(logits, axis=-1)[np.arange(len(targets)), targets]


def threshold_option(task_args: ClassificationArguments) -> str | None:
    """Return the name of the option that asks for a threshold (one of `OPTIONS`), or None."""
    return next((name for name in OPTIONS if getattr(task_args, name)), None)


def check_threshold(task_args: ClassificationArguments, targets: np.ndarray, labels: Sequence[str]) -> None:
    """Check that validation rows can choose a threshold, if one is asked for.

    Targets (N, C) of several labels always can: each label has a threshold of its own.
    """
    option = threshold_option(task_args)
    if option is None:
        return
    classes = len(np.unique(targets)) if len(labels) == 2 else len(labels)  # 0 for a regression, which has no labels
    if classes != 2 and targets.ndim == 1:
        what = f"a threshold separates two classes, the validation rows have {classes or 'numbers'}"
        raise InputError(what, where=f"--{option}", remedy="leave it out, or give rows of two labels")
    if task_args.validates_on_training_rows:
        remedy = "leave it out, or give another --validation_file (a study: --train_sizes all)"
        raise InputError("the validation rows are the training rows", where=f"--{option}", remedy=remedy)


def few_negatives_line(rate: float | None, targets: np.ndarray, labels: Sequence[str]) -> str:
    """Return a line if there are too few negative rows to measure a false-positive rate; else "".

    Also "" for no rate (None), and for several labels per row, which have no common negative class.
    """
    negatives = int(np.sum(targets == 0))
    if targets.ndim == 2 or not rate or negatives * rate >= 1:
        return ""
    line = f"! {negatives:,} validation rows of {labels[0]!r} cannot show a false-positive rate of {rate:g}"
    return f"{line}: {math.ceil(1 / rate):,} are needed"


def choose_head_threshold(
    logits: np.ndarray, targets: np.ndarray, task_args: ClassificationArguments
) -> float | list[float]:
    """Return the value for `Head.threshold`: a number for class 1 of two, a list for several labels per row.

    Targets are (N,) class ids, or (N, C) 0 and 1. A label that every row or no row has gets 0.5.
    """
    if targets.ndim == 1:
        return choose_threshold(positive_scores(logits), targets, task_args)
    thresholds = []
    for scores, has_label in zip(expit(logits.astype(np.float64)).T, targets.T.astype(int), strict=True):
        differs = np.ptp(has_label) > 0
        thresholds.append(choose_threshold(scores, has_label, task_args) if differs else 0.5)
    return thresholds


def choose_threshold(scores: np.ndarray, targets: np.ndarray, task_args: ClassificationArguments) -> float:
    """Return the lowest threshold with at most --max_false_positive_rate, or without it the one of the best F1.

    Scores are probabilities (N,). Each distinct score is tried; the threshold is halfway between it and the next one.

        scores       0.9  0.8  0.7  0.4  0.2
        targets        1    1    0    1    0        --max_false_positive_rate 0.5 → 0.3
    """
    false_rates, recalls, thresholds = roc_curve(targets, scores, drop_intermediate=False)
    if task_args.max_false_positive_rate:
        best = int(np.flatnonzero(false_rates <= task_args.max_false_positive_rate)[-1])
    else:
        positives = np.sum(targets == 1)
        hits, false_alarms = recalls * positives, false_rates * np.sum(targets == 0)
        best = int((2 * hits / (hits + false_alarms + positives)).argmax())

    scores_and_ends = np.concatenate([[1.0], thresholds[1:], [0.0]])  # roc_curve begins with inf, above all scores
    return float(scores_and_ends[best : best + 2].mean())


def describe_threshold(logits: np.ndarray, targets: np.ndarray, threshold: float, labels: Sequence[str]) -> str:
    """Return a sentence: the threshold of class 1, its false-positive rate and recall, with exact 95 % intervals."""
    is_positive, predicted = targets == 1, predicted_classes(logits, threshold) == 1
    false_positive_rate, recall = (_share_text(predicted[rows]) for rows in (~is_positive, is_positive))
    return (
        f"Predicts {labels[1]!r} from a probability of {threshold:.4f}: false-positive rate {false_positive_rate}, "
        f"recall {recall}, with 95 % intervals"
    )


def _share_text(hits: np.ndarray) -> str:
    """Return the share of true values with its counts and interval: `0.0125 (1 of 80; 0.0003 to 0.0677)`."""
    if not len(hits):
        return "unknown (no such rows)"
    low, high = binomtest(int(hits.sum()), len(hits)).proportion_ci(method="exact")  # Clopper & Pearson 1934
    return f"{hits.mean():.4f} ({hits.sum():,} of {len(hits):,}; {low:.4f} to {high:.4f})"
