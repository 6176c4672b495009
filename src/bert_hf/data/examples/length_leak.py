"""Measures how well the lengths of the two segments predict the next-sentence label.

A model that can infer the label from the lengths learns lengths instead of language. The measure is the accuracy of
boosted trees whose only inputs are the two lengths, on pairs that they were not trained on. [SEP] follows A and B, so
its positions are the same information.
"""

from typing import NamedTuple

import numpy as np

MIN_PAIRS = 400  # below it the sampling error is 2.5 points and more
ALLOWED = 0.02  # accuracy above chance that is tolerated
_FOLDS = 4


class LengthLeak(NamedTuple):
    """How well the lengths predict the label."""

    accuracy: float  # share of the labels that the trees predict correctly
    chance: float  # share of the more frequent label: the accuracy of always predicting it
    error: float  # standard error of an accuracy of one half, for so many pairs

    def is_found(self) -> bool:
        """Whether the accuracy is above the tolerated one by two standard errors."""
        return self.accuracy > self.chance + ALLOWED + 2 * self.error


def length_leak(length_a: np.ndarray, length_b: np.ndarray, label: np.ndarray) -> LengthLeak:
    """Predicts the label of pairs from their lengths alone: four-fold cross-validation, always with the same folds.

    The sum and the difference of the lengths are inputs, too: trees approximate them only by many cuts. The trees are
    fewer and smaller than scikit-learn's default, which overfits some thousand pairs and detects less of a small leak.

    Args:
        length_a, length_b: (N,) tokens of A and B as the model sees them: after truncation.
        label: (N,) 0 or 1.

    Raises:
        ValueError: there are fewer than `MIN_PAIRS` pairs, or fewer than four of one label.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier  # takes half a second to load
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    if len(label) < MIN_PAIRS:
        raise ValueError(f"{len(label)} pairs are too few to measure whether their lengths predict the label")

    columns = np.stack([length_a, length_b, length_a + length_b, length_a - length_b], axis=1)
    trees = HistGradientBoostingClassifier(
        max_iter=50,
        max_leaf_nodes=8,
        min_samples_leaf=40,
        early_stopping=False,  # pyright: ignore[reportArgumentType] - the stub names the type of "auto" only
        random_state=0,
    )
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
    accuracy = cross_val_score(trees, columns, label, cv=folds).mean()

    ones = np.mean(label)
    return LengthLeak(float(accuracy), float(max(ones, 1 - ones)), float(0.5 / np.sqrt(len(label))))
