"""Measures how much of the next-sentence label the lengths of the two segments give away.

A model that sees the label in the lengths learns lengths in place of language. The measure is the accuracy of boosted
trees that are told nothing but the two lengths, on pairs that they were not trained on. [SEP] stands behind A and
behind B, so its positions are the same information.
"""

from typing import NamedTuple

import numpy as np

FEWEST_PAIRS = 400  # below it the sampling error is 2.5 points and more
ALLOWED = 0.02  # accuracy above guessing that is put up with
_FOLDS = 4


class LengthLeak(NamedTuple):
    """How well the lengths tell the label."""

    accuracy: float  # share of the labels that the trees tell right
    chance: float  # share of the more frequent label: what always guessing it gives
    error: float  # standard error of an accuracy of one half, for so many pairs

    def is_found(self) -> bool:
        """Whether the lengths tell more than is allowed, by two standard errors."""
        return self.accuracy > self.chance + ALLOWED + 2 * self.error


def length_leak(length_a: np.ndarray, length_b: np.ndarray, label: np.ndarray) -> LengthLeak:
    """Tells the label of pairs by their lengths alone: four-fold, boosted trees, always the same folds.

    The trees also get the sum and the difference of the lengths, which they would reach only by many cuts. They are
    fewer and smaller than scikit-learn's default, which overfits some thousand pairs and sees less of a faint leak.

    Args:
        length_a, length_b: (N,) tokens of A and B as the model sees them: after truncation.
        label: (N,) 0 or 1.

    Raises:
        ValueError: there are fewer than `FEWEST_PAIRS` pairs, or fewer than four of one label.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier  # takes half a second to load
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    if len(label) < FEWEST_PAIRS:
        raise ValueError(f"{len(label)} pairs are too few to measure what their lengths tell")
    columns = np.stack([length_a, length_b, length_a + length_b, length_a - length_b], axis=1)
    trees = HistGradientBoostingClassifier(
        max_iter=50, max_leaf_nodes=8, min_samples_leaf=40, early_stopping=False, random_state=0
    )
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
    accuracy = cross_val_score(trees, columns, label, cv=folds).mean()

    ones = np.mean(label)
    return LengthLeak(float(accuracy), float(max(ones, 1 - ones)), float(0.5 / np.sqrt(len(label))))
