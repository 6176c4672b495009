"""The trigram model compared with its formula, computed number by number."""

import math
from collections import Counter

import numpy as np
import pytest

from bert_hf.training.baselines import TrigramModel, _Counts


def by_hand(text: list[int], size: int, u: int, v: int, w: int) -> float:
    """Interpolated absolute discounting with dictionaries."""
    d = 0.75

    def estimate(context: tuple, lower: float) -> float:
        length = len(context)
        sequences = Counter(tuple(text[i : i + length + 1]) for i in range(len(text) - length))
        total = sum(count for sequence, count in sequences.items() if sequence[:length] == context)
        if not total:
            return lower
        different = sum(1 for sequence in sequences if sequence[:length] == context)
        return max(sequences[(*context, w)] - d, 0) / total + d * different / total * lower

    unigram = (text.count(w) + 1) / (len(text) + size)
    return -math.log(estimate((u, v), estimate((v,), unigram)))


def test_losses_follow_the_formula():
    rng = np.random.default_rng(0)
    text = rng.integers(0, 6, 300)
    model = TrigramModel(text, 8)
    asked = rng.integers(0, 8, (200, 3))  # tokens 6 and 7 were never seen
    expected = [by_hand(text.tolist(), 8, *map(int, row)) for row in asked]
    assert model.losses(asked[:, :2], asked[:, 2]) == pytest.approx(expected, rel=1e-9)


def test_probabilities_sum_to_one():
    text = np.random.default_rng(1).integers(0, 5, 100)
    model = TrigramModel(text, 6)
    for context in ([0, 1], [4, 4], [5, 5]):
        losses = model.losses(np.tile(context, (6, 1)), np.arange(6))
        assert np.exp(-losses).sum() == pytest.approx(1.0, abs=0.03)  # the last pair of a text has no continuation


@pytest.mark.parametrize("length", [2, 3])
def test_the_shortest_texts(length):
    model = TrigramModel(np.arange(length), 4)
    assert np.isfinite(model.losses(np.array([[0, 1]]), np.array([2]))).all()


def test_example_of_an_interpolation():
    """After one token, x three times and y once: (3 − 0.75) / 4 + 0.75 · 2 / 4 · P(x)."""
    counts = _Counts(np.zeros(4, int), np.array([1, 1, 1, 2]))
    estimate = counts.interpolate(np.array([0]), np.array([1]), np.array([0.2]))
    assert estimate == pytest.approx([(3 - 0.75) / 4 + 0.375 * 0.2])
