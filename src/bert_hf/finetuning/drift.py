"""Compares rows with those that a model was made with: metrics say nothing about rows of another kind."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import softmax
from transformers import PreTrainedTokenizerBase

_SHARES = np.linspace(0, 1, 11)
_LEAST = 0.2  # distance of two distributions, of which a user hears
_CRITICAL = 1.95  # divided by √N, the distance by chance in one of a thousand samples (Kolmogorov & Smirnov)


def measures(inputs: Any, logits: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> dict[str, np.ndarray]:
    """Tokens of each input, share of them that are no whole word of the vocabulary, and the score of each row.

    The score is the highest probability, or the number of a regression.
    """
    vocabulary = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    parts = np.array([token.startswith("##") or token == tokenizer.unk_token for token in vocabulary])
    unknown = [parts[ids].mean() for ids in inputs["input_ids"]]
    score = softmax(logits, axis=-1).max(-1) if logits.shape[-1] > 1 else logits[:, 0]
    return {"tokens": np.array(inputs["length"]), "unknown words": np.round(unknown, 4), "score": np.round(score, 4)}


def deciles(values: np.ndarray) -> list[float]:
    """The minimum, the nine deciles and the maximum, each of them one of the values."""
    return np.quantile(values, _SHARES, method="inverted_cdf").tolist()


def drift_line(measured: Mapping[str, np.ndarray], recorded: Mapping[str, list[float]]) -> str:
    """A line on the measures whose distribution function differs from the recorded one at some decile; else ""."""
    unlike = []
    for name, reference in recorded.items():
        values = measured[name]
        below = np.mean(values[:, None] < np.array(reference), axis=0)
        up_to = np.mean(values[:, None] <= np.array(reference), axis=0)
        distance = max(np.max(below - _SHARES), np.max(_SHARES - up_to))
        if distance > max(_LEAST, _CRITICAL / len(values) ** 0.5):
            unlike.append(f"{name} about {np.mean(deciles(values)):.3g}, there {np.mean(reference):.3g}")
    return f"! the rows are unlike those of the training: {'; '.join(unlike)}" if unlike else ""
