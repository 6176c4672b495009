"""Calibrates a classifier with one temperature, which becomes part of its weights (Guo et al. 2017).

Stock transformers then gives the calibrated probabilities.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

_FOLDS = 10
_FEW_ROWS = 50  # below this a temperature would be decided by a handful of rows
_LIMITS = 0.5, 10.0  # without errors on the validation rows, the best temperature would be 0
_BINS = 15  # of the confidence, as in Guo et al.


def fit_temperature(logits: np.ndarray, targets: np.ndarray) -> float:
    """The temperature of the lowest log loss; 1.0 if it does not lower that of rows that it is not fitted to."""
    if len(targets) < _FEW_ROWS:
        return 1.0

    fold_of_row = np.random.default_rng(0).permutation(len(targets)) % _FOLDS
    gained = 0.0
    for fold in range(_FOLDS):
        fitted, held = fold_of_row != fold, fold_of_row == fold
        temperature = _best_temperature(logits[fitted], targets[fitted])
        gained += (_losses(logits[held], targets[held]) - _losses(logits[held] / temperature, targets[held])).sum()
    return _best_temperature(logits, targets) if gained > 0 else 1.0


def _best_temperature(logits: np.ndarray, targets: np.ndarray) -> float:
    result: Any = minimize_scalar(
        lambda exponent: _losses(logits / np.exp(exponent), targets).mean(), bounds=np.log(_LIMITS), method="bounded"
    )
    return float(np.exp(result.x))


def _losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(N,) negative log probability of each target."""
    return -log_softmax(logits, axis=-1)[np.arange(len(targets)), targets]


# ---- what the probabilities are worth


def probability_metrics(logits: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Brier score and expected calibration error.

    The Brier score is the mean squared error of the probability of class 1 or, of more classes, summed over them. The
    calibration error is the mean distance of confidence and accuracy in 15 bins of the confidence (Guo et al. 2017).
    """
    probabilities = softmax(logits.astype(np.float64), axis=-1)
    errors = (probabilities - np.eye(logits.shape[-1])[targets]) ** 2
    confidences, accuracies, shares = reliability(logits, targets)
    return {
        "brier_score": float(errors[:, 1:].sum(1).mean() if logits.shape[-1] == 2 else errors.sum(1).mean()),
        "calibration_error": float(np.sum(shares * np.abs(confidences - accuracies))),
    }


def describe_calibration(logits_by_name: Mapping[str, np.ndarray], targets: np.ndarray) -> str:
    """A sentence on the log loss, Brier score and calibration error of logits: as trained, then calibrated."""
    values = []
    for logits in logits_by_name.values():
        log_loss = {"log loss": float(_losses(logits, targets).mean())}
        values.append(log_loss | probability_metrics(logits, targets))
    shown = [f"{name.replace('_', ' ')} {' → '.join(f'{each[name]:.4f}' for each in values)}" for name in values[0]]
    return f"Probabilities ({' → '.join(logits_by_name)}): {', '.join(shown)}"


def reliability(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(3, bins) mean confidence, accuracy and share of all rows of the bins that have rows."""
    probabilities = softmax(logits.astype(np.float64), axis=-1)
    confidence, right = probabilities.max(-1), probabilities.argmax(-1) == targets
    bin_of_row = np.minimum((confidence * _BINS).astype(int), _BINS - 1)

    counts = np.bincount(bin_of_row, minlength=_BINS)
    means = [np.bincount(bin_of_row, values, _BINS) / np.maximum(counts, 1) for values in (confidence, right)]
    return np.stack([*means, counts / len(targets)])[:, counts > 0]
